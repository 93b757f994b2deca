"""Tensors in host memory go from process to process by gloo, not over the devices' links."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cost.collective.gloo import ALPHA, BETA, gloo_cost
from sim.predict import predict

PLAN: dict[str, Any] = {"model": {"family": "mlp", "name": "m", "widths": [8192, 8192]}, "precision": "fp32", "optimizer": {"name": "sgd"}}
BYTES = 4 * (8192 * 8192 + 8192)


def step(update: dict[str, Any], on: str = "dgx-h100", ranks: int = 8, edits: tuple[str, ...] = ()) -> float:
    return predict(PLAN | {"parallel": {"dp_replicate": ranks}, "update": update}, on, edits=edits).step_time_s


def test_what_goes_whole_takes_its_bytes_over_one_pair() -> None:
    for name in ("send", "broadcast", "reduce"):
        assert gloo_cost(name, 10**9, 2, ()).seconds == pytest.approx(10**9 / BETA + ALPHA), name
    assert gloo_cost("all_reduce", 10**9, 4, ()).seconds == pytest.approx(2 * 3 / 4 * 10**9 / BETA, rel=1e-3)


def test_gradients_summed_on_the_cpu_cross_no_nvlink() -> None:
    found = step({"aggregate": "cpu"})
    assert found > 2 * BYTES / BETA, "to the server's process, and back"
    assert step({"aggregate": "cpu"}, edits=("link.nvlink.rate=9000 GB/s",)) == pytest.approx(found, rel=1e-9)
    assert found == pytest.approx(step({"aggregate": "cpu"}, ranks=1) + 2 * BYTES / BETA, rel=0.02)


def test_a_servers_messages_cross_no_nvlink() -> None:
    found = step({"mode": "async"}, ranks=2)
    assert step({"mode": "async"}, ranks=2, edits=("link.nvlink.rate=9000 GB/s",)) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("update", [{"aggregate": "cpu"}, {"mode": "async"}], ids=["cpu", "async"])
def test_between_nodes_a_slow_network_counts(update: dict[str, Any]) -> None:
    """A rank on each of two nodes; 400 Gbit/s are more than gloo makes of one pair, 5 are less."""
    fast, slow = (step(update, "2x dgx-h100", 2, ("ranks_per_node=1", f"nic.rate={rate} Gbit/s")) for rate in (400, 5))
    more = 2 * BYTES * (8 / 5e9 - 1 / BETA)
    if update.get("mode") != "async":
        assert slow - fast == pytest.approx(more, rel=0.15)
    else:
        assert slow > fast, "the remote rank alone"
