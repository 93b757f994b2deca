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
from functools import cache

import msgspec

from sim.cost.device import STORED, choose, document, peak_flops
from sim.cost.price import Source
from sim.work import BYTES, Gemm, GroupedGemm
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu


class GemmFit(msgspec.Struct, frozen=True, kw_only=True):
    """What was fitted on one GPU for one class of kernels. Shares are of the GPU's specification."""

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


COPIES = 5.0
"""The benchmark cycles through as many copies of the weights, so that small ones do not stay in L2 (aiconfigurator)."""
EDGE = 12.0
"""How sharply reuse ends where a working set outgrows L2: LRU-like, all or nothing."""
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
_POWER_FLOPS = 2e11
"""FLOPs at which a repeated benchmark reaches half of its power droop: 0.2-1 ms kernels (gemm tables of H100 and H200)."""
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
    tiles = TILES + LARGE if gpu.arch in ("sm90", "sm100", "sm103") else TILES
    dram = (
        moved / (fit.dram * gpu.bandwidth)
        if moved is not None
        else _dram_seconds(m, n, k, gpu, fit, size, out, batch, math.inf if training else COPIES)
    )
    best = math.inf
    for tm, tn in tiles:
        if (tm > 64 and tm >= 2 * m) or (tn > 64 and tn >= 2 * n):
            continue
        for split in _splits(m, n, k, tm, tn, batch, gpu.sms, fit.splits):
            best = min(best, _tiled(m, n, k, tm, tn, split, gpu, fit, rate, size, batch, dram))
    extra = 0.0 if training else fit.harness + _hot_seconds(fit.cast * m * k * batch, 1.0, gpu, fit)
    return fit.floor + best + extra


