"""Every host-device sync point is named, and costs what leaving it out saves."""

from __future__ import annotations

import pytest

from sim.files.planfile import load_plan
from sim.predict import predict
from sim.prediction import Prediction

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
