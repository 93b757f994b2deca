"""What benchmarking scripts set that their tables do not print: the mesh of JAX's runs, attention's kernels, the container, boards' power.

Source: NVIDIA/dgxc-benchmarking v24.11.1 and v25.02, {maxtext,paxml,nemo_megatron,nemotron,llama3.1,grok1}/configure.sh; for static graphs the
READMEs of DLPerf (NGC 20.03, CUDA 10.2) and of NVIDIA's BERT in TensorFlow 1 (20.06, on several nodes 19.08); for ConvNets in PyTorch
DLPerf's too.
"""

from __future__ import annotations

import re

from sim.accuracy.row import Row

_NODES: tuple[tuple[str, str, int, int], ...] = (
    # (framework, model, nodes that share one copy of the parameters, on so many nodes and more)
    ("maxtext", "", 16, 64),  # dcn_FSDP=16, the rest dcn_DP
    ("paxml", r"175b", 16, 0),  # FSDP=16 of DCN_MESH_SHAPE=[DP,FSDP,1]
    ("paxml", r"(?<!\d)5b", 1, 0),  # FSDP=1
)
_FLASH = (("grok", "24."), (r"gpt[-_ ]?3.?175b|nemotron.?4.?340b", "24.09"))
"""(Model, release of NeMo) that ran with NVTE_FUSED_ATTN=0, flash-attention 2 in place of cuDNN's; all others ran with 1."""


def shard_of(row: Row, framework: str) -> int | None:
    """GPUs that share one copy of the parameters in a JAX run that says HSDP and no more."""
    if row.fsdp_size or "hsdp" not in row.sharding.lower():
        return None
    nodes = row.nodes or 1
    for name, model, copies, least in _NODES:
        if framework == name and re.search(model, row.model_name.lower()) and nodes >= max(least, copies):
            return copies * (row.gpus_per_node or 8)
    return None


def nemo_of(row: Row) -> str:
    """The framework file of a row of NeMo."""
    name = row.model_name.lower()
    return "nemo-flash" if any(release in row.framework_version and re.search(model, name) for model, release in _FLASH) else "nemo"


_STEERED_SINCE = (25, 0)
"""Releases of NeMo from which on all performance scripts steer power: PerfEnvPlugin(enable_vboost=True) in NVIDIA/NeMo, scripts/performance/llm,
and in NVIDIA/dgxc-benchmarking v25.04, llama3.1/pretrain_llama31.py. Those of before (megatron_gpt_pretraining.py) do not."""
_STEERED_TUNING = (24, 12)
"""The same of fine-tuning: ft_llama3/llama3_finetune.py of v25.04, in the container of 24.12."""
_STEERABLE = r"h[128]00|h20\b"


def steers_power(row: Row, framework: str) -> bool:
    """Did the row's script run `nvidia-smi boost-slider --vboost 1`? NVIDIA's of MLPerf did for Llama 2's adapters on one node, and for GPT-3 with 128
    samples a pipeline (training_results v4.0 and v4.1, config_DGXH100_1x8x4xtp4pp1cp1.sh, config_DGXH100_64x8x128x4x8_mbs2.sh: VBOOST_VALUE=1)."""
    if not re.search(_STEERABLE, row.gpu.lower()):
        return False
    if framework.startswith("nemo"):
        found = re.search(r"(\d\d)\.(\d\d)", row.framework_version)
        since = _STEERED_SINCE if row.pretrains else _STEERED_TUNING
        return found is not None and (int(found[1]), int(found[2])) >= since
    if framework.startswith("mlperf-nvidia-lora"):
        return (row.nodes or 1) == 1
    split = (row.tp or 1) * (row.pp or 1)
    samples = (row.global_batch or 0) * split / row.gpus if row.gpus else 0.0
    return framework == "mlperf-nvidia" and "gpt" in row.model_name.lower() and row.date[:4] >= "2024" and samples == 128


def graph_of(row: Row, name: str) -> str:
    """The framework file of BERT in OneFlow, or in TensorFlow 1: containers of before NGC 20.06 have CUDA 10."""
    if name == "oneflow":
        return "oneflow-bert"
    old = row.source_id.startswith("dlperf") or ("19.08 (multi-node)" in row.framework_version and (row.nodes or 1) > 1)
    return "tf1-horovod-cuda10" if old else name


def mxnet_of(row: Row) -> str:
    """The framework file of MXNet: DLPerf's script does not hand its Horovod settings on."""
    return "mxnet-horovod-defaults" if row.source_id.startswith("dlperf") else "mxnet-horovod"


_PLANAR = r"ngc\D*(19\.|20\.0[1-5])|pytorch 1\.[0-5]\b"
"""Releases before channels-last maps of PyTorch, which NVIDIA's ConvNets take under AMP since June 2020 (their README's changelog)."""


def layout_of(row: Row) -> str:
    """The framework file of a classifier in PyTorch, by the layout of its maps: DLPerf runs NVIDIA's scripts of 20.03, whose log says nchw."""
    old = row.source_id.startswith("dlperf") or re.search(_PLANAR, f"{row.framework} {row.framework_version}".lower())
    return "pytorch-planar" if old else "pytorch-native-amp"
