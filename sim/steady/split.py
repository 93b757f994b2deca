"""Where a plan's step goes, by class, from the fewest ops.

As `predict_setting` finds it without detail, but from the ops of `sim.steady.shortened`: equal layers are lowered, priced and condensed once. All
micro-batches are simulated: rounds of them lengthen the step alike but not its classes, as the thread that launches runs ahead.
"""

from __future__ import annotations

from sim.setting.bind import Setting
from sim.steady.settled import settled
from sim.steady.shortened import Run
from sim.timeline.metrics import Breakdown, breakdown, step_time


def split_of(setting: Setting) -> Breakdown | None:
    """Classes of one optimizer step, which sum to it; None where its ops cannot be shortened, or two steps have not settled: `predict`
    knows more. Raises `BadInput` and its kinds."""
    run = Run(setting)
    if not run.shortens:
        return None
    program, trace = run.traced()
    return breakdown(trace) if settled(program, run.pricer, step_time(trace)) else None
