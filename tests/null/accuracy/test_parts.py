"""How many ways a row's model is split where the row does not say so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.sizes import gpus_of
from tests.null.accuracy.test_spellings import row

SILENT = {"tp": None, "pp": None, "cp": None, "dp": None, "micro_batch": None, "n_kv_heads": None, "ffn_hidden": None}
TABLE_1 = (
    # Narayanan et al. 2021, table 1: layers, width, heads, GPUs, batch, and the degrees of tensor and pipeline parallelism
    (24, 2304, 24, 32, 512, 1, 1), (30, 3072, 32, 64, 512, 2, 1), (36, 4096, 32, 128, 512, 4, 1), (40, 6144, 48, 256, 1024, 8, 1),
    (48, 8192, 64, 512, 1536, 8, 2), (60, 10240, 80, 1024, 1792, 8, 4), (80, 12288, 96, 1536, 2304, 8, 8), (96, 16384, 128, 1920, 2160, 8, 16),
    (105, 20480, 128, 2520, 2520, 8, 35), (128, 25600, 160, 3072, 3072, 8, 64),
)  # fmt: skip


@pytest.mark.parametrize(("layers", "hidden", "heads", "gpus", "batch", "tp", "pp"), TABLE_1)
def test_models_that_no_gpu_holds_are_split_as_megatrons_authors_did(
    layers: int, hidden: int, heads: int, gpus: int, batch: int, tp: int, pp: int
) -> None:
    sizes = {"n_layers": layers, "hidden": hidden, "n_heads": heads, "gpus": gpus, "global_batch": batch, "activation": "gelu"}
    told = {"model_name": "GPT", "model_type": "gpt", "vocab_size": 51200, "gpu": "A100", "gpu_mem_gb": 80, "framework": "Megatron-LM"}
    case = case_of(row(**(SILENT | told | sizes | {"date": "2021-04", "seq_len": 2048, "recompute": "full", "sharding": ""})))
    p = case.plan.parallel
    assert (p.tp, p.pp, p.zero, case.plan.global_batch) == (tp, pp, 0, batch)
    assert any(note.startswith(f"tp {tp}") for note in case.assumed) == (tp > 1)


@pytest.mark.parametrize(
    ("changes", "tp", "pp", "cp"),
    [
        ({"dp": 2}, 8, 1, 1), ({"dp": 1}, 8, 2, 1), ({"dp": 2, "tp": 2}, 2, 4, 1), ({"dp": 2, "pp": 2}, 4, 2, 1),
        ({"dp": 4, "tp": 2, "pp": 1}, 2, 1, 1), ({"dp": 4, "tp": 2, "pp": 1, "seq_len": 1 << 16}, 2, 1, 2), ({"dp": 4, "tp": 2, "pp": 1, "notes": "ring attention"}, 2, 1, 2),
        ({"dp": 4, "tp": 2, "pp": 1, "seq_len": 1 << 16, "sharding": "FSDP"}, 2, 1, 2), ({"dp": 2, "sharding": "FSDP"}, 1, 1, 1),
        ({"dp": 2, "fsdp_size": 8}, 1, 1, 1), ({"dp": 16}, 1, 1, 1), ({"dp": 8, "tp": 1, "pp": 1, "cp": 1}, 1, 1, 1),
    ],
)  # fmt: skip
def test_what_data_parallel_ranks_leave_of_the_gpus_splits_the_model(changes: dict[str, Any], tp: int, pp: int, cp: int) -> None:
    """16 GPUs. Copies of groups that share parameters leave nothing; degrees that are stated stay, and win."""
    case = case_of(row(**(SILENT | {"framework": "torchtitan", "sharding": "ZeRO-1"} | changes)))
    p = case.plan.parallel
    told = math.prod(int(changes.get(name, 1)) for name in ("tp", "pp", "cp"))
    assert (p.tp, p.pp, p.cp) == (tp, pp, cp) and any("leaves of 16 GPUs" in note for note in case.assumed) == (tp * pp * cp > told)


@pytest.mark.parametrize(
    ("changes", "dp", "shard"),
    [
        ({"gpus": 128, "dp": 16, "sharding": "HSDP (16 replicas x 8 shards)", "framework": "torchtitan"}, 128, 8), ({"gpus": 128, "dp": 4, "sharding": "FSDP 32", "framework": "MaxText"}, 128, 32),
        ({"gpus": 64, "dp": 8, "ep": 8, "sharding": "ZeRO-1", "framework": "Megatron-Core", "model_name": "Mixtral-8x7B", "n_layers": None, "hidden": None, "n_heads": None}, 64, 64),
        ({"gpus": 128, "dp": 16, "sharding": "hybrid shard", "seq_len": 1 << 16}, 128, 8),
    ],
)  # fmt: skip
def test_sources_that_count_copies_or_leave_experts_ranks_out_split_no_sequences(changes: dict[str, object], dp: int, shard: int) -> None:
    """The GPUs tell how many ranks are data-parallel, which is noted."""
    case = case_of(row(**(SILENT | {"tp": 1, "pp": 1, "global_batch": 128} | changes)))
    p = case.plan.parallel
    assert (p.cp, case.plan.data_ranks, p.dp_shard) == (1, dp, shard) and any(
        f"{dp} by the number of GPUs" in note for note in case.assumed
    )


def test_experts_that_no_gpu_holds_are_dealt_out() -> None:
    """Mixtral of 47 billion parameters on H100: experts on all ranks of a node; under FSDP, and cut to two layers, each rank has all."""
    told = {"model_name": "Mixtral-8x7B", "model_type": "", "n_layers": None, "hidden": None, "n_heads": None, "ep": None, "gpus": 64}
    core = SILENT | told | {"framework": "Megatron-Core", "sharding": "", "global_batch": 256}
    case = case_of(row(**core))
    assert (case.plan.parallel.ep, case.plan.parallel.tp) == (8, 1) and any(note.startswith("ep 8 not stated") for note in case.assumed)
    cut = case_of(row(**(core | {"n_layers": 2, "hidden": 4096, "n_heads": 32, "n_experts": 8, "top_k": 2, "moe_ffn_hidden": 14336})))
    assert cut.plan.parallel.ep == 1 and "ep not stated: 1" in cut.assumed
    assert case_of(row(**(core | {"sharding": "FSDP"}))).plan.parallel.ep == 1
    assert case_of(row(**(core | {"ep": 1}))).plan.parallel.ep == 1


def test_layers_without_experts_are_counted_as_such() -> None:
    """Every second layer of Llama 4 Maverick has experts: beside eight ranks of them it is split as what is left asks for."""
    told = {"model_name": "Llama 4 Maverick", "model_type": "", "n_layers": None, "hidden": None, "n_heads": None, "ep": None, "gpus": 64}
    p = case_of(row(**(SILENT | told | {"framework": "Megatron-Core", "sharding": "", "global_batch": 256}))).plan.parallel
    assert (p.ep, p.tp, p.pp) == (8, 8, 2)


def test_adapters_and_what_is_stated_are_not_split() -> None:
    large = SILENT | {
        "model_name": "Llama-2-70B",
        "n_layers": None,
        "hidden": None,
        "n_heads": None,
        "framework": "NeMo",
        "global_batch": 64,
    }
    assert case_of(row(**(large | {"sharding": ""}))).plan.parallel.tp == 8
    for changes in ({"task": "LoRA"}, {"tp": 1}, {"framework": "PyTorch FSDP"}, {"sharding": "FSDP"}):
        p = case_of(row(**(large | {"sharding": ""} | changes))).plan.parallel
        assert (p.tp, p.pp) == (1, 1)


def test_degrees_that_are_all_stated_tell_the_gpus_before_nodes_do() -> None:
    """One GPU of a server of eight."""
    notes: list[str] = []
    assert gpus_of(row(gpus=None, nodes=1, gpus_per_node=8, tp=1, pp=1, dp=1), notes) == 1
    assert gpus_of(row(gpus=None, nodes=2, gpus_per_node=8, tp=1, pp=None, dp=1), notes) == 16
