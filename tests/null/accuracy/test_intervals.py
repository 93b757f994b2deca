"""Intervals: composed of what a step is spent on, wider where less is known, held by as many measurements as they say."""

from __future__ import annotations

from math import exp, hypot, log
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy import score
from sim.accuracy.intervals import Residual, fit, held
from sim.accuracy.score import Outcome
from sim.cost.price import Cost
from sim.lower.step import lower
from sim.plan import Plan
from sim.predict import predict
from sim.result import uncertainty
from sim.result.uncertainty import KINDS, Figures, interval, outside, relative_error, shares_of
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from topologies.load import load_topology

KNOWN = Figures(
    plan=0.03,
    sigma={"gemm": 0.1, "attention": 0.2, "memory": 0.1, "links": 0.2, "network": 0.3, "host": 0.4},
    width={"measured": 0.5, "fitted": 1.0, "assumed": 2.0, "beyond": 1.5},
    range={"gpus": 1000.0, "seq_len": 8192.0, "parameters": 1e11},
    assumed_at_most=0.25,
)
parts = st.dictionaries(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(["measured", "fitted", "assumed"])), st.floats(0.01, 1.0), min_size=1, max_size=8
)


def test_errors_of_one_kind_add_and_of_two_kinds_are_independent() -> None:
    assert relative_error({("gemm", "fitted"): 1.0}, KNOWN) == pytest.approx(hypot(0.03, 0.1))
    assert relative_error({("gemm", "fitted"): 0.5, ("gemm", "assumed"): 0.5}, KNOWN) == pytest.approx(hypot(0.03, 0.05 + 0.1))
    assert relative_error({("gemm", "fitted"): 0.5, ("host", "fitted"): 0.5}, KNOWN) == pytest.approx(hypot(0.03, 0.05, 0.2))


@given(parts)
def test_less_known_is_wider(weights: dict[tuple[str, str], float]) -> None:
    total = sum(weights.values())
    shares = {key: weight / total for key, weight in weights.items()}
    worse: dict[tuple[str, str], float] = {}
    for (kind, _), share in shares.items():
        worse[kind, "assumed"] = worse.get((kind, "assumed"), 0.0) + share
    near, far, beyond = (
        interval(2.0, shares, (), known=KNOWN),
        interval(2.0, worse, (), known=KNOWN),
        interval(2.0, shares, ("new device",), known=KNOWN),
    )
    assert far.low <= near.low * (1 + 1e-12) < 2.0 < near.high <= far.high * (1 + 1e-12)
    assert beyond.high >= near.high and beyond.low <= near.low
    assert near.low * near.high == pytest.approx(4.0)


def test_marks() -> None:
    fitted, mixed = {("gemm", "fitted"): 1.0}, {("gemm", "fitted"): 0.7, ("memory", "assumed"): 0.3}
    assert interval(1.0, fitted, (), known=KNOWN).mark == "interpolated"
    new = interval(1.0, fitted, ("new device",), known=KNOWN)
    assert (new.mark, new.why) == ("extrapolated", ("new device",))
    guessed = interval(1.0, mixed, (), known=KNOWN)
    assert (guessed.mark, guessed.why) == ("extrapolated", ("30% of the first rank's step rests on assumed costs",))


def test_only_this_machines_own_measurements_calibrate() -> None:
    measured = {("gemm", "measured"): 0.9, ("host", "assumed"): 0.1}
    own, tables = interval(1.0, measured, ("new device",), probed=True, known=KNOWN), interval(1.0, measured, (), known=KNOWN)
    assert (own.mark, own.why) == ("calibrated", ()) and tables.mark == "interpolated"
    assert own.sigma == pytest.approx(hypot(0.03, 0.45 * 0.1, 0.2 * 0.4)) and tables.sigma > own.sigma
    few = {("gemm", "measured"): 0.2, ("memory", "assumed"): 0.8}
    assert interval(1.0, few, (), probed=True, known=KNOWN).mark == "extrapolated"


def test_beyond_the_data() -> None:
    h100, l40s = load_topology("16x dgx-h100"), load_topology("l40s-x8")
    assert outside(Plan(model="gpt2-124m"), h100, 10**8, KNOWN) == ()
    assert "no training step of l40s" in outside(Plan(model="gpt2-124m"), l40s, 10**8, KNOWN)[0]
    longer = outside(Plan(model="gpt2-124m", seq_len=16384), h100, 10**12, KNOWN)
    assert [text.split(":")[0] for text in longer] == ["16,384 tokens per sequence", f"{10**12:,} parameters"]


