"""One step of a plan in its steady state, or the mean step if steps differ (`sim.steady.periods`), with as little simulation as possible.

A plan with many micro-batches is simulated with fewer; a second step with some more tells by how much each whole round of equal
micro-batches lengthens the step. Over the published plans this is within 0.05 % of the whole simulation. `confirmed` is as close over the
plans that sweeps end with: it looks at two rounds, and simulates all micro-batches if the two differ. Of 119 plans drawn at random (splits,
schedules, frameworks, networks of 8 and 16 layers, one to four nodes) 114 were within 0.1 % of what `predict` says op by op, the worst 0.5
% off.
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
"""Two rounds are alike if their times differ by no more than this share."""
_NO_LONGER = 1 + 1e-9
"""A thread keeps its lead over the device if it needs at most this many times as long as the step: 1, with room for rounding."""
_FEW = 3
"""Least number of micro-batches that are simulated."""
_SAME = 1e-4
"""The same share as `_EQUAL`, for rounds that are confirmed only by comparing two of them."""
_WORTH = 12
"""Passes of micro-batches through chunks for each block of the network. If rounds save at least so many, they save more than the ends of
the two additional steps cost. This holds if all ranks of a stage are placed alike; otherwise more ranks are simulated, and a pass costs as
many times more."""
_DEEP = 8
"""Longest round, in micro-batches, for which rounds that are alike stay alike. In deeper pipelines whose stages take turns, messages fall
behind so slowly that they delay compute only after five or more rounds (found with 16 and 32 stages: 0.04 and 0.6 % of the step)."""
_LONG = 8192
"""A step with more passes is predicted from rounds even if they differ or batches come from loaders: to simulate all its passes would take
minutes."""


def step_of(setting: Setting, coarse: bool = False) -> float:
    """Seconds of one optimizer step. `coarse`: a collective that runs beside a layer slows all kernels of the layer alike, and what the
    layer's transfers lose to other transfers on the same links is left out. Raises `BadInput` and its subclasses."""
    return _mean(setting, lambda one: _seconds(Run(one, coarse), one.plan))


def whole_step(setting: Setting) -> float:
    """Seconds of one optimizer step, with all its micro-batches simulated. This is what `predict` says apart from output; tests compare
    `confirmed` with it. Raises `BadInput` and its subclasses."""
    return _mean(setting, lambda one: Run(one).whole())


def confirmed(setting: Setting, pricer: Pricer | None = None) -> float:
    """Seconds of one optimizer step, within 0.05 % of `whole_step`. They come from rounds if that takes less simulation and two rounds are
    alike. `pricer`: gives the costs of ops, for plans whose steps are all alike; None: the pricer of the setting. Raises `BadInput` and its
    subclasses."""
    return _mean(setting, partial(_confirmed, pricer=pricer))


def _mean(setting: Setting, step: Callable[[Setting], float]) -> float:
    """Seconds of a mean step. `step`: gives the seconds of a plan whose steps are all alike; it is called for each of the plan's
    `kinds`."""
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
    """May the step be predicted from rounds (`confirmed`)? So it is if its steps are all alike and have too many ops for a quick exact
    run."""
    return not (varies(setting.plan) or quick(simulated_ops(program_for(setting, STEPS), setting.places)))


def told_by(setting: Setting, pricer: Pricer | None = None) -> tuple[tuple[int, float], ...]:
    """Two (number of micro-batches, weight) pairs, whose weights sum to 1. A quantity that grows by the same amount with each round
    (seconds of a class of ops, or on the critical path) is, for the plan's step, the weighted sum of its values in the two steps.

    Empty if the step is simulated as it is: it has few ops, the plan's steps differ, or its rounds do."""
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
    """Steps that warm up, and then three steps, each with one round of micro-batches more than the step before."""

    counts: tuple[int, ...]
    """Number of micro-batches of each step."""
    left: float
    """Number of rounds by which the plan's step is longer than the longest of the three."""

    def alike(self, steps: list[Step]) -> bool:
        """Do both rounds lengthen the step by the same time, and is that no less than the training thread needs for a round? If the thread
        needs more, it loses its lead over the device with each round and binds in the end. If it needs as much, it binds already (of 241
        such plans drawn at random the worst was 0.001 % off). False if a step is shorter than the work of its thread."""
        least, less, most = steps[-3:]
        one, other = less.seconds - least.seconds, most.seconds - less.seconds
        behind = any(_hurried(step) for step in (least, less, most))
        return not behind and abs(other - one) <= _SAME * other and most.host - less.host <= other * _NO_LONGER

    def extended(self, less: float, most: float) -> float:
        """Seconds of the plan's step. `less`, `most`: seconds of the second longest and the longest of the three steps."""
        return most + (most - less) * self.left


def rounds_of(setting: Setting) -> Rounds | None:
    """The rounds from which to predict the step; None if all micro-batches must be simulated, or if rounds would not save simulation.

    Rounds are not used if batches come from disks or loaders (`_supplied`), if a step begins the earlier the longer the step before it was
    (ZB-H1, `warm_of`), or if a round is longer than `_DEEP`."""
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
    """Number of ranks that are simulated, over the number if all ranks of a stage were placed alike. `count`: micro-batches of the step to
    look at."""
    if setting.foldable:
        return 1.0
    program = program_for(setting, 1, counts=(count,))
    return len(set(representatives(program, setting.places))) / len(set(program.role_of))


def _supplied(plan: Plan) -> bool:
    """Do batches come from loaders, or does the training thread read them? Loaders keep batches in store, which a longer step may use up; a
    thread that reads loses its lead when others read from the same disk."""
    return bool(plan.data.workers) or reads_itself(plan)


def _passes(plan: Plan) -> int:
    """Number of chunks of layers that a micro-batch passes through."""
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
            fewer += 2 * each_round  # launches begin to bind only now
        else:
            # The thread loses its lead with each micro-batch. Once it has none left, a step is as long as the thread needs.
            lead = (short.seconds - short.host) / (host - each)
            fewer += max(1, math.ceil(lead / each_round)) * each_round
        warm = (fewer,) * len(warm)
    return run.whole()


def _hurried(step: Step) -> bool:
    """Is the step shorter than the work of its thread? Only a step that began while the device was behind can be: it is not in the steady
    state."""
    return step.seconds < step.host


def _least(plan: Plan, each_round: int) -> int:
    """The smallest number of micro-batches from which on each round lengthens the step by the same time. The plan's number is larger by
    whole rounds.

    DualPipe's overlapped forwards and backwards reach their steady pace late; ZB-H1's weight gradients reach it with one micro-batch more
    than there are stages. Both were found on pipelines of 2 to 16 stages. What fills ZB-V is 2 pp - 1 micro-batches
    (`sim.schedule.zb_v`)."""
    p = plan.parallel
    fill = {"dualpipe": 5 * p.pp, "zb-v": 2 * p.pp}.get(p.schedule, p.pp + puts_off(name_of(p)))
    least = max(_FEW, fill)
    return least + (plan.microbatches - least) % each_round
