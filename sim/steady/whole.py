"""The mean step over a whole period: the number of steps after which everything that does not happen in each step has happened once.

Most plans do not need this: what happens only every few steps is simulated on every step, with it and without it, and the difference is
spread over the steps (`sim.steady.stalls`, `sim.steady.periods`). That is wrong if two such things wait for the device together, or if
ranks that wait for each other only every few steps compete for what they share.
"""

from __future__ import annotations

import math

import msgspec

from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.plan import Plan
from sim.sections import Output
from sim.setting.bind import Setting
from sim.setting.program import program_for
from sim.steady.detail import quick, simulated_ops
from sim.steady.settled import stored
from sim.timeline.metrics import step_ends

_LONGEST = 12
"""Longest period that is simulated, in steps."""
_BEFORE = 8
"""Least number of steps that are simulated before the period, so that what only the first steps do is over."""


def locally(plan: Plan) -> bool:
    """Do replicas average only every few steps?"""
    return plan.update.mode == "local" and plan.update.every > 1


def together(plan: Plan) -> bool:
    """Does the plan have output and steps that differ (local updates), or checkpoints and other output? False for asynchronous plans."""
    output = plan.output
    return bool(output.periods) and (locally(plan) or (output.checkpoint_every > 0 and len(output.periods) > 1)) and not plan.asynchronous


def drifting(setting: Setting) -> bool:
    """Can ranks with local updates be at different steps, because some ranks are slower than others?"""
    return locally(setting.plan) and not (setting.plan.noise.even and setting.topology.equal)


def followed(setting: Setting) -> int:
    """Steps of the period over which ranks with local updates drift apart; 0 if they do not drift, or if the period is too long to
    simulate."""
    every = setting.plan.update.every
    return every if drifting(setting) and every <= _LONGEST else 0


def warmed(period: int) -> int:
    """Number of steps to simulate before the period that counts; a multiple of `period`."""
    return period * math.ceil(_BEFORE / period)


def whole(setting: Setting, pricer: Pricer, output: Output) -> float | None:
    """Mean seconds of a step with the given output, over a whole period. None if the period is too long or the program has too many ops."""
    plan = msgspec.structs.replace(setting.plan, output=output)
    period = plan.period
    if period > _LONGEST:
        return None
    before = warmed(period)
    last = before + period
    # In the last steps loaders make no more batches, so they take no cores from training: these steps do not count.
    program = program_for(setting, last + 1 + stored(program_for(setting, 2, plan)), plan)
    if not quick(simulated_ops(program, setting.places)):
        return None
    ends = step_ends(simulate(program, pricer, setting.places, detail=False))
    return (ends[last - 1] - ends[before - 1]) / period
