"""Seconds of a GEMM: tiles, waves, the k loop, L2 and DRAM traffic, and the kernel's floor.

A library picks one of a few tile sizes and perhaps splits k; the model prices each choice and takes the fastest:

    blocks = ceil(m / Tm) ceil(n / Tn) batch split          waves = blocks / (SMs x resident blocks)
    time   = floor + waves (fill + k loop) | DRAM traffic + reduction of the splits

The k loop of a tile is the slowest of the tensor cores at a fitted share of their peak, of operands coming from L2,
and of the latency of dependent steps. DRAM and compute overlap (a p-norm of the two). Wave and tile quantisation:
Habitat (USENIX ATC 2021), NeuSight (ASPLOS 2025), CUTLASS "efficient GEMM"; the parameters are fitted per GPU on
measured kernels, see `params/gemm.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from sim.cost.device import GROUPED
from topologies.hardware import Gpu


class GemmFit(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that were fitted on one GPU for one class of kernels. Shares are of the GPU's specification."""

    arch: str
    floor: float
    """Seconds of the smallest kernel, replayed from a CUDA graph."""
    peak: float
    """Share of peak FLOP/s in the k loop of the largest tile, at boost clock."""
    fill: float
    """Seconds before and after the k loop of one wave: first operands, epilogue."""
    step: float
    """Seconds of one k loop step of `STEP` elements when nothing but latency binds."""
    l2: float
    """Bytes that one SM gets from L2 in one clock."""
    dram: float
    """Share of peak DRAM bandwidth."""
    hot: float
    """L2 bandwidth over achieved DRAM bandwidth, for operands that are still in L2."""
    cache: float
    """Share of L2 that holds operands from one call to the next."""
    droop: float
    """Share of the clock that is lost to the power limit when large GEMMs run back to back."""
    round: float
    """0: a partly filled wave costs its share (persistent kernels, stream-K); 1: a whole wave."""
    reduce: float
    """Seconds to start the reduction of a split k."""
    outer: float = 4.0
    """Exponent with which compute and DRAM time combine: 1 adds them, infinity takes the larger."""
    cast: float = 0.0
    """fp8 and fp4 benchmarks: bytes moved per element of the activations to quantise them first (not part of the GEMM)."""
    harness: float = 0.0
    """Seconds that the benchmark's clock adds to each call (launches timed from Python; 0 with CUDA graphs)."""
    splits: int = 16
    """Most parts into which k is split (1: the kernels of this class cannot)."""
    graded: bool = False
    """True: the benchmark's kernels choose the tile by the number of rows m alone, even where that gives few blocks (CUTLASS's scaled GEMMs of serving
    frameworks, see `_graded`). Training calls cuBLASLt, which chooses among all tiles."""


COPIES = 5.0
"""Number of copies of the weights that the benchmark cycles through, so that small ones do not stay in L2 (aiconfigurator)."""
EDGE = 12.0
"""Exponent that says how sharply reuse ends where the working set gets larger than L2: nearly all or nothing, as with LRU."""
STEP = 64
"""Elements of k that one step of the loop covers (CUTLASS default tiles: 32-64 for 16 bit)."""
TILES = (
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
    (128, 32),
    (32, 128),
    (64, 32),
    (32, 64),
    (16, 128),
    (128, 16),
)
"""Tile sizes of cuBLAS and CUTLASS kernels: names of profiled kernels show these."""
LARGE = ((256, 256), (192, 128), (128, 192))
"""Two-SM tiles of Blackwell and warp-specialised tiles of Hopper."""
VECTOR_STEP = 8
"""`STEP` for fp32 kernels without matrix units, whose loop covers less in one step (cuBLAS's sgemm_128x128x8): k is padded to a multiple of it."""
_POWER_FLOPS = 2e11
"""FLOPs of a kernel whose repetition in a benchmark shows half of `droop`: 0.2-1 ms kernels (gemm tables of H100 and H200)."""
_SPLITS = (1, 2, 4, 8, 16)


