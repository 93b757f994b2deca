"""Step time as a distribution: ranks, links and samples that are not all alike, drawn from stated distributions with a seed.

Nothing is simulated for each draw. A synchronous step is as slow as its slowest rank and its slowest link (a law of data parallelism,
tested), so the step is simulated on a small grid of (compute factor, link factor), from one lowered program, and looked up
between its points. Ranks that the plan or the machine makes slow keep that beside what they draw: the slowest of the products counts, over the
slowest of the plan's. With pipelines the slowest rank bounds every stage: an upper bound. Local updates meet after `every` steps, over which
what is drawn anew in each is averaged. Asynchronous ranks do not wait: their throughputs add up, and the figure is the time per rank-step at
that rate. What logging and checkpoints add, each draw adds alike.

`predict` prices the board that so many are expected to wait for (`sim.setting.pace`). Where boards are drawn, the grid starts from the mean one: the
slowest is then in the draws, with the same sigma and on the same part of a kernel (its clock), and is not counted twice.
"""

from __future__ import annotations

import bisect
import math
import operator
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sim.arguments import check_whole
from sim.cost.price import Cost, Derived, Pricer
from sim.cost.sustained import board_spread
from sim.files.machinefile import machine_words
from sim.lower.noise import Batch, batches_of, loads, slowness
from sim.memory.report import UNFIT
from sim.plan import Plan
from sim.predict import clock_under_load, played, steps_of
from sim.program import Op, Program
from sim.quantile import quantile
from sim.result.figures import fits
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.setting.uneven import Uneven
from sim.steady.detail import STEPS
from sim.steady.periods import mean_step, varies
from sim.steady.rounds import confirmed, shortens
from sim.steady.settled import host_seconds, loader_seconds, settled, until_settled
from sim.steady.stalls import output_seconds
from sim.tables import Tabular, aligned
from sim.timeline import metrics
from topologies.errors import BadInput
from topologies.load import Topology

RANK_SIGMA = board_spread()
"""Equal boards differ so much in their rate under load: the figure, and its source, by which `predict` finds the slowest of them."""
STEP_SIGMA = 0.01
"""From step to step on one rank: clocks and the host (assumed)."""
POINTS = 9
"""Grid points over the factor that varies; 5 over each where both do."""
_LARGEST = 10_000_000


class Jitter(msgspec.Struct, frozen=True, kw_only=True):
    """Sigmas of log-normal factors with median 1; 0: none."""

    rank: float = RANK_SIGMA
    """Of each rank's clock under load (on CPUs: of its compute), for a draw as a whole. 0: no board is drawn, and all wait for the one that
    `predict` expects to be the slowest."""
    step: float = STEP_SIGMA
    """Of each rank's compute, anew in each step."""
    link: float = 0.0
    """Of each node's link time; the slowest alone counts (`SlowLink`), and a ring is as slow as that."""
    length: float = 0.0
    """Of each sample's length: what a rank does for each sample takes the mean over its samples (linear in tokens; attention's square is left
    out), the update and its messages do not (`sim.setting.uneven`). Ranks that split a model or a sequence have the same samples."""
    slow_link: float = 1.0
    """One link that is always so many times slower: a node's to the network; of a plan on one node, a rank's to the others."""


