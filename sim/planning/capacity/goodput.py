"""From a step time to a training run: failures, checkpoints, goodput, money.

Checkpoint interval: Young (1974), sqrt(2 C M) with C seconds per checkpoint and M the mean time between failures of
the whole job; Daly (2006) adds higher-order terms. Goodput is found by simulating failures with a seed, not by the
formula, and the two are compared in the tests.
"""

from __future__ import annotations

import heapq
import math
import random

import msgspec

from topologies.errors import BadInput, Refused
from topologies.units import show_duration


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """How often things fail, and how long it takes to go on. Seconds. Raises `BadInput` for times and counts that cannot be."""

    mtbf_gpu: float = 50_000 * 3600.0
    """Mean time between failures of one GPU: Llama 3 405B saw 419 unexpected interruptions in 54 days on 16,384 H100,
    i.e. about 50,700 GPU-hours each (Llama 3 paper, section 3.3.4)."""
    mtbf_node: float = math.inf
    restart: float = 600.0
    """From failure to the first new step: detection, rescheduling, loading (assumed). A failure meanwhile begins it anew, as in Daly's model."""
    spares: int | None = None
    """Spare nodes. A failed node becomes a spare when it is repaired; the job waits while there is no spare. None: there is always one."""
    repair: float = 4 * 3600.0
    """How long the repair of a failed node takes (assumed)."""

    def __post_init__(self) -> None:
        for name in ("mtbf_gpu", "mtbf_node", "restart", "repair"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, (int, float)):
                raise BadInput(f"{name} = {value!r:.40}: must be a number of seconds, such as {name} = 600")
        for name in ("mtbf_gpu", "mtbf_node"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} = {getattr(self, name)} s must be above zero (infinite: never fails)")
        for name in ("restart", "repair"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} = {getattr(self, name)} s must be finite and not negative")
        if self.spares is not None and not (isinstance(self.spares, int) and self.spares >= 0):
            raise BadInput(
                f"spares = {self.spares!r} must be a whole number and must not be negative; leave it out for an unlimited number of spare nodes"
            )

    def mtbf(self, gpus: int, per_node: int) -> float:
        """Mean time between failures, in seconds, of a job on `gpus` GPUs with `per_node` on each node; infinite if nothing fails."""
        rate = gpus / self.mtbf_gpu + math.ceil(gpus / per_node) / self.mtbf_node
        return 1.0 / rate if rate > 0 else math.inf


def daly(checkpoint: float, mtbf: float) -> float:
    """Daly's higher-order optimum (FGCS 22, 2006, eq. 37); M when checkpoints are longer than 2 M."""
    if not math.isfinite(mtbf):
        return math.inf
    if checkpoint >= 2.0 * mtbf:
        return mtbf
    x = checkpoint / (2.0 * mtbf)
    return math.sqrt(2.0 * checkpoint * mtbf) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - checkpoint


class Outcome(msgspec.Struct, frozen=True):
    """One simulated run; times are in seconds."""

    elapsed: float
    work: float
    lost: float
    checkpoints: float
    down: float
    failures: int

    @property
    def goodput(self) -> float:
        """Share of the elapsed time that became progress."""
        return self.work / self.elapsed if self.elapsed else 1.0


def simulate_run(
    work: float, checkpoint: float, interval: float, mtbf: float, how: Reliability, seed: int | str, writing: float = 0.0
) -> Outcome:
    """Plays one run with exponential failures: work since the last checkpoint is lost, then the job waits for a node and restarts.

    All times are in seconds. If checkpoints are written asynchronously, each takes `writing` seconds (at most the time between two), and a job
    that fails during a write goes back to the checkpoint before. Raises `BadInput` for negative `work` or `checkpoint` or an `interval` that is
    not positive, and `Refused` for a job that fails faster than it makes progress.
    """
    if work < 0 or checkpoint < 0 or interval <= 0:
        raise BadInput(f"work and checkpoint must not be negative, the interval must be positive: got {work}, {checkpoint}, {interval}")
    fate = _Fate(mtbf, how, seed)
    done = elapsed = lost = saving = down = 0.0
    written = unwritten = 0.0  # when the newest checkpoint is complete; the work that it adds to the one before
    while done < work:
        quiet = min((fate.fail_at - elapsed) / (interval + checkpoint), (work - done) / interval) // 1 - 1  # `//` of "never" is no number
        if quiet > 0:  # skips this many whole intervals without a failure at once
            elapsed += quiet * (interval + checkpoint)
            done += quiet * interval
            saving += quiet * checkpoint
            written, unwritten = elapsed + writing, interval
        chunk = min(interval, work - done)
        save = checkpoint if done + chunk < work else 0.0
        if elapsed + chunk + save <= fate.fail_at:
            elapsed += chunk + save
            done += chunk
            saving += save
            written, unwritten = elapsed + writing, chunk
            continue
        failed = fate.fail_at
        again = unwritten if failed < written else 0.0
        done -= again
        lost += failed - elapsed + again
        elapsed = fate.restarted()
        down += elapsed - failed
        written = 0.0
    return Outcome(elapsed, work, lost, saving, down, fate.failures)


class _Fate:
    """Draws when a job fails and when it continues. While the job waits for a node, nothing runs and nothing fails."""

    def __init__(self, mtbf: float, how: Reliability, seed: int | str) -> None:
        self._random, self._rate, self._how = random.Random(seed), 1.0 / mtbf, how
        self._nodes = [0.0] * (how.spares or 0)
        """A heap with one time per spare node: when it is ready to join the job."""
        self.failures = 0
        self.fail_at = self._next(0.0)

    def _next(self, since: float) -> float:
        return since + self._random.expovariate(self._rate) if self._rate else math.inf

    def restarted(self) -> float:
        """Fails at `fail_at`; returns when the first new step begins."""
        while True:
            self.failures += 1
            if self.failures > 1_000_000:
                raise Refused(
                    f"the job fails faster than it makes progress, every {show_duration(1.0 / self._rate)} in the mean, and takes "
                    f"{show_duration(self._how.restart)} to restart: shorten the checkpoint or the restart, or raise the MTBF"
                )
            began = self.fail_at
            if self._how.spares is not None:
                began = max(began, heapq.heappushpop(self._nodes, began + self._how.repair))
            self.fail_at = self._next(began)
            if began + self._how.restart <= self.fail_at:
                return began + self._how.restart


def expected(
    work: float,
    checkpoint: float,
    mtbf: float,
    how: Reliability,
    seed: int = 0,
    runs: int = 32,
    step: float = 1.0,
    writing: float = 0.0,
    said: float | None = None,
) -> tuple[Outcome, float]:
    """The median of `runs` simulated runs by elapsed time, and the checkpoint interval that they use, in seconds.

    The interval is `said`, or Daly's if that is None, but at least one `step` and at least `writing`, and at most `work`. Another `seed`
    changes all runs.
    """
    interval = min(work, max(daly(checkpoint, mtbf) if said is None else said, step, writing))
    played = [simulate_run(work, checkpoint, interval, mtbf, how, f"{seed}/{at}", writing) for at in range(runs)]
    played.sort(key=lambda outcome: outcome.elapsed)
    return played[len(played) // 2], interval
