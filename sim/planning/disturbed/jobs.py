"""Several jobs on one cluster: what they cost each other on shared links, placement by placement.

Jobs begin together (`beside`), and each makes as many steps as it takes to stay beside the longest. What logging and checkpoints add to a step
is each job's own, as `predict` finds it for the job alone. Against simulating every step of their periods, what is lost beside local updates is within 1.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sim.files.machinefile import machine_words
from sim.memory.report import UNFIT
from sim.plan import Plan
from sim.planning.disturbed.beside import ENOUGH, OFTEN, Pace, Placement, paces
from sim.planning.disturbed.places import PLACEMENTS, placed
from sim.planning.progress import Progress, Say
from sim.result.figures import fits
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.stalls import output_seconds
from sim.tables import Tabular
from topologies.errors import BadInput, Refused
from topologies.load import Topology, load_topology

_MOST_STEPS = 400
"""Steps that a short job makes at most beside a long one: with fewer than it takes, the long one would run on alone and seem undisturbed."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one placement. Seconds per step alone in these places, and beside the others."""

    job: str
    """`j0`, `j1` ... in the order of the plans."""
    plan: str
    placement: str
    ranks: tuple[int, ...]
    """Ranks of the cluster that its ranks 0, 1 ... take."""
    alone_s: float
    together_s: float
    fits: bool = True
    """Does the plan fit into memory? If not, its figures are what it would take if it did."""

    @property
    def slowdown(self) -> float:
        """How many times its lonely step the shared one is."""
        return self.together_s / self.alone_s


class Jobs(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """The table: one row for each placement and job."""

    topology: str
    rows: tuple[Job, ...]

    def __str__(self) -> str:
        lines = ["placement   job  plan                  alone, ms  together, ms  slowdown"]
        lines += [
            f"{r.placement:<10}  {r.job:<3}  {r.plan:<20}  {r.alone_s * 1e3:9.3f}  {r.together_s * 1e3:12.3f}  {r.slowdown:8.3f}"
            + ("" if r.fits else f"  {UNFIT}")
            for r in self.rows
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, each row's slowdown among them."""
        return {"topology": self.topology, "rows": self._rows()}

    def _rows(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(row) | {"slowdown": row.slowdown} for row in self.rows]


def jobs(
    plans: Sequence[Plan | str | Path | dict[str, Any]],
    topology: Topology | str | Path,
    placements: str | Sequence[str | Sequence[Sequence[int]]] = (),
    *,
    edits: tuple[str, ...] = (),
    say: Say | None = None,
) -> Jobs:
    """Simulates all `plans` at once on disjoint ranks of `topology` after `edits`, and each alone in the same places.

    A placement (none given: both that have names) is "compact" (each job on the next free ranks), "spread" (jobs take the ranks of every
    node in turn), or for each job the ranks that it takes. `say` is told how far it is. Raises `BadInput` for places that do not exist, are
    taken twice, or do not suffice, before anything is simulated; `Refused` where one job's step is too short beside another's.
    """
    if not isinstance(plans, (list, tuple)):
        raise BadInput("a study of jobs needs a list of plans, [first, second]. For one plan use predict")
    if len(plans) < 2:
        raise BadInput(f"a study of jobs needs two plans or more, got {len(plans)}. For one plan use predict")
    placements = (placements,) if isinstance(placements, str) else placements or PLACEMENTS
    machine = load_topology(topology, edits)
    settings = [bind(plan, machine) for plan in plans]
    where = [placed([s.plan.world for s in settings], machine, placement) for placement in placements]
    rows: list[Job] = []
    progress = Progress((len(plans) + 1) * len(placements), "runs simulated, each job alone and all together", say)
    for placement, places in zip(placements, where, strict=True):
        alone: list[Pace] = []
        pairs = list(zip(settings, places, strict=True))
        for pair in pairs:
            alone += paces([pair], [ENOUGH])
            progress.more()
        stalls = [output_seconds(s, pricer_for(s), pace.step, []) for s, pace in zip(settings, alone, strict=True)]
        together = _together(pairs, _steps(alone), [pace.step for pace in alone])
        progress.more()
        name = placement if isinstance(placement, str) else "given"
        for at, setting in enumerate(settings):
            rows.append(
                Job(
                    job=f"j{at}",
                    plan=setting.plan.name or setting.plan.model_name,
                    placement=name,
                    ranks=places[at],
                    alone_s=alone[at].step + stalls[at],
                    together_s=together[at] + stalls[at],
                    fits=fits(setting),
                )
            )
    return Jobs(topology=machine_words(machine), rows=tuple(rows))


def _together(jobs_: list[Placement], counts: list[int], alone: list[float]) -> list[float]:
    """Seconds of each job's mean step while all run, `counts` steps each; `alone`, those of each by itself.

    What a job loses to others that average their parameters after more than `OFTEN` steps goes by the share of their time in which they do: it is
    found with averaging as often and with none."""
    often = paces(jobs_, counts, steps_alone=alone)
    found = []
    for at, pace in enumerate(often):
        every = {other: setting.plan.update.every for other, (setting, _) in enumerate(jobs_) if other != at and often[other].averaging > 0}
        seldom = {other: steps for other, steps in every.items() if steps > OFTEN}
        if not seldom:
            found.append(pace.step)
            continue
        more = [min(_MOST_STEPS, math.ceil(count * one.simulated / one.plain)) for count, one in zip(counts, often, strict=True)]
        counted = [more[other] if other in seldom else count for other, count in enumerate(counts)]
        quiet = paces(jobs_, counted, still=seldom, steps_alone=alone)[at].step
        share = math.fsum(often[other].averages(steps) for other, steps in seldom.items())
        share /= math.fsum(often[other].averages(OFTEN) for other in seldom)
        found.append(quiet / (1.0 - share * (1.0 - quiet / pace.step)))
    return found


def _steps(alone: list[Pace]) -> list[int]:
    """How many each job makes, by its steps alone: as many as last as long as `ENOUGH` of the longest. Raises `Refused`."""
    each = [pace.simulated for pace in alone]
    longest, shortest = max(*each, *(pace.step for pace in alone)), min(each)
    if ENOUGH * longest > _MOST_STEPS * shortest:
        long, short = max(range(len(alone)), key=lambda at: max(alone[at][:2])), each.index(shortest)
        raise Refused(
            f"a step of j{long} takes {longest:.4g} s, one of j{short} {shortest:.4g} s: a job is simulated beside others whose steps are at most "
            f"{_MOST_STEPS // ENOUGH} times as long. Study plans whose steps are closer, e.g. with another batch.global"
        )
    return [math.ceil(ENOUGH * longest / one) for one in each]