def _splits(m: int, n: int, k: int, tm: int, tn: int, batch: int, sms: int, most: int) -> Iterator[int]:
    """Splits of k that could help: those that do not make more than two waves, with 256 elements of k left."""
    blocks = -(-m // tm) * -(-n // tn) * batch
    for split in _SPLITS:
        if split == 1 or (split <= most and blocks * split <= 2 * sms and k >= 256 * split):
            yield split


def _tiled(
    m: int, n: int, k: int, tm: int, tn: int, split: int, gpu: Gpu, fit: GemmFit, rate: float, size: float, batch: int, dram: float
) -> float:
    """Seconds over the floor with one tile size and one split of k."""
    blocks = -(-m // tm) * -(-n // tn) * batch * split
    depth = -(-k // (split * STEP)) * STEP
    resident = max(1, 16384 // (tm * tn))  # small tiles share an SM
    load = blocks / gpu.sms
    together = min(resident, math.ceil(load))
    compute = 2.0 * tm * tn * depth / rate
    feed = (tm + tn) * depth * size / (fit.l2 * gpu.clock)
    busy = together * (compute**4 + feed**4) ** 0.25
    wave = max(busy, depth / STEP * fit.step)
    waves = load / together
    waves = max(1.0, fit.round * math.ceil(waves) + (1.0 - fit.round) * waves)
    loop = waves * (wave + fit.fill)
    time = math.pow(math.pow(loop, fit.outer) + math.pow(dram, fit.outer), 1.0 / fit.outer)
    if split > 1:
        time += fit.reduce + 8.0 * split * m * n * batch / (fit.hot * fit.dram * gpu.bandwidth)
    return time


def _dram_seconds(m: int, n: int, k: int, gpu: Gpu, fit: GemmFit, size: float, out: float, batch: int, copies: float) -> float:
    """Compulsory traffic; what L2 keeps from the call before comes at L2's rate."""
    weights = _hot_seconds(batch * k * n * size, copies, gpu, fit)
    return weights + _hot_seconds(batch * (m * k * size + m * n * out), 1.0, gpu, fit)


def _hot_seconds(moved: float, copies: float, gpu: Gpu, fit: GemmFit) -> float:
    """`copies`: how often as many other bytes pass before these are used again."""
    missed = 1.0 / (1.0 + (fit.cache * gpu.l2 / (copies * moved)) ** EDGE) if moved > 0 else 0.0
    rate = fit.dram * gpu.bandwidth
    return moved * (missed / rate + (1.0 - missed) / (fit.hot * rate))


CLASSES = {"fp32": "fp32", "fp64": "fp32", "tf32": "bf16", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "int8": "fp8", "fp4": "fp8"}
"""dtype -> the set of parameters that describes it: all 16-bit kinds share kernels, tf32 is the same kernel over wider words."""


BEST = 0.9
"""Share of peak FLOP/s that the best GEMMs reach where power does not limit them (A100 0.93, RTX PRO 6000 0.87 of peak)."""
NO_TENSOR = ("sm60", "sm61")
"""Architectures without matrix units: all dtypes run as fp32 kernels do."""


@cache
def _fits(kind: str) -> dict[str, GemmFit]:
    sets = msgspec.convert(document("gemm"), dict[str, dict[str, GemmFit]])
    return {gpu: of[kind] for gpu, of in sets.items() if kind in of}


@cache
def _shares() -> dict[str, dict[str, float]]:
    return msgspec.convert(document("gemm_shares"), dict[str, dict[str, float]])


def _class_of(gpu: Gpu, dtype: str) -> tuple[str, str]:
    """(dtype as it runs on this GPU, class of kernels)."""
    key = STORED.get(dtype, dtype)
    if key == "tf32" and "tf32" not in gpu.flops:
        key = "fp32"
    return key, "fp32" if gpu.arch in NO_TENSOR else CLASSES[key]


def _name_of(gpu: Gpu, dtype: str) -> str:
    """The GPU whose parameters describe this one."""
    fits = _fits(_class_of(gpu, dtype)[1])
    return choose(gpu, {name: fit.arch for name, fit in fits.items()})[0]


def fit_of(gpu: Gpu, dtype: str) -> tuple[GemmFit, Source]:
    """Parameters that describe GEMMs of a dtype on a GPU. Quantising casts are kernels of their own: not in `floor`."""
    key, kind = _class_of(gpu, dtype)
    name, source = choose(gpu, {name: fit.arch for name, fit in _fits(kind).items()})
    fit = _fits(kind)[name]
    if kind != key and key not in ("fp16",):
        source = "assumed"
    if kind == "fp8":
        base, _ = fit_of(gpu, "bf16")
        fit = msgspec.structs.replace(fit, floor=min(fit.floor, base.floor))
    return fit, source


def sustained_clock(gpu: Gpu, dtype: str) -> float:
    """Factor on the tensor cores' rate in training, when kernels follow one another for hours.

    A GPU that was measured keeps 1 - droop of its fit. Another one takes the fit of its kin and the clock that its own
    power limit leaves (`power_ratio`), up to `BEST` of peak.
    """
    fit, _ = fit_of(gpu, dtype)
    own = 1.0 - fit.droop
    ratio = power_ratio(gpu, dtype)
    return own if ratio == 1.0 else min(own * ratio, max(own, BEST / fit.peak))


@cache
def _reference(name: str) -> Gpu:
    return find_gpu(name)


def power_ratio(gpu: Gpu, dtype: str) -> float:
    """Clock that the power limit allows, over that of the GPU whose parameters are used.

    Dynamic power grows as the cube of the clock (f V^2, V with f), and a peak FLOP of one generation costs about the
    same energy, so the ratio is the cube root of watts per peak FLOP/s over the reference's. A100 PCIe 300 W against
    SXM 400 W: 0.91; measured 253 / 271 = 0.93 (ml-engineering, best matmul FLOP/s).
    """
    name = _name_of(gpu, dtype)
    if name == gpu.name:
        return 1.0
    other, key = _reference(name), "bf16" if "bf16" in gpu.flops else "fp16" if "fp16" in gpu.flops else "fp32"
    if not gpu.power or not other.power or key not in other.flops:
        return 1.0
    return float((gpu.power / gpu.flops[key] * other.flops[key] / other.power) ** (1 / 3))


def gemm_cost(work: Gemm, gpu: Gpu, sustained: bool = True) -> tuple[float, Source]:
    """Seconds of all repeats. Raises `Refused` for a dtype that the GPU has no units for."""
    peak = _peak(gpu, work)
    fit, source = fit_of(gpu, work.dtype)
    size = BYTES[work.dtype]
    out = 8.0 if work.accumulate else max(size, 2.0)
    clock = sustained_clock(gpu, work.dtype) if sustained else None
    return gemm_seconds(work.m, work.n, work.k, gpu, fit, peak, size, out, work.batch, clock) * work.repeat, source


def _peak(gpu: Gpu, work: Gemm | GroupedGemm) -> float:
    """FLOP/s of the dtype, times what the layout and the kinship to a measured architecture leave."""
    shares = _shares()
    role = shares["role"]["accumulate" if work.accumulate else work.role]
    kin = shares["kin"].get(gpu.arch, 1.0) if _class_of(gpu, work.dtype)[1] != "fp32" else 1.0
    return peak_flops(gpu, work.dtype) * role * kin


def grouped_cost(work: GroupedGemm, gpu: Gpu, sustained: bool = True) -> tuple[float, Source]:
    """Seconds of all repeats: experts with equal shares of the rows, in one launch or one launch each."""
    peak = _peak(gpu, work)
    fit, source = fit_of(gpu, work.dtype)
    size = BYTES[work.dtype]
    out = 8.0 if work.accumulate else max(size, 2.0)
    clock = sustained_clock(gpu, work.dtype) if sustained else None
    rows = -(-work.m // work.groups)
    m, n, k = (work.k, work.n, rows) if work.role == "wgrad" else (rows, work.n, work.k)
    if not work.fused:
        return gemm_seconds(m, n, k, gpu, fit, peak, size, out, 1, clock) * work.groups * work.repeat, source
    peak *= _shares()["grouped"].get(gpu.arch, _shares()["grouped"]["other"])
    return gemm_seconds(m, n, k, gpu, fit, peak, size, out, work.groups, clock) * work.repeat, source
