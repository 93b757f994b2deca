"""One step of a plan in its steady state, with as little simulation as that needs."""

from __future__ import annotations

import msgspec

from sim import metrics
from sim.bind import Setting, bind
from sim.plan import Plan

STEPS = 2
"""The first step warms up what overlaps with its neighbours; the second is reported."""
_FEW = 8
"""Micro-batches (in whole rounds of the pipeline) that are simulated; a longer accumulation repeats the same round."""


def step_seconds(plan: Plan, topology: str) -> tuple[float, float, dict[str, float]]:
    """(seconds, ideal seconds, breakdown) of one optimizer step of `plan` on `topology`.

    Ideal: model FLOPs over the peak of all GPUs. A plan with many micro-batches is simulated with fewer, twice:
    between the two only whole rounds of equal micro-batches differ, so the step grows by the same time with each.
    Raises `BadInput` and its kinds.
    """
    setting = bind(plan, topology)
    few = _rounds(plan)
    if few is None:
        seconds, parts = _simulated(setting)
    else:
        (a, first), (b, second) = ((n, *_simulated(_with_microbatches(setting, n))[:1]) for n in few)
        slope = (second - first) / (b - a)
        seconds = second + slope * (plan.microbatches - b)
        parts = {}
    return seconds, _ideal(setting), parts


def _rounds(plan: Plan) -> tuple[int, int] | None:
    """Two micro-batch counts to simulate instead of the plan's; None where it has few."""
    p = plan.parallel
    per_round = p.pp if p.pp > 1 else 1
    fewer = max(2, -(-_FEW // per_round)) * per_round
    if p.pp > 1:
        fewer = max(fewer, 2 * p.pp)
    more = fewer + per_round * (2 if p.pp > 1 else 4)
    if plan.microbatches <= more + per_round:
        return None
    # Keep the same remainder: the rounds that are left out are whole.
    rest = plan.microbatches % per_round
    return fewer + rest, more + rest


def _with_microbatches(setting: Setting, count: int) -> Setting:
    plan = setting.plan
    batch = msgspec.structs.replace(plan.batch, global_=count * plan.batch.micro * plan.data_ranks)
    return msgspec.structs.replace(setting, plan=msgspec.structs.replace(plan, batch=batch))


def _simulated(setting: Setting) -> tuple[float, dict[str, float]]:
    from sim.engine.run import simulate
    from sim.lower.step import lower
    from sim.predict import pricer_for

    plan, topology = setting.plan, setting.topology
    program = lower(plan, setting.network, setting.framework, topology.kind, STEPS)
    trace = simulate(program, pricer_for(setting), True, topology.symmetric)
    split = metrics.breakdown(trace)
    return metrics.step_times(trace)[-1], {key: float(value) for key, value in msgspec.structs.asdict(split).items()}


def _ideal(setting: Setting) -> float:
    plan = setting.plan
    peaks = setting.topology.device(0).flops
    peak = peaks.get(plan.precision) or peaks.get("fp8") or peaks.get("bf16") or peaks.get("fp16") or 0.0
    return setting.network.flops_per_sample * plan.global_batch / (peak * plan.world) if peak else 0.0
