"""Full recomputation of some layers alone: as few of each stage as leave room on the device (Megatron's recompute_num_layers, method "block")."""

from __future__ import annotations

import math
from bisect import bisect_left

from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning.sweeps.space import relaid
from sim.result.figures import fill_of, fits
from sim.setting.bind import Setting, bind, model_of


def partly(setting: Setting) -> list[tuple[tuple[str, ...], Plan]]:
    """(overrides, plan) of the plan that runs the fewest layers of each stage again; none where all of them have to, or no layer has. Nothing is
    simulated. Raises `BadInput` and its kinds where the plan cannot be described."""
    plan, parallel = setting.plan, setting.plan.parallel
    layers = math.ceil(getattr(model_of(plan), "layers", 0) / (parallel.pp * parallel.chunks))
    if plan.task == "forward" or layers < 2 or _roomy(setting, _none(plan)):
        return []
    counts = range(1, layers)
    place = bisect_left(counts, True, key=lambda count: _roomy(setting, _some(plan, count)))
    return [(_words(counts[place]), _some(plan, counts[place]))] if place < len(counts) else []


def _words(count: int) -> tuple[str, ...]:
    return ("memory.recompute=full", f"memory.recompute_layers={count}")


def _some(plan: Plan, count: int) -> Plan:
    fixed = (*_words(count), f"batch.global={plan.global_batch}")
    return load_plan(relaid(plan, fixed), fixed)


def _none(plan: Plan) -> Plan:
    fixed = ("memory.recompute=none", f"batch.global={plan.global_batch}")
    return load_plan(relaid(plan, fixed), fixed)


def _roomy(setting: Setting, plan: Plan) -> bool:
    """Does the plan fit on the same machine, with room to spare?"""
    there = bind(plan, setting.topology)
    return fits(there) and not fill_of(there).nearly_full
