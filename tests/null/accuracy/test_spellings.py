"""Words of other tables mean what they say: GPUs, frameworks, precisions, sharding, choices and numbers, however spelled."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy.row import Row, rows_of
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.recomputation import recompute_of
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.rows.wording import framework_of_row, precision_of, said
from sim.accuracy.steady import step_seconds
from topologies.errors import Refused

LLAMA = Row(
    row_id="r", model_name="Llama-3-8B", model_type="llama", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=8, ffn_hidden=14336, vocab_size=128256,
    activation="swiglu", gpu="H100", gpus=16, gpus_per_node=8, seq_len=4096, micro_batch=1, global_batch=64, batch_unit="sequences",
    precision="bf16", sharding="FSDP", framework="PyTorch", task="pretrain", step_time_s=1.0, quality="A",
)  # fmt: skip


def row(**changes: object) -> Row:
    return msgspec.structs.replace(LLAMA, **changes)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("bfloat16", "bf16"), ("BF16-mixed", "bf16"), ("AMP_BF16", "bf16"), ("float16", "fp16"), ("half", "fp16"), ("16-mixed", "fp16"), ("mixed precision", "fp16"),
        ("fp8-hybrid", "fp8"), ("float8 (torchao)", "fp8"), ("E4M3", "fp8"), ("MXFP8", "mxfp8"), ("FP8-MX", "mxfp8"), ("fp8_mx", "mxfp8"), ("FP8 (MX)", "mxfp8"), ("FP8-CS", "fp8"), ("NVFP4", "nvfp4"), ("fp4", "nvfp4"), ("TF32", "tf32"),
        ("Float32", "fp32"), ("single", "fp32"), ("32-true", "fp32"), ("O2", "fp16"), ("nf4", "bf16"), ("bf16 (fp32 grad accumulation)", "bf16"),
        ("BF-16", "bf16"), ("FP 16", "fp16"), ("16", "fp16"), ("fp 8", "fp8"),
        ("fp32 (no AMP)", "fp32"), ("no AMP", "fp32"), ("full precision", "fp32"), ("FP32 (no TF32)", "fp32"), ("FP32 with TF32 disabled", "fp32"), ("TensorFloat-32", "tf32"), ("TF-32", "tf32"),
        ("BF16 (no FP8)", "bf16"), ("bf16 without mixed precision", "bf16"), ("O3", "fp16"),
    ],
)  # fmt: skip
def test_precisions_by_their_names(words: str, found: str) -> None:
    assert precision_of(row(precision=words)) == found


def test_what_is_no_precision_is_refused_and_what_is_unsaid_is_noted() -> None:
    for words in ("int8", "fp64", "8-bit"):
        with pytest.raises(Refused, match=words):
            precision_of(row(precision=words))
    noted: list[str] = []
    assert precision_of(row(precision="n/a")) == precision_of(row(precision="unknown")) == "bf16"
    assert precision_of(row(precision=""), noted) == "bf16" and noted == ["precision not stated: bf16"]
    assert precision_of(row(precision="", gpu="V100")) == "fp16"


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("ZeRO-1", 1), ("zero1", 1), ("ZeRO stage 2", 2), ("zero_3", 3), ("DeepSpeed ZeRO Stage-3", 3), ("stage 1", 1), ("3", 3), ("HSDP", 3), ("HYBRID_SHARD", 3),
        ("FULL_SHARD", 3), ("fully_shard", 3), ("ZeRO++", 3), ("NO_SHARD", 0), ("FSDP NO_SHARD", 0), ("DDP", 0), ("dp", 0), ("none", 0), ("no", 0), ("0", 0),
        ("distributed optimizer", 1), ("optimizer state sharding", 1), ("ZeRO-Offload", 2), ("ZeRO", 1),
        ("DistributedDataParallel", 0), ("Horovod", 0), ("Fully Sharded Data Parallel", 3), ("data parallel", 0), ("no sharding", 0), ("params + grads + optimizer", 3),
        ("gradients and optimizer states", 2), ("os+g", 2), ("Gemini", 3), ("P_os", 1), ("P_os+g", 2), ("P_os+g+p", 3), ("dist-opt", 1), ("yes", 3), ("sharded", 3),
        ("FSDP: no", 0), ("sharding=none", 0), ("without ZeRO", 0), ("distributed optimizer: no", 0), ("zero_stage=3", 3), ("stage=2", 2), ("DDP + distributed optimizer", 1), ("unsharded", 0),
    ],
)  # fmt: skip
def test_sharding_by_its_names(words: str, level: int) -> None:
    assert sharding_of(row(sharding=words), 16, "pytorch", [])["zero"] == level


def test_hybrid_shards_stay_inside_a_node() -> None:
    assert sharding_of(row(sharding="FSDP HYBRID_SHARD"), 16, "pytorch", []) == {"dp_shard": 8, "dp_replicate": 2, "zero": 3}
    assert sharding_of(row(sharding="HSDP"), 16, "pytorch", [])["dp_shard"] == 8
    assert sharding_of(row(sharding="HSDP (4-way shard)"), 16, "pytorch", [])["dp_shard"] == 4
    assert sharding_of(row(sharding="hybrid shard (4 x 4)"), 16, "pytorch", [])["dp_shard"] == 4
    for words in ("SHARD_GRAD_OP", "FSDP (ZeRO-2)", "FSDP2, reshard_after_forward=False", "FSDP, no resharding"):
        kept = sharding_of(row(sharding=words), 16, "pytorch", [])
        assert kept["zero"] == 3 and kept["reshard_after_forward"] is False


@pytest.mark.parametrize(
    ("words", "answer"),
    [("yes", True), ("True", True), ("1", True), ("yes (SDPA)", True), ("torch.compile", True), ("FlashAttention-2", True), ("no", False), ("False", False),
     ("none", False), ("0", False), ("eager", False), ("naive", False), ("w/o", False), ("standard attention", False), ("", None), ("unknown", None), ("not stated", None), ("n/a", None), ("auto", None),
     ("flash: no", False), ("compile=False", False), ("use_flash_attn=True", True), ("FlashAttention off", False), ("torch.compile (off)", False), ("full (offload off)", True), ("not specified", None), ("unstated", None)],
)  # fmt: skip
def test_choices(words: str, answer: bool | None) -> None:
    assert said(words) is answer


def test_recomputation_by_its_names() -> None:
    for words in ("yes", "True", "full", "uniform", "activation checkpointing", "AC: full", "nothing_saveable"):
        assert recompute_of(row(recompute=words), 8, "nemo", told := []) == {"recompute": "full"} and not told
    for words in ("partial", "Partial activation checkpointing", "offloaded"):
        assert recompute_of(row(recompute=words), 8, "nemo", told := []) == {"recompute": "full"}
        assert told == [f"recomputation {words!r} taken as full: all layers"]
    assert recompute_of(row(recompute="block", recompute_detail="4 layers"), 8, "nemo", []) == {"recompute": "full", "recompute_layers": 4}
    for words in (
        "no",
        "False",
        "none",
        "AC: none",
        "remat=none",
        "activation checkpointing off",
        "no (selective: off)",
        "everything_saveable",
    ):
        assert recompute_of(row(recompute=words), 8, "nemo", []) == {"recompute": "none"}
    for words in ("SAC", "selective (every 2nd op)", "AC=op"):
        assert recompute_of(row(recompute=words), 8, "nemo", []) == {"recompute": "selective", "recompute_modules": ("op",)}
    for words, layers in (
        ("50%", 4),
        ("every 2 layers", 4),
        ("every 4th layer", 2),
        ("every other layer", 4),
        ("AC=2", 4),
        ("selective (2)", 4),
        ("half of the layers", 4),
    ):
        assert recompute_of(row(recompute=words), 8, "nemo", []) == {"recompute": "full", "recompute_layers": layers}
    for words in ("attn", "sel", "attention only"):
        assert recompute_of(row(recompute=words), 8, "nemo", []) == {"recompute": "selective"}
    for words, modules in (("minimal", ("core_attn", "layernorm")), ("minimal_flash", ("layernorm",))):
        assert recompute_of(row(recompute=words), 8, "maxtext", []) == {"recompute": "selective", "recompute_modules": modules}
    assert recompute_of(row(recompute="save_dot_with_context_except_mlp"), 8, "maxtext", []) == {"recompute": "full", "recompute_layers": 6}
    assert recompute_of(row(recompute="w/o AC"), 8, "nemo", []) == {"recompute": "none"}
    for words in ("selective: mlp", "mlp"):
        assert recompute_of(row(recompute=words), 8, "nemo", []) == {"recompute": "selective", "recompute_modules": ("mlp",)}
    noted: list[str] = []
    assert recompute_of(row(recompute="n/a"), 8, "nemo", noted) == {"recompute": "none"} and noted == ["recomputation not stated: none"]
    assert recompute_of(row(recompute="selective (core attention)"), 8, "nemo", []) == {"recompute": "selective"}


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"framework": "DeepSpeed"}, "deepspeed"), ({"framework": "HF Trainer + DeepSpeed ZeRO-2", "sharding": ""}, "deepspeed"), ({"framework": "Primus (TorchTitan)"}, "torchtitan"), ({"framework": "Alpa"}, "maxtext"), ({"framework": "Keras"}, "tf2-horovod"), ({"framework": "TensorFlow", "date": "2022"}, "tf2-horovod"), ({"framework": "TensorFlow", "date": "2020-02"}, "tf1-horovod"), ({"framework": "TRL", "tp": 2}, "huggingface"), ({"framework": "Hugging Face Trainer"}, "huggingface"), ({"framework": "Hugging Face Trainer", "sharding": "DDP", "precision": "bf16-mixed"}, "huggingface-amp"), ({"framework": "Accelerate", "model_type": "t5"}, "pytorch"), ({"framework": "caffe"}, "pytorch"), ({"framework": ""}, "pytorch"),
        ({"framework": "GPT-NeoX"}, "megatron-deepspeed-async"), ({"framework": "Megatron-DeepSpeed", "system": "Jean Zay"}, "megatron-deepspeed-bf16"), ({"framework": "Megatron-DeepSpeed", "system": "Jean Zay", "precision": "fp16"}, "megatron-deepspeed"), ({"framework": "megatron_lm"}, "megatron-lm"), ({"framework": "Primus"}, "megatron-lm"),
        ({"framework": "levanter"}, "maxtext"), ({"framework": "Paxml (JAX)"}, "paxml"), ({"framework": "MXNet (MLPerf)"}, "mxnet-horovod"), ({"framework": "NeMo (MLPerf)"}, "mlperf-nvidia-mcore"),
        ({"framework": "Megatron-LM", "date": "2022-05", "flash_attn": "no"}, "megatron-2022"), ({"framework": "Megatron-LM", "date": "2021-04"}, "megatron-2021"),
        ({"framework": "Megatron-LM", "gpu": "V100"}, "megatron-2021"), ({"framework": "PyTorch", "model_type": "transformer decoder"}, "pytorch"), ({"framework": "nanotron", "tp": 8}, "pytorch"),
        ({"framework": "PaddlePaddle", "model_name": "BERT-large", "model_type": "bert", "gpu": "V100"}, "pytorch-apex-ddp"),
        ({"framework": "MLPerf (NVIDIA)", "model_name": "ResNet-50", "model_type": "cnn"}, "mlperf-mxnet"), ({"framework": "PAX (JAX-Toolbox)"}, "paxml"),
        ({"framework": "PyTorch (MLPerf)", "model_name": "GNMT", "model_type": "rnn"}, "pytorch-foreach"), ({"framework": "MegaScale"}, "megatron-lm"),
        ({"framework": "Composer", "model_name": "ResNet-50", "model_type": "cnn", "batch_unit": "images"}, "pytorch-foreach"),
        ({"precision": "AMP", "sharding": "DDP"}, "pytorch-amp"), ({"precision": "bf16-mixed", "sharding": ""}, "pytorch-amp"), ({"precision": "bf16-mixed"}, "pytorch"),
        ({"framework": "PyTorch FSDP", "precision": "bf16-mixed", "sharding": ""}, "pytorch"), ({"framework": "HF Trainer + FSDP", "sharding": ""}, "huggingface"),
        ({"framework": "nanoGPT", "sharding": ""}, "pytorch-amp"), ({"precision": "AMP", "sharding": "DDP", "task": "LoRA"}, "pytorch"),
        ({"precision": "AMP", "sharding": "DDP", "task": "", "model_name": "Llama-2-7B LoRA"}, "pytorch"),
        ({"framework": "HAI-LLM", "n_experts": 256}, "megatron-bridge-overlapped"), ({"framework": "torchtitan", "precision": "fp8 (torchao, row-wise)"}, "torchtitan-rowwise"),
        ({"framework": "metaseq (FSDP, Megatron's layers)", "tp": 8}, "pytorch"),
        ({"framework": "Megatron-LM", "notes": "case x_cef; CE fusion on"}, "megatron-lm-te-loss"),
        ({"framework": "Megatron-LM + DeepSpeed"}, "megatron-deepspeed-async"), ({"framework": "DeepSpeed (Megatron)"}, "megatron-deepspeed-async"),
        ({"framework": "Megatron-LM", "source_id": "deepspeed-blog"}, "megatron-lm"), ({"framework": "JaxPP"}, "maxtext"), ({"framework": "torch titan"}, "torchtitan"),
    ],
)  # fmt: skip
def test_frameworks_by_their_names(changes: dict[str, str], framework: str) -> None:
    noted: list[str] = []
    assert framework_of_row(row(**changes), noted) == framework
    assert bool(noted) == (framework in ("pytorch", "pytorch-amp", "huggingface", "huggingface-amp", "megatron-bridge-overlapped"))


def test_who_splits_a_model_without_a_known_name_does_so_as_megatron() -> None:
    """Plain PyTorch splits no layer: HAI-LLM, MegaScale and their like do."""
    noted: list[str] = []
    assert framework_of_row(row(framework="HAI-LLM", pp=16, ep=64), noted) == "megatron-lm" and "splits the model" in noted[0]
    assert framework_of_row(row(framework="HAI-LLM"), []) == "pytorch"


def test_numbers_as_tables_print_them() -> None:
    (found,) = rows_of([{"row_id": "a", "global_batch": "1,024", "gpus": "16.0", "ep": "0", "vp": "none", "cp": "N/A", "tp": "-"}])
    assert not found.problem and (found.global_batch, found.gpus) == (1024, 16)
    assert (found.ep, found.vp, found.cp, found.tp) == (None, None, None, None)
    (bad,) = rows_of([{"row_id": "a", "gpus": "0", "global_batch": "1,02"}])
    assert "gpus" in bad.problem and "global_batch" in bad.problem


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [("gpus", "8x8", 64), ("gpus", "64 (8x8)", 64), ("gpus", "64 GPUs", 64), ("seq_len", "8k", 8192), ("seq_len", "128K", 131072), ("seq_len", "8,192", 8192),
     ("global_batch", "4M tokens", 4 << 20), ("global_batch", "4e6", 4_000_000), ("global_batch", "1,048,576", 1 << 20), ("gpu_mem_gb", "80GB", 80),
     ("gpu_mem_gb", "80 GiB", 80), ("gpu_mem_gb", "big", None), ("params", "8.03B", 8_030_000_000), ("params", "124M", 124_000_000), ("vocab_size", "32k", 32000),
     ("gpus", "16x H100", 16), ("gpus", "2 nodes x 8 GPUs", 16), ("gpus", "2 nodes", None), ("gpus", "8xA100-80GB", 8), ("gpus", "16 H100 SXM", 16), ("seq_len", "8 192", 8192),
     ("tp", "TP=2", 2), ("tp", "TP8", 8), ("etp", "ETP 2", 2), ("micro_batch", "4/GPU", 4), ("micro_batch", "2 per GPU", 2), ("tp", "8-way", 8), ("grad_accum", "8 steps", 8), ("step_time_s", "1,250 ms", 1.25), ("step_time_s", "1.25 s/it", 1.25), ("global_batch", "4M tok", 4 << 20),
     ("tp", "auto", None), ("ffn_hidden", "0", None), ("vp", "nan", None), ("step_time_s", "1.25 s", 1.25), ("step_time_s", "~2", 2.0),
     ("seq_len", "131k", 131072), ("seq_len", "33K", 32768), ("seq_len", "1.5k", 1536), ("global_batch", "0.5M tokens", 1 << 19), ("global_batch", "1.6M tokens", 1_600_000), ("global_batch", "2.1M", 2_100_000)],
)  # fmt: skip
def test_numbers_with_units_and_scales(column: str, cell: str, value: float | None) -> None:
    (found,) = rows_of([{"row_id": "a", column: cell}])
    assert not found.problem and getattr(found, column) == value


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("2024-06", "2024-06"), ("2023-05..2024-01", "2023-05..2024-01"), ("2024", "2024"), ("2024/06", "2024-06"), ("06/2024", "2024-06"), ("12.06.2024", "2024-06"),
        ("June 12, 2024", "2024-06"), ("v4.0 (Nov 2022)", "2022-11"), ("Q2 2024", "2024-06"), ("unknown", ""), ("", ""),
    ],
)  # fmt: skip
def test_dates_compare_however_they_are_written(cell: str, found: str) -> None:
    (read,) = rows_of([{"row_id": "a", "date": cell}])
    assert read.date == found


def test_a_decoders_batch_in_tokens_is_counted_in_sequences() -> None:
    case = case_of(row(batch_unit="tokens", global_batch=64 * 4096, micro_batch=4096))
    assert (case.plan.batch.global_, case.plan.batch.micro, case.plan.seq_len) == (64, 1, 4096)
    with pytest.raises(Refused, match="padded tokens"):
        case_of(row(batch_unit="tokens", model_type="encoder-decoder transformer", model_name="Transformer-big"))


@pytest.mark.parametrize("cell", ["1.57M tokens", "1.6M tokens", "1.5M tokens", "1,572,864 tokens"])
def test_a_rounded_number_of_tokens_is_that_of_whole_micro_batches(cell: str) -> None:
    """384 sequences of 4096, 8 at a time on 16 GPUs: 383 had no micro-batch but one."""
    (read,) = rows_of([{"row_id": "r", "global_batch": cell}])
    case = case_of(row(global_batch=read.global_batch, batch_unit=read.batch_unit, micro_batch=8))
    assert (case.plan.global_batch, case.plan.batch.micro) == (384, 8)


def test_a_batch_of_tokens_of_any_decoder_is_counted_in_sequences() -> None:
    """Also of one whose family has no name here; and where so many sequences cannot be meant."""
    for changes in ({"batch_unit": "Tokens (global)", "model_type": "olmo", "model_name": "OLMo-7B"}, {"batch_unit": ""}):
        case = case_of(row(global_batch=1024 * 4096, **changes))
        assert case.plan.global_batch == 1024 and any("tokens: 1024 sequences" in note for note in case.assumed)


def test_a_batchs_own_cell_says_what_it_counts() -> None:
    """Whatever the column of units says; and a batch that is all ranks' micro-batches counts what they do, LAMB's of 79,872 sequences too."""
    told = {
        "row_id": "r",
        "model_name": "Llama-2-7B",
        "gpu": "H100",
        "gpus": "16",
        "framework": "PyTorch",
        "seq_len": "4096",
        "sharding": "FSDP",
    }
    for cell, unit in (("4M tokens", "sequences"), ("65536 tokens", ""), ("1024 sequences", "tokens"), ("1024 seqs", "")):
        (read,) = rows_of([told | {"global_batch": cell, "batch_unit": unit}])
        assert case_of(read).plan.global_batch == (16 if cell.startswith("65536") else 1024)
    bert = {
        "model_name": "BERT-Large",
        "model_type": "bert",
        "n_layers": 24,
        "hidden": 1024,
        "n_heads": 16,
        "seq_len": 128,
        "sharding": "none",
    }
    large = row(
        **(bert | {"gpus": 256, "gpus_per_node": 16, "micro_batch": 312, "global_batch": 79872, "batch_unit": "", "optimizer": "LAMB"})
    )
    assert case_of(large).plan.global_batch == 79872


def test_a_batch_of_each_gpu_is_of_all_of_them() -> None:
    for unit, batch, found in (
        ("tokens per GPU", 2 * 4096, 32),
        ("sequences/GPU", 2, 32),
        ("tokens_per_device", 4096, 16),
        ("tokens", 32 * 4096, 32),
    ):
        case = case_of(row(batch_unit=unit, global_batch=batch, micro_batch=None))
        assert case.plan.global_batch == found


def test_images_are_images_whatever_the_batch_is_called() -> None:
    silent = {"n_layers": None, "hidden": None, "seq_len": None, "sharding": "", "gpus": 8, "micro_batch": 64, "global_batch": 512}
    cases = [
        case_of(row(model_name=name, model_type="", batch_unit=unit, **silent))
        for name in ("ResNet-50", "ViT-B/16")
        for unit in ("images", "samples", "")
    ]
    assert all(case.plan.seq_len is None for case in cases)
    assert len({step_seconds(case.plan, case.topology)[0] for case in cases}) == 2


def test_a_length_counts_whatever_the_batch_is_called() -> None:
    assert case_of(row(batch_unit="samples")).plan.seq_len == case_of(row(batch_unit="")).plan.seq_len == 4096


def test_models_by_their_names_where_no_sizes_are_given() -> None:
    for name in ("Llama 3 8B", "Llama-3-8B", "llama3-8b", "ResNet-50 v1.5", "SSD300 (ResNet-50)", "T5-3B", "ViT-Base/16"):
        assert case_of(row(model_name=name, model_type="", n_layers=None, hidden=None)).plan.model
    for name, kind in (("PixArt-alpha", "diffusion"), ("DLRM", "recommendation"), ("Whisper", "speech")):
        with pytest.raises(Refused, match="no model of that name"):
            case_of(row(model_name=name, model_type=kind))


def test_only_some_frameworks_interleave_unless_told() -> None:
    deep = {"pp": 2, "gpus": 16, "global_batch": 64, "vp": None}
    assert case_of(row(framework="NeMo", **deep)).plan.parallel.virtual_stages == 8
    assert case_of(row(framework="OneFlow", **deep)).plan.parallel.virtual_stages == 1
    experts = {
        "model_name": "Qwen3-30B-A3B",
        "model_type": "qwen3-moe",
        "n_experts": 128,
        "top_k": 8,
        "moe_ffn_hidden": 768,
        "hidden": 2048,
        "ep": 8,
    }
    moe = case_of(row(framework="Megatron-Bridge", framework_version="26.04", **deep, **experts))
    assert moe.plan.framework == "megatron-bridge-deepep" and moe.plan.parallel.virtual_stages == 8


def test_plain_pytorch_interleaves_only_where_half_the_step_were_bubble() -> None:
    deep = {"framework": "ours (PyTorch)", "pp": 8, "gpus": 64, "vp": None}
    assert case_of(row(global_batch=8 * 8, **deep)).plan.parallel.virtual_stages == 2
    assert case_of(row(global_batch=8 * 64, **deep)).plan.parallel.virtual_stages == 1


def test_who_splits_sequences_has_fused_attention() -> None:
    long = row(framework="Megatron-DeepSpeed (Ulysses)", cp=2, seq_len=32768, global_batch=8)
    case = case_of(long)
    assert (case.plan.attention, case.plan.parallel.cp_kind) == ("flash", "all_to_all")
    assert step_seconds(case.plan, case.topology)[0] > 0
    assert case_of(row(framework="Megatron-DeepSpeed", gpu="A100")).plan.attention is None
    said_no = case_of(row(framework="Megatron-LM", cp=2, flash_attn="no"))
    assert said_no.plan.attention == "flash" and "attention written out: flash, for sequences are split" in said_no.assumed


@pytest.mark.no_cover
@given(st.sampled_from(("H100-SXM5-80GB", "A100-PCIE-40GB", "RTX 4090", "T4", "MI300X", "GB200")), st.sampled_from((1, 2, 4)))
def test_more_samples_take_longer_on_every_board(gpu: str, micro: int) -> None:
    times = [
        step_seconds(case.plan, case.topology, case.edits)[0]
        for batch in (1, 2)
        for case in [case_of(row(gpu=gpu, gpus=8, n_layers=2, micro_batch=micro, global_batch=8 * micro * batch, precision="fp16"))]
    ]
    assert times[0] < times[1]


def test_preferences_are_pairs_before_a_frozen_copy() -> None:
    plain = {"framework": "NeMo/Megatron-Core", "gpus": 8, "sharding": "", "micro_batch": 1, "global_batch": 32}
    trained, compared, pipelined = (
        case_of(row(**(plain | more))) for more in ({"task": "pretrain"}, {"task": "DPO"}, {"task": "dpo", "pp": 2})
    )
    assert (compared.plan.task, compared.plan.batch.micro, compared.plan.global_batch) == ("dpo", 2, 2 * trained.plan.global_batch)
    assert any("a sample is a pair of sequences" in words for words in compared.assumed)
    assert pipelined.plan.task == "train" and any("are not counted" in words for words in pipelined.assumed)


def test_fine_tuning_recipes_pack_squad() -> None:
    tuned = {"framework": "NeMo/Megatron-Core", "task": "sft", "sharding": "", "gpus": 8}
    found = case_of(row(**tuned))
    assert found.plan.data.document == 200 and any("packed sequences" in words for words in found.assumed)
    for changes in ({"task": "pretrain"}, {"seq_len": 2048}, {"framework": "PyTorch"}, {"framework": "NeMo", "source_id": "mlperf-nvidia"}):
        assert case_of(row(**(tuned | changes))).plan.data.document == 0
