"""Rows become plans: words, sizes, machines and what is assumed where the row is silent."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy.row import Row
from sim.accuracy.rows.machines import machine_of
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.recomputation import recompute_of
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.rows.sizes import sizes_of, stages_of
from sim.accuracy.rows.wording import framework_of_row, precision_of
from sim.rules import check
from topologies.errors import BadInput, Refused

LLAMA = Row(
    row_id="r", model_name="Llama-3-8B", model_type="llama", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=8, ffn_hidden=14336, vocab_size=128256,
    activation="swiglu", gpu="H100", gpus=64, gpus_per_node=8, nodes=8, seq_len=8192, micro_batch=1, global_batch=128, batch_unit="sequences",
    tp=4, pp=2, vp=4, precision="bf16", sharding="ZeRO-1 (distributed optimizer)", framework="NeMo/Megatron-Core", flash_attn="yes", task="pretrain",
    step_time_s=1.0, quality="A",
)  # fmt: skip


def row(**changes: object) -> Row:
    return msgspec.structs.replace(LLAMA, **changes)


def test_a_complete_row_needs_few_assumptions() -> None:
    case = case_of(LLAMA)
    p = case.plan.parallel
    assert (p.dp_shard, p.tp, p.pp, p.virtual_stages, p.schedule, p.zero) == (8, 4, 2, 4, "interleaved", 1)
    assert (case.topology, case.plan.framework, case.plan.microbatches) == ("8x dgx-h100:8", "nemo", 16)
    assert check(case.plan).world == 64
    assert not [word for word in case.assumed if "micro" in word or "sharding" in word]


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"framework": "Megatron-LM", "flash_attn": "no"}, "megatron-2021"),
        ({"framework": "Megatron-LM", "flash_attn": "no", "sequence_parallel": "yes"}, "megatron-2022"),
        ({"framework": "Megatron-LM"}, "megatron-lm"),
        ({"framework": "Megatron-Bridge / Megatron-Core"}, "megatron-bridge"),
        ({"framework": "PyTorch (apex DDP)", "model_type": "bert", "gpu": "V100"}, "pytorch-apex-ddp"),
        ({"framework": "PyTorch (DDP, DALI)", "model_type": "cnn"}, "pytorch-native-amp"),
        ({"framework": "PyTorch (DDP)", "model_type": "transformer-xl (wt103)"}, "pytorch-transformer-xl"),
        ({"framework": "TensorFlow 2 (Horovod, XLA)"}, "tf2-horovod"),
        ({"framework": "TensorFlow 1.x (NGC, Horovod)"}, "tf1-horovod"),
    ],
)
def test_frameworks_by_their_words(changes: dict[str, str], framework: str) -> None:
    assert framework_of_row(row(**changes), []) == framework


def test_unknown_words_are_refused_with_the_word() -> None:
    with pytest.raises(Refused, match="int3"):
        precision_of(row(precision="int3"))
    with pytest.raises(Refused, match="Cerebras"):
        machine_of(row(gpu="Cerebras"), [])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("mixed fp16 (AMP)", "fp16"), ("bf16 (autocast)", "bf16"), ("fp8 (hybrid, TransformerEngine delayed scaling)", "fp8"), ("mxfp8", "mxfp8"),
        ("nvfp4", "nvfp4"), ("tf32", "tf32"), ("fp32", "fp32"),
    ],
)  # fmt: skip
def test_precisions(words: str, found: str) -> None:
    assert precision_of(row(precision=words)) == found


def test_sharding_groups() -> None:
    hybrid = sharding_of(row(sharding="ZeRO-1 within groups of 8 (hybrid zero)"), 32, "internevo", [])
    assert hybrid == {"dp_shard": 8, "dp_replicate": 4, "zero": 1}
    assert sharding_of(row(sharding="none (DDP)"), 8, "pytorch", []) == {"dp_replicate": 8, "dp_shard": 1, "zero": 0}
    assert sharding_of(row(sharding="FSDP FULL_SHARD (ZeRO-3)", fsdp_size=8), 8, "llm-foundry", [])["zero"] == 3
    kept = sharding_of(row(sharding="FSDP SHARD_GRAD_OP (ZeRO-2)"), 8, "llm-foundry", [])
    assert kept["zero"] == 3 and kept["reshard_after_forward"] is False


def test_recomputation_words() -> None:
    assert recompute_of(row(recompute="full"), 8, "nemo", []) == {"recompute": "full"}
    assert recompute_of(row(recompute="selective (op)"), 32, "torchtitan", []) == {"recompute": "selective", "recompute_modules": ("op",)}
    noted: list[str] = []
    assert recompute_of(row(recompute=""), 8, "maxtext", noted) == {"recompute": "full", "recompute_layers": 7} and noted
    assert recompute_of(row(recompute="", framework_version="v24.11.1"), 8, "maxtext", []) == {"recompute": "full", "recompute_layers": 6}
    assert recompute_of(row(recompute="", framework_version="v25.02"), 8, "maxtext", []) == {"recompute": "full", "recompute_layers": 7}


def test_uneven_stages() -> None:
    assert stages_of(96, 8) is None
    assert stages_of(126, 8) == (15, 16, 16, 16, 16, 16, 16, 15)  # embedding and head take a place each
    assert stages_of(70, 12) == (5, *(6,) * 10, 5)  # BLOOM-176B
    assert stages_of(100, 12) == (9,) * 11 + (1,)
    assert stages_of(61, 16, 1) == stages_of(61, 16) == (4,) * 15 + (1,)  # DeepSeek-V3: the last stage has head and extra prediction
    assert stages_of(61, 32, 1) == (1, *(2,) * 30, 0)  # Megatron-Bridge's "Et|(tt|)*30mL"
    assert stages_of(126, 128) == (0, *(1,) * 126, 0)  # Llama 3.1 405B in single layers: embedding and head are stages of their own


@pytest.mark.parametrize(("date", "stages"), [("2025-04", (5, *(6,) * 6, 5)), ("2025-12", None)])
def test_a_torchtitan_that_deals_layers_out_itself_is_left_to_it(date: str, stages: tuple[int, ...] | None) -> None:
    """Since July 2025 it counts embedding and head as layers."""
    said = row(framework="torchtitan", sharding="FSDP", date=date, n_layers=46, tp=1, pp=8, vp=1, gpus=64)
    assert case_of(said).plan.parallel.stages == stages


def test_a_pipeline_in_single_layers_is_predicted() -> None:
    from sim.accuracy.training import predict_case

    short = row(n_layers=6, pp=4, vp=2, tp=1, gpus=8, nodes=1, global_batch=16)
    case = case_of(short)
    assert case.plan.parallel.stages == (0, 1, 1, 1, 1, 1, 1, 0)
    assert predict_case(case).seconds > 0.0


def test_unsaid_interleaving_makes_chunks_of_two_layers_or_of_one() -> None:
    assert case_of(row(vp=None)).plan.parallel.virtual_stages == 8  # 16 layers a stage
    assert case_of(row(vp=None, n_layers=46)).plan.parallel.virtual_stages == 23  # a prime number of layers


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"model_name": "Llama-3-8B", "gpu": "B200"}, "megatron-bridge-captured"),
        ({"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 64, "gpu": "GB300", "precision": "mxfp8"}, "megatron-bridge-iteration-head"),
        ({"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 64, "gpu": "GB300", "precision": "FP8-MX"}, "megatron-bridge-iteration-head"),
        ({"model_name": "Qwen3-235B", "n_experts": 128, "hidden": 4096, "ep": 32, "gpu": "GB300", "precision": "mxfp8"}, "megatron-bridge-iteration"),
        ({"model_name": "Qwen3-235B", "n_experts": 128, "hidden": 4096, "ep": 8, "gpu": "B300", "precision": "mxfp8"}, "megatron-bridge-deepep"),
        ({"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 64, "gpu": "GB300", "precision": "bf16"}, "megatron-bridge-graphs"),
        ({"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 64, "gpu": "H100", "precision": "fp8"}, "megatron-bridge-deepep"),
        ({"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 32, "gpu": "B200", "precision": "mxfp8"}, "megatron-bridge-overlapped"),
        ({"model_name": "Qwen3-235B", "n_experts": 128, "hidden": 4096, "ep": 32, "gpu": "H100", "precision": "fp8"}, "megatron-bridge-alltoall-overlapped"),
        ({"model_name": "Qwen3-235B", "n_experts": 128, "hidden": 4096, "ep": 8, "gpu": "B200", "precision": "mxfp8"}, "megatron-bridge"),
        ({"model_name": "GPT-OSS-120B", "n_experts": 128, "hidden": 2880, "ep": 8, "gpu": "B300", "precision": "bf16"}, "megatron-bridge-graphs"),
        ({"model_name": "GPT-OSS-120B", "n_experts": 128, "hidden": 2880, "ep": 64, "gpu": "GB300", "precision": "bf16"}, "megatron-bridge-alltoall-graphs"),
        ({"model_name": "GPT-OSS-120B", "n_experts": 128, "hidden": 2880, "ep": 64, "gpu": "GB200", "precision": "bf16"}, "megatron-bridge"),
        ({"model_name": "Mixtral-8x7B", "n_experts": 8, "hidden": 4096, "ep": 8, "gpu": "A100", "precision": "bf16"}, "megatron-bridge"),
        ({"model_name": "Llama-3-70B", "hidden": 8192, "gpu": "B200"}, "megatron-bridge"),
        ({"model_name": "Qwen3-30B", "n_experts": 128, "hidden": 2048, "ep": 16, "gpu": "H100", "precision": "fp8"}, "megatron-bridge-deepep"),
        ({"model_name": "Kimi-K2", "n_experts": 384, "hidden": 7168, "ep": 16, "gpu": "B200", "precision": "mxfp8"}, "megatron-bridge-deepep"),
        ({"model_name": "Kimi-K2", "n_experts": 384, "hidden": 7168, "ep": 64, "gpu": "GB200", "precision": "mxfp8"}, "megatron-bridge-graphs"),
        ({"model_name": "Kimi-K2", "n_experts": 384, "hidden": 7168, "ep": 64, "gpu": "GB300", "micro_batch": 2, "precision": "mxfp8"}, "megatron-bridge-deepep"),
        ({"model_name": "Kimi-K2", "n_experts": 384, "hidden": 7168, "ep": 64, "gpu": "GB300", "micro_batch": 1, "precision": "mxfp8"}, "megatron-bridge-iteration"),
    ],
)  # fmt: skip
def test_recipes_of_megatron_bridge(changes: dict[str, object], framework: str) -> None:
    found = row(framework="Megatron-Bridge", framework_version="NeMo container 26.06", **changes)
    assert framework_of_row(found, []) == framework


@pytest.mark.parametrize(
    ("release", "notes", "framework"),
    [
        ("25.09", "dropless", "megatron-bridge-overlapped"),
        ("25.09", "tokendrop", "megatron-bridge"),
        ("25.11", "", "megatron-bridge-overlapped"),
        ("26.02", "", "megatron-bridge-deepep"),
        ("26.04.01", "", "megatron-bridge-deepep"),
    ],
)
def test_a_recipe_changes_with_its_release(release: str, notes: str, framework: str) -> None:
    said = {"model_name": "DeepSeek-V3", "n_experts": 256, "hidden": 7168, "ep": 64, "gpu": "H100", "precision": "fp8", "notes": notes}
    assert framework_of_row(row(framework="Megatron-Bridge", framework_version=f"{release} NeMo Container", **said), []) == framework


@pytest.mark.parametrize(("gpu", "framework"), [("B200", "megatron-bridge-capacity"), ("H100", "megatron-bridge")])
def test_fixed_capacities_let_blackwell_capture_whole_iterations(gpu: str, framework: str) -> None:
    said = {"model_name": "Qwen3-30B", "n_experts": 128, "hidden": 2048, "ep": 8, "gpu": gpu, "precision": "fp8", "notes": "tokendrop"}
    assert framework_of_row(row(framework="Megatron-Bridge", framework_version="NeMo container 25.09", **said), []) == framework


@pytest.mark.parametrize(("release", "framework", "capacity"), [("NeMo 24.09", "nemo-flash", 0.0), ("NeMo 25.04", "nemo", 1.0)])
def test_grok_is_what_nemo_runs_under_its_name(release: str, framework: str, capacity: float) -> None:
    said = {"model_type": "moe", "n_experts": 8, "top_k": 2, "ep": 8, "tp": 4, "pp": 1, "vp": None, "hidden": 6144, "n_heads": 48}
    plan = case_of(row(framework="NeMo", framework_version=release, model_name="Grok-1-314B", **said)).plan
    assert (plan.framework, plan.parallel.capacity, plan.parallel.etp) == (framework, capacity, 4)
    assert isinstance(plan.model, dict) and not plan.model.get("post_norms") and not plan.model.get("tied")


def test_simumax_pads_its_experts_to_their_capacity() -> None:
    said = {"model_name": "DeepSeek-V2-cut4L", "model_type": "moe", "n_experts": 160, "top_k": 6, "ep": 8, "tp": 1, "pp": 1, "vp": None}
    plans = [case_of(row(framework="Megatron-LM", source_id=source, **said)).plan for source in ("simumax-b200", "other")]
    assert [plan.parallel.capacity for plan in plans] == [1.0, 0.0]


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_hold_every_layer(layers: int, stages: int) -> None:
    found = stages_of(layers, stages)
    if found is not None:
        assert sum(found) == layers and len(found) == stages and min(found[1:-1], default=1) >= 1 and min(found) >= 0


def test_racks_hold_64_of_72_and_nodes_8() -> None:
    assert machine_of(row(gpu="GB200", gpus=256, gpus_per_node=4), [])[0] == "4x gb200-nvl72:64"
    assert machine_of(row(gpu="GB300", gpus=64, gpus_per_node=4), [])[0] == "gb300-nvl72"
    assert machine_of(row(gpu="V100", system="DGX-2H", gpus=32, gpus_per_node=16), [])[0] == "2x dgx2h-v100:16"
    assert machine_of(row(gpu="A100", gpu_mem_gb=40.0, inter_net="1600 Gbps/node RoCE", gpus=16), [])[0] == "2x mosaic-a100-40gb:8"
    of_four = row(gpu="A100", system="Leonardo", gpus=16, gpus_per_node=None, nodes=None)
    assert machine_of(of_four, [])[0] == "4x leonardo-a100:4", "as the catalog has it"
    assert machine_of(row(gpu="A100-SXM-64GB", gpus=16, nodes=4, gpus_per_node=4), [])[0] == "4x leonardo-a100:4"


def test_batches_that_do_not_divide_are_rounded_and_told() -> None:
    noted: list[str] = []
    sizes = sizes_of(row(global_batch=100, tp=1, pp=1, vp=1), noted)
    assert sizes.batch == 128 and any("no multiple" in word for word in noted)


@given(
    gpus=st.integers(1, 4096), tp=st.integers(1, 16), pp=st.integers(1, 16), vp=st.integers(1, 12), cp=st.integers(1, 4), ep=st.integers(1, 64),
    micro=st.one_of(st.none(), st.integers(1, 64)), batch=st.one_of(st.none(), st.integers(1, 4096)), sharding=st.sampled_from(["", "none", "ZeRO-1", "FSDP"]),
)  # fmt: skip
def test_any_sizes_make_a_valid_plan_or_a_reason(**sizes: object) -> None:
    names = {"batch": "global_batch", "micro": "micro_batch"}
    try:
        plan = case_of(row(**{names.get(key, key): value for key, value in sizes.items()})).plan
    except BadInput:
        return
    assert check(plan).world == sizes["gpus"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"cp": 2}, "p2p"),
        ({"cp": 2, "comm_overlap": "none; CP a2a"}, "all_to_all"),
        ({"cp": 4, "tp": 4, "comm_overlap": "cp_comm_type a2a+p2p"}, "all_to_all+p2p"),
        ({"cp": 2, "model_name": "GPT-OSS-120B", "n_experts": 128, "top_k": 4}, "all_to_all"),
    ],
)
def test_windows_leave_no_ring(changes: dict[str, object], kind: str) -> None:
    case = case_of(row(**changes))
    assert case.plan.parallel.cp_kind == kind
    assert any("takes windows" in word for word in case.assumed) == ("model_name" in changes)
