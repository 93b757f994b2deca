"""The shared store: what one connection, one node and the whole cluster get of it."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict
from topologies.errors import BadInput, SteptwinError
from topologies.hardware import Store
from topologies.load import load_topology

MICRO, SAMPLE = 16, 10e6
EDITS = ("store.read=8 GB/s", "store.stream=1 GB/s", "store.latency=10 ms", "store.total_read=100 GB/s")


def _step(nodes: int, workers: int, *edits: str, **more: Any) -> float:
    plan = {
        "model": {"family": "mlp", "name": "small", "widths": [64, 64]}, "batch": {"micro": MICRO}, "parallel": {"dp_replicate": 8 * nodes},
        "data": {"source": "object-store", "workers": workers, "sample": "10 MB"},
    }  # fmt: skip
    return predict(plan, f"{nodes}x dgx-h100", edits=EDITS + edits, **more).step_time_s


def test_one_connection_after_the_other_then_the_nodes_share_then_all_of_it() -> None:
    alone = MICRO * (10e-3 + SAMPLE / 1e9)
    assert _step(1, 1) == pytest.approx(alone, rel=0.01)
    assert _step(1, 100) == pytest.approx(8 * MICRO * SAMPLE / 8e9, rel=0.01), "what one node gets"
    assert _step(32, 100) == pytest.approx(32 * 8 * MICRO * SAMPLE / 100e9, rel=0.01), "what all nodes get"


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_who_waits_for_first_bytes_waits_less_with_each_worker(workers: int) -> None:
    """A batch of one small sample: workers that began together would stay together, and a delay of whole latencies keeps them so."""
    plan = {
        "model": {"family": "mlp", "name": "small", "widths": [64, 64]}, "batch": {"micro": 1}, "parallel": {"dp_replicate": 8},
        "data": {"source": "object-store", "workers": workers, "sample": "4 KB"},
    }  # fmt: skip
    assert predict(plan, "dgx-h100", edits=("store.latency=150 ms",)).step_time_s == pytest.approx(0.15 / workers, rel=0.001)


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["full", "sharded"])
def test_a_checkpoint_to_the_store_is_the_same_folded_and_not(mode: str) -> None:
    plan = {
        "model": "gpt2-124m", "batch": {"micro": 1}, "parallel": {"dp_shard": 16, "zero": 3},
        "output": {"checkpoint_every": 10, "checkpoint_to": "store", "checkpoint_mode": mode},
    }  # fmt: skip
    folded, whole = (predict(plan, "2x dgx-h100", fold=fold) for fold in (True, False))
    assert folded.breakdown.output_s == pytest.approx(whole.breakdown.output_s, rel=1e-9)
    local = predict(plan | {"output": plan["output"] | {"checkpoint_to": "disk"}}, "2x dgx-h100")  # type: ignore[operator]
    assert local.breakdown.output_s < folded.breakdown.output_s, "a node's own drives are faster than its share of the store"


def test_a_larger_cluster_has_a_larger_store_unless_it_is_said() -> None:
    assert [Store().total(write=False, nodes=n) for n in (1, 32, 33, 2048)] == [40e9, 40e9, 80e9, 64 * 40e9]
    assert Store(total_write=5e9).total(write=True, nodes=2048) == 5e9


def test_a_host_without_a_store_uses_its_disk_and_says_so_when_asked() -> None:
    host = load_topology("cpu-host")
    assert host.store(0) is None
    with pytest.raises(BadInput, match=r"\[store\]"):
        host.store_total(write=False)
    assert load_topology("cpu-host", ("store.read=1 GB/s",)).store(0) is not None


@pytest.mark.parametrize("asks", [{"data": {"source": "object-store"}}, {"output": {"checkpoint_every": 10, "checkpoint_to": "store"}}])
def test_a_prediction_says_that_a_disk_takes_the_stores_place(asks: dict[str, Any]) -> None:
    """Of CPU hosts; GPU machines have a usual store."""
    plan = {"model": {"family": "mlp", "name": "small", "widths": [64, 64]}, "batch": {"micro": MICRO}, **asks}
    said = "has no shared store: its own disk takes the place"
    for on, edits, warned in (("cpu-host", (), True), ("cpu-host", ("store.read=1 GB/s",), False), ("dgx-h100", (), False)):
        assert any(said in text for text in predict(plan, on, edits=edits).warnings) is warned


def test_edits_of_the_store_are_read_like_those_of_the_disk() -> None:
    found = load_topology("dgx-h100", ("store.latency=150 ms",)).store(0)
    assert found is not None and found.latency == 0.15 and found.read == Store().read
    with pytest.raises(SteptwinError):
        load_topology("dgx-h100", ("store.speed=1 GB/s",))
