"""Measured kernel tables of the PyPI package `aiconfigurator-core` (NVIDIA, Apache-2.0) as a source of costs.

An optional extra: `pip install 'steptwin[tables]'`. The package holds GEMM and attention times of ten GPUs, collected under three
inference frameworks by CUDA graph replay: one parquet file for each GPU, family, framework and version. Here they are
read as one grid per GPU and dtype (bf16: median over frameworks; fp8: the fastest, since some rows contain the cast of the
activations), and interpolated in logarithms. Costs inside the grid are `measured`; outside the tables give no
cost, and the fitted model is used. Rows that are faster than the GPU's peak are dropped: the files contain some.
"""

from __future__ import annotations

import bisect
import importlib
import importlib.util
import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from sim.cost.price import Cost
from sim.work import Attention, Gemm
from topologies.errors import Refused
from topologies.hardware import Gpu

PACKAGE = "aiconfigurator_core"
FOLDERS = {
    "a100-sxm-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm", "b300-sxm": "b300_sxm",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server",
}  # fmt: skip
"""Catalog keys of the GPUs that have tables -> folders of the package."""
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
SLIDING = {("b200_sxm", "sglang", "0.5.10"), ("h200_sxm", "vllm", "0.19.0"), ("l40s", "sglang", "0.5.12")}
"""(folder, framework, version) of attention files that hold sliding-window runs but do not say so: their rates exceed the GPU's peak."""

Point = tuple[int, ...]


def table_cost(work: Gemm | Attention, gpu: Gpu) -> Cost | None:
    """Cost by the tables, or None where they do not cover the work (other GPU, dtype, shape, backward, accumulation).

    Raises `Refused` where the package is not installed.
    """
    root = _root()
    folder = FOLDERS.get(gpu.name)
    if folder is None:
        return None
    if isinstance(work, Gemm):
        if work.accumulate or work.batch > 1 or work.dtype not in ("bf16", "fp16", "fp8"):
            return None
        grid = _gemms(root, folder, gpu.flops["bf16"], gpu.flops.get("fp8", 0.0)).get("fp8" if work.dtype == "fp8" else "bf16")
        rate = grid.at((work.m, work.n, work.k)) if grid else None
        return Cost(rate * work.m * work.n * work.k * work.repeat, "measured") if rate else None
    if work.backward or work.window or work.chosen or work.q != work.kv or not work.causal or work.dtype not in ("bf16", "fp16"):
        return None
    grid = _attentions(root, folder, gpu.flops["bf16"]).get((work.heads, work.kv_heads, work.d)) if work.dv in (0, work.d) else None
    rate = grid.at((work.batch, work.q)) if grid else None
    return Cost(rate * work.batch * work.q * work.repeat, "measured") if rate else None


def check_installed() -> None:
    """Raises `Refused` where the package, or pyarrow that reads its files, is not installed."""
    _root()
    if importlib.util.find_spec("pyarrow") is None:
        raise Refused("cost source 'tables' needs pyarrow to read parquet files. Run: pip install 'steptwin[tables]'")


def _root() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Refused(
            "cost source 'tables' needs the package aiconfigurator-core, which is not installed. "
            "Run: pip install 'steptwin[tables]', or leave the source out to use the fitted model"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


class Grid:
    """A value over a grid of shapes, interpolated multilinearly in logarithms; None outside, or where a corner of the cell was not measured."""

    def __init__(self, values: dict[Point, float]) -> None:
        self.values = {shape: math.log(value) for shape, value in values.items()}
        self.axes = [sorted(set(axis)) for axis in zip(*values, strict=True)]

    def at(self, shape: Point) -> float | None:
        sides: list[list[tuple[int, float]]] = []
        for axis, size in zip(self.axes, shape, strict=True):
            i = bisect.bisect_left(axis, size)
            if i == len(axis) or (i == 0 and axis[0] != size):
                return None
            if axis[i] == size:
                sides.append([(size, 1.0)])
                continue
            part = math.log(size / axis[i - 1]) / math.log(axis[i] / axis[i - 1])
            sides.append([(axis[i - 1], 1.0 - part), (axis[i], part)])
        total = 0.0
        for corner in product(*sides):
            value = self.values.get(tuple(size for size, _ in corner))
            if value is None:
                return None
            total += math.prod(weight for _, weight in corner) * value
        return math.exp(total)


def _rows(root: Path, folder: str, family: str, name: str, columns: list[str]) -> Iterable[dict[str, list[Any]]]:
    """The `columns` of each file of one family that are in it, file by file, without those in `SLIDING`."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Refused("cost source 'tables' needs pyarrow to read parquet files. Run: pip install 'steptwin[tables]'") from None
    for path in sorted((root / folder / family).glob(f"*/*/{name}.parquet")):
        if family == "attention" and (folder, path.parts[-3], path.parts[-2].partition(".post")[0]) in SLIDING:
            continue
        present = parquet.read_schema(path).names
        yield parquet.read_table(path, columns=[c for c in columns if c in present]).to_pydict()


@lru_cache(maxsize=16)
def _gemms(root: Path, folder: str, bf16: float, fp8: float) -> dict[str, Grid]:
    """dtype -> seconds per (m n k) over (m, n, k)."""
    peak = {"bf16": bf16, "fp8": fp8}
    found: dict[str, dict[Point, list[float]]] = {"bf16": {}, "fp8": {}}
    for table in _rows(root, folder, "gemm", "gemm_perf", ["gemm_dtype", "m", "n", "k", "latency"]):
        for dtype, m, n, k, ms in zip(*(table[c] for c in ("gemm_dtype", "m", "n", "k", "latency")), strict=True):
            name = DTYPES.get(dtype)
            seconds = float(ms) * 1e-3
            if name and 2.0 * m * n * k <= seconds * peak[name]:
                found[name].setdefault((m, n, k), []).append(seconds)
    one = {
        "bf16": {shape: median(seconds) / math.prod(shape) for shape, seconds in found["bf16"].items()},
        "fp8": {shape: min(seconds) / math.prod(shape) for shape, seconds in found["fp8"].items()},
    }
    return {name: Grid(values) for name, values in one.items() if values}


@lru_cache(maxsize=16)
def _attentions(root: Path, folder: str, peak: float) -> dict[Point, Grid]:
    """(heads, kv_heads, d) -> seconds per (batch, token) over (batch, sequence): causal, bf16, fastest kernel."""
    columns = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency"]
    conditions = ["attn_dtype", "kv_cache_dtype", "window_size", "step"]
    found: dict[Point, dict[Point, float]] = {}
    for table in _rows(root, folder, "attention", "context_attention_perf", columns + conditions):
        count = len(table["latency"])
        table.setdefault("window_size", [0] * count)
        for b, s, h, hkv, d, ms, *how in zip(*(table[c] for c in columns + conditions), strict=True):
            seconds = float(ms) * 1e-3
            if how != ["bfloat16", "bfloat16", 0, 0] or 2.0 * b * h * s * s * d > seconds * peak:
                continue
            of = found.setdefault((h, hkv or h, d), {})
            shape: Point = (b, s)
            of[shape] = min(of.get(shape, math.inf), seconds / (b * s))
    return {key: Grid(values) for key, values in found.items()}
