"""How much longer GEMMs take if the rows of their matrices are multiples of a large power of two.

The cache lines of a column of such a matrix fall on the same few sets of a cache (4 KiB are one way of an L1 of 32), and evict each other.
The probe's grids avoid such sizes (`executor.probes.kernels`), but models have them. A GEMM that a library first copies into tiles loses 4
to 15 %, one that reads columns in place half.
"""

from __future__ import annotations

from executor.kernels.bodies import body, held
from executor.probes.bench import Bench
from sim.cost.calibration import ALIASED
from sim.work import Gemm

_APART = 16
"""Elements by which the rows of the compared matrix are longer: one cache line of fp32."""
_WIDE, _DEEP = 272, {"fp32": 528, "bf16": 272}
"""The sizes that are equal in both GEMMs."""
_WAYS = (("dgrad", "n"), ("wgrad", "m"), ("wgrad", "n"))
"""(role, which size is the length of the rows) of GEMMs that read an operand by columns. A forward GEMM reads rows, and loses nothing."""


def aliased(bench: Bench) -> None:
    """Time per FLOP of such a GEMM over that of its neighbour with longer rows. Both are timed in turns, so that other load is in both."""
    rounds = 4 if bench.quick else 16
    for dtype, deep in _DEEP.items():
        bench.phase(f"{dtype} GEMMs with rows of a power of two")
        for role, along in _WAYS:
            for size in ALIASED:
                own, other = (_product(role, along, long, deep, dtype) for long in (size, size + _APART))
                longer = _longer(bench, own, other, rounds if dtype == "fp32" else rounds // 2)
                bench.add("aliased", f"{role}.{along}", dtype, (own.m, own.n, own.k), longer)


def _product(role: str, along: str, long: int, deep: int, dtype: str) -> Gemm:
    return Gemm(long if along == "m" else _WIDE, long if along == "n" else _WIDE, deep, dtype, 1, role)


def _longer(bench: Bench, own: Gemm, other: Gemm, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        seconds = []
        for work in (own, other):
            calls = [held(body(work, bench.arena)) for _ in range(3)]
            calls[0]()
            seconds.append(sum(bench.once(call) for call in calls[1:]) / work.flops)
        found.append(seconds[0] / seconds[1])
    bench.world.beat.touch()
    return found
