"""One step of a plan in its steady state, or the mean one where steps differ (`sim.steady.periods`), with as little simulation as that needs.

A plan with many micro-batches is simulated with fewer; one step with some more tells by how much each whole round of equal micro-batches
lengthens it. Over the published plans this is within 0.05 % of the whole simulation; `confirmed` is so over the plans that sweeps end with,
as it looks at two rounds, and simulates all micro-batches where these differ. Of 119 plans drawn at random (splits, schedules, frameworks,
networks of 8 and 16 layers, one to four nodes) 114 were within 0.1 % of what `predict` says op by op, the worst 0.5 % off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.agenda import uncollected
from sim.engine.fold import representatives
from sim.engine.steps import Step
from sim.plan import Plan
from sim.schedule import puts_off
from sim.schedule.reading import name_of
from sim.setting.bind import Setting
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.detail import STEPS, quick, simulated_ops
from sim.steady.periods import LONG, evened, kinds, mean_step, over_period, varies
from sim.steady.shortened import Run, reads_itself, round_of, warm_of

_EQUAL = 1e-3
"""Rounds that differ by no more than this share of them are alike."""
_NO_LONGER = 1 + 1e-9
"""Times that a thread needs for what a step takes, at most, where it does not lose its lead: as long, but for rounding."""
_FEW = 3
"""Micro-batches that are simulated at least."""
_SAME = 1e-4
"""The same for rounds that nothing but a look at two of them confirms."""
_WORTH = 12
"""Passes of micro-batches through chunks, for each of the network's blocks, that cost more than the ends of two steps more where all ranks of a
stage sit alike. Of others more ranks are simulated, and passes cost as many times as much."""
_DEEP = 8
"""Micro-batches of the longest rounds that are alike for good. Where stages of a deeper pipeline take turns, messages fall behind so slowly
that they hold up compute only after five or more rounds (found with 16 and 32 stages: 0.04 and 0.6 % of the step)."""
_LONG = 8192
"""Passes from which on a step goes by rounds whatever they are like: all of them would take minutes."""


def step_of(setting: Setting, coarse: bool = False) -> float:
    """Seconds of one optimizer step. `coarse`: a collective that runs beside a layer slows
    all its kernels alike, and what the layer's transfers lose to others on their links is left out. Raises `BadInput` and its kinds."""
    return _mean(setting, lambda one: _seconds(Run(one, coarse), one.plan))


def whole_step(setting: Setting) -> float:
    """Seconds of one optimizer step with all its micro-batches: what `predict` says, output apart, and tests hold `confirmed` against. Raises
    `BadInput` and its kinds."""
    return _mean(setting, lambda one: Run(one).whole())


def confirmed(setting: Setting, pricer: Pricer | None = None) -> float:
    """Seconds of one optimizer step within 0.05 % of `whole_step`, by rounds where that takes less simulation and two of them are alike. `pricer`: prices
    that are not the setting's own, for plans whose steps are of one sort. Raises `BadInput` and its kinds."""
    return _mean(setting, partial(_confirmed, pricer=pricer))


def _mean(setting: Setting, step: Callable[[Setting], float]) -> float:
    """Seconds of a mean step, by those that `step` finds of each kind that the plan has."""
    with uncollected():
        if setting.plan.asynchronous:
            return mean_step(setting, pricer_for(setting), LONG).total
        found = kinds(setting.plan)
        drifted = over_period(setting, pricer_for(setting)) if len(found) > 1 else None
        if drifted is not None:
            return drifted
        times = [step(msgspec.structs.replace(setting, plan=plan)) for plan, _ in found]
        mean = sum(share * seconds for seconds, (_, share) in zip(times, found, strict=True))
        return mean - evened(setting, pricer_for(setting), times, step).saved if len(times) > 1 else mean


def shortens(setting: Setting) -> bool:
    """Has a step so many ops, and is it of one sort, that it is told in short (`confirmed`)?"""
    return not (varies(setting.plan) or quick(simulated_ops(program_for(setting, STEPS), setting.places)))


def told_by(setting: Setting, pricer: Pricer | None = None) -> tuple[tuple[int, float], ...]:
    """Numbers of micro-batches of two steps, and how many times each is in the plan's: what grows by the same with each round (seconds, of a class of
    ops or on the path) is as large as the sum. None where the step is simulated as it is: of few ops, of several sorts, or with rounds that differ."""
    rounds = rounds_of(setting) if shortens(setting) else None
    if rounds is None or not rounds.alike(Run(setting, pricer=pricer).times(rounds.counts)):
        return ()
    return (rounds.counts[-2], -rounds.left), (rounds.counts[-1], 1.0 + rounds.left)


