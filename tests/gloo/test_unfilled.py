"""Models that no device could hold whole are split before they have data, and train as others do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from executor.files import write_samples
from executor.ranks.launch import launch
from executor.stock import Request
from sim.files.planfile import load_plan
from sim.plan import Plan
from tests.gloo.bodies_for_stock import Many, Parts

pytestmark = pytest.mark.usefixtures("forked")
LLAMA: dict[str, Any] = {"family": "decoder", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 64, "norm": "rmsnorm"}
LLAMA |= {"activation": "swiglu", "ffn": 128, "position": "rope", "tied": False}
MOE = LLAMA | {"moe": {"experts": 4, "top_k": 2, "ffn": 64}, "first_dense": 1}
CASES: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel": {"dp_shard": 2, "zero": 3}},
    "tp": {"parallel": {"tp": 2}},
    "pp": {"parallel": {"pp": 2}, "batch": {"global": 4, "micro": 2}},
    "fsdp, recomputed": {"parallel": {"dp_shard": 2, "zero": 3}, "memory": {"recompute": "full"}},
    "ep": {"model": MOE, "parallel": {"dp_shard": 2, "zero": 3, "ep": 2}},
}


def _plan(changes: dict[str, Any]) -> Plan:
    tree = {"model": LLAMA, "seq_len": 16, "precision": "fp32", "framework": "torchtitan", "batch": {"global": 4, "micro": 2}}
    return load_plan(tree | changes)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Parts]]:
    folder = tmp_path_factory.mktemp("unfilled")
    requests = []
    for name, changes in CASES.items():
        plan = _plan(changes)
        write_samples(plan, folder / name)
        requests.append(Request(plan, 3, 0, 0, str(folder / name)))
    ranks = launch("tests.gloo.bodies_for_stock:unfilled", Many(requests), 2, folder / "run", list[Parts], stall=60)
    return {name: [rank[at] for rank in ranks] for at, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_each_rank_makes_its_part_alone(name: str, found: dict[str, list[Parts]]) -> None:
    """Half of the model or hardly more (norms are whole under tensor parallelism), and never a tensor that it shares out."""
    from sim.framework.chosen import framework_of
    from sim.setting.bind import network_of

    plan = _plan(CASES[name])
    whole = network_of(plan, framework_of(plan)).parameters
    for rank in found[name]:
        assert rank.elements < 0.6 * whole and rank.largest <= max(64 * 128, 4 * 64 * 64 // 2)
        assert rank.tables, "rotary positions are computed, not drawn"


@pytest.mark.parametrize("name", CASES)
def test_it_begins_where_a_fresh_model_does_and_learns(name: str, found: dict[str, list[Parts]]) -> None:
    losses = [loss for rank in found[name] for loss in [rank.losses] if any(loss)]
    assert losses
    for first, _, last in losses:
        assert first == pytest.approx(math.log(64), rel=0.1) and math.isfinite(last)
