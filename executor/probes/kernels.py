"""Which kernels the probe times, and over which shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from msgspec.structs import replace

from executor.probes.bench import Bench
from sim.cost.points import attention_name
from sim.cost.variant import WEIGHTS, variant
from sim.work import BYTES, Attention, Conv, Gemm, MemoryBound

_SIZES = (2, 8, 64, 240, 960, 3840)
_FEW = (64, 240, 960)
"""Sizes of GEMMs in bf16. They are not large powers of two, whose columns fall on the same sets of a cache: on a CPU without bf16 units
(`gemms`) the input's gradient took 609 ms over 256 x 1024 x 1024, and 241 ms over 256 x 960 x 960."""
_MOST = 2.2e9
"""FLOPs of the largest GEMM on a CPU: about 25 ms on one core. Larger ones are no more efficient."""
_BYTES = (3 << 9, 3 << 12, 3 << 15, 3 << 18, 3 << 20, 12 << 20, 48 << 20)
"""Bytes of memory-bound kernels: sizes that fit into L1, L2 and L3, and sizes that do not."""
_WIDTH = 1024
_CHANNELS, _PLACES = 256, 64
"""Channels of the maps over which batch norms are timed, and the least number of places of each channel."""
_WIDE = 64
"""The elements of probed arrays are a multiple of this, which is more than any kernel reads at once."""
_WORDS = 1 << 16
"""Words of the vocabulary over which a loss is timed: a few rows are more than a GPU's L2 holds."""
_DTYPES = ("fp32", "bf16")


def once_more(bench: Bench) -> None:
    """Times all kernels again at another moment, except attention and convolutions in 16 bits, which take a minute on a CPU without bf16
    units.

    In the cloud, the load by others changes within a second: on a core whose other hyper-thread belongs to somebody else, a GEMM takes 26
    ms or 36. A point is timed in less than a second, so a single moment is off by a tenth or more, and a step of a hundred points by 8 %.
    The mean of several moments (`executor.probe.merge`) is more accurate.
    """
    with bench.glance():
        gemms(bench)
        memory_bound(bench)
        attention(bench, ("fp32",))
        convolutions(bench, ("fp32",))


def gemms(bench: Bench) -> None:
    """GEMMs in the layouts of forward, input gradient and weight gradient: fp32 over a grid, bf16 at a few shapes. A CPU without bf16 units
    runs a different loop for each layout: 240 cubed took one core of an EPYC 5.2, 12.7 and 2.0 ms."""
    sizes = (8, 256, 1024) if bench.quick else _SIZES
    most = _MOST / (4 if bench.quick else 1)
    for dtype, roles, some, largest in (
        ("fp32", ("fwd", "dgrad", "wgrad"), sizes, most),
        ("bf16", ("fwd",), _FEW, most),
        ("bf16", ("dgrad", "wgrad"), _FEW[:2] if bench.quick else _FEW, _MOST / 4),
    ):
        for role in roles:
            bench.phase(f"{dtype} GEMMs, {role}")
            for m, n, k in product(some, some, some):
                if 2.0 * m * n * k <= largest:
                    bench.work("gemm", role, Gemm(m, n, k, dtype, 1, role), dtype, (m, n, k))


def whole(count: int) -> int:
    """`count` rounded down to a multiple of `_WIDE`, as a model's arrays have; smaller counts do not change. A GPU's kernels read other
    arrays element by element: a dropout of 6.3 M bf16 numbers takes an H200 12 us, and 22 us if their number is not a multiple of 4."""
    return count // _WIDE * _WIDE or max(1, count)