class Spread(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Step time over all draws, in seconds. Prints as a table; `to_frame()` has a row for each draw."""

    p50: float = msgspec.field(name="p50_s")
    p95: float = msgspec.field(name="p95_s")
    p99: float = msgspec.field(name="p99_s")
    mean: float = msgspec.field(name="mean_s")
    without: float = msgspec.field(name="without_s")
    """The step without any noise, as `predict` says it."""
    jitter: Jitter
    seed: int
    samples: tuple[float, ...] = msgspec.field(name="samples_s")
    plan: str = ""
    topology: str = ""
    """With what was changed about it."""
    fits: bool = True
    """Does the plan fit into memory? If not, the figures are what it would take if it did."""

    def __str__(self) -> str:
        named = (("P50", self.p50), ("P95", self.p95), ("P99", self.p99), ("mean", self.mean), ("without", self.without))
        rows = [(name, f"{value * 1e3:,.3f}", f"{value / self.without:.3f} x") for name, value in named]
        head = f"{self.plan} on {self.topology}\n" if self.plan else ""
        head += "" if self.fits else f"{UNFIT}\n"
        return f"{head}{len(self.samples):,} draws, seed {self.seed}\n{aligned(('step', 'ms', 'of the step without noise'), rows)}"

    def _rows(self) -> list[dict[str, Any]]:
        return [{"step_time_s": value} for value in self.samples]


def spread(
    plan: Setting | Plan | str | Path | dict[str, Any],
    topology: Topology | str | Path = "this-machine",
    draws: int = 1000,
    seed: int = 0,
    *,
    jitter: Jitter | None = None,
    calibration: str | Path | None = None,
) -> Spread:
    """Percentiles of the step time of `plan` on `topology` (which a `Setting` brings itself). Same seed, same samples.

    Raises `BadInput` for draws or sigmas that cannot be.
    """
    setting = plan if isinstance(plan, Setting) else bind(plan, topology)
    found = Jitter() if jitter is None else jitter
    _check(found, draws, setting.plan.world)
    slow, batches = _slowness(setting), batches_of(setting.plan)
    factors = [_draw(setting, found, slow, batches, random.Random(f"{seed}/{at}")) for at in range(draws)]
    table, without = _table(setting, calibration, factors, _shares(setting, found))
    stall = output_seconds(setting, pricer_for(setting, calibration), without, [])
    samples = [_seconds(table, ranks, link, slow) + stall for ranks, link in factors]
    ordered = sorted(samples)
    return Spread(
        p50=quantile(ordered, 0.5), p95=quantile(ordered, 0.95), p99=quantile(ordered, 0.99), mean=math.fsum(ordered) / draws,
        without=without + stall, jitter=found, seed=seed, samples=tuple(samples),
        plan=setting.plan.name or setting.plan.model_name, topology=machine_words(setting.topology), fits=fits(setting),
    )  # fmt: skip


def _check(jitter: Jitter, draws: int, world: int) -> None:
    if not isinstance(jitter, Jitter):
        raise BadInput(
            f"jitter = {str(jitter)[:40]}: write steptwin.Jitter(rank={RANK_SIGMA}, step={STEP_SIGMA}), with standard deviations of log(time)"
        )
    for name in ("rank", "step", "link", "length"):
        sigma = getattr(jitter, name)
        if not isinstance(sigma, (int, float)) or not 0 <= sigma <= 2:
            raise BadInput(f"jitter.{name} = {sigma}: must be a standard deviation of log(time), 0 to 2 (0.05: about 5 %)")
    if not isinstance(jitter.slow_link, (int, float)) or not 1 <= jitter.slow_link <= 1e3:
        raise BadInput(f"jitter.slow_link = {jitter.slow_link}: must be how many times slower the link is, 1 to 1000")
    check_whole("draws", draws, "drawn steps")
    if draws * world > _LARGEST:
        raise BadInput(f"draws = {draws}: draws x ranks are at most {_LARGEST}, {_LARGEST // world} draws of {world} ranks")


def _slowness(setting: Setting) -> tuple[float, ...]:
    """How slow each rank is by the plan's noise and the machine, before anything is drawn."""
    plan, speed = setting.plan, setting.topology.speed
    slow, load = slowness(plan), loads(plan)
    return tuple(slow(rank) * load(rank) / speed(rank) for rank in range(plan.world))


def _sigmas(setting: Setting, jitter: Jitter) -> tuple[float, float, float]:
    """Sigmas of a rank's log-normal factors between two meetings: of its board, of its steps and of its samples. A mean of several
    log-normals is taken as one of the same mean and variance (Fenton 1960)."""
    plan = setting.plan
    steps = plan.update.every if plan.update.mode == "local" else 1
    samples = steps * plan.batch.micro * plan.microbatches
    step, length = (math.sqrt(math.log1p(math.expm1(s * s) / n)) for s, n in ((jitter.step, steps), (jitter.length, samples)))
    return jitter.rank, step, length


def _draw(
    setting: Setting, jitter: Jitter, slow: Sequence[float], batches: Sequence[Batch], source: random.Random
) -> tuple[tuple[float, ...], float]:
    """(compute factors of all ranks, or of the slowest alone where they wait for each other; factor of the slowest link)."""
    plan, (rank, step, length) = setting.plan, _sigmas(setting, jitter)
    # A log-normal's mean is exp(mu + sigma^2 / 2): of lengths 1; a step's median is 1, and a mean of steps has the mean of one.
    mu, sigma = 0.5 * (jitter.step**2 - step**2), math.hypot(rank, step)
    found = [source.lognormvariate(mu, sigma) if sigma else 1.0 for _ in slow]
    if length:
        longer = {batch: source.lognormvariate(-0.5 * length**2, length) for batch in dict.fromkeys(batches)}
        found = [factor * longer[batch] for factor, batch in zip(found, batches, strict=True)]
    nodes = range(setting.topology.nodes_of(plan.world))
    links = [source.lognormvariate(0.0, jitter.link) if jitter.link else 1.0 for _ in nodes]
    links[0] *= jitter.slow_link
    if not plan.asynchronous:
        found = [max(map(operator.mul, slow, found)) / max(slow)]
    return tuple(found), max(links)


class _Table(msgspec.Struct):
    """Step seconds on a grid, bilinear between its points."""

    compute: list[float]
    link: list[float]
    seconds: list[list[float]]

    def at(self, compute: float, link: float) -> float:
        i, u = _place(self.compute, compute)
        j, v = _place(self.link, link)
        k = min(j + 1, len(self.link) - 1)
        low, high = (row[j] * (1 - v) + row[k] * v for row in (self.seconds[i], self.seconds[min(i + 1, len(self.compute) - 1)]))
        return low * (1 - u) + high * u


def _place(grid: list[float], value: float) -> tuple[int, float]:
    if len(grid) == 1:
        return 0, 0.0
    i = min(max(bisect.bisect_right(grid, value) - 1, 0), len(grid) - 2)
    return i, min(1.0, max(0.0, (value - grid[i]) / (grid[i + 1] - grid[i])))


def _shares(setting: Setting, jitter: Jitter) -> tuple[float, float]:
    """Shares of a factor's logarithm that are the board's clock and the samples' length: expected of a sum of normal values, a part has its
    share of the variance. No clock where no boards are drawn, and on CPUs, whose every instruction is as slow as the rest."""
    rank, step, length = (sigma**2 for sigma in _sigmas(setting, jitter))
    total = (rank + step + length) or 1.0
    return 0.0 if setting.topology.kind == "cpu" else rank / total, length / total


def _table(
    setting: Setting, calibration: str | Path | None, factors: list[tuple[tuple[float, ...], float]], shares: tuple[float, float]
) -> tuple[_Table, float]:
    """The grid over all factors, of each of which these shares are the clock of a board and samples; and the step as `predict` has it."""
    boards, lengths = shares
    drawn = [factor for ranks, _ in factors for factor in ranks], [link for _, link in factors]
    points = 5 if all(map(_vary, drawn)) else POINTS
    compute, link = (_grid(values, points) for values in drawn)
    quiet = setting.plan.quiet
    held = clock_under_load(setting, calibration)
    usual = pricer_for(setting, calibration, clock=held)
    if short := shortens(setting):
        program = program_for(setting, STEPS, quiet)
    else:
        program = until_settled(partial(steps_of, setting, quiet, usual, False), STEPS).program
    seconds = []
    for factor in compute:
        clock, load = factor**boards, factor**lengths
        # Its kernel costs serve every link factor.
        pricer = pricer_for(setting, calibration, slower=factor / clock / load, board=1.0 / clock if boards else None, clock=held)
        pricer = Uneven(pricer, partial(_same, load)) if lengths else pricer
        seconds.append(
            [_step(setting, program, pricer if at == 1.0 else SlowLink(pricer, at, setting), short and at == 1.0) for at in link]
        )
    table = _Table(compute, link, seconds)
    return table, _step(setting, program, usual, short) if boards else table.at(1.0, 1.0)


def _same(load: float, _: int) -> float:
    """Of every rank."""
    return load


def _vary(values: list[float]) -> bool:
    return max(values) - min(values) >= 1e-12


def _grid(values: list[float], points: int) -> list[float]:
    """Evenly from the smallest to the largest, with 1 among them; that and the value itself where all are one."""
    if not _vary(values):
        return sorted({1.0, values[0]})
    low, high = min(1.0, *values), max(1.0, *values)
    return sorted({1.0, *(low + (high - low) * i / (points - 1) for i in range(points))})


def _step(setting: Setting, program: Program, pricer: Pricer, short: bool) -> float:
    """Without output; `short`: of many ops, within 0.05 % (`sim.steady.rounds`)."""
    if varies(setting.plan):
        return mean_step(setting, pricer, program.steps).total
    if short:
        return confirmed(setting.quiet, pricer)
    step = metrics.step_time(played(setting, program, pricer))
    return step if settled(program, pricer, step) else max(step, host_seconds(program, pricer), loader_seconds(program, pricer))


class SlowLink(Derived):
    """A pricer whose transfers over one link take `factor` times as long; latency stays.

    The link is a node's to the network or, of a plan on one node, a rank's to the others: the first one's, which stands for those that are like it
    and for which they wait; of asynchronous ranks, each of which is simulated, the last one's: the first has the server beside it."""

    def __init__(self, inner: Pricer, factor: float, setting: Setting) -> None:
        super().__init__(inner)
        self.factor = factor
        last = setting.plan.world - 1
        self._place: Callable[[int], int] = setting.topology.node if setting.topology.node(last) else int
        self._slow = self._place(last if setting.plan.asynchronous else 0)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self._slower(self.inner.collective(op, members, siblings), members)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self._slower(self.inner.message(op, source, target, siblings), (source, target))

    def _slower(self, cost: Cost, members: tuple[int, ...]) -> Cost:
        places = set(map(self._place, members))
        if self._slow not in places or len(places) == 1:
            return cost
        seconds = cost.latency + (cost.seconds - cost.latency) * self.factor
        uses = tuple((name, amount / self.factor) for name, amount in cost.uses)
        return msgspec.structs.replace(cost, seconds=seconds, uses=uses)


def _seconds(table: _Table, ranks: tuple[float, ...], link: float, slow: Sequence[float]) -> float:
    """Of a draw: of the slowest rank, or of all, each with its part in the steps that they make together."""
    if len(ranks) == 1:
        return table.at(ranks[0], link)
    parts = [1.0 / one for one in slow]
    return math.fsum(parts) / math.fsum(part / table.at(factor, link) for part, factor in zip(parts, ranks, strict=True))
