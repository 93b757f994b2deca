"""Communication inside runs of kernels that are one span is still communication."""

from __future__ import annotations

from typing import Any

import pytest

import sim.steady.detail
from sim.engine.run import simulate
from sim.mesh import Mesh
from sim.predict import predict
from sim.program import Op
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.split import split_of
from sim.timeline.metrics import breakdown, critical_path
from tests.null.engine.bench import TablePricer, program

LAYER = [
    Op("attn", "compute", "compute"),
    Op("sum", "collective", "compute", name="all_reduce", group="tp"),
    Op("mlp", "compute", "compute"),
]


@pytest.mark.parametrize("condensed", [False, True])
def test_collectives_between_kernels_are_exposed_however_many_ops_a_span_holds(condensed: bool) -> None:
    made = program({"host": [*LAYER, *LAYER, Op("end", "sync", "host")]}, mesh=Mesh({}), calls=4)
    pricer = TablePricer({"attn": 1.0, "sum": 0.25, "mlp": 2.0})
    found = simulate(made, pricer, True, detail=False, condensed=condensed)
    assert len(found.spans) < len(simulate(made, pricer, True).spans)
    # Two layers of 1 s + 1/4 s + 2 s.
    split = breakdown(found)
    assert (split.compute_s, split.exposed_comm_s) == (pytest.approx(6.0), pytest.approx(0.5))
    assert dict(critical_path(found)) == {"compute": pytest.approx(6.0), "comm": pytest.approx(0.5)}


PLAN: dict[str, Any] = {
    "model": {"family": "decoder", "name": "four", "layers": 4, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 32000},
    "seq_len": 4096,
    "batch": {"global": 8},
    "parallel": {"tp": 4, "pp": 2},
}


def test_a_step_of_too_many_ops_for_spans_is_split_as_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = predict(PLAN, "dgx-h100")
    monkeypatch.setattr(sim.steady.detail, "OPS_APART", 10)
    coarse = predict(PLAN, "dgx-h100")
    assert "one span each" in coarse.warnings[-1]
    assert coarse.step_time_s == pytest.approx(fine.step_time_s, rel=1e-9)
    assert fine.breakdown.exposed_comm_s > 0.1 * fine.step_time_s
    assert coarse.breakdown.exposed_comm_s == pytest.approx(fine.breakdown.exposed_comm_s, rel=1e-3)
    assert coarse.breakdown.compute_s == pytest.approx(fine.breakdown.compute_s, rel=1e-3)


@pytest.mark.parametrize(("on", "zero"), [("dgx-h100", 2), ("dgx-h100", 3), ("l40s-x8", 2)])
def test_what_kernels_wait_for_beside_them_is_exposed_where_a_layer_is_one_op(on: str, zero: int) -> None:
    """Of FSDP with two micro-batches, whose layers a sweep runs once: over PCIe a third of it only communicates."""
    plan = PLAN | {"batch": {"global": 16}, "parallel": {"dp_shard": 8, "zero": zero}}
    fine, split = predict(plan, on).breakdown, split_of(bind(plan, on))
    assert split is not None and split.total == pytest.approx(fine.total, rel=1e-9)
    assert (fine.exposed_comm_s > 0.3 * fine.total) == (on == "l40s-x8")
    assert split.exposed_comm_s == pytest.approx(fine.exposed_comm_s, rel=2e-2)
    assert split.compute_s == pytest.approx(fine.compute_s, rel=1e-2)


def test_pieces_of_products_beside_their_messages_leave_exposed_what_they_do_not_hide() -> None:
    """Megatron's userbuffers: each piece has a slowness of its own. (With that of all other kernels exposed time was less than half of it.)"""
    model = PLAN["model"] | {"hidden": 8192, "heads": 64, "ffn": 32768}
    plan = PLAN | {"model": model, "framework": "megatron-core", "parallel": {"tp": 8, "sequence_parallel": True}}
    setting = bind(plan, "dgx-h100")
    fine = predict(plan, "dgx-h100").breakdown
    condensed = breakdown(simulate(program_for(setting, 3), pricer_for(setting), setting.places, condensed=True))
    assert fine.exposed_comm_s > 0.03 * fine.total
    assert condensed.exposed_comm_s == pytest.approx(fine.exposed_comm_s, rel=0.01)
