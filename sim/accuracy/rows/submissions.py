"""What NVIDIA's submissions to MLPerf Training set, round by round: dates, frameworks, adapters, context parallelism, sums in the switches.

Source: mlcommons/training_results_v3.1, v4.0, v4.1 and v5.0, NVIDIA/benchmarks/{gpt3,llama2_70b_lora,llama31_405b,resnet}/implementations:
config_*.sh and conf/*.yaml. Their results are not looked at here.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sim.accuracy.architecture.adapters import trains_adapters
from sim.accuracy.row import Row

_ROUNDS = {
    "0.5": "2018-12", "0.6": "2019-07", "0.7": "2020-07", "1.0": "2021-06", "1.1": "2021-12", "2.0": "2022-06", "2.1": "2022-11", "3.0": "2023-06", "3.1": "2023-11", "4.0": "2024-06",
    "4.1": "2024-11", "5.0": "2025-06", "5.1": "2025-11",
}  # fmt: skip
"""When the results of a round were published."""
_HOPPER = r"h[128]00|h20\b|b[23]00"
"""GPUs with 8-bit attention in cuDNN: Hopper and Blackwell."""
_GRAPHED = "2025"
"""From when on the adapters' submissions are captured on a node too (v5.0; v4.0's scripts capture nothing)."""
_LAYERED = "2024-09"
"""From when on those over several nodes are, with attention in 16 bits (v4.1: LAYER_CUDA_GRAPH=1, FP8_DPA=0, NVTE_FP8_DPA_BWD=0)."""
_IN_SWITCHES = 448
"""Nodes from which on MLPerf's pictures are told to sum in the switches: NCCL_ALGO=COLLNETCHAIN in config_DGXH100_multi_448x8x16.sh (v3.1,
v4.0); config_DGXH100_multi_316x8x16.sh has it commented out."""


_ONE_STAGE = r"single[ _-]stage[ _-]detector"
_BENCHMARKS = (
    # (bare name, or directory in mlcommons/training, as a pattern; date of the first round; what it trains); the first that fits counts
    (r"resnet|image[ _-]classification", "", "ResNet-50"),
    (r"gpt-?3|large[ _-]language[ _-]model", "", "GPT-3-175B"),
    (r"stable[ _-]?diffusion", "", "Stable Diffusion v2"),
    # mlcommons/training, text_to_image: torchtitan's flux_schnell_mlperf.toml
    (r"flux[._ -]?1?([-_ ]schnell)?|text[ _-]to[ _-]image", "", "FLUX.1-schnell (256x256)"),
    (r"recommendation[ _-]v2", "", "DLRM-DCNv2"),
    (r"dlrm|recommendation", _ROUNDS["3.0"], "DLRM-DCNv2"),
    (r"dlrm|recommendation", _ROUNDS["0.7"], "DLRM (Criteo 1TB)"),
    (rf"ssd|{_ONE_STAGE}", _ROUNDS["2.0"], "RetinaNet"),
    (rf"ssd|{_ONE_STAGE}", "", "SSD on ResNet-34, or RetinaNet"),  # no SSD300 on ResNet-50, which ships
    (rf"{_ONE_STAGE}\W+retinanet\W*", "", "RetinaNet"),
    (rf"{_ONE_STAGE}\W+ssd\W*", "", "SSD on ResNet-34"),
    (r"object[ _-]detection(\W+mask[ _-]?r-?cnn\W*)?", "", "Mask R-CNN"),
    (r"(language[ _-]model|natural[ _-]language[ _-]processing)(\W+bert\W*)?", "", "BERT"),
    (r"rnn[ _-]translator|translation\W+gnmt\W*", "", "GNMT"),
    (r"translation(\W+transformer\W*)?", "", "Transformer-big"),
)
"""What MLPerf's benchmarks train, by their bare names."""


def completed(row: Row) -> Row:
    """A submission that says no date has that of its round, which its version or its source names, and any row that of its container; a submission
    that says no size has its benchmark's."""
    row = _dated(row)
    bare = row.model_name.strip().lower() if row.submitted else ""
    name = next((whole for known, since, whole in _BENCHMARKS if re.fullmatch(known, bare) and row.date >= since), "")
    return msgspec.structs.replace(row, model_name=name) if name else row


_CONTAINER = r"\b(?:ngc|nemo|container|release|nvcr)\b\D*(?<!\d)(2\d)\.(0[1-9]|1[0-2])\b"
"""NVIDIA's containers are called by their year and month: "NGC pytorch 21.11", "NeMo 24.09", "PyTorch NVIDIA Release 23.09"."""
_ROUND = r"(?:mlperf|training[ _-]results)(?:(?!torch|nemo|mxnet|tensorflow|jax|cuda|release|megatron)\D)*?(\d\.\d)(?![.\d])"
"""The round behind the benchmark's name ("MLPerf Training v5.0"), no library between."""


def _dated(row: Row) -> Row:
    """With the date of the round, or of the container that was run."""
    version = f"{row.framework_version} {row.source} {row.framework}"
    if row.date:
        return row
    date = _ROUNDS.get(_round(row), "") if row.submitted else ""
    if not date and (container := re.search(_CONTAINER, version.lower())):
        date = f"20{container[1]}-{container[2]}"
    return msgspec.structs.replace(row, date=date) if date else row


def _round(row: Row) -> str:
    """The round of a submission: behind the benchmark's name in any of its cells, or all that its version says ("v5.0"; "5.0" is no
    library's); "" where neither tells."""
    cells = (row.source, row.framework_version, row.framework, row.source_id, row.system)
    found = next((found for cell in cells if (found := re.search(_ROUND, cell.lower()))), None)
    found = found or re.fullmatch(r"(?:v(?=\d)|(?=[3-9]))(\d\.\d)", row.framework_version.lower())
    return found[1] if found else ""


def submitted_text(row: Row) -> str:
    """BERT in CUDA graphs. Llama: pretraining on Megatron-Core, or adapters, whose attention is in 8 bits where a GPU can."""
    if "bert" in f"{row.model_type} {row.model_name}".lower():
        return "mlperf-nvidia-bert"
    if not trains_adapters(row) or not re.search(_HOPPER, row.gpu.lower()):
        return "mlperf-nvidia-mcore"
    if row.date >= _GRAPHED:
        return "mlperf-nvidia-lora-graphs"
    return "mlperf-nvidia-mcore" if row.date >= _LAYERED and (row.nodes or 1) > 1 else "mlperf-nvidia-lora"


def submitted_pictures(row: Row) -> str:
    """ResNet-50 in MXNet; on a node of Hopper by its whole main loop."""
    alone = re.search(r"\bh[12]00", row.gpu.lower()) and "resnet" in row.model_name.lower() and row.gpus == 8
    return "mlperf-mxnet-mainloop" if alone else "mlperf-mxnet"


def exchanges_heads(row: Row) -> bool:
    """Context parallelism by all_to_all: cp_comm_type = "a2a" in the adapters' yaml from v5.0 on; before it has no such key."""
    return row.submitted and trains_adapters(row) and row.date >= _GRAPHED


def algorithm_of(row: Row, framework: str) -> Literal["auto", "collnet"]:
    """NCCL's algorithm where a script asks for one."""
    return "collnet" if framework == "mlperf-mxnet" and (row.nodes or 1) >= _IN_SWITCHES else "auto"
