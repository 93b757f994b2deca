"""What NVIDIA's benchmarking scripts set beside their tables: meshes of JAX's runs, attention's kernels, overlap set on the command line."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.row import Row
from sim.accuracy.rows.recomputation import recompute_of
from sim.accuracy.rows.scripts import steers_power
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.rows.wording import asked_overlaps, framework_of_row, overlap_of

JAX = Row(
    row_id="r", model_name="Llama-2-70B", model_type="llama", gpu="H100", gpus=512, nodes=64, gpus_per_node=8, sharding="FSDP (HSDP, XLA/JAX)",
    framework="MaxText (JAX)", task="pretrain", step_time_s=1.0, quality="B",
)  # fmt: skip


def row(**changes: object) -> Row:
    return msgspec.structs.replace(JAX, **changes)


@pytest.mark.parametrize(
    ("model", "framework", "nodes", "shard"),
    [
        ("Llama-2-70B", "maxtext", 64, 128),
        ("Llama-2-70B", "maxtext", 32, 256),
        ("GPT-3-175B", "paxml", 64, 128),
        ("GPT-3-5B (paxml)", "paxml", 4, 8),
        ("GPT-3-1B", "paxml", 4, 32),
    ],
)
def test_hybrid_sharding_by_the_scripts_mesh(model: str, framework: str, nodes: int, shard: int) -> None:
    found = sharding_of(row(model_name=model, nodes=nodes, gpus=8 * nodes), 8 * nodes, framework, [])
    assert (found["dp_shard"], found["dp_replicate"]) == (shard, 8 * nodes // shard)


def test_a_stated_size_and_plain_sharding_come_first() -> None:
    assert sharding_of(row(fsdp_size=64), 512, "maxtext", [])["dp_shard"] == 64
    assert sharding_of(row(sharding="FSDP"), 512, "maxtext", [])["dp_shard"] == 512


@pytest.mark.parametrize(
    ("model", "release", "framework"),
    [
        ("GPT-3-175B", "NeMo 24.09", "nemo-flash"),
        ("GPT_3_175B", "NeMo 24.09", "nemo-flash"),
        ("GPT-3-175B", "NeMo 24.12", "nemo"),
        ("Nemotron-4-340B", "NeMo 24.09", "nemo-flash"),
        ("Nemotron-4-15B", "NeMo 24.09", "nemo"),
    ],
)
def test_attention_of_nemo_by_its_scripts(model: str, release: str, framework: str) -> None:
    assert framework_of_row(row(model_name=model, framework="NeMo/Megatron-Core", framework_version=release), []) == framework


@pytest.mark.parametrize(
    ("words", "framework", "overlap"),
    [
        ("grad reduce-scatter and param all-gather overlap", "nemo", (True, True)),
        ("grad reduce-scatter and param all-gather overlap; TP userbuffers overlap", "nemo", (True, True)),
        ("grad sync overlap", "internevo", (True, False)),
        ("overlap-grad-reduce, overlap-param-gather", "megatron-core", (True, False)),
        ("overlap_grad_reduce, overlap_param_gather", "nemo", (True, True)),
        ("EP overlap", "nemo", (True, True)),
        ("tp_comm_overlap", "nemo", (True, True)),
        ("TP overlap", "megatron-lm", (True, True)),
        ("tp_comm_overlap=False, overlap_grad_reduce=True", "nemo", (True, False)),
        ("none", "nemo", (False, False)),
        ("none; CP a2a", "nemo", (False, False)),
        ("overlap off", "nemo", (False, False)),
        ("no DP overlap", "nemo", (False, False)),
        ("no TP overlap", "nemo", (True, False)),
        ("TP: no, DP: yes", "nemo", (True, False)),
        ("grad reduce overlap; no TP overlap", "nemo", (True, False)),
        ("TP overlap; no DP overlap", "nemo", (False, True)),
        ("yes", "nemo", (True, True)),
        ("yes", "megatron-lm", (True, False)),
    ],
)
def test_cells_that_speak_of_gradients_leave_tensor_parallelism_to_the_framework(
    words: str, framework: str, overlap: tuple[bool, bool]
) -> None:
    assert overlap_of(row(comm_overlap=words), framework) == overlap


@pytest.mark.parametrize(("gpu", "overlap"), [("A100", True), ("A10", False), ("A10G", False), ("A100-PCIE-40GB", False), ("L4", False)])
def test_user_buffers_are_for_gpus_with_nvlink(gpu: str, overlap: bool) -> None:
    assert overlap_of(row(comm_overlap="", gpu=gpu), "nemo") == (True, overlap)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", {}), ("no", {}), ("tp-comm-overlap", {}), ("overlap-grad-reduce", {"overlap_grad": True}), ("grad sync overlap", {"overlap_grad": True}), ("DP overlap", {"overlap_grad": True}),
        ("--overlap-grad-reduce --overlap-param-gather", {"overlap_grad": True, "overlap_param": True}), ("yes", {"overlap_grad": True, "overlap_param": True}),
    ],
)  # fmt: skip
def test_overlaps_that_megatron_lm_has_as_options(words: str, asked: dict[str, bool]) -> None:
    found = asked_overlaps(row(comm_overlap=words), "megatron-lm")
    assert found == ({"base": "megatron-lm", "data_parallel": asked} if asked else "megatron-lm")
    assert asked_overlaps(row(comm_overlap=words), "megatron-core") == "megatron-core"


def test_saved_products_leave_attention_to_run_again() -> None:
    again = {"recompute": "selective", "recompute_modules": ("core_attn", "layernorm")}
    assert recompute_of(row(recompute="selective (SAVE_DOT_ONLY)"), 24, "paxml", []) == again


@pytest.mark.parametrize(
    ("release", "framework"),
    [("PyTorch 1.5 NGC 20.03", "pytorch-planar"), ("NGC pytorch-21.03", "pytorch-native-amp"), ("", "pytorch-native-amp")],
)
def test_classifiers_of_before_channels_last_train_in_nchw(release: str, framework: str) -> None:
    found = row(model_name="ResNet-50 v1.5", model_type="cnn", framework="PyTorch (NGC DeepLearningExamples)", framework_version=release)
    assert framework_of_row(found, []) == framework


def test_horovod_s_settings_that_no_script_exports_are_its_own() -> None:
    mxnet = row(model_name="ResNet-50 v1.5", model_type="cnn", framework="MXNet (NGC, Horovod)")
    assert framework_of_row(mxnet, []) == "mxnet-horovod"
    assert framework_of_row(msgspec.structs.replace(mxnet, source_id="dlperf-v1"), []) == "mxnet-horovod-defaults"


@pytest.mark.parametrize(
    ("release", "task", "gpu", "steered"),
    [
        ("NeMo 24.12", "pretrain", "H100", False),
        ("NeMo 25.02.01", "pretrain", "H100", True),
        ("NeMo 24.12", "lora", "H100", True),
        ("NeMo 24.07", "sft", "H100", False),
        ("NeMo 25.04 (recipe v25.05)", "pretrain", "GB200", False),
    ],
)
def test_power_is_steered_by_nemo_s_scripts_of_2025(release: str, task: str, gpu: str, steered: bool) -> None:
    assert steers_power(row(framework_version=release, task=task, gpu=gpu), "nemo") is steered


@pytest.mark.parametrize(
    ("framework", "date", "gpus", "batch", "steered"),
    [
        ("mlperf-nvidia", "2024-06", 512, 2048, True),
        ("mlperf-nvidia", "2024-11", 256, 2048, False),
        ("mlperf-nvidia", "2023-11", 768, 3072, False),
        ("mlperf-nvidia-lora", "2024-06", 8, 8, True),
        ("mlperf-nvidia-lora", "2024-06", 1024, 128, False),
        ("maxtext", "2025-03", 512, 1024, False),
    ],
)
def test_power_is_steered_where_a_submission_s_script_says_so(framework: str, date: str, gpus: int, batch: int, steered: bool) -> None:
    found = row(model_name="GPT-3 175B", tp=4, pp=8, gpus=gpus, nodes=max(1, gpus // 8), global_batch=batch, date=date)
    assert steers_power(found, framework) is steered
    other = msgspec.structs.replace(found, model_name="Mixtral-8x7B")
    assert steers_power(other, framework) is (steered and framework != "mlperf-nvidia")
