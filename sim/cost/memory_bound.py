"""Seconds of a kernel that moves bytes: norms, activations, softmax, optimizers...

    time = floor + bytes / (share x bandwidth)

`share` is the part of peak bandwidth that this kind of kernel reaches on large arrays, per architecture. What the
kernel before has just written, and still lies in L2, is read at L2's rate. Some kernels do not keep up with memory
(`Bound`): their time is that of their SMs, whatever the bandwidth. Parameters: `params/memory.toml`.
"""

from __future__ import annotations

import math
from functools import cache

import msgspec

from sim.cost.device import GROUPED, TWO_DIES, by_arch, table
from sim.cost.price import Source
from sim.cost.variant import HALVES, NARROW, variant
from sim.optimizers import OPTIMIZERS
from sim.work import BLOCK, BYTES, LISTED, MemoryBound
from topologies.hardware import Gpu


class MemoryFit(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture: shares of peak bandwidth by family of kernels, and the seconds of an empty one."""

    floor: float
    stream: float
    """add, copy, cast, activation, dropout, scale: each element once, in order."""
    layernorm: float
    """Norms over rows of more than `NARROW` elements: read twice where a row does not fit into registers."""
    layernorm_narrow: float
    softmax: float
    softmax_narrow: float
    gather: float
    """embedding, index: rows in any order."""
    permute: float
    """Tokens put in their experts' order, and back; transposes where no one measured them."""
    cross_entropy: float
    optimizer: float
    """Fused multi-tensor kernels over parameters, gradients and states."""
    quantise: float = 0.0
    """Blocks of 32 with their scales, along rows and along columns at once (MXFP8); 0: as `stream`."""
    halves: float = 0.0
    """Values that an SM reads and writes in a cycle where they lie in halves of rows (`MemoryBound.halves`); 0: as many as come."""
    block: float = 0.0
    """Seconds in which a block of a multi-tensor pass goes through all of its elements, step by step; 0: as if they took none."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    share: float
    """Share of L2 in which arrays survive until the next kernel reads them."""
    speed: float
    """L2 bandwidth over DRAM bandwidth."""


TRANSPOSE = "transpose"
"""Heads changed for tokens: rows of a head's columns stay whole, but each value's place is worked out (copies of permuted views, tf.transpose)."""
NORM = "layernorm_apart"
"""One kernel of a layer norm that has several for the same arrays (`Elementwise.norm_kernels`)."""
BOTH_WAYS = "cast_transpose"
"""8-bit operands cast beside their transpose. Data-centre Blackwell's products take them as they lie, and none is made (TransformerEngine,
non_tn_fp8_gemm_supported)."""
ATOMIC = "index_add"
"""Rows added by index, each value by an atomic operation of its own."""
FAMILY = {
    "layernorm": "layernorm", NORM: "layernorm", "rmsnorm": "layernorm", "batchnorm": "stream", "batchnorm_fused": "stream", "groupnorm": "stream", "norm": "stream",
    "softmax": "softmax", "cross_entropy": "cross_entropy", "permute": "permute",
    TRANSPOSE: "permute", "transpose_tiled": "permute", "embedding": "gather", "embedding_backward": "gather", "scatter_add": "gather",
    "sort": "gather", "topk": "gather", "gather": "gather", "scatter": "gather", ATOMIC: "gather", "rope": "stream",
    "quantise": "quantise",
} | dict.fromkeys(OPTIMIZERS, "optimizer")  # fmt: skip
"""Kernels by what limits them; anything else streams. A batch or group norm's passes over its input are counted one by one."""


class Transposes(msgspec.Struct, frozen=True, kw_only=True):
    """Heads changed with tokens, where it was measured."""

    arch: tuple[str, ...]
    share: float
    """Of peak bandwidth, one value a thread."""
    values: float
    """That an SM moves so in a cycle, at most."""
    tiled: float
    """Share of peak bandwidth in wide accesses."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One sort of kernels, where it was measured: layer norms of several kernels, casts beside their transposes."""

    arch: tuple[str, ...]
    share: float
    """Of peak bandwidth, over all kernels of a norm."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What holds one of PyTorch's own kernels back, beside the bytes that it moves."""

    share: float = 0.0
    """Of peak bandwidth; 0: its family's."""
    floor: float = 0.0
    """Seconds at least; 0: those of an empty kernel."""
    values: float = 0.0
    """That an SM takes in a cycle at most, of what it reads or what it writes, whichever is more; 0: no limit."""
    row: float = 0.0
    """Cycles of an SM for each row, beside its bytes: a block of threads for a row sums it and waits."""
    column: float = 0.0
    """Cycles for each row, all of which a block of threads goes through for some columns."""


