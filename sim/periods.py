"""Replicas that update alone and average every few steps (`update.mode = "local"`): the mean step of such a period."""

from __future__ import annotations

import msgspec

from sim.bind import Setting
from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.plan import Output, Plan
from sim.timeline.metrics import Breakdown, breakdown


def is_period(plan: Plan) -> bool:
    """Do some of the plan's steps average and others not?"""
    return plan.update.mode == "local" and plan.update.every > 1


def mean_step(setting: Setting, pricer: Pricer, steps: int, fold: bool) -> tuple[float, Breakdown]:
    """Seconds of a step, and what they are spent on: a step with averaging counts one `every`-th, a step without for the rest.

    One step alone would be either, by whether `every` happens to divide the number of simulated steps.
    """
    share = 1.0 / setting.plan.update.every
    split = dict.fromkeys(Breakdown.__struct_fields__, 0.0)
    for every, weight in ((1, share), (steps + 1, 1.0 - share)):  # in each simulated step, in none
        update = msgspec.structs.replace(setting.plan.update, every=every)
        plan = msgspec.structs.replace(setting.plan, output=Output(), update=update)
        program = lower(plan, setting.network, setting.framework, setting.topology.kind, steps)
        found = breakdown(simulate(program, pricer, fold, setting.foldable, False, condensed=True))
        for name in split:
            split[name] += weight * getattr(found, name)
    mean = Breakdown(**split)
    return mean.total, mean
