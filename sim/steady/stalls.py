"""What it costs that the host waits for the device: in the input path, for logging, for checkpoints. Steps are simulated with and without
each."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import Any

import msgspec

from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.lower.output import BEFORE, WRITER
from sim.plan import Plan
from sim.program import Program
from sim.sections import Output
from sim.setting.bind import Setting
from sim.setting.program import program_for
from sim.steady.detail import STEPS, apart, simulated_ops
from sim.steady.periods import LONG
from sim.steady.settled import Steps, until_settled
from sim.steady.whole import together, whole
from sim.timeline import asynchrony, metrics
from sim.timeline.syncs import SyncPoint, spread, sync_points
from sim.trace import Trace

_WITHOUT: dict[str, dict[str, Any]] = {
    "pageable copy": {"pinned": True},
    "created on the CPU, then moved": {"create": "device"},
    "synchronize()": {"handover": "event"},
}
"""Sync point of the input path -> the keys of [data], with the values that remove it."""


def held(setting: Setting, program: Program, pricer: Pricer, trace: Trace, step: float) -> list[SyncPoint]:
    """The sync points that occur in every step. For those of the input path, `adds` says by how much a step of `step` seconds is longer
    with them."""
    points = sync_points(program, trace)
    for at, point in enumerate(points):
        if point.op in _WITHOUT and point.where.startswith("data/"):
            data = msgspec.structs.replace(setting.plan.data, **_WITHOUT[point.op])
            better = msgspec.structs.replace(setting.plan, data=data, output=Output())
            other = simulate(program_for(setting, program.steps, better), pricer, setting.places)
            points[at] = msgspec.structs.replace(point, adds=step - metrics.step_time(other))
    return points


_SYNCS = {"log_every": "output/loss", "item_every": "output/item", "print_every": "output/print", "sync_every": "output/sync"}
"""Keys of [output] that make the host wait for the device -> ids of the ops in which it waits."""


def output_seconds(setting: Setting, pricer: Pricer, step: float, points: list[SyncPoint]) -> float:
    """Mean seconds per step that logging, syncs and checkpoints add to a mean step of `step` seconds; 0 without output. Each is simulated
    on every step, and its cost is spread over the steps. Outputs that happen after the same step wait for the device together. Their sync
    points are added to `points`.

    If there is other output beside checkpoints, or if steps differ, a whole period is simulated instead, unless it is too long."""
    output = setting.plan.output
    if not output.periods:
        return 0.0
    # With local updates, the simulated step averages or does not: compare it with the same step without output.
    without = _run(setting, Output(), pricer).step if setting.plan.update.mode == "local" else step
    known, added = {point.where for point in points}, 0.0

    @lru_cache
    def loud(fields: frozenset[str]) -> Steps:
        kept = {"checkpoint_to": output.checkpoint_to, "checkpoint_mode": output.checkpoint_mode}
        return _run(setting, msgspec.structs.replace(Output(), **kept, **dict.fromkeys(fields, 1)), pricer)

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
    if output.checkpoint_every:
        run = loud(frozenset(["checkpoint_every"]))
        held_up = _held_up(setting, pricer, run.step, run.step - without, step)
        added += _saved(points, known, run, output.checkpoint_every, step, *held_up)
    exact = whole(setting, pricer, output) if together(setting.plan) else None
    return max(0.0, added if exact is None else exact - step)


def shares(every: dict[str, int]) -> dict[frozenset[str], float]:
    """Set of names -> share of the steps after which exactly these happen together. `every`: name -> steps from one time to the next.

    With periods 2 and 3, of 6 steps the first happens alone after 2, the second alone after 1, and both after 1. Computed by inclusion and
    exclusion over least common multiples; sets with share 0 are left out."""
    sets = [frozenset(some) for size in range(1, len(every) + 1) for some in combinations(every, size)]
    least = {one: 1.0 / math.lcm(*(every[name] for name in one)) for one in sets}
    found = {one: sum((-1) ** (len(more) - len(one)) * least[more] for more in sets if one <= more) for one in sets}
    return {one: share for one, share in found.items() if share > 1e-12}


def _run(setting: Setting, output: Output, pricer: Pricer, many: int = LONG) -> Steps:
    """Simulated steps with the given output, as many as it takes to settle (`many` if ranks do not wait for each other), with a step's
    seconds."""
    plan = msgspec.structs.replace(setting.plan, output=output)
    alone = plan.asynchronous

    def simulated(steps: int) -> Steps:
        program, trace = _simulated(setting, plan, pricer, steps)
        return Steps(program, trace, pricer, asynchrony.mean_step(trace).total if alone else metrics.step_time(trace))

    return simulated(many) if alone else until_settled(simulated, STEPS)


def _simulated(setting: Setting, plan: Plan, pricer: Pricer, steps: int) -> tuple[Program, Trace]:
    program = program_for(setting, steps, plan)
    fine = apart(simulated_ops(program, setting.places))
    return program, simulate(program, pricer, setting.places, fine, condensed=not fine)


def _held_up(setting: Setting, pricer: Pricer, saving: float, longer: float, step: float) -> tuple[float, float]:
    """(seconds that one checkpoint adds to its step and the steps after it, shortest possible seconds from one checkpoint to the next).

    `saving`: seconds of a step if each step makes a checkpoint; `longer`: by how much that is longer than without; `step`: seconds of a
    mean step without output. With asynchronous checkpoints, another thread writes while training goes on. A step that makes one and waits
    for the one before is then as long as the writing and what the writing waits for, and no period is shorter. Otherwise the second value
    is 0."""
    beside = setting.plan.output.checkpoint_mode == "async"
    if setting.plan.asynchronous:
        return _paced(setting, pricer), 0.0
    stall = metrics.breakdown(_run(setting, Output(), pricer).trace).data_s if setting.plan.data.workers else 0.0
    if stall > _FED * step:
        adds = _made_up(setting, pricer, step, stall)
    else:
        # Even a small stock of batches makes up for a part, unless a checkpoint after each step uses it up.
        seldom = beside or (setting.plan.data.workers and setting.plan.output.checkpoint_every > 1)
        adds = _once(setting, pricer, _AFTER - 1)[0] if seldom else longer
    return max(0.0, adds), saving if beside else 0.0


_AFTER = 4
"""Number of steps within which training makes up for the delay by a checkpoint, if it does at all."""
_STOCKED = 12
"""Most steps that are simulated after a checkpoint, while they use the batches that loaders made during it."""
_FED = 0.01
"""Share of a step up to which it may wait for data without being bound by the loaders."""


def _once(setting: Setting, pricer: Pricer, after: int) -> tuple[float, list[float]]:
    """(seconds that a checkpoint adds to its step and the `after` steps after it, by how many seconds each of these steps is shorter than
    without). The checkpoint does not wait for an earlier one."""
    output, before = setting.plan.output, max(after + 1, _AFTER)
    saves = Output(checkpoint_mode=output.checkpoint_mode, checkpoint_to=output.checkpoint_to, checkpoint_every=before + 1)

    def times(output: Output) -> list[float]:
        plan = msgspec.structs.replace(setting.plan, output=output)
        # The last step is not looked at: loaders make no further batch during it.
        return metrics.step_times(_simulated(setting, plan, pricer, before + after + 2)[1])[before:-1]

    gains = [one - other for one, other in zip(times(Output()), times(saves), strict=True)]
    return -sum(gains), gains[1:]


def _made_up(setting: Setting, pricer: Pricer, step: float, stall: float) -> float:
    """Seconds that a checkpoint adds if each step of `step` seconds waits `stall` seconds for loaders.

    During the checkpoint the loaders fill their stock. The steps after it take batches from the stock and do not wait, until it is used up
    or the next checkpoint comes. What is left of the stock after the simulated steps is assumed to be used at the pace of the last of
    them."""
    data, every = setting.plan.data, setting.plan.output.checkpoint_every
    stock = data.prefetch * data.workers / setting.plan.microbatches * step
    after = min(every, _STOCKED, 1 + math.ceil(stock / stall))
    adds, gains = _once(setting, pricer, after)
    return adds - max(0.0, min((every - after) * gains[-1], stock - sum(gains)))


def writing_seconds(setting: Setting, pricer: Pricer) -> float:
    """Seconds in which other threads write a checkpoint while training goes on; only after them can a job restart from it. 0 if no other
    thread writes, as training waits for the checkpoint then."""
    output = Output(
        checkpoint_mode=setting.plan.output.checkpoint_mode, checkpoint_to=setting.plan.output.checkpoint_to, checkpoint_every=1
    )
    _, trace = _simulated(setting, msgspec.structs.replace(setting.plan, output=output), pricer, 1)
    return max((span.seconds for span in trace.spans if span.lane == WRITER and span.kind == "copy"), default=0.0)


def _paced(setting: Setting, pricer: Pricer) -> float:
    """Seconds that one checkpoint adds if ranks do not wait for each other, from how much it lowers their common pace.

    If the simulation has several checkpoints, they are as frequent as in the plan, and the steps that count (all but two:
    `asynchrony.counted`) are whole periods of them."""
    every, seldom = setting.plan.output.checkpoint_every, LONG // 2 + 1
    output = msgspec.structs.replace(setting.plan.output, **dict.fromkeys(_SYNCS, 0), checkpoint_every=min(every, seldom))
    many = 2 + every * math.ceil((LONG - 2) / every) if every < seldom else LONG
    longer = _run(setting, output, pricer, many).step - _run(setting, Output(), pricer, many).step
    return max(0.0, longer) * (every if every < seldom else LONG - 2)


def _saved(points: list[SyncPoint], known: set[str], run: Steps, every: int, step: float, adds: float, least: float) -> float:
    """Mean seconds per step that checkpoints add. One checkpoint happens every `every` steps of `step` seconds and adds `adds` seconds;
    from one to the next there are at least `least` seconds. The sync points of `run` that are not in `known` are added to `points`."""
    left = max(0.0, least - every * step - adds)
    found = [point for point in sync_points(run.program, run.trace) if point.where not in known]
    points += spread([p for p in found if p.where != BEFORE], every, adds / every)
    points += [SyncPoint(p.op, p.where, p.per_step / every, left / every, left / every) for p in found if p.where == BEFORE]
    return (adds + left) / every