def test_shares_are_what_the_step_is_spent_on() -> None:
    setting = bind("gpt2-ddp8", "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)

    class Flat:
        """Every kernel takes one second, every transfer and host op nothing."""

        capacity = pricer_for(setting).capacity

        def local(self, op: object, rank: int) -> Cost:
            return Cost(1.0 if op.kind == "compute" else 0.0, "fitted")  # type: ignore[attr-defined]

        def collective(self, *_: object) -> Cost:
            return Cost(0.0, "fitted")

        message = collective

        def slowdown(self, rank: int) -> float:
            return 1.0

    last = [op for call, op in program.ops(0) if call.step == 1 and op.kind == "compute"]
    step = 4.0 * len(last)
    shares = shares_of(program, Flat(), setting.topology, setting.plan, step)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["host", "fitted"] == pytest.approx(0.75)
    attention = sum(op.cls == "attention" for op in last)
    assert shares["attention", "fitted"] == pytest.approx(attention / step)


@pytest.mark.no_cover
def test_the_interval_is_published() -> None:
    found = predict("gpt2-ddp8", "dgx-h100").to_dict()
    low, high = found["interval_s"]["low"], found["interval_s"]["high"]
    assert 0 < low < found["step_time_s"] < high and found["interval_s"]["level"] == uncertainty.LEVEL
    assert found["mark"] == "interpolated" and found["mark_reasons"] == []
    assert predict("gpt2-ddp8", "l40s-x8").mark == "extrapolated"


def test_the_fit_holds_as_many_as_it_says_and_finds_what_is_wrong() -> None:
    pytest.importorskip("scipy")
    draw = Random(0)
    rows = []
    for index in range(600):
        part = draw.random()
        shares = {("gemm", "fitted"): part, ("network", "fitted"): 1.0 - part}
        miss = draw.gauss(0, hypot(0.05 * part, 0.3 * (1 - part)))
        rows.append(Residual(row_id=str(index), source_id="s", gpu="g", family="f", miss=miss, shares=shares, beyond=False))
    known = fit(rows, KNOWN)
    assert 0.75 <= held(rows, known) <= 0.85
    assert known.sigma["network"] > 3 * known.sigma["gemm"]


def _outcome(low: float, high: float, measured: float = 1.0, **more: object) -> Outcome:
    fields = {"row_id": "r", "source_id": "s", "family": "f", "gpu": "H100", "model": "m", "framework": "x", "samples": 8.0, "gpus": 8}
    return Outcome(predicted_s=1.0, measured_s=measured, interval_s=(low, high), ideal_s=0.5, **(fields | more))  # type: ignore[arg-type]


def test_coverage_counts_measurements_inside() -> None:
    outcomes = [_outcome(0.9, 1.1, measured, source_id=source) for measured, source in ((1.0, "a"), (1.05, "a"), (1.2, "b"), (0.9, "b"))]
    assert score.coverage(outcomes) == pytest.approx(0.75)
    assert score.coverage_by(outcomes, lambda o: o.source_id) == {"a": 1.0, "b": 0.5}
    bare = msgspec.structs.replace(outcomes[2], interval_s=None)
    assert not bare.inside and score.coverage([bare]) == 0.0
    assert score.coverage_table([*outcomes, bare])["mean_width"] == pytest.approx(0.2)


def test_reach_is_symmetric_in_ratios() -> None:
    row = Residual(row_id="r", source_id="s", gpu="g", family="f", miss=log(1.1), shares={("gemm", "fitted"): 1.0}, beyond=True)
    found = interval(3.0, row.shares, ("new",), known=KNOWN)
    assert found.high / 3.0 == pytest.approx(exp(row.reach(KNOWN))) == pytest.approx(3.0 / found.low)
    assert row.holds(KNOWN)


@pytest.mark.no_cover
def test_what_a_parameter_server_does_and_what_travels_to_it_is_waited_for() -> None:
    """Asynchronous updates wait for a CPU's network messages, whose costs nobody has measured: such a step is no interpolation."""
    import steptwin

    found = steptwin.predict(steptwin.plan("gpt2-ddp8", "update.mode=async"), "dgx-h100")
    assert found.mark == "extrapolated" and any("assumed costs" in why for why in found.mark_reasons)
