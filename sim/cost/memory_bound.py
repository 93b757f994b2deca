"""Seconds of a kernel that moves bytes: norms, activations, softmax, optimizers...

    time = floor + bytes / (share x bandwidth)

`share` is the part of peak bandwidth that this kind of kernel reaches on large arrays, per architecture. Data that the
kernel before has just written, and that are still in L2, are read at L2's rate. Some kernels are slower than memory
(`Bound`): their SMs bind them, whatever the bandwidth. Parameters: `params/memory.toml`.
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
    """Parameters of one architecture: shares of peak bandwidth by family of kernels; `floor`: seconds of an empty kernel."""

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
    """Permutes tokens into their experts' order, and back; also transposes, on architectures where they were not measured."""
    cross_entropy: float
    optimizer: float
    """Fused multi-tensor kernels over parameters, gradients and states."""
    quantise: float = 0.0
    """Blocks of 32 with their scales, along rows and along columns at once (MXFP8); 0: as `stream`."""
    halves: float = 0.0
    """Values that an SM processes in a cycle where the kernel reads halves of rows (`MemoryBound.halves`); 0: no limit."""
    block: float = 0.0
    """Seconds in which one block of threads of a multi-tensor kernel goes through all of its elements; 0: not counted."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    share: float
    """Share of L2 in which arrays survive until the next kernel reads them."""
    speed: float
    """L2 bandwidth over DRAM bandwidth."""


TRANSPOSE = "transpose"
"""Swaps the axes of heads and tokens: a head's columns stay side by side, but the kernel computes the address of each value (copies of permuted
views, tf.transpose)."""
NORM = "layernorm_apart"
"""One kernel of a layer norm that runs as several kernels over the same arrays (`Elementwise.norm_kernels`)."""
BOTH_WAYS = "cast_transpose"
"""A cast to 8 bits that writes the operand and its transpose. Data-centre Blackwell's GEMMs need no transpose, so none is written
(TransformerEngine, non_tn_fp8_gemm_supported)."""
ATOMIC = "index_add"
"""Adds rows by index, with one atomic operation for each value."""
FAMILY = {
    "layernorm": "layernorm", NORM: "layernorm", "rmsnorm": "layernorm", "batchnorm": "stream", "batchnorm_fused": "stream", "groupnorm": "stream", "norm": "stream",
    "softmax": "softmax", "cross_entropy": "cross_entropy", "permute": "permute",
    TRANSPOSE: "permute", "transpose_tiled": "permute", "embedding": "gather", "embedding_backward": "gather", "scatter_add": "gather",
    "sort": "gather", "topk": "gather", "gather": "gather", "scatter": "gather", ATOMIC: "gather", "rope": "stream",
    "quantise": "quantise",
} | dict.fromkeys(OPTIMIZERS, "optimizer")  # fmt: skip
"""Kernel -> field of `MemoryFit` with its share; "stream" for all others. A batch or group norm's passes over its input are counted one by one."""


class Transposes(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of transposes, for the architectures where they were measured."""

    arch: tuple[str, ...]
    share: float
    """Share of peak bandwidth of kernels that move one value in each thread."""
    values: float
    """Most values that an SM moves in a cycle in such kernels."""
    tiled: float
    """Share of peak bandwidth of kernels with wide accesses."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of one sort of kernels (`NORM` or `BOTH_WAYS`), for the architectures where it was measured."""

    arch: tuple[str, ...]
    share: float
    """Share of peak bandwidth; of a norm, over all of its kernels."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What limits one of PyTorch's own kernels, other than the bytes that it moves."""

    share: float = 0.0
    """Share of peak bandwidth; 0: that of its family."""
    floor: float = 0.0
    """Fewest seconds of the kernel; 0: those of an empty kernel."""
    values: float = 0.0
    """Most values that an SM reads or writes in a cycle (the larger of both counts); 0: no limit."""
    row: float = 0.0
    """Further cycles of an SM for each row: one block of threads sums the row and waits."""
    column: float = 0.0
    """Cycles for each row, where one block of threads goes through all rows for some columns."""


_OTHERS = ("layernorm", "batchnorm_fused", "groupnorm")
"""Works that run other kernels than the timed ones of the same variant: norms in one kernel (apex, compilers), cuDNN's batch norms, group norms."""
_SPLIT, _COLUMNS = 1 << 16, 32
"""Above `_SPLIT` rows, the rows too are split among blocks of threads, where blocks of `_COLUMNS` columns would leave half of the SMs idle
(PyTorch's layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel)."""


@cache
def _bounds(arch: str) -> dict[str, Bound]:
    """The table [bound.ARCH]. Data-centre Blackwell and Rubin without a table take Hopper's: SMs with the same lanes, registers and shared memory."""
    tables = table("memory", "bound", dict[str, dict[str, Bound]])
    return tables.get(arch, tables[GROUPED[0]] if arch in GROUPED else {})


def _bound(work: MemoryBound, gpu: Gpu) -> tuple[Bound, Source]:
    """The bound of the work's kernel and its source; the tables [bound.ARCH] name kernels as `variant` does. A sum of all elements is another kernel than
    the sum over columns in the table, and has no bound."""
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
    """Seconds of all repeats, and their source."""
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
    if work.what.startswith(LISTED):  # several blocks on each SM hide a part of each other's waiting
        seconds = math.hypot(seconds, fit.block * filled(work))
    if work.halves and fit.halves:
        seconds = max(seconds, work.elements / (fit.halves * gpu.sms * gpu.clock))
    if work.what == ATOMIC and BYTES[work.dtype] == 2:
        seconds = max(seconds, work.written / 2 / (_halves() * gpu.sms * gpu.clock))
    if heads is not None and work.what == TRANSPOSE:
        seconds = max(seconds, work.written / BYTES[work.dtype] / (heads.values * gpu.sms * gpu.clock))
    return seconds * work.repeat, "assumed" if "assumed" in (source, sure) else "fitted"


def filled(work: MemoryBound) -> float:
    """Elements of the mean tensor of a multi-tensor kernel over those of a full block of threads; 1 at most."""
    return min(1.0, work.elements / max(1, work.rows) / BLOCK)


def _held(bound: Bound, work: MemoryBound, gpu: Gpu, near: float) -> float:
    """Seconds of one launch that the SMs need because of `bound.values` or `bound.column`; 0: no such bound. `near`: time of an access over that of one
    to DRAM."""
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
