"""How much longer products take over matrices whose rows are whole multiples of a power of two.

The lines of such a matrix's column fall on the same few sets of a cache (4 KiB are one way of an L1 of 32), and push each other out. Grids
of sizes avoid them (`executor.probes.kernels`), models are made of them: of a product that a library copies into tiles first 4 to 15 % is lost,
of one that runs over columns as they lie half.
"""

from __future__ import annotations

from executor.kernels.bodies import body, held
from executor.probes.bench import Bench
from sim.cost.calibration import ALIASED
from sim.work import Gemm

_APART = 16
"""Elements by which the other matrix's rows are longer: a line of fp32."""
_WIDE, _DEEP = 272, {"fp32": 528, "bf16": 272}
"""Of the sizes that are equal in both."""
_WAYS = (("dgrad", "n"), ("wgrad", "m"), ("wgrad", "n"))
"""Products that read an operand down its columns, and the length of its rows. A forward product reads rows: nothing is lost."""


def aliased(bench: Bench) -> None:
    """Seconds over those of its neighbour, by turns: what else goes on in the machine falls on both."""
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
