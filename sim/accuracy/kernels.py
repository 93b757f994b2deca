"""Errors of kernel costs against measured kernels, GPU by GPU, with the roofline and the left-out GPU beside them.

Three predictions of each row: by the GPU's own parameters; by those of its nearest kin, as if it had never been measured
(`left_out`); by the roofline max(FLOPs / peak, bytes / bandwidth), which knows no kernels at all. The rows are drawn
with another seed than the fits used, so few of them were fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

import msgspec

from sim.cost import attention, gemm, memory_bound
from sim.cost.device import by_arch, choose, table
from sim.cost.fit.data import NEUSIGHT, AttentionRow, GemmRow, VectorRow, attention_rows, gemm_rows, sample, vector_rows
from sim.cost.fit.memory import shares
from sim.cost.tiles import GemmFit, gemm_seconds
from sim.work import BYTES, Attention
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu

SEED = 1
"""The fits draw with seed 0."""


class KernelScore(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one kind of kernels on one GPU, as fractions."""

    kind: str
    gpu: str
    dtype: str
    rows: int
    median: float
    p90: float
    bias: float
    """Median of the signed error: above 0 we predict too slow."""
    left_out: float
    """Median when the GPU's own measurements are hidden."""
    left_out_from: str
    """Whose parameters stand in then."""
    roofline: float
    roofline_p90: float


def kernel_scores(facts: Path, rows: int = 800) -> list[KernelScore]:
    """All tables: GEMM (bf16, fp8, fp32), attention forward, memory-bound kernels. `rows` of each are drawn.

    `facts`: the folder of measured kernels that `sim.cost.fit.data` describes. Raises `BadInput` where a file is missing.
    """
    scores = [gemm_score(facts, gpu, dtype, rows) for dtype in ("bf16", "fp8", "fp32") for gpu in gemm.fits(dtype)]
    scores += [attention_score(facts, gpu, dtype, rows) for dtype in ("bf16", "fp8") for gpu in attention.fits(dtype)]
    scores += [memory_score(facts, gpu, rows) for gpu in NEUSIGHT.values() if vector_rows(facts, gpu)]
    return scores


def summary(scores: Sequence[KernelScore]) -> list[dict[str, object]]:
    """One row for each kind and dtype: the median over its GPUs, and the worst GPU."""
    found: list[dict[str, object]] = []
    for kind, dtype in dict.fromkeys((score.kind, score.dtype) for score in scores):
        group = [score for score in scores if (score.kind, score.dtype) == (kind, dtype)]
        worst = max(group, key=lambda score: score.median)
        found.append(
            {
                "kind": kind,
                "dtype": dtype,
                "gpus": len(group),
                "median_ape": median(score.median for score in group),
                "worst_ape": worst.median,
                "worst_gpu": worst.gpu,
                "left_out": median(score.left_out for score in group),
                "roofline": median(score.roofline for score in group),
            }
        )
    return found


def _score(kind: str, gpu: str, dtype: str, measured: Sequence[float], ways: Sequence[Sequence[float]], other: str) -> KernelScore:
    own, left, roof = ([p / t - 1.0 for p, t in zip(way, measured, strict=True)] for way in ways)
    size = [abs(error) for error in own]
    roof_size = [abs(error) for error in roof]
    return KernelScore(
        kind=kind, gpu=gpu, dtype=dtype, rows=len(size), median=median(size), p90=quantiles(size, n=10)[-1], bias=median(own),
        left_out=median(abs(error) for error in left), left_out_from=other,
        roofline=median(roof_size), roofline_p90=quantiles(roof_size, n=10)[-1],
    )  # fmt: skip


def _stand_in(gpu: Gpu, archs: Mapping[str, str]) -> str:
    """Whose parameters a GPU would use if its own were not there."""
    return choose(gpu, {name: arch for name, arch in archs.items() if name != gpu.name})[0]


