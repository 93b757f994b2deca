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
    "exp": (1.0, 30.0, 400.0),
    "peak": (0.2, 0.8, 1.5),
    "diagonal": (1e-3, 64.0, 2000.0),
    "round": (0.0, 0.2, 1.0),
}


def work_of(row: AttentionRow) -> Attention:
    return Attention(
        batch=row.batch, heads=row.heads, kv_heads=row.kv_heads, q=row.seq, kv=row.seq, d=row.d, causal=row.causal, dtype=row.dtype
    )


def predicted(rows: list[AttentionRow], gpu: Gpu, fit: AttentionFit) -> list[float]:
    """Seconds of each row by the best kernel."""
    return [forward_seconds(work_of(row), gpu, fit, gpu.flops[row.dtype]) for row in rows]


def fit_attention(rows: list[AttentionRow], gpu: Gpu) -> AttentionFit:
    values = search(lambda v: predicted(rows, gpu, AttentionFit(arch=gpu.arch, **v)), [row.seconds for row in rows], BOUNDS, tries=60)
    return AttentionFit(arch=gpu.arch, **values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=600)
    args = parser.parse_args()
    for dtype in ("bf16", "fp8"):
        for name in GPUS.values():
            rows = [row for row in attention_rows(args.facts, name, dtype) if row.d in HEADS]
            if not rows:
                continue
            gpu = find_gpu(name)
            train = sample(rows, args.rows, seed=0)
            fit = fit_attention(train, gpu)
            held = [row for row in sample(rows, 2000, seed=1) if row not in set(train)]
            errors = [abs(p / row.seconds - 1) for p, row in zip(predicted(held, gpu, fit), held, strict=True)]
            note = f"median {statistics.median(errors):.1%}, p90 {statistics.quantiles(errors, n=10)[-1]:.1%} of {len(errors)}"
            print(f"{name} {dtype}: {note}", file=sys.stderr)
            print(show(f"fit.{name}.{dtype}", {key: getattr(fit, key) for key in fit.__struct_fields__}, note))


if __name__ == "__main__":
    main()