_OTHERS = ("layernorm", "batchnorm_fused", "groupnorm")
"""Works that other kernels do than those of their variant that were timed: norms in one kernel (apex, compilers), cuDNN's batch norms, group norms."""
_SPLIT, _COLUMNS = 1 << 16, 32
"""More rows are split among blocks of threads, where blocks of so many columns would leave half of the SMs idle (PyTorch's layer_norm_kernel.cu,
LaunchGammaBetaBackwardCUDAKernel)."""


@cache
def _bounds(arch: str) -> dict[str, Bound]:
    """By the architecture's own table. What Hopper's SMs do in a cycle those of Blackwell and Rubin do: the same lanes, registers and shared memory."""
    tables = table("memory", "bound", dict[str, dict[str, Bound]])
    return tables.get(arch, tables[GROUPED[0]] if arch in GROUPED else {})


def _bound(work: MemoryBound, gpu: Gpu) -> tuple[Bound, Source]:
    """By the tables [bound.ARCH], whose names are those of `variant`. A sum of all elements is not one over columns."""
    if work.what in _OTHERS or (work.what == "reduce" and not work.written):
        return Bound(), "fitted"
    found = _bounds(gpu.arch).get(variant(work).removesuffix(HALVES))
    return found or Bound(), "assumed" if found and gpu.arch != GROUPED[0] else "fitted"


@cache
def _measured() -> dict[str, Measured]:
    return {what: table("memory", name, Measured) for what, name in ((NORM, "norm"), (BOTH_WAYS, "cast_transpose"))}


@cache
def _halves() -> float:
    return table("memory", "atomic", dict[str, float])["halves"]


@cache
def _transposes() -> Transposes:
    return table("memory", "transpose", Transposes)


@cache
def fits() -> tuple[dict[str, MemoryFit], Cache]:
    return table("memory", "arch", dict[str, MemoryFit]), table("memory", "cache", Cache)


def memory_bound_cost(work: MemoryBound, gpu: Gpu) -> tuple[float, Source]:
    """Seconds of all repeats, and on what they rest."""
    shares, cache_ = fits()
    fit, source = by_arch(gpu, shares)
    heads = _transposes() if work.what.startswith(TRANSPOSE) and gpu.arch in _transposes().arch else None
    share = share_of(fit, work) if heads is None else heads.share if work.what == TRANSPOSE else heads.tiled
    own = _measured().get(work.what)
    if own is not None and gpu.arch in own.arch:
        share = own.share
    bound, sure = _bound(work, gpu)
    rate = gpu.bandwidth * (min(bound.share, fit.stream) or share)
    moved = float(work.read) + work.written / (2 if work.what == BOTH_WAYS and gpu.arch in TWO_DIES else 1)
    warm = 1.0 / (1.0 + (moved / (cache_.share * gpu.l2)) ** 4)
    near = 1.0 - warm + warm / cache_.speed
    seconds = max(fit.floor, bound.floor) + max(moved / rate * near, _held(bound, work, gpu, near))
    seconds += work.rows * bound.row / (gpu.sms * gpu.clock)
    if work.what.startswith(LISTED):  # some blocks on each SM hide a part of each other's waiting
        seconds = math.hypot(seconds, fit.block * filled(work))
    if work.halves and fit.halves:
        seconds = max(seconds, work.elements / (fit.halves * gpu.sms * gpu.clock))
    if work.what == ATOMIC and BYTES[work.dtype] == 2:
        seconds = max(seconds, work.written / 2 / (_halves() * gpu.sms * gpu.clock))
    if heads is not None and work.what == TRANSPOSE:
        seconds = max(seconds, work.written / BYTES[work.dtype] / (heads.values * gpu.sms * gpu.clock))
    return seconds * work.repeat, "assumed" if "assumed" in (source, sure) else "fitted"


def filled(work: MemoryBound) -> float:
    """Share of a block's elements that a mean tensor of a pass over lists has."""
    return min(1.0, work.elements / max(1, work.rows) / BLOCK)


def _held(bound: Bound, work: MemoryBound, gpu: Gpu, near: float) -> float:
    """Seconds for which SMs keep one launch of it. `near`: how much less a wait for L2 is than one for memory."""
    most = max(work.read, work.written) / BYTES[work.dtype]
    if bound.values:
        return most / (bound.values * gpu.sms * gpu.clock)
    few = work.rows > _SPLIT and most < 2 * _COLUMNS * gpu.sms / 2 * work.rows  # input and gradient
    return 0.0 if few else work.rows * bound.column * near / gpu.clock


def share_of(fit: MemoryFit, work: MemoryBound) -> float:
    """Share of peak bandwidth that this kernel reaches on large arrays."""
    family = FAMILY.get(work.what, "stream")
    if family in ("layernorm", "softmax") and work.rows and work.written / BYTES[work.dtype] <= NARROW * work.rows:
        family += "_narrow"
    share: float = getattr(fit, family)
    return share or fit.stream
