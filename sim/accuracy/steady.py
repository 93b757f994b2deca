"""One step of a plan in its steady state, with as little simulation as that needs."""

from __future__ import annotations

import msgspec

from sim import metrics
from sim.bind import Setting, bind
from sim.plan import Plan
from sim.trace import Trace

STEPS = 2
"""The first step warms up what overlaps with its neighbours; the second is reported."""
_FEW = 8
"""Micro-batches without a pipeline that are simulated; a longer accumulation repeats the last."""
_LEAST = 4
"""Micro-batches, in whole rounds of the pipeline."""


def step_seconds(plan: Plan, topology: str) -> tuple[float, dict[str, float], float]:
    """(seconds, breakdown, ideal seconds) of one optimizer step of `plan` on `topology`.

    Ideal: model FLOPs over the peak of all GPUs. A plan with many micro-batches is simulated with fewer; one step with
    some more tells by how much each whole round of equal micro-batches lengthens it.
    Raises `BadInput` and its kinds.
    """
    setting = bind(plan, topology)
    few = _rounds(plan)
    if few is None:
        return *_simulated(setting, STEPS), _ideal(setting)
    fewer, more = few
    first, seconds = _times(_trace(_with_microbatches(setting, fewer), STEPS))
    longer, _ = _times(_trace(_with_microbatches(setting, more), 1))
    slope = (longer - first) / (more - fewer)
    return seconds + slope * (plan.microbatches - fewer), {}, _ideal(setting)


def _rounds(plan: Plan) -> tuple[int, int] | None:
    """Two micro-batch counts, a round apart, to simulate instead of the plan's; None where it has few."""
    per_round = max(1, plan.parallel.pp)
    # A pipeline's rounds are alike from the first one on (to 0.05 % of the step over the published plans).
    fewer = -(-_LEAST // per_round) * per_round if per_round > 1 else _FEW
    more = fewer + (per_round if per_round > 1 else 4)
    if plan.microbatches <= more + per_round:
        return None
    # Keep the same remainder: the rounds that are left out are whole.
    rest = plan.microbatches % per_round
    return fewer + rest, more + rest


def _with_microbatches(setting: Setting, count: int) -> Setting:
    plan = setting.plan
    batch = msgspec.structs.replace(plan.batch, global_=count * plan.batch.micro * plan.data_ranks)
    return msgspec.structs.replace(setting, plan=msgspec.structs.replace(plan, batch=batch))


def _simulated(setting: Setting, steps: int) -> tuple[float, dict[str, float]]:
    trace = _trace(setting, steps)
    split = metrics.breakdown(trace)
    return _times(trace)[-1], {key: float(value) for key, value in msgspec.structs.asdict(split).items()}


def _times(trace: Trace) -> tuple[float, float]:
    """Seconds of the first and of the last step."""
    times = metrics.step_times(trace)
    return times[0], times[-1]


def _trace(setting: Setting, steps: int) -> Trace:
    from sim.engine.run import simulate
    from sim.lower.step import lower
    from sim.predict import pricer_for

    topology = setting.topology
    program = lower(setting.plan, setting.network, setting.framework, topology.kind, steps)
    return simulate(program, pricer_for(setting), True, topology.symmetric, condensed=True)


def _ideal(setting: Setting) -> float:
    plan = setting.plan
    peaks = setting.topology.device(0).flops
    peak = peaks.get(plan.precision) or peaks.get("fp8") or peaks.get("bf16") or peaks.get("fp16") or 0.0
    return setting.network.flops_per_sample * plan.global_batch / (peak * plan.world) if peak else 0.0
