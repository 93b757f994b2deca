"""Plans whose steps differ from each other: replicas that update alone and average every few steps (`update.mode = "local"`), and ones that
meet at a parameter server whenever they come to it ("async"). What counts is their mean step."""

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
"""Steps over which the pace of ranks that do not wait for each other is taken: by then the mean differs by a percent from that over more."""


def varies(plan: Plan) -> bool:
    """Do the plan's steps differ from each other?"""
    return plan.asynchronous or locally(plan)


NEVER = 1 << 40
"""`every` of local updates whose averaging is not simulated."""


def kinds(plan: Plan) -> tuple[tuple[Plan, float], ...]:
    """Plans all of whose steps are alike, and the share of each among the plan's steps: of local updates those with averaging, one in `every`,
    and those without."""
    if not varies(plan):
        return ((plan, 1.0),)
    share = 1.0 / plan.update.every
    updates = [(msgspec.structs.replace(plan.update, every=every), of_all) for every, of_all in ((1, share), (NEVER, 1.0 - share))]
    return tuple((msgspec.structs.replace(plan, update=update), of_all) for update, of_all in updates)


def mean_step(setting: Setting, pricer: Pricer, steps: int) -> Breakdown:
    """What a mean step is spent on; it sums to its seconds. `steps` are simulated, more for "async".

    Of local updates a step with averaging counts one `every`-th, a step without for the rest: one step alone would be either, by whether
    `every` happens to divide the number of simulated steps. Where some ranks are slower, a whole period says how long they take together.
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
    split["host_s"] -= saved - stalled  # who waits in vain for a batch may launch late, too
    return Breakdown(**split)


def over_period(setting: Setting, pricer: Pricer) -> float | None:
    """Seconds of a mean step without output where ranks of local updates drift apart, over a whole period; None for others, and where that is too
    long."""
    return whole(setting, pricer, Output()) if drifting(setting) else None


def on_path(setting: Setting, pricer: Pricer, step: float, steps: int, detail: bool) -> list[tuple[float, Trace]]:
    """The steps that what binds a mean one (of `step` seconds) is found in, and how many times each is in it: of local updates those of its kinds, of
    asynchronous ranks any one, which stands for the others. `detail`: of ops, not of runs of them."""
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
        if drifting(setting):  # who drifts apart takes neither as long as if all averaged in each step nor as if none ever did
            together = sum(weight * step_time(trace) for weight, trace in zip(weights, traces, strict=False))
            weights = tuple(weight * step / together for weight in weights)
    return [(weight, trace) for weight, trace in zip(weights, traces, strict=False) if weight]


_BOUND = 0.05
"""Share by which a step that loaders bind may be longer than their pace: two sorts of steps may come in turn."""


class Even(NamedTuple):
    """What a mean step is, beside the mean of its `kinds`."""

    saved: float = 0.0
    """Seconds by which it is shorter."""
    weights: tuple[float, ...] = ()
    """What binds it, where that is not each kind by its share: so much of a step with averaging, of one without, and of one without whose batches
    are in store. They take as long as the mean step together."""


def evened(setting: Setting, pricer: Pricer, times: Sequence[float], step: Callable[[Setting], float]) -> Even:
    """Of `kinds` that take `times` each alone: what loaders make while replicas average is in store for the steps between, which would wait for
    it. No more is saved than they wait for (then none waits), than loaders do not need while replicas average (then these bind all steps),
    and than they keep in store (then they bind what steps that leaves). `step`: seconds of a plan all of whose steps are alike.

    On CPU hosts, whose cores loaders take from training, nothing is said to be saved.
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
