"""Fits `params/gemm.toml`: run `python -m sim.cost.fit.gemm --facts DIR > sim/cost/params/gemm.toml`."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from sim.cost.fit.data import GPUS, GemmRow, gemm_rows, sample
from sim.cost.fit.search import Bounds, search, show
from sim.cost.tiles import GemmFit, gemm_seconds
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu

SETS = [(gpu, dtype) for dtype in ("bf16", "fp8") for gpu in GPUS.values() if (gpu, dtype) != ("a100-sxm-80gb", "fp8")]
SIMT = ["p100-pcie", "p4", "v100-pcie-32gb", "t4", "a100-pcie-80gb", "a100-pcie-40gb", "l4", "h100-sxm"]
FP32_FLOOR = 3e-6
"""Kernel floor where the benchmark's launches hide it: that of the 16 bit kernels (CUDA graph replay), rounded."""
GRADED = ("sm89", "sm90", "sm120")
"""Architectures whose 8-bit products follow `tiles._graded`: rows that were not fitted come out nearer with it (H100 5.7 % for 7.7, L40S 7.1
for 8.2, RTX PRO 6000 5.0 for 5.6); Blackwell's pair tiles do not (GB200 6.2 for 5.8)."""

TENSOR: Bounds = {
    "floor": (3e-7, 2e-6, 1.5e-5),
    "peak": (0.3, 0.9, 1.1),
    "fill": (1e-8, 7e-7, 6e-6),
    "step": (1e-8, 6e-8, 8e-7),
    "l2": (4.0, 64.0, 256.0),
    "dram": (0.4, 0.85, 1.0),
    "hot": (1.2, 3.0, 12.0),
    "cache": (0.1, 0.8, 2.0),
    "droop": (0.0, 0.05, 0.4),
    "round": (0.0, 0.5, 1.0),
    "reduce": (1e-7, 1.5e-6, 1e-5),
    "outer": (1.2, 4.0, 20.0),
}
# All rows of the fp32 data have k >= 512, where what a tile costs beside its loop is not seen: `fill` and `step` are held
# to what an SM needs for it (a thousand or two of clocks).
VECTOR: Bounds = {
    **{name: TENSOR[name] for name in ("peak", "l2", "hot", "droop", "round", "outer")},
    "fill": (1e-8, 5e-7, 1.5e-6),
    "step": (1e-8, 5e-7, 1e-6),
    "dram": (0.65, 0.8, 0.95),
    "harness": (1e-6, 5e-5, 1e-4),
}

STARTS: tuple[dict[str, float], ...] = ({"step": 6e-8}, {"step": 7e-7, "l2": 200.0, "outer": 1.3, "droop": 0.01, "round": 0.01})
"""The error's surface has edges where the best tile changes: the search begins at two places."""


def predicted(rows: list[GemmRow], gpu: Gpu, fit: GemmFit) -> list[float]:
    """Seconds of each row, under the benchmark's conditions."""
    found = []
    for row in rows:
        size = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0}[row.dtype]
        found.append(gemm_seconds(row.m, row.n, row.k, gpu, fit, gpu.flops[row.dtype], size, max(size, 2.0)))
    return found


def fit_gemm(rows: list[GemmRow], gpu: Gpu, dtype: str) -> GemmFit:
    """The parameters of one GPU and dtype."""
    bounds: dict[str, tuple[float, float, float]] = dict(VECTOR if dtype == "fp32" else TENSOR)
    fixed: dict[str, float] = {"floor": FP32_FLOOR, "cache": 0.5, "reduce": 2e-6} if dtype == "fp32" else {}
    if dtype == "fp8":
        bounds["cast"] = (0.1, 3.0, 8.0)
    graded = dtype == "fp8" and gpu.arch in GRADED

    def make(values: dict[str, float]) -> GemmFit:
        return GemmFit(arch=gpu.arch, splits=16, graded=graded, **fixed, **values)

    measured = [row.seconds for row in rows]
    # Old boards throttle on their largest outputs (P100: a third of its rate): such rows must not bend the others.
    loss = "cauchy" if dtype == "fp32" else "soft_l1"
    middle = statistics.median if dtype == "fp32" else statistics.mean
    found = []
    for start in STARTS:
        moved = {name: (low, start.get(name, at), high) for name, (low, at, high) in bounds.items()}
        fit = make(search(lambda v: predicted(rows, gpu, make(v)), measured, moved, loss=loss))
        found.append((middle(min(1.0, abs(p / t - 1)) for p, t in zip(predicted(rows, gpu, fit), measured, strict=True)), fit))
    return min(found, key=lambda pair: pair[0])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=(), help="sets by name: l40s.fp8")
    args = parser.parse_args()
    print("# Written by `python -m sim.cost.fit.gemm`: parameters of sim/cost/tiles.py, by GPU and class of dtype.")
    print("# bf16, fp8: NVIDIA aiconfigurator GEMM tables (Apache-2.0), CUDA graph replay; fp32: NeuSight linear layers (MIT), no tf32.")
    print("# The comment of each table: median and 90th percentile of |error| on rows that were not fitted.\n")
    for name, dtype in [pair for pair in SETS + [(name, "fp32") for name in SIMT] if not args.only or ".".join(pair) in args.only]:
        gpu = find_gpu(name)
        rows = gemm_rows(args.facts, name, dtype)
        train = sample(rows, args.rows, seed=0)
        fit = fit_gemm(train, gpu, dtype)
        held = [row for row in sample(rows, 2000, seed=1) if row not in set(train)]
        errors = [abs(p / row.seconds - 1) for p, row in zip(predicted(held, gpu, fit), held, strict=True)]
        note = f"median {statistics.median(errors):.1%}, p90 {statistics.quantiles(errors, n=10)[-1]:.1%} of {len(errors)}"
        print(f"{name} {dtype}: {note}", file=sys.stderr)
        values = {key: getattr(fit, key) for key in fit.__struct_fields__ if getattr(fit, key) or key in ("droop", "round")}
        print(show(f"{name}.{dtype}", values, note))


if __name__ == "__main__":
    main()
