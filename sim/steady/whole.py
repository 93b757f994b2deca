"""Steps as they come: everything that does not come with each of them, over a whole period of all of it.

Most plans need none of this: what comes every so many steps is simulated on every step, with and without, and spread (`sim.steady.stalls`,
`sim.steady.periods`). That is no answer where two such things wait for the device together, or where ranks that wait for each other every few steps
alone meet on what they share.
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
"""Steps of a period that is simulated at most."""
_BEFORE = 8
"""Steps before it at least: what the first ones do alone has gone by."""


def locally(plan: Plan) -> bool:
    """Do replicas average every few steps?"""
    return plan.update.mode == "local" and plan.update.every > 1


def together(plan: Plan) -> bool:
    """Does the plan's output come with steps that differ, or wait for the device beside a checkpoint?"""
    output = plan.output
    return bool(output.periods) and (locally(plan) or (output.checkpoint_every > 0 and len(output.periods) > 1)) and not plan.asynchronous


def drifting(setting: Setting) -> bool:
    """May ranks of local updates be at different steps, as some are slower?"""
    return locally(setting.plan) and not (setting.plan.noise.even and setting.topology.equal)


def followed(setting: Setting) -> int:
    """Steps of the period over which ranks of local updates that drift apart are followed; 0 where they do not, or where it is too long."""
    every = setting.plan.update.every
    return every if drifting(setting) and every <= _LONGEST else 0


def warmed(period: int) -> int:
    """Steps before the period that counts, in whole periods."""
    return period * math.ceil(_BEFORE / period)


def whole(setting: Setting, pricer: Pricer, output: Output) -> float | None:
    """Mean seconds of a step with such output, over a whole period; None where that is too long, or the program."""
    plan = msgspec.structs.replace(setting.plan, output=output)
    period = plan.period
    if period > _LONGEST:
        return None
    before = warmed(period)
    last = before + period
    # Loaders make no further batch in the last steps, and take no cores from them.
    program = program_for(setting, last + 1 + stored(program_for(setting, 2, plan)), plan)
    if not quick(simulated_ops(program, setting.places)):
        return None
    ends = step_ends(simulate(program, pricer, setting.places, detail=False))
    return (ends[last - 1] - ends[before - 1]) / period
