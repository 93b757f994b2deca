"""Every host-device sync point is named, and costs what leaving it out saves."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.predict import predict
from sim.result.prediction import Prediction
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.stalls import shares
from sim.timeline.metrics import step_ends

WIDE = ("batch.micro=1024", "data.workers=8")


def of(*sets: str, on: str = "h100-pcie-x8") -> Prediction:
    return predict(load_plan("copy-compute-overlap", (*WIDE, *sets)), on)


@pytest.mark.parametrize(
    ("sets", "word", "where"),
    [
        (("output.item_every=1",), ".item()", "output/item"),
        (("output.log_every=1",), "print(loss.item())", "output/loss"),
        (("output.print_every=1",), "print(tensor)", "output/print"),
        (("output.sync_every=1",), "synchronize()", "output/sync"),
        (("data.pinned=false",), "pageable copy", "data/h2d"),
        (("data.handover=synchronize",), "synchronize()", "data/synchronize"),
        (("data.create=cpu",), "created on the CPU, then moved", "data/move"),
    ],
)
def test_each_is_named(sets: tuple[str, ...], word: str, where: str) -> None:
    found = of(*sets)
    assert [(p.op, p.where, p.per_step) for p in found.syncs] == [(word, where, 1.0)]
    assert found.syncs[0].seconds > 0
    plain = of(*(["data.create=device"] if "create" in sets[0] else []))
    assert plain.syncs == []
    assert found.syncs[0].adds == pytest.approx(found.step_time_s - plain.step_time_s, abs=1e-9)
    assert found.to_dict()["syncs"][0]["op"] == word


def test_seldom_costs_a_share() -> None:
    often, seldom = of("output.item_every=1").syncs[0], of("output.item_every=10").syncs[0]
    assert seldom.per_step == pytest.approx(0.1) and seldom.seconds == pytest.approx(often.seconds / 10)


def test_a_cpu_has_none() -> None:
    assert of("output.item_every=1", "data.pinned=false", on="cpu-host").syncs == []


SMALL = {"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 256, "parallel": {"dp_replicate": 2}}
EVERY = ("log_every", "item_every", "print_every", "sync_every")


@pytest.mark.no_cover
@pytest.mark.parametrize("output", [(1, 1, 1, 1), (1, 1, 0, 0), (2, 0, 0, 2), (2, 3, 0, 0), (1, 0, 4, 2)], ids=str)
@pytest.mark.parametrize("on", ["dgx-h100", "l40s-x8"])
def test_what_comes_after_one_step_waits_for_the_device_together(on: str, output: tuple[int, ...]) -> None:
    """Against a simulation of a dozen steps with all of it."""
    setting = bind(SMALL | {"output": dict(zip(EVERY, output, strict=True))}, on)
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 24)
    ends = step_ends(simulate(program, pricer_for(setting)))
    found = predict(setting.plan, on)
    assert found.step_time_s == pytest.approx((ends[23] - ends[11]) / 12, rel=0.01)
    quiet = predict(SMALL, on).step_time_s
    for point in found.syncs:
        assert 0 <= (point.adds or 0.0) <= found.step_time_s - quiet + 1e-9
    assert sorted(p.per_step for p in found.syncs) == pytest.approx(sorted(1 / every for every in output if every))


@given(st.dictionaries(st.sampled_from(EVERY), st.integers(1, 12), min_size=1))
def test_shares_are_counted(every: dict[str, int]) -> None:
    period = math.lcm(*every.values())
    counted = Counter(frozenset(name for name, some in every.items() if step % some == 0) for step in range(period))
    assert shares(every) == pytest.approx({one: count / period for one, count in counted.items() if one})
