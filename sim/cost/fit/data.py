"""Rows of measured kernels, as the fits and the accuracy tables read them.

The folder (`--facts DIR`) holds `gemm_<gpu>.csv` and `attn_fwd_<gpu>.csv` (NVIDIA aiconfigurator, Apache-2.0: kernel
times from CUDA graph replay), `neusight_*_fp32.csv` (NeuSight, MIT). Times become seconds here.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import TypeVar

import msgspec

from topologies.errors import BadInput

T = TypeVar("T")

GPUS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "b200_sxm": "b200-sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""GPU in a file's name -> catalog key."""
NEUSIGHT = {
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA L4": "l4",
    "Tesla P100-PCIE-16GB": "p100-pcie",
    "Tesla P4": "p4",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
"""Device names of NeuSight -> catalog keys."""


class GemmRow(msgspec.Struct, frozen=True):
    m: int
    n: int
    k: int
    dtype: str
    seconds: float


class AttentionRow(msgspec.Struct, frozen=True):
    batch: int
    seq: int
    heads: int
    kv_heads: int
    d: int
    causal: bool
    dtype: str
    seconds: float


class VectorRow(msgspec.Struct, frozen=True):
    """An fp32 kernel over a (rows, width) array; `bytes` as the kernel must read and write at least."""

    op: str
    rows: int
    width: int
    bytes: int
    seconds: float


def _read(facts: Path, name: str) -> list[dict[str, str]]:
    path = facts / name
    if not path.is_file():
        raise BadInput(f"{path} does not exist. Give the folder of measured kernels with --facts")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def gemm_rows(facts: Path, gpu: str, dtype: str) -> list[GemmRow]:
    """Rows of one GPU (catalog key) and dtype.

    bf16: the median over library builds. fp8: the fastest build, since builds differ in kernels and in how they
    quantise. fp32: NeuSight's linear layers (without tf32).
    """
    if dtype == "fp32":
        names = {key: name for name, key in NEUSIGHT.items()}
        rows = [row for row in _read(facts, "neusight_linear_fp32.csv") if row["Device"] == names[gpu]]
        return [GemmRow(int(r["M"]), int(r["N"]), int(r["K"]), "fp32", float(r["us"]) * 1e-6) for r in rows]
    file = {key: name for name, key in GPUS.items()}[gpu]
    column = "us_min" if dtype == "fp8" else "us_med"
    rows = [row for row in _read(facts, f"gemm_{file}.csv") if row["dtype"] == dtype]
    return [GemmRow(int(r["m"]), int(r["n"]), int(r["k"]), dtype, float(r[column]) * 1e-6) for r in rows]


def attention_rows(facts: Path, gpu: str, dtype: str) -> list[AttentionRow]:
    """Forward rows of one GPU: the fastest kernel of each shape."""
    file = {key: name for name, key in GPUS.items()}[gpu]
    rows = [row for row in _read(facts, f"attn_fwd_{file}.csv") if row["dtype"] == dtype]
    return [
        AttentionRow(
            int(r["b"]), int(r["s"]), int(r["h"]), int(r["hkv"]), int(r["d"]), r["causal"] == "1", dtype, float(r["us_min"]) * 1e-6
        )
        for r in rows
    ]


def vector_rows(facts: Path, gpu: str) -> list[VectorRow]:
    """Elementwise kernels, layernorm and softmax of NeuSight in fp32."""
    names = {key: name for name, key in NEUSIGHT.items()}
    found = []
    for r in _read(facts, "neusight_vec_fp32.csv"):
        if r["gpu"] == names[gpu]:
            rows, width = int(r["B"]), int(r["H"])
            arrays = 3 if r["op"] in ("add", "mul", "div", "pow") else 2
            found.append(VectorRow(r["op"], rows, width, 4 * arrays * rows * width, float(r["us"]) * 1e-6))
    return found


def sample(rows: list[T], count: int, seed: int) -> list[T]:
    """`count` random rows (all where there are fewer), always the same for a seed."""
    return random.Random(seed).sample(rows, min(count, len(rows)))