def _confirmed(setting: Setting, pricer: Pricer | None = None) -> float:
    plan, run, rounds = setting.plan, Run(setting, pricer=pricer), rounds_of(setting)
    steps = run.times(rounds.counts) if rounds else []
    if rounds and rounds.alike(steps):
        return rounds.extended(*(step.seconds for step in steps[-2:]))
    return _seconds(run, plan) if plan.microbatches * _passes(plan) > _LONG else run.whole()


class Rounds(NamedTuple):
    """Three steps that differ by a round of micro-batches each, after those that warm up."""

    counts: tuple[int, ...]
    left: float
    """Rounds of the plan's step that the longest leaves out."""

    def alike(self, steps: list[Step]) -> bool:
        """Do both rounds lengthen the step by the same, by no less than the thread needs for them? Where that is more, it loses its lead with each round,
        and binds in the end; where it is as much, it binds already (of 241 such plans drawn at random the worst was 0.001 % off)."""
        least, less, most = steps[-3:]
        one, other = less.seconds - least.seconds, most.seconds - less.seconds
        behind = any(_hurried(step) for step in (least, less, most))
        return not behind and abs(other - one) <= _SAME * other and most.host - less.host <= other * _NO_LONGER

    def extended(self, less: float, most: float) -> float:
        """The whole step's seconds, from those of the two longest."""
        return most + (most - less) * self.left


def rounds_of(setting: Setting) -> Rounds | None:
    """Rounds that tell the step, where they are likely to, with less simulation than all micro-batches.

    Not where batches come from disks or loaders (`_supplied`), nor where a step begins the earlier the longer the one before was
    (`warm_of`)."""
    plan = setting.plan
    each = round_of(plan)
    least = _least(plan, each) + (each if each > 1 else 0)
    counts = (*warm_of(plan, least), least, least + each, least + 2 * each)
    saved = (plan.microbatches - sum(counts[1:])) * _passes(plan)
    if _supplied(plan) or puts_off(name_of(plan.parallel)) or each > _DEEP or saved <= 0:
        return None
    if saved * _simulated(setting, counts[-1]) < _WORTH * len(setting.network.blocks):
        return None
    return Rounds(counts, (plan.microbatches - counts[-1]) / each)


def _simulated(setting: Setting, count: int) -> float:
    """Ranks that are simulated, for each where all of a stage sit alike. `count`: micro-batches of a step that has the same."""
    if setting.foldable:
        return 1.0
    program = program_for(setting, 1, counts=(count,))
    return len(set(representatives(program, setting.places))) / len(set(program.role_of))


def _supplied(plan: Plan) -> bool:
    """Loaders keep batches in store, which a longer step may use up; a thread that reads them loses its lead to who else reads."""
    return bool(plan.data.workers) or reads_itself(plan)


def _passes(plan: Plan) -> int:
    """Of a micro-batch through chunks of layers."""
    return plan.parallel.pp * plan.parallel.chunks


def _seconds(run: Run, plan: Plan) -> float:
    count = plan.microbatches
    if _supplied(plan) and count * _passes(plan) <= _LONG:
        return run.whole()
    each_round = round_of(plan)
    fewer = _least(plan, each_round)
    warm = warm_of(plan, fewer)
    while fewer + 2 * each_round < count:
        short, longer = run.times((*warm, fewer, fewer + each_round))[-2:]
        if _hurried(short):
            short, longer = run.times((*warm, fewer, fewer, fewer + each_round))[-2:]
        each, host = ((b - a) / each_round for a, b in zip(short, longer, strict=True))
        if host <= each * _NO_LONGER:
            if each <= host * (1 + _EQUAL) or not _hurried(short):
                return short.seconds + each * (count - fewer)
            fewer += 2 * each_round  # launches only begin to bind
        else:
            # The thread loses its lead with each micro-batch: from where it has none left, a step is as long as the thread needs.
            lead = (short.seconds - short.host) / (host - each)
            fewer += max(1, math.ceil(lead / each_round)) * each_round
        warm = (fewer,) * len(warm)
    return run.whole()


def _hurried(step: Step) -> bool:
    """Shorter than what its thread spends, as only a step can be that began while the device was behind: none of the steady state."""
    return step.seconds < step.host


def _least(plan: Plan, each_round: int) -> int:
    """The smallest count from which on each round lengthens the step alike; what it leaves out of the plan's are whole rounds.

    DualPipe's overlapped forwards and backwards come to their pace late, ZB-H1's weight gradients with the first micro-batch more than stages: found on
    pipelines of 2 to 16 stages. What fills ZB-V is 2 pp - 1 micro-batches (`sim.schedule.zb_v`)."""
    p = plan.parallel
    fill = {"dualpipe": 5 * p.pp, "zb-v": 2 * p.pp}.get(p.schedule, p.pp + puts_off(name_of(p)))
    least = max(_FEW, fill)
    return least + (plan.microbatches - least) % each_round
