"""One step of a plan in its steady state, with as little simulation as that needs.

A plan with many micro-batches is simulated with fewer; one step with some more tells by how much each whole round of equal micro-batches
lengthens it. Over the published plans this is within 0.05 % of the whole simulation.
"""

from __future__ import annotations

import msgspec

from sim.bind import Setting
from sim.engine.clocks import step_times
from sim.engine.shortcut import Shortcut
from sim.lower.short import Shortener
from sim.lower.step import lower
from sim.plan import Plan
from sim.planfile import mesh_of
from sim.predict import pricer_for

STEPS = 2
"""The first step warms up what overlaps with its neighbours; the second is reported."""
_FEW = 8
"""Micro-batches without a pipeline that are simulated; a longer accumulation repeats the last."""
_LEAST = 4
"""Micro-batches, in whole rounds of the pipeline."""


def step_of(setting: Setting, coarse: bool = False) -> tuple[float, dict[str, float]]:
    """(seconds, {}) of one optimizer step: nothing but its time is worked out. `coarse`: a collective that runs beside a layer slows
    all of it alike, its own collectives too. Raises `BadInput` and its kinds."""
    plan, run = setting.plan, Run(setting, coarse)
    few = _rounds(plan)
    if few is None:
        return run.times(setting, STEPS)[-1], {}
    fewer, more = few
    times = run.times(_with_microbatches(setting, fewer), STEPS)
    longer = run.times(_with_microbatches(setting, more), 1)[0]
    slope = (longer - times[0]) / (more - fewer)
    return times[-1] + slope * (plan.microbatches - fewer), {}


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


class Run:
    """Programs of one plan that differ in micro-batches and steps; where all stages' ranks are alike, equal layers are priced once."""

    def __init__(self, setting: Setting, coarse: bool = False) -> None:
        pricer, plan = pricer_for(setting), setting.plan
        self._shortcut, self._pricer = None, pricer
        plain = plan.noise.stragglers == plan.noise.imbalance == "none" and plan.update.mode == "sync" and plan.update.aggregate == "gpu"
        if plain and setting.topology.kind == "cuda" and setting.topology.symmetric:
            self._shortcut = Shortcut(pricer, mesh_of(plan), setting.topology)
        self._short = Shortener(self._shortcut.shorten, coarse) if self._shortcut else None

    def times(self, setting: Setting, steps: int) -> list[float]:
        """Seconds of each step."""
        topology = setting.topology
        program = lower(setting.plan, setting.network, setting.framework, topology.kind, steps, self._short)
        if self._shortcut is None:
            return step_times(program, self._pricer, True, topology.symmetric)
        return step_times(program, self._shortcut, True, True, self._shortcut.alike)