def variants(total: int, dtype: str) -> Iterator[MemoryBound]:
    """One work of each variant that moves about `total` bytes."""
    e = int(BYTES[dtype])

    def make(what: str, inputs: int, outputs: int, ops: float = 0.0, width: int = _WIDTH) -> MemoryBound:
        n = whole(total // (inputs + outputs) // e)
        return MemoryBound(what, inputs * n * e, outputs * n * e, dtype, ops * n * outputs, 1, max(1, n // width))

    for what in ("add", "add_", "scale"):
        yield make(what, 2, 1)
    for what in (
        "copy",
        "permute",
        "scale_",
        "sqrt",
        "layernorm_apart",
        "rmsnorm",
        "softmax",
        "rope",
        "strided",
        "embedding",
        "cross_entropy",
    ):
        yield make(what, 1, 1)
    yield make("scatter_add", 1, 2)
    for what in ("layernorm_apart", "rmsnorm", "softmax", "embedding"):
        yield make(f"{what}_backward" if what == "embedding" else what, 2, 1)
    yield make("zero", 0, 1)
    n = whole(total // (2 * e + 1))  # the mask is a byte
    for read, written in ((e, e + 1), (e + 1, e)):
        yield MemoryBound("dropout", n * read, n * written, dtype)
    yield make("layernorm_apart", 2, 0)
    for inputs in (1, 2):
        yield make("softmax", inputs, 1, width=_WORDS)
        norm = make("batchnorm", 2 * inputs, 1)  # each input is read a first time for its statistics
        yield replace(norm, rows=max(1, min(_CHANNELS, norm.written // e // _PLACES)))
    for ops, back in ((1.0, 2.0), (5.0, 10.0), (8.0, 12.0)):
        yield make("activation", 1, 1, ops)
        yield make("activation", 2, 1, back)
    yield make("glu", 2, 1)
    yield make("glu", 3, 2)
    n = whole(total // 6)
    yield MemoryBound("cast", 4 * n, 2 * n, dtype)
    yield MemoryBound("cast", 2 * n, 4 * n, dtype)
    n = max(_WIDTH, total // e)
    yield MemoryBound("reduce", n * e, _WIDTH * e, dtype)
    yield MemoryBound("norm", n * e, e, dtype)
    n = whole(total // (5 * e + 8))  # 2 x 2 windows: reads four elements, writes one and its index of 8 bytes
    yield MemoryBound("pool", 4 * n * e, n * (e + 8), dtype)
    yield MemoryBound("pool_backward", n * (e + 8), 4 * n * e, dtype)
    yield make("sgd", 2, 1)
    yield make("momentum", 3, 2)
    yield make("adam", 4, 3)
    yield make("adamw", 4, 3)


def memory_bound(bench: Bench) -> None:
    """Every variant of a memory-bound kernel by its bytes: fp32, and a few sizes in bf16."""
    for dtype, sizes in (("fp32", _BYTES[::2] if bench.quick else _BYTES), ("bf16", _BYTES[3:5])):
        for total in sizes:
            each_variant(bench, total, dtype)


def each_variant(bench: Bench, total: int, dtype: str) -> None:
    """Memory-bound kernels of about `total` bytes, each variant once; optimizer updates only in fp32."""
    bench.phase(f"{dtype} memory-bound kernels of {total} bytes")
    seen: set[tuple[str, int]] = set()
    for work in variants(total, dtype):
        key = variant(work), work.read + work.written
        if key[0] == WEIGHTS and bench.world.kind == "cpu":  # on a CPU it is a part of another kernel
            continue
        if key not in seen and (dtype == "fp32" or work.what not in ("sgd", "momentum", "adam", "adamw")):
            seen.add(key)
            bench.work("memory", key[0], work, dtype, (key[1],))


def attention(bench: Bench, dtypes: Sequence[str] = _DTYPES) -> None:
    """Fused attention, causal and not, forward and backward, by sequence and head size, in fp32 and bf16."""
    sequences = (64, 512) if bench.quick else (16, 64, 256, 1024)
    for dtype in dtypes:
        bench.phase(f"{dtype} attention")
        for seq, d, causal, backward in product(sequences, (32, 64, 128), (True, False), (False, True)):
            work = Attention(2, 4, 4, seq, seq, d, causal=causal, dtype=dtype, backward=backward)
            bench.work("attention", attention_name(work), work, dtype, (2, 4, seq, d))


_CONVOLUTIONS = (
    (8, 3, 32, 32, 32, 3, 1),
    (8, 32, 32, 32, 32, 3, 1),
    (8, 64, 16, 16, 128, 3, 2),
    (8, 64, 16, 16, 64, 1, 1),
    (8, 32, 16, 16, 64, 3, 1),
    (8, 128, 8, 8, 256, 3, 1),
    (2, 3, 128, 128, 64, 7, 2),
    (2, 64, 56, 56, 64, 3, 1),
    (2, 256, 14, 14, 256, 3, 1),
    (4, 512, 7, 7, 512, 3, 1),
    (2, 256, 28, 28, 256, 3, 2),
    (2, 64, 56, 56, 256, 1, 1),
    (2, 256, 56, 56, 64, 1, 1),
    (4, 1024, 14, 14, 256, 1, 1),
    (4, 512, 7, 7, 2048, 1, 1),
    (2, 256, 56, 56, 512, 1, 2),
    (2, 128, 56, 56, 128, 3, 1, 32),
    (4, 512, 14, 14, 512, 3, 1, 32),
    (2, 144, 56, 56, 144, 3, 2, 144),
    (2, 240, 28, 28, 240, 5, 1, 240),
    (4, 672, 14, 14, 672, 5, 1, 672),
    (2, 192, 28, 28, 192, 7, 1, 192),
    (4, 128, 14, 14, 128, 3, 1),
    (4, 512, 4, 4, 512, 3, 1),
    (4, 512, 2, 2, 512, 3, 1),
    (8, 512, 3, 3, 512, 3, 1),
    (4, 256, 8, 8, 512, 3, 2),
    (4, 256, 8, 8, 512, 1, 2),
    (4, 64, 28, 28, 128, 1, 2),
)
"""CIFAR- and ImageNet-sized layers: batch, channels in, height, width, channels out, kernel, stride, and groups if there are several. The
last ones, of small pictures, have more weights than pixels: a core runs them at a fifth to a half of the others' rate. A quick probe times
the first four: one dense convolution for each kind of algorithm that libraries have."""


def convolutions(bench: Bench, dtypes: Sequence[str] = _DTYPES) -> None:
    """2-D convolutions and both gradients, in fp32 and bf16."""
    shapes = _CONVOLUTIONS[:4] if bench.quick else _CONVOLUTIONS
    for dtype in dtypes:
        bench.phase(f"{dtype} convolutions")
        for shape, role in product(shapes, ("fwd", "dgrad", "wgrad")):
            convolution(bench, shape, dtype, role)


def convolution(bench: Bench, shape: tuple[int, ...], dtype: str, role: str) -> None:
    """One convolution. `shape`: batch, channels in, height, width, channels out, kernel, stride, groups (may be left out: 1)."""
    batch, c_in, h, w, c_out, kernel, stride, groups = (*shape, 1)[:8]
    work = Conv(batch, c_in, h, w, c_out, kernel, kernel, stride, groups=groups, dtype=dtype, role=role)
    bench.work("conv", role, work, dtype, (batch, c_in, h, w, c_out, kernel, kernel, stride, groups))


_COPIED = 64 << 20
"""Bytes of the copied array: more than caches hold."""


def copies(bench: Bench) -> None:
    """A copy from memory to memory on one thread."""
    bench.phase("copies")
    source, target = (torch.ones(_COPIED, dtype=torch.uint8) for _ in range(2))
    bench.add("copy", "memcpy", "", (_COPIED,), bench.times([lambda: target.copy_(source)]))
