"""What the host's waits for the device cost: in the input path, for logging, for checkpoints. Each is simulated with and without."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sim.bind import Setting
from sim.cost.price import Pricer
from sim.detail import STEPS, apart, simulated_ops
from sim.engine.run import simulate
from sim.lower.output import BEFORE, WRITER
from sim.lower.step import lower
from sim.periods import LONG
from sim.plan import Output
from sim.program import Program
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
                setting.foldable,
            )
            points[at] = msgspec.structs.replace(point, adds=step - metrics.step_time(other))
    return points


def output_seconds(setting: Setting, pricer: Pricer, step: float, fold: bool, points: list[SyncPoint]) -> float:
    """Mean seconds per step that logging, syncs and checkpoints add to a mean step of `step` seconds: each is simulated on every step, then
    spread. Their sync points are added to `points`."""
    known = {point.where for point in points}
    output, added = setting.plan.output, 0.0
    without = 0.0
    for field in ("log_every", "item_every", "print_every", "sync_every", "checkpoint_every"):
        every = getattr(output, field)
        if not every:
            continue
        # Of local updates the simulated step averages or does not: beside it stands the very same one without output.
        without = without or (_run(setting, Output(), pricer, fold).step if setting.plan.update.mode == "local" else step)
        only = msgspec.structs.replace(Output(), **{field: 1}, checkpoint_to=output.checkpoint_to, checkpoint_mode=output.checkpoint_mode)
        loud = _run(setting, only, pricer, fold)
        added += _spread(points, known, sync_points(loud.program, loud.trace), every, step, loud.step - without, _writing(loud.trace))
    return added


class _Run(NamedTuple):
    program: Program
    trace: Trace
    step: float


def _run(setting: Setting, output: Output, pricer: Pricer, fold: bool) -> _Run:
    """Some steps with such output, and what one of them takes."""
    plan = msgspec.structs.replace(setting.plan, output=output)
    alone = plan.update.mode == "async"
    program = lower(plan, setting.network, setting.framework, setting.topology.kind, LONG if alone else STEPS)
    trace = simulate(program, pricer, fold, setting.foldable, apart(simulated_ops(program, fold and setting.foldable)))
    return _Run(program, trace, asynchrony.mean_step(trace).total if alone else metrics.step_time(trace))


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
