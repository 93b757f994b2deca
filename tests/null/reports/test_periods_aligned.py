"""Steps of which every few do more, laid beside stock runs: mean steps of whole periods on both sides."""

from __future__ import annotations

import pytest

from executor.twin import _beside_stock
from sim.align import align_by_class, reported, step_of
from sim.predict import predict
from sim.timeline.metrics import step_times
from sim.trace import Span, Trace

GPT = {"model": "gpt2-124m", "seq_len": 256, "batch": {"micro": 1}}
LOCAL = GPT | {"parallel": {"dp_replicate": 2}, "update": {"mode": "local", "every": 2}}
SAVED = GPT | {"output": {"checkpoint_every": 2, "checkpoint_mode": "full"}}
STOCK = Trace(
    [
        Span(0, "host", "r0/s0/output", 0.0, 0.1, cls="output", step=0),
        Span(0, "host", "r0/s0/gemm", 0.1, 0.2, cls="gemm", step=0),
        Span(0, "host", "r0/s1/gemm", 0.2, 0.3, cls="gemm", step=1),
    ],
    "stock",
    1,
    2,
)


def test_a_period_of_local_updates_holds_one_average() -> None:
    found = predict(LOCAL, "dgx-h100", steps=3)
    assert found.trace is not None
    times = step_times(found.trace)
    assert step_of(found.trace) == times[-1] and step_of(found.trace, 2) == pytest.approx(sum(times[-2:]) / 2)
    assert abs(times[-1] - times[-2]) > 1e-4, "one of the two averages parameters"
    sent = [sum(span.cls == "comm.ps" for span in reported(found.trace, every)) for every in (1, 2)]
    assert sent[1] > 0 and sent[1] >= sent[0]
    one, two = (align_by_class(found.trace, STOCK, [0.2], every) for every in (1, 2))
    gemm = [next(row.predicted for row in some.classes if row.cls == "gemm") for some in (one, two)]
    assert gemm[1] == pytest.approx(gemm[0], rel=1e-6), "the same in each step"


def test_what_is_saved_now_and_then_is_in_the_mean_step() -> None:
    found = predict(SAVED, "dgx-h100")
    one, two = (_beside_stock(found, STOCK, [0.15], every) for every in (1, 2))
    assert found.trace is not None and one.predicted_step == step_of(found.trace) < found.step_time_s
    assert two.predicted_step == found.step_time_s
    rows = {row.cls: row for row in two.classes}
    assert rows["output"].predicted == found.breakdown.output_s > 0 and rows["output"].measured == pytest.approx(0.05)
    assert rows["gemm"] in one.classes
