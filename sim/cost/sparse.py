"""Seconds of sparse attention to chosen keys, and of the scores that choose them (DeepSeek-V3.2, section 2.1).

    time = floor + the longer of: products at a share of the peak; moving the rows that queries pick from L2 or from memory

A block's rows are heads of one query, and it walks over the keys that this query picked. The backward kernel adds to each picked row in fp32, one
atomic operation for each value: the part of keys and sums that does not stay in L2 goes to memory and back. Parameters: `params/sparse.toml`.
"""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

import msgspec
from msgspec.structs import replace

from sim.cost.attention import DRAM, HOT
from sim.cost.device import by_arch, document, peak_flops
from sim.cost.price import Source
from sim.work import BYTES, Attention, Gemm, MemoryBound, Scores, Work
from topologies.hardware import Gpu

FLOOR = 1e-5
"""Seconds of the smallest call, as of the other attention kernels (attention.toml)."""
MANY = 128
"""From this number of heads on a rank, kernels use pairs of SMs, or fill a block's rows twice."""


class Heads(msgspec.Struct, frozen=True):
    """Rates by architecture, for `few` heads on a rank and for `MANY` of them."""

    few: dict[str, float]
    many: dict[str, float]


class Rates(msgspec.Struct, frozen=True):
    """Rates of the scores by architecture, for the forward and the backward kernel."""

    forward: dict[str, float]
    backward: dict[str, float]


class Fit(msgspec.Struct, frozen=True):
    """`params/sparse.toml`, where each field is explained."""

    fill: float
    rows: int
    forward: Heads
    backward: Heads
    scores: Rates


@cache
def fitted() -> Fit:
    """The parameters in `params/sparse.toml`."""
    return msgspec.convert(document("sparse"), Fit)


def of_choice(work: Work) -> TypeGuard[Attention | Scores]:
    """True for attention to chosen keys and for the scores that choose them."""
    return isinstance(work, Scores) or (isinstance(work, Attention) and work.chosen > 0)


def sparse_cost(work: Attention | Scores, gpu: Gpu, clock: float = 1.0) -> tuple[float, Source]:
    """Seconds of all repeats. `clock`: factor under sustained load. Raises `Refused` for a dtype that the GPU has no units for."""
    found = fitted()
    keys = work.pairs / work.q
    if isinstance(work, Scores):
        rates = found.scores.backward if work.backward else found.scores.forward
        heads, walked = work.heads, keys
    else:
        way = found.backward if work.backward else found.forward
        rates = way.many if work.heads >= MANY else way.few
        heads, walked = -(-work.heads // found.rows) * found.rows, keys + found.fill
    share, source = by_arch(gpu, rates)
    flops = work.flops / work.repeat * (heads / work.heads) * (walked / keys)
    seconds = FLOOR + max(flops / (peak_flops(gpu, work.dtype) * clock * share), _moving(work, gpu, max(1, heads // found.rows)))
    return seconds * work.repeat, source


def _moving(work: Attention | Scores, gpu: Gpu, blocks: int) -> float:
    """Seconds to move the rows that queries pick, and backward their fp32 sums, once for each of the `blocks` of a query; for dense scores, seconds to
    move the bytes of the work."""
    if not work.chosen:
        return work.bytes / work.repeat / (DRAM * gpu.bandwidth)
    row = work.d * BYTES[work.dtype]
    sums = 4.0 * work.d if work.backward else 0.0
    there = work.batch * work.kv * (row + sums)
    moved = blocks * work.batch * work.pairs * (row + 2.0 * sums)
    missed = 1.0 / (1.0 + (gpu.l2 / there) ** 4)
    return moved / (DRAM * gpu.bandwidth) * (missed + (1.0 - missed) / HOT)


def in_parts(work: Attention | Scores) -> tuple[Work, ...]:
    """The same work as kernels that every device has: an embedding that picks rows, a batched GEMM of each query's heads with them, a softmax, and for
    attention a second GEMM. Backward repeats the first three, computes the gradients of each GEMM and of the softmax, and adds to the rows. Dense scores
    are one GEMM for each head."""
    e, d, dtype = BYTES[work.dtype], work.d, work.dtype
    if not work.chosen:
        return _dense(work)
    queries, keys = work.batch * work.q, max(1, round(work.pairs / work.q))
    rows = round(queries * keys * d * e)
    picked = MemoryBound("embedding", rows, rows, dtype, rows=queries * keys)
    scores = Gemm(work.heads, keys, d, dtype, queries)
    numbers = round(queries * work.heads * keys * e)
    passed = MemoryBound("softmax", numbers, numbers, dtype, rows=queries * work.heads)
    products = [scores, *([Gemm(work.heads, work.dv or d, keys, dtype, queries)] if isinstance(work, Attention) else [])]
    if not work.backward:
        works: list[Work] = [picked, scores, passed, *products[1:]]
    else:
        gradients = [Gemm(*sizes, dtype, queries, "dgrad") for p in products for sizes in ((p.m, p.k, p.n), (p.n, p.k, p.m))]
        works = [picked, scores, passed, *gradients, passed, MemoryBound("scatter_add", rows, rows, dtype, rows=queries * keys)]
    return tuple(replace(one, repeat=work.repeat) for one in works)


def _dense(work: Attention | Scores) -> tuple[Work, ...]:
    """Dense scores as kernels that every device has. They compute the masked half of each product too, which special kernels leave out."""
    batch, repeat = work.batch * work.heads, work.repeat
    product = Gemm(work.q, work.kv, work.d, work.dtype, batch, repeat=repeat)
    size = round(batch * work.q * work.kv * BYTES[work.dtype])
    passed = MemoryBound("activation", size, size, work.dtype, repeat=repeat)
    if not work.backward:
        return product, passed, MemoryBound("reduce", size, round(size / work.heads), work.dtype, repeat=repeat)
    both = ((work.q, work.d, work.kv), (work.kv, work.d, work.q))
    return product, passed, *(Gemm(*sizes, work.dtype, batch, "dgrad", repeat=repeat) for sizes in both)
