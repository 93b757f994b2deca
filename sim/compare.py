"""A prediction beside a trace that was measured elsewhere."""

from __future__ import annotations

from pathlib import Path

from sim.align import Comparison, align_by_class
from sim.kineto import read_trace
from sim.metrics import step_times
from sim.predict import Prediction


def compare(predicted: Prediction, measured: str | Path) -> Comparison:
    """Aligns by class and order of ops. Raises `BadInput` for a file that is no trace."""
    assert predicted.trace is not None
    trace = read_trace(Path(measured))
    return align_by_class(predicted.trace, trace, step_times(trace))