def gemm_seconds(
    m: int,
    n: int,
    k: int,
    gpu: Gpu,
    fit: GemmFit,
    peak: float,
    size: float,
    out: float,
    batch: int = 1,
    clock: float | None = None,
    moved: float | None = None,
) -> float:
    """Seconds of one kernel.

    `peak` FLOP/s of the dtype; `size`, `out` bytes per element of operands and result (8 = read-modify-write in fp32).
    `clock`: factor on the tensor cores' clock under sustained load; None: that of a benchmark that repeats this
    kernel alone, cooler for small ones. `moved`: DRAM bytes where they are not those of the matrices (convolutions).
    """
    training = clock is not None
    if clock is None:
        flops = 2.0 * m * n * k * batch
        clock = 1.0 - fit.droop * flops / (flops + _POWER_FLOPS)
    rate = peak * fit.peak * clock / gpu.sms
    graded = fit.graded and not training
    tiles = _graded(m) if graded else TILES + LARGE if gpu.arch in GROUPED else TILES
    dram = (
        moved / (fit.dram * gpu.bandwidth)
        if moved is not None
        else _dram_seconds(m, n, k, gpu, fit, size, out, batch, math.inf if training else COPIES)
    )
    best = math.inf
    for tm, tn in tiles:
        if not graded and ((tm > 64 and tm >= 2 * m) or (tn > 64 and tn >= 2 * n)):
            continue
        for split in _splits(m, n, k, tm, tn, batch, gpu.sms, fit.splits):
            best = min(best, _tiled(m, n, k, tm, tn, split, gpu, fit, rate, size, batch, dram))
    extra = 0.0 if training else fit.harness + _hot_seconds(fit.cast * m * k * batch, 1.0, gpu, fit)
    return fit.floor + best + extra


def _graded(m: int) -> tuple[tuple[int, int], ...]:
    """The tile of kernels that are chosen by the number of rows: a quarter of m rounded up to a power of two, 16 to 128 rows, and 128 columns.

    The time of one block's k loop shows the tile: on L40S and RTX PRO 6000 it takes 1.3, 1.9, 4 and 7.3 ns for each element of k where m is up to
    64, 128, 256, and 512 or more, whatever n is: tiles of 16, 32, 64 and 128 by 128 at 80-90 % of one SM's peak.
    """
    rows = min(128, max(16, 1 << max(0, (m - 1).bit_length() - 2)))
    return ((rows, 128),)


def _splits(m: int, n: int, k: int, tm: int, tn: int, batch: int, sms: int, most: int) -> Iterator[int]:
    """Splits of k that could help: they make no more than two waves, and leave each part at least 256 elements of k."""
    blocks = -(-m // tm) * -(-n // tn) * batch
    for split in _SPLITS:
        if split == 1 or (split <= most and blocks * split <= 2 * sms and k >= 256 * split):
            yield split


def _tiled(
    m: int, n: int, k: int, tm: int, tn: int, split: int, gpu: Gpu, fit: GemmFit, rate: float, size: float, batch: int, dram: float
) -> float:
    """Seconds beyond `floor` with one tile size and one split of k. `rate`: FLOP/s of one SM; `dram`: seconds of the DRAM traffic."""
    blocks = -(-m // tm) * -(-n // tn) * batch * split
    grain = VECTOR_STEP if size >= 4 else STEP
    depth = -(-k // (split * grain)) * grain
    resident = max(1, 16384 // (tm * tn))  # small tiles share an SM
    load = blocks / gpu.sms
    together = min(resident, math.ceil(load))
    compute = 2.0 * tm * tn * depth / rate
    feed = (tm + tn) * depth * size / (fit.l2 * gpu.clock)
    busy = together * (compute**4 + feed**4) ** 0.25
    wave = max(busy, depth / STEP * fit.step)
    waves = load / together
    waves = max(1.0, fit.round * math.ceil(waves) + (1.0 - fit.round) * waves)
    fill = fit.fill * (tm * tn / 16384 if fit.graded else 1.0)  # operands and results of a tile
    loop = waves * (wave + fill)
    time = math.pow(math.pow(loop, fit.outer) + math.pow(dram, fit.outer), 1.0 / fit.outer)
    if split > 1:
        time += fit.reduce + 8.0 * split * m * n * batch / (fit.hot * fit.dram * gpu.bandwidth)
    return time


def _dram_seconds(m: int, n: int, k: int, gpu: Gpu, fit: GemmFit, size: float, out: float, batch: int, copies: float) -> float:
    """Seconds to read both operands and write the result once; the part that L2 has kept from the call before moves at L2's rate."""
    weights = _hot_seconds(batch * k * n * size, copies, gpu, fit)
    return weights + _hot_seconds(batch * (m * k * size + m * n * out), 1.0, gpu, fit)


def _hot_seconds(moved: float, copies: float, gpu: Gpu, fit: GemmFit) -> float:
    """Seconds to move `moved` bytes from DRAM or L2. `copies`: the working set between two uses of these bytes, over `moved`; inf: never in L2."""
    missed = 1.0 / (1.0 + (fit.cache * gpu.l2 / (copies * moved)) ** EDGE) if moved > 0 else 0.0
    rate = fit.dram * gpu.bandwidth
    return moved * (missed / rate + (1.0 - missed) / (fit.hot * rate))
