"""Machines by what their owners said of them elsewhere, and Megatron-LM of before pipelines under torch's DistributedDataParallel."""

from __future__ import annotations

import msgspec

from sim.accuracy.row import Row
from sim.accuracy.rows.plans import case_of
from sim.predict import predict
from topologies.load import machine_document

SCALED = Row(
    row_id="r", model_name="GPT-2-8B", model_type="gpt", n_layers=8, hidden=4096, n_heads=32, ffn_hidden=16384, activation="gelu", vocab_size=51200,
    gpu="V100", gpu_form="SXM3", system="DGX-2", gpus=8, nodes=1, gpus_per_node=16, task="pretrain", precision="fp16", seq_len=1024,
    micro_batch=8, global_batch=8, tp=8, pp=1, recompute="full", flash_attn="no", framework="Megatron-LM", date="2020-08", step_time_s=1.0,
    quality="B",
)  # fmt: skip
WIDE = {"gpu": "A100", "gpu_form": "SXM4", "system": "DGX A100", "gpus": 32, "nodes": 4, "gpus_per_node": 8, "global_batch": 32}
L40S = {"gpu": "L40S", "gpu_form": "PCIe", "system": "L40S", "gpus": 64, "nodes": 16, "gpus_per_node": 4, "tp": 1, "global_batch": 512}


def row(**changes: object) -> Row:
    return msgspec.structs.replace(SCALED, **changes)


def test_megatrons_dgx_2_was_a_dgx_2h() -> None:
    assert (
        case_of(SCALED).topology
        == case_of(row(framework="Megatron LM")).topology
        == case_of(row(framework="Megatron")).topology
        == "dgx2h-v100"
    )
    assert case_of(row(framework="PyTorch")).topology == case_of(row(date="2021-05")).topology == "dgx2-v100"
    assert case_of(row(**WIDE)).topology == "4x dgx-a100:8"


def test_mlperfs_l40s_nodes_hold_four_and_two_ports() -> None:
    assert case_of(row(framework="NeMo (MLPerf)", **L40S)).topology == "16x mlperf-l40s"
    assert case_of(row(**L40S)).topology == "16x l40s-x8:4"
    assert case_of(row(framework="NeMo (MLPerf)", **(L40S | {"gpus": 4, "nodes": 1, "global_batch": 32}))).topology == "mlperf-l40s"
    tree = machine_document("mlperf-l40s")["tree"]
    assert isinstance(tree, dict) and sorted(end for ends in tree.values() for end in ends if end[:3] in ("gpu", "nic")) == [
        "gpu0",
        "gpu1",
        "gpu2",
        "gpu3",
        "nic0",
        "nic1",
    ]


def test_before_pipelines_wide_models_ran_under_torchs_data_parallel() -> None:
    """Gradients travel beside backward; Megatron's own sums followed it, and still do with two ranks a layer, or a pipeline."""
    case = case_of(row(**WIDE))
    assert case.plan.framework == "megatron-2020"
    for changes in ({"tp": 2}, {"pp": 2, "global_batch": 64}, {"nodes": 1, "gpus": 8}):
        assert case_of(row(**(WIDE | changes))).plan.framework == "megatron-2021"
    own = predict(msgspec.structs.replace(case.plan, framework="megatron-2021"), case.topology)
    torchs = predict(case.plan, case.topology)
    assert torchs.step_time_s < own.step_time_s and torchs.breakdown.exposed_comm_s < own.breakdown.exposed_comm_s


def test_in_2021_all_models_without_a_pipeline_ran_under_torchs_data_parallel() -> None:
    """run_table_1.sh says DDP=torch for them, local with pipelines; a cell that denies overlap speaks of Megatron's own sums."""
    own = {"source_id": "megatron-sc21-table1"}
    for tp in (1, 2, 8):
        case = case_of(row(**(WIDE | own | {"date": "2021-04", "tp": tp, "comm_overlap": "none"})))
        assert case.plan.framework == "megatron-2020" and case.plan.comm.overlap
    others = case_of(row(**(WIDE | {"source_id": "somebody", "date": "2021-04", "tp": 2})))
    assert others.plan.framework == "megatron-2021"  # --DDP-impl local is the default
    piped = case_of(row(**(WIDE | {"date": "2021-04", "pp": 2, "global_batch": 64, "comm_overlap": "none"})))
    assert piped.plan.framework == "megatron-2021" and not piped.plan.comm.overlap
