"""What the host's waits for the device cost: in the input path, for logging, for checkpoints. Each is simulated with and without."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.lower.output import BEFORE, WRITER
from sim.lower.step import lower
from sim.plan import Output
from sim.program import Program
from sim.setting.bind import Setting
from sim.steady.detail import STEPS, apart, simulated_ops
from sim.steady.periods import LONG
from sim.steady.settled import until_settled
from sim.timeline import asynchrony, metrics
from sim.timeline.syncs import SyncPoint, spread, sync_points
from sim.trace import Trace

_WITHOUT: dict[str, dict[str, Any]] = {
    "pageable copy": {"pinned": True},
    "created on the CPU, then moved": {"create": "device"},
    "synchronize()": {"handover": "event"},
}
"""Sync points of the input path, and the keys of [data] that take them away."""


def held(setting: Setting, program: Program, pricer: Pricer, trace: Trace, step: float, fold: bool) -> list[SyncPoint]:
    """Sync points of every step; those of the input path with what the step would be without them."""
    points = sync_points(program, trace)
    for at, point in enumerate(points):
        if point.op in _WITHOUT and point.where.startswith("data/"):
            data = msgspec.structs.replace(setting.plan.data, **_WITHOUT[point.op])
            better = msgspec.structs.replace(setting.plan, data=data, output=Output())
            other = simulate(
                lower(better, setting.network, setting.framework, setting.topology.kind, program.steps),
                pricer,
                fold,
                setting.places,
            )
            points[at] = msgspec.structs.replace(point, adds=step - metrics.step_time(other))
    return points


_SYNCS = {"log_every": "output/loss", "item_every": "output/item", "print_every": "output/print", "sync_every": "output/sync"}
"""Keys of [output] after which the host waits for the device, and the ops that do."""


def output_seconds(setting: Setting, pricer: Pricer, step: float, fold: bool, points: list[SyncPoint]) -> float:
    """Mean seconds per step that logging, syncs and checkpoints add to a mean step of `step` seconds: each is simulated on every step, then
    spread. What comes after one and the same step waits for the device together. Their sync points are added to `points`."""
    output = setting.plan.output
    if not any(getattr(output, field) for field in (*_SYNCS, "checkpoint_every")):
        return 0.0
    # Of local updates the simulated step averages or does not: beside it stands the very same one without output.
    without = _run(setting, Output(), pricer, fold).step if setting.plan.update.mode == "local" else step
    known, added = {point.where for point in points}, 0.0

    @lru_cache
    def loud(fields: frozenset[str]) -> _Run:
        kept = {"checkpoint_to": output.checkpoint_to, "checkpoint_mode": output.checkpoint_mode}
        return _run(setting, msgspec.structs.replace(Output(), **kept, **dict.fromkeys(fields, 1)), pricer, fold)

    longer = dict.fromkeys(_SYNCS.values(), 0.0)
    found: dict[str, SyncPoint] = {}
    for fields, share in shares({field: every for field in _SYNCS if (every := getattr(output, field))}).items():
        run = loud(fields)
        added += share * (run.step - without)
        for field in fields:
            less = loud(fields - {field}).step if len(fields) > 1 else without
            longer[_SYNCS[field]] += share * (run.step - less)
        for point in sync_points(run.program, run.trace):
            if point.where not in known:
                had = found.get(point.where, SyncPoint(point.op, point.where, 0.0, 0.0))
                sums = {"per_step": had.per_step + share * point.per_step, "seconds": had.seconds + share * point.seconds}
                found[point.where] = msgspec.structs.replace(point, **sums)
    points += [msgspec.structs.replace(point, adds=longer.get(where)) for where, point in found.items()]
    if every := output.checkpoint_every:
        run = loud(frozenset(["checkpoint_every"]))
        added += _spread(points, known, sync_points(run.program, run.trace), every, step, run.step - without, _writing(run.trace))
    return added


def shares(every: dict[str, int]) -> dict[frozenset[str], float]:
    """The share of the steps after which just these come together, of what comes every so many steps: of what comes every 2 and every 3, the
    one alone after 2 of 6, the other after 1, both after 1 (inclusion and exclusion over least common multiples)."""
    sets = [frozenset(some) for size in range(1, len(every) + 1) for some in combinations(every, size)]
    least = {one: 1.0 / math.lcm(*(every[name] for name in one)) for one in sets}
    found = {one: sum((-1) ** (len(more) - len(one)) * least[more] for more in sets if one <= more) for one in sets}
    return {one: share for one, share in found.items() if share > 1e-12}


class _Run(NamedTuple):
    program: Program
    trace: Trace
    step: float
    pricer: Pricer


def _run(setting: Setting, output: Output, pricer: Pricer, fold: bool) -> _Run:
    """Steps with such output until they have settled, and what one of them takes."""
    plan = msgspec.structs.replace(setting.plan, output=output)
    alone = plan.update.mode == "async"

    def simulated(steps: int) -> _Run:
        program = lower(plan, setting.network, setting.framework, setting.topology.kind, steps)
        trace = simulate(program, pricer, fold, setting.places, apart(simulated_ops(program, fold and setting.places)))
        return _Run(program, trace, asynchrony.mean_step(trace).total if alone else metrics.step_time(trace), pricer)

    return simulated(LONG) if alone else until_settled(simulated, STEPS)


def _spread(
    points: list[SyncPoint], known: set[str], found: list[SyncPoint], every: int, step: float, adds: float, writing: float
) -> float:
    """Seconds per step of what adds `adds` where each step does it and every `every`-th will; its sync points, `found`, join `points`.

    Of a checkpoint that another thread writes meanwhile, it is what the state's copy takes, and of `writing` what is left when the next
    one is due: the period is the longer of `every` steps and the writing, and the copy."""
    copy, left = max(0.0, adds) - max(0.0, writing - step), max(0.0, writing - every * step)
    points += spread([p for p in found if p.where not in known and p.where != BEFORE], every, copy / every)
    points += [SyncPoint(p.op, p.where, p.per_step / every, left / every, left / every) for p in found if p.where == BEFORE]
    return (copy + left) / every


def _writing(trace: Trace) -> float:
    """Seconds that a thread beside training writes one checkpoint."""
    return max((span.end - span.start for span in trace.spans if span.thread == WRITER and span.kind == "copy"), default=0.0)