def gemm_score(facts: Path, name: str, dtype: str, count: int) -> KernelScore:
    """GEMMs of one GPU. fp32: NeuSight's linear layers, whose timing adds the launch (`harness`, also in the roofline)."""
    gpu, fits = find_gpu(name), gemm.fits(dtype)
    rows = sample(gemm_rows(facts, name, dtype), count, SEED)
    own = fits[name]
    other = _stand_in(gpu, {key: fit.arch for key, fit in fits.items() if key not in gemm.STARVED})
    borrowed = msgspec.structs.replace(gemm.lent(fits[other], gemm.power_between(gpu, other, dtype)), harness=own.harness, cast=own.cast)
    size = BYTES[dtype]

    def seconds(row: GemmRow, fit: GemmFit) -> float:
        return gemm_seconds(row.m, row.n, row.k, gpu, fit, gpu.flops[dtype], size, max(size, 2.0))

    def roofline(row: GemmRow) -> float:
        moved = (row.m * row.k + row.k * row.n) * size + row.m * row.n * max(size, 2.0)
        return own.harness + max(2.0 * row.m * row.n * row.k / gpu.flops[dtype], moved / gpu.bandwidth)

    ways = [[seconds(row, own) for row in rows], [seconds(row, borrowed) for row in rows], [roofline(row) for row in rows]]
    return _score("linear" if dtype == "fp32" else "gemm", name, dtype, [row.seconds for row in rows], ways, other)


def attention_score(facts: Path, name: str, dtype: str, count: int) -> KernelScore:
    """Forward attention by the best kernel of one GPU; head sizes that have tuned kernels everywhere."""
    gpu, fits = find_gpu(name), attention.fits(dtype)
    known = [row for row in attention_rows(facts, name, dtype) if row.d in (64, 72, 80, 128, 256)]
    rows = sample(known, count, SEED)
    other = _stand_in(gpu, {key: next(iter(sets.values())).arch for key, sets in fits.items()})

    def seconds(row: AttentionRow, sets: attention.Sets) -> float:
        work = _attention(row)
        return attention.forward_seconds(work, gpu, attention.pick(sets, work), gpu.flops[dtype], prepared=not row.causal)

    def roofline(row: AttentionRow) -> float:
        work = _attention(row)
        return max(work.flops / gpu.flops[dtype], work.bytes / gpu.bandwidth)

    ways = [[seconds(row, fits[name]) for row in rows], [seconds(row, fits[other]) for row in rows], [roofline(row) for row in rows]]
    return _score("attention", name, dtype, [row.seconds for row in rows], ways, other)


def _attention(row: AttentionRow) -> Attention:
    return Attention(row.batch, row.heads, row.kv_heads, row.seq, row.seq, row.d, causal=row.causal, dtype=row.dtype)


def memory_score(facts: Path, name: str, count: int) -> KernelScore:
    """NeuSight's fp32 elementwise kernels, layernorm and softmax; its timing's launch is added to all three ways."""
    gpu, fits = find_gpu(name), memory_bound.fits()[0]
    rows = sample(vector_rows(facts, name), count, SEED)
    harness = {key: value * 1e-6 for key, value in table("memory", "harness", dict[str, dict[str, float]])[name].items()}
    others = {arch: fit for arch, fit in fits.items() if arch != gpu.arch}
    other = by_arch(gpu, {arch: arch for arch in others})[0]

    def ways(share: Callable[[VectorRow], float]) -> list[float]:
        return [harness[shares(row)[0]] + row.bytes / (share(row) * gpu.bandwidth) for row in rows]

    three = [
        ways(lambda row: getattr(fits[gpu.arch], shares(row)[1])),
        ways(lambda row: getattr(others[other], shares(row)[1])),
        ways(lambda _: 1.0),
    ]
    return _score("memory-bound", name, "fp32", [row.seconds for row in rows], three, other)


if __name__ == "__main__":
    import sys

    for one in kernel_scores(Path(sys.argv[1])):
        print(one)
