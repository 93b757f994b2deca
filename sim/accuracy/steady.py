"""The step time of a published plan, and the time that it would take at the peak of its GPUs."""

from __future__ import annotations

from sim.plan import Plan
from sim.setting.bind import Setting, bind
from sim.steady.rounds import step_of


def step_seconds(plan: Plan, topology: str, edits: tuple[str, ...] = ()) -> tuple[float, float]:
    """(seconds, ideal seconds) of one optimizer step of `plan` on `topology` with the what-ifs `edits`.

    Ideal: model FLOPs over the peak of all GPUs. Raises `BadInput` and its kinds.
    """
    setting = bind(plan, topology, edits)
    return step_of(setting), _ideal(setting)


def _ideal(setting: Setting) -> float:
    plan = setting.plan
    peaks = setting.topology.device(0).flops
    peak = peaks.get(plan.precision) or peaks.get("fp8") or peaks.get("bf16") or peaks.get("fp16") or 0.0
    return setting.flops / (peak * plan.world) if peak else 0.0
