"""Full recomputation of only some layers: the fewest layers per stage with which the plan fits on the device (Megatron's recompute_num_layers, method "block")."""

from __future__ import annotations

import math
from bisect import bisect_left

from sim.plan import Plan
from sim.planning.explain.neighbours import changed
from sim.result.figures import figures_of_memory
from sim.setting.bind import Setting, bind, model_of
from sim.setting.rooms import smallest_devices


def partly(setting: Setting) -> list[tuple[tuple[str, ...], Plan]]:
    """A list with (overrides, plan) of the plan that recomputes the fewest layers per stage; nothing is simulated.

    The list is empty if all layers or no layer must be recomputed, if that plan is the given one, or if the plan only runs forward. Raises
    `BadInput` and its subclasses if the plan cannot be described.
    """
    plan, parallel = setting.plan, setting.plan.parallel
    layers = math.ceil(getattr(model_of(plan), "layers", 0) / (parallel.pp * parallel.chunks))
    if plan.task == "forward" or layers < 2 or _roomy(setting, ("memory.recompute=none",)):
        return []
    ways = [("memory.recompute=full", f"memory.recompute_layers={count}") for count in range(1, layers)]
    place = bisect_left(ways, True, key=lambda way: _roomy(setting, way))
    return [(way, there) for way in ways[place : place + 1] if (there := changed(plan, way)) != plan]


def _roomy(setting: Setting, overrides: tuple[str, ...]) -> bool:
    """True if the plan with these overrides fits on the same machine and does not nearly fill its memory."""
    there = bind(changed(setting.plan, overrides), setting.topology)
    report, missing = figures_of_memory(there, remedies=False)
    return missing is None and not report.fill(smallest_devices(there)).nearly_full
