"""Fits the first part of `params/attention.toml`: run `python -m sim.cost.fit.attention --facts DIR`."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from sim.cost.attention import AttentionFit, forward_seconds
from sim.cost.fit.data import GPUS, AttentionRow, attention_rows, sample
from sim.cost.fit.search import Bounds, search, show
from sim.work import Attention
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu

HEADS = (64, 72, 80, 128, 256)
"""Head sizes that all GPUs have tuned kernels for (192 and 512 fall back to slow ones on some)."""
BOUNDS: Bounds = {
    "floor": (1e-6, 6e-6, 3e-5),
    "fill": (1.0, 200.0, 3000.0),
    "peak": (0.05, 0.6, 1.2),
    "diagonal": (1e-3, 64.0, 2000.0),
    "round": (0.0, 0.2, 1.0),
    "prepare": (0.01, 1.0, 6.0),
    "cache": (0.05, 0.5, 2.0),
}


def work_of(row: AttentionRow) -> Attention:
    return Attention(
        batch=row.batch, heads=row.heads, kv_heads=row.kv_heads, q=row.seq, kv=row.seq, d=row.d, causal=row.causal, dtype=row.dtype
    )


def predicted(rows: list[AttentionRow], gpu: Gpu, fit: AttentionFit) -> list[float]:
    """Seconds of each row by the best kernel."""
    return [forward_seconds(work_of(row), gpu, fit, gpu.flops[row.dtype], prepared=not row.causal) for row in rows]


def kernels(rows: list[AttentionRow]) -> dict[str, list[AttentionRow]]:
    """Rows by the kernel that ran them, as `sim.cost.attention.pick` chooses."""
    found: dict[str, list[AttentionRow]] = {}
    for row in rows:
        found.setdefault(f"d{row.d}" if row.causal else "full", []).append(row)
    return found


def fit_attention(rows: list[AttentionRow], gpu: Gpu) -> AttentionFit:
    """Parameters of one kernel: with blocks of 64 or 128 queries, whichever explains the rows better."""
    best: tuple[float, AttentionFit] | None = None
    for size in (64, 128):

        def make(values: dict[str, float], size: int = size) -> AttentionFit:
            return AttentionFit(arch=gpu.arch, rows=size, **values)

        def seconds(values: dict[str, float]) -> list[float]:
            return predicted(rows, gpu, make(values))

        fit = make(search(seconds, [row.seconds for row in rows], BOUNDS, tries=60))
        error = statistics.mean(abs(p / row.seconds - 1) for p, row in zip(predicted(rows, gpu, fit), rows, strict=True))
        if best is None or error < best[0]:
            best = error, fit
    assert best is not None
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--gpus", nargs="*", default=list(GPUS.values()))
    parser.add_argument("--rows", type=int, default=600)
    args = parser.parse_args()
    for dtype in ("bf16", "fp8"):
        for name in args.gpus:
            gpu = find_gpu(name)
            groups = kernels([row for row in attention_rows(args.facts, name, dtype) if row.d in HEADS])
            for kernel, rows in sorted(groups.items()):
                train = sample(rows, args.rows, seed=0)
                fit = fit_attention(train, gpu)
                held = [row for row in sample(rows, 1200, seed=1) if row not in set(train)]
                errors = [abs(p / row.seconds - 1) for p, row in zip(predicted(held, gpu, fit), held, strict=True)]
                note = f"median {statistics.median(errors):.1%}, p90 {statistics.quantiles(errors, n=10)[-1]:.1%} of {len(errors)}"
                print(f"{name} {dtype} {kernel}: {note}", file=sys.stderr)
                print(show(f"fit.{name}.{dtype}.{kernel}", {key: getattr(fit, key) for key in fit.__struct_fields__}, note))


if __name__ == "__main__":
    main()
