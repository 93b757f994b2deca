"""The seconds of a plan's step by class, found with as few ops as possible.

The result is that of `predict_setting` without detail, but from the ops of `sim.steady.shortened`: equal layers are lowered, priced and
condensed once. All micro-batches are simulated: each round of micro-batches lengthens the step by the same time, but not each class,
because the thread that launches kernels runs ahead.
"""

from __future__ import annotations

from sim.setting.bind import Setting
from sim.steady.settled import settled
from sim.steady.shortened import Run
from sim.timeline.metrics import Breakdown, breakdown, step_time


def split_of(setting: Setting) -> Breakdown | None:
    """The seconds of one optimizer step by class; they sum to the step. None if its ops cannot be shortened or its steps have not settled;
    use `predict` then. Raises `BadInput` and its subclasses."""
    run = Run(setting)
    if not run.shortens:
        return None
    program, trace = run.traced()
    return breakdown(trace) if settled(program, run.pricer, step_time(trace)) else None
