"""Which kernels and copies the probe times on a GPU, with shapes of training (those for CPUs are smaller).

Times are device seconds (`executor.device_times`) at the boost clock, in the tables of `sim.cost.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median

import torch

from executor.probes.bench import Bench
from executor.probes.kernels import convolution, each_variant
from executor.ranks.world import set_precision
from sim.cost.points import attention_name
from sim.cost.variant import variant
from sim.work import BLOCK, BYTES, LISTED, Attention, Gemm, MemoryBound

SIZES = (128, 512, 1024, 2048, 4096, 8192, 16384, 131072)
"""Sides of GEMMs. Tokens, widths and vocabularies of the plans lie between these sizes, and are not among them."""
FEW = (128, 1024, 8192)
"""Sides of GEMMs in full fp32 and TF32, which are seldom used for training."""
_ROLES = ("fwd", "dgrad", "wgrad")
_LARGE = 16384
"""At most one side of a GEMM is larger than this: a vocabulary, or the tokens of a large batch."""
_MOST = 4.5e12
"""FLOPs of the largest GEMM: logits of 2048 tokens over 131,072 words of width 8192 are 4.4e12."""
_LONGEST = 8e-3
"""Seconds that the largest GEMM may take."""
_BYTES = (3 << 12, 3 << 16, 3 << 20, 12 << 20, 48 << 20, 192 << 20, 384 << 20)
SEQUENCES, FEW_SEQUENCES = (128, 256, 512, 1024, 2048, 4096, 8192), (512, 2048)
_ROW = 1 << 14
"""Elements of a row of a fused projection."""
_BLOCKS = (1, 40, 160, 320)
"""Blocks of a launch over lists of tensors, which has 320 at most."""
_COPIES = (1 << 12, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
_CONVOLUTIONS = (
    (32, 3, 224, 224, 64, 7, 2),
    (32, 64, 56, 56, 64, 1, 1),
    (32, 64, 56, 56, 64, 3, 1),
    (32, 64, 56, 56, 256, 1, 1),
    (32, 128, 28, 28, 128, 3, 1),
    (32, 256, 14, 14, 256, 3, 1),
    (32, 1024, 14, 14, 256, 1, 1),
    (32, 512, 7, 7, 512, 3, 1),
    (32, 512, 7, 7, 2048, 1, 1),
)
"""Layers of ResNet-50 on 32 images: batch, channels in, height, width, channels out, kernel, stride."""


def shapes(sizes: tuple[int, ...], most: float, room: int = 2 << 30, width: int = 2) -> Iterator[tuple[int, int, int]]:
    """(m, n, k) of the timed GEMMs: at most one side over `_LARGE`, at most `most` FLOPs, and no matrix of more than `room` bytes, with
    `width` bytes for each element."""
    for m, n, k in product(sizes, sizes, sizes):
        if 2.0 * m * n * k <= most and sum(side > _LARGE for side in (m, n, k)) <= 1 and width * max(m * n, m * k, n * k) <= room:
            yield m, n, k


def gemms(bench: Bench) -> None:
    """GEMMs in all layouts: bf16 over the whole grid, full fp32 and TF32 at a few shapes, and bf16 with rows that are not multiples of 16
    bytes."""
    bench.phase("rate of large products")
    rate = 2.0 * 4096**3 / bench.device_seconds(Gemm(4096, 4096, 4096, "bf16"))
    most = min(_MOST, rate * _LONGEST)
    for dtype, sizes, share in (("bf16", FEW if bench.quick else SIZES, 1.0), ("fp32", FEW, 0.1), ("tf32", FEW, 0.5)):
        if dtype == "tf32" and bench.cuda.generation() < 8:
            continue
        set_precision(dtype == "tf32")
        for role in _ROLES:
            bench.phase(f"{dtype} GEMMs, {role}")
            for m, n, k in shapes(sizes, most * share, bench.arena.limit // 2, 2 if dtype == "bf16" else 4):
                bench.work("gemm", role, Gemm(m, n, k, dtype, 1, role), dtype, (m, n, k))
    set_precision(False)
    for role in _ROLES:
        bench.phase(f"bf16 GEMMs with rows that are no multiples of 16 bytes, {role}")
        for m, n, k in (sizes for sizes in ragged(role, bench.quick) if 2.0 * math.prod(sizes) <= most):
            bench.work("gemm", role, Gemm(m, n, k, "bf16", 1, role), "bf16", (m, n, k))


def ragged(role: str, quick: bool = False) -> Iterator[tuple[int, int, int]]:
    """(m, n, k) of a head's GEMMs with a vocabulary of an odd size, and of twice an odd size: matrix units load 16 bytes at once, and other
    kernels are needed for such rows."""
    words = [(_WORDS[0] + 1, _WORDS[0] + 2)] if quick else [(count + 1, count + 2) for count in _WORDS]
    for rest, tokens, width in product((0, 1), (8192,) if quick else (1024, 8192), (512, 2048)):
        for pair in words:
            sizes = {"fwd": (tokens, pair[rest], width), "dgrad": (tokens, width, pair[rest]), "wgrad": (pair[rest], width, tokens)}
            yield sizes[role]


_WORDS = (1 << 14, 1 << 16)


def memory_bound(bench: Bench) -> None:
    """Every variant of a memory-bound kernel by its bytes, in bf16 and fp32, with data in L2 and in memory; then passes over lists of
    tensors."""
    for dtype, total in product(("bf16", "fp32"), _BYTES[::3] if bench.quick else _BYTES):
        each_variant(bench, total, dtype)
        for work in halves(total, dtype):
            bench.work("memory", variant(work), work, dtype, (work.read + work.written,))
    for dtype in ("bf16", "fp32"):
        bench.phase(f"{dtype} passes over lists of tensors")
        for blocks in _BLOCKS[::3] if bench.quick else _BLOCKS:
            for work in passes(blocks, dtype):
                bench.work("memory", variant(work), work, dtype, (work.read + work.written,))


def halves(total: int, dtype: str) -> Iterator[MemoryBound]:
    """Kernels of a gated activation that read halves of rows of `_ROW` elements; each moves about `total` bytes."""
    e = int(BYTES[dtype])
    for what, inputs, ops in (("activation", 1, 5.0), ("activation", 2, 10.0), ("scale", 2, 1.0)):
        rows = total // (inputs + 1) // e // (_ROW // 2)
        if rows:
            n = rows * (_ROW // 2)
            yield MemoryBound(what, inputs * n * e, n * e, dtype, ops * n, 1, rows, True)


def passes(blocks: int, dtype: str) -> Iterator[MemoryBound]:
    """One launch of each pass over lists of tensors, with so many blocks; with the most blocks also one that reads three lists."""
    n, e = blocks * BLOCK, int(BYTES[dtype])
    longest = (("add_", 3, 1),) if blocks == _BLOCKS[-1] else ()
    for what, read, written in (("scale_", 1, 1), ("add_", 2, 1), ("sqrt", 1, 1), ("norm", 1, 0), *longest):
        yield MemoryBound(LISTED + what, read * n * e, written * n * e, dtype, float(n), 1, 1)


def attention(bench: Bench) -> None:
    """Fused attention, causal and not, forward and backward: about 8,192 tokens and 16 heads, in sequences of many lengths; a few in
    fp32."""
    for dtype, sequences in (("bf16", SEQUENCES[1:4:2] if bench.quick else SEQUENCES), ("fp32", FEW_SEQUENCES)):
        bench.phase(f"{dtype} attention")
        for seq, d, causal, backward in product(sequences, (64, 128), (True, False), (False, True)):
            batch = max(1, 8192 // seq)
            work = Attention(batch, 16, 16, seq, seq, d, causal=causal, dtype=dtype, backward=backward)
            bench.work("attention", attention_name(work), work, dtype, (batch, 16, seq, d))


def convolutions(bench: Bench) -> None:
    """2-D convolutions and both gradients, in bf16."""
    bench.phase("convolutions")
    for shape, role in product(_CONVOLUTIONS[:2] if bench.quick else _CONVOLUTIONS, _ROLES):
        convolution(bench, shape, "bf16", role)


_VIEWS = (8, 24)
"""Views in a row; the difference of the two leaves out the fixed time of a call of autograd."""


def launches(bench: Bench) -> None:
    """Host seconds of a bare launch, and of a view with its autograd node, for one of the two passes."""
    bench.phase("launches and views")
    bench.add("host", "launch", "", (), bench.times([lambda: bench.cuda.hold(1)]))
    x = torch.ones(8, 8, device=bench.world.device, requires_grad=True)
    grad = torch.ones_like(x)

    def turned(count: int) -> Callable[[], object]:
        def call() -> object:
            y: torch.Tensor = x
            for _ in range(count):
                y = y.t()
            return torch.autograd.grad(y, x, grad)

        return call

    few, many = (median(bench.times([turned(count)])) for count in _VIEWS)
    bench.add("host", "view", "", (), [(many - few) / (2 * (_VIEWS[1] - _VIEWS[0]))])


def copies(bench: Bench) -> None:
    """Copies from host to device and back, by bytes. Pinned: device seconds of the copy engine. Pageable: host seconds, as the host
    waits."""
    bench.phase("copies between host and device")
    device = bench.world.device
    for size in _COPIES[::2] if bench.quick else _COPIES:
        there = torch.ones(size, dtype=torch.uint8, device=device)
        pinned, loose = bench.cuda.pinned(size), torch.ones(size, dtype=torch.uint8)
        for name, call in _pinned(there, pinned).items():
            bench.add("copy", name, "", (size,), bench.device_times([call]))
        for name, call in _pageable(there, loose).items():
            bench.add("copy", name, "", (size,), bench.times([call]))
    small, there = bench.cuda.pinned(4096), torch.ones(4096, dtype=torch.uint8, device=device)
    bench.add("host", "copy", "", (), bench.times([_pinned(there, small)["h2d.pinned"]]))


def _pinned(device: torch.Tensor, host: torch.Tensor) -> dict[str, Callable[[], object]]:
    return {"h2d.pinned": lambda: device.copy_(host, non_blocking=True), "d2h.pinned": lambda: host.copy_(device, non_blocking=True)}


def _pageable(device: torch.Tensor, host: torch.Tensor) -> dict[str, Callable[[], object]]:
    return {"h2d.pageable": lambda: device.copy_(host), "d2h.pageable": lambda: host.copy_(device)}
