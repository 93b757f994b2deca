"""Plans whose steps differ from each other. With `update.mode = "local"`, replicas update alone and average every few steps. With "async",
each rank meets the parameter server whenever it gets there. The result for such a plan is its mean step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.plan import Plan
from sim.sections import Output
from sim.setting.bind import Setting
from sim.setting.program import program_for
from sim.steady.detail import STEPS
from sim.steady.settled import loader_seconds, stored
from sim.steady.whole import drifting, locally, whole
from sim.timeline import asynchrony
from sim.timeline.metrics import Breakdown, breakdown, step_time
from sim.trace import Trace

LONG = 24
"""Number of steps over which the pace of ranks is measured if they do not wait for each other. The mean over more steps differs by a
percent."""


def varies(plan: Plan) -> bool:
    """Do the plan's steps differ from each other?"""
    return plan.asynchronous or locally(plan)


NEVER = 1 << 40
"""Value of `every` for local updates whose averaging is not simulated."""


def kinds(plan: Plan) -> tuple[tuple[Plan, float], ...]:
    """(plan, share) pairs: plans whose steps are all alike, and which share of the steps of `plan` is like theirs.

    Local updates give two pairs: steps with averaging (one in `every`) and steps without. A plan whose steps do not differ gives itself
    with 1."""
    if not varies(plan):
        return ((plan, 1.0),)
    share = 1.0 / plan.update.every
    updates = [(msgspec.structs.replace(plan.update, every=every), of_all) for every, of_all in ((1, share), (NEVER, 1.0 - share))]
    return tuple((msgspec.structs.replace(plan, update=update), of_all) for update, of_all in updates)


def mean_step(setting: Setting, pricer: Pricer, steps: int) -> Breakdown:
    """The seconds of a mean step by class; they sum to the step's seconds. `steps` is the number of simulated steps ("async": `LONG`
    instead).

    With local updates, a step with averaging has the weight 1 / `every` and a step without has the rest. One simulated step alone would be
    of one sort or the other, depending on whether `every` divides the number of simulated steps. If some ranks are slower, a whole period
    (unless it is too long) is simulated for the total seconds, and the classes are scaled to it.
    """
    if setting.plan.asynchronous:
        return asynchrony.mean_step(_trace(setting, setting.plan, pricer, LONG))
    split = dict.fromkeys(Breakdown.__struct_fields__, 0.0)
    times: list[float] = []
    for plan, weight in kinds(setting.plan):
        found = breakdown(_trace(setting, plan, pricer, steps))
        times.append(found.total)
        for name in split:
            split[name] += weight * getattr(found, name)
    exact = over_period(setting, pricer)
    if exact is not None:
        stretch = exact / sum(split.values())
        return Breakdown(**{name: seconds * stretch for name, seconds in split.items()})
    saved = evened(setting, pricer, times, lambda one: step_time(_trace(one, one.plan, pricer, steps))).saved
    stalled = min(saved, split["data_s"])
    split["data_s"] -= stalled
    split["host_s"] -= saved - stalled  # a rank that waits for a batch may also launch its kernels late
    return Breakdown(**split)


def over_period(setting: Setting, pricer: Pricer) -> float | None:
    """Seconds of a mean step without output, over a whole period, if ranks with local updates drift apart. None if they do not, or if the
    period or its program is too long to simulate."""
    return whole(setting, pricer, Output()) if drifting(setting) else None


def on_path(setting: Setting, pricer: Pricer, step: float, steps: int, detail: bool) -> list[tuple[float, Trace]]:
    """(weight, trace) pairs: the steps in which to look for what binds a mean step of `step` seconds, and how many times each counts in it.

    Local updates give one trace for each of the plan's `kinds`; asynchronous ranks give one trace that stands for all steps. Traces of
    weight 0 are left out. `detail`: whether each op has its own span; otherwise a run of ops is one span."""
    traces: list[Trace] = []

    def seconds(one: Setting) -> float:
        traces.append(_trace(one, one.plan, pricer, steps, detail))
        return step_time(traces[-1])

    if setting.plan.asynchronous:
        weights: tuple[float, ...] = (step / seconds(setting),)
    else:
        found = kinds(setting.plan)
        times = [seconds(msgspec.structs.replace(setting, plan=plan)) for plan, _ in found]
        weights = evened(setting, pricer, times, seconds).weights or tuple(share for _, share in found)
        if drifting(setting):  # if ranks drift apart, the mean of the two kinds is not the mean step
            together = sum(weight * step_time(trace) for weight, trace in zip(weights, traces, strict=False))
            weights = tuple(weight * step / together for weight in weights)
    return [(weight, trace) for weight, trace in zip(weights, traces, strict=False) if weight]


_BOUND = 0.05
"""Share by which a step that is bound by the loaders may be longer than their pace, as two sorts of steps may alternate."""


class Even(NamedTuple):
    """How a mean step differs from the weighted mean of its `kinds`."""

    saved: float = 0.0
    """Seconds by which the mean step is shorter."""
    weights: tuple[float, ...] = ()
    """Weights of the steps that bind the mean step: one with averaging, one without, and one without whose batches are already in store.
    The weighted steps take as long as the mean step together. Empty: each kind counts by its share."""


def evened(setting: Setting, pricer: Pricer, times: Sequence[float], step: Callable[[Setting], float]) -> Even:
    """What loaders save for the mean step of local updates. While replicas average, loaders fill their store; the steps in between, which
    would otherwise wait for batches, take them from it.

    `times`: seconds of each of the plan's `kinds`, simulated alone. `step`: gives the seconds of a plan whose steps are all alike. The
    saving is limited by three things: the time that the steps in between wait (then no step waits), the time that the loaders have left
    while replicas average (then the loaders bind all steps), and what the store holds (then the loaders bind the other steps).

    On CPU hosts the loaders take cores from training; the saving is then 0. It is also 0 without loader processes.
    """
    plan = setting.plan
    if len(times) == 1 or not plan.data.workers or setting.topology.kind == "cpu":
        return Even()
    program = program_for(setting, STEPS, plan.quiet)
    pace, (averaging, plain), between = loader_seconds(program, pricer), times, plan.update.every - 1
    if not plain <= pace * (1 + _BOUND) < averaging:
        return Even()
    data = msgspec.structs.replace(plan.data, source="memory", preprocess=0.0)
    update = msgspec.structs.replace(plan.update, every=NEVER)
    own = step(msgspec.structs.replace(setting, plan=msgspec.structs.replace(plan, data=data, update=update)))
    if own >= min(plain, pace):
        return Even()
    waits, rests, store = between * (plain - own), averaging - pace, stored(program) * pace
    saved = min(waits, rests, store)
    whole = averaging + between * plain - saved
    bound = (1.0, 0.0, between) if saved == waits else (0.0, whole / plain) if saved == rests else (1.0, between - saved / plain)
    return Even(saved / plan.update.every, tuple(weight / plan.update.every for weight in bound))


def _trace(setting: Setting, plan: Plan, pricer: Pricer, steps: int, detail: bool = False) -> Trace:
    program = program_for(setting, steps, plan.quiet)
    return simulate(program, pricer, setting.places, detail, condensed=not detail)
