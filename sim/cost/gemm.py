"""Seconds of a `Gemm` or `GroupedGemm` on a GPU: which fitted parameters hold for it, and its clock in training.

The formula is in `sim.cost.tiles`; parameters per GPU are in `params/gemm.toml`; factors on the rate that do not come from the shape (layout,
grouping, parameters of another architecture) are in `params/gemm_shares.toml`.
"""

from __future__ import annotations

from functools import cache

import msgspec

from sim.cost.device import STORED, as_sold, choose, document, peak_flops, table
from sim.cost.price import Source
from sim.cost.tiles import GemmFit, gemm_seconds
from sim.work import ALIGNED, BYTES, EXACT, LINE, Gemm, GroupedGemm, product_bytes, row_alignment
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu

CLASSES = {"fp32": "fp32", "fp64": "fp32", "tf32": "bf16", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "int8": "fp8", "fp4": "fp8"}
"""dtype -> the set of parameters that describes it: all 16-bit dtypes share kernels, tf32 runs the same kernels on wider words."""


BEST = 0.9
"""Share of peak FLOP/s that the best GEMMs reach where power does not limit them (A100 0.93, RTX PRO 6000 0.87 of peak)."""
STARVED = ("l4", "t4")
"""Boards whose power limit of 70 W holds them at a third of their peak: their parameters do not stand for other GPUs."""
NO_TENSOR = ("sm37", "sm60", "sm61")
"""Architectures without matrix units: the fp32 kernels' parameters hold for all dtypes."""


@cache
def fits(kind: str) -> dict[str, GemmFit]:
    sets = msgspec.convert(document("gemm"), dict[str, dict[str, GemmFit]])
    return {gpu: of[kind] for gpu, of in sets.items() if kind in of}


@cache
def _shares() -> dict[str, dict[str, float]]:
    return msgspec.convert(document("gemm_shares"), dict[str, dict[str, float]])


def _class_of(gpu: Gpu, dtype: str) -> tuple[str, str]:
    """(dtype as which it runs on this GPU, class of kernels as in `CLASSES`)."""
    key = STORED.get(dtype, dtype)
    if key == "tf32" and "tf32" not in gpu.flops:
        key = "fp32"
    return key, "fp32" if gpu.arch in NO_TENSOR else CLASSES[key]


def _name_of(gpu: Gpu, dtype: str) -> str:
    """The GPU whose parameters describe this one."""
    return choose(gpu, _guides(gpu, _class_of(gpu, dtype)[1]))[0]


def _guides(gpu: Gpu, kind: str) -> dict[str, str]:
    """GPU -> architecture of the parameter sets that may stand for this GPU."""
    return {name: fit.arch for name, fit in fits(kind).items() if name == gpu.name or name not in STARVED}


def fit_of(gpu: Gpu, dtype: str) -> tuple[GemmFit, Source]:
    """Parameters that describe GEMMs of a dtype on a GPU, and their source. `floor` holds no quantising cast, which is a kernel of its own."""
    key, kind = _class_of(gpu, dtype)
    name, source = choose(gpu, _guides(gpu, kind))
    fit = fits(kind)[name]
    if kind != key and key not in ("fp16",):
        source = "assumed"
    if kind == "fp8":
        base, _ = fit_of(gpu, "bf16")
        fit = msgspec.structs.replace(fit, floor=min(fit.floor, base.floor))
    return fit, source


def sustained_clock(gpu: Gpu, dtype: str) -> float:
    """Factor on the tensor cores' rate in training, when kernels follow one another for hours.

    A GPU that was measured has 1 - `droop` of its fit. Another one takes the fit of a similar GPU and the clock that its own
    power limit leaves (`power_ratio`), up to `BEST` of peak.
    """
    return kin_clock(fit_of(gpu, dtype)[0], power_ratio(gpu, dtype))


def powered(gpu: Gpu, dtype: str) -> float:
    """Factor of the power limit on the rate of a GPU's GEMMs, relative to the GPU whose parameters it takes: `power_ratio`, but no more than what
    leads to `BEST` of peak."""
    fit = fit_of(gpu, dtype)[0]
    return kin_clock(fit, power_ratio(gpu, dtype)) / kin_clock(fit, 1.0)


def kin_clock(fit: GemmFit, ratio: float) -> float:
    """The clock under sustained load of a GPU that takes the parameters `fit` of another one. Its power limit allows `ratio` times the other's clock;
    above that clock, no more than what reaches `BEST` of peak."""
    own = 1.0 - fit.droop
    return own if ratio == 1.0 else min(own * ratio, max(own, BEST / fit.peak))


def lent(fit: GemmFit, ratio: float) -> GemmFit:
    """The parameters `fit` for the GPU of `kin_clock`, in a benchmark. A `ratio` below 1 slows large GEMMs down (`tiles.gemm_seconds`), one above 1
    speeds up all."""
    if ratio == 1.0:
        return fit
    peak = fit.peak * max(1.0, min(ratio, BEST / fit.peak))
    return msgspec.structs.replace(fit, peak=peak, droop=1.0 - fit.peak * kin_clock(fit, ratio) / peak)


@cache
def _reference(name: str) -> Gpu:
    return find_gpu(name)


def power_ratio(gpu: Gpu, dtype: str) -> float:
    """Clock that the power limit allows, over that of the GPU whose parameters are used.

    Dynamic power grows as the cube of the clock (f V^2, V with f), and a peak FLOP of one process costs about the
    same energy, so the ratio is the cube root of watts per peak FLOP/s over the reference's (`told_by`). A100 PCIe 300 W against
    SXM 400 W: 0.91; measured 253 / 271 = 0.93 (ml-engineering, best matmul FLOP/s).
    """
    name = told_by(gpu, dtype)
    other = _reference(name)
    lends = name == _name_of(gpu, dtype) or other.arch == gpu.arch
    return power_between(gpu, name, dtype) * (1.0 if lends else powered(other, dtype))


def told_by(gpu: Gpu, dtype: str) -> str:
    """The GPU with whose power limit this one's is compared: the one whose parameters it takes; where that has another architecture, the one that the
    table [told] of `params/sustained.toml` names, made in the same process."""
    name = _name_of(gpu, dtype)
    lent = _reference(name).arch != gpu.arch and dtype not in EXACT
    return table("sustained", "told", dict[str, str]).get(gpu.arch, name) if lent else name


def power_between(gpu: Gpu, name: str, dtype: str) -> float:
    """`power_ratio` to the catalog's GPU `name`, which may be this one with another power limit; watts for each FLOP/s of 16-bit matrix units,
    or of fp32 ones for products on those (AMD's fp32 runs on matrix units)."""
    other, peaks = _reference(name), as_sold(gpu).flops
    key = "bf16" if "bf16" in peaks and "bf16" in other.flops else "fp16" if "fp16" in peaks else "fp32"
    if dtype in EXACT and gpu.arch.startswith("sm"):
        key = "fp32"
    if not gpu.power or not other.power or key not in other.flops:
        return 1.0
    falls = table("sustained", "benchmark", dict[str, float])
    return float((gpu.power / other.power * other.flops[key] / peaks[key]) ** falls.get(gpu.arch, falls["other"]))


def gemm_cost(work: Gemm, gpu: Gpu, sustained: bool = True) -> tuple[float, Source]:
    """Seconds of all repeats. Raises `Refused` for a dtype that the GPU has no units for.

    cuBLAS runs a strided batch whose rows are no multiple of 16 bytes on fp32 units: heads of 108 and of 150 columns cost 10.0-10.6 TFLOP/s on
    A100 (BLOOM's sweeps of heads and sizes against those of 96, 128 and 64 heads, with 13824 and 14400 columns, 40 and 48 nodes; eight batched
    products a layer).
    """
    size = BYTES[work.dtype]
    if size == 2 and work.batch > 1 and (work.n % ALIGNED or work.k % ALIGNED):
        work = msgspec.structs.replace(work, dtype="fp32")
    peak = _peak(gpu, work)
    fit, source = fit_of(gpu, work.dtype)
    out = product_bytes(work)
    clock = sustained_clock(gpu, work.dtype) if sustained else None
    fit = fit if sustained else lent(fit, power_ratio(gpu, work.dtype))
    return gemm_seconds(work.m, work.n, work.k, gpu, fit, peak, size, out, work.batch, clock) * work.repeat, source


def _peak(gpu: Gpu, work: Gemm | GroupedGemm) -> float:
    """Peak FLOP/s of the dtype, times the factors of `params/gemm_shares.toml`: role, alignment of rows, architecture, format."""
    shares = _shares()
    role = shares["role"]["accumulate" if work.accumulate else work.role]
    if isinstance(work, Gemm) and BYTES[work.dtype] == 2 and row_alignment(work) < LINE:
        odd = shares["odd"] if row_alignment(work) < 4 else {}
        role *= shares["unaligned"].get(gpu.arch, odd.get(gpu.arch, 1.0))
    kin = shares["kin_fp32" if _class_of(gpu, work.dtype)[1] == "fp32" else "kin"].get(gpu.arch, 1.0)
    return peak_flops(gpu, work.dtype) * role * kin * shares["format"].get(work.dtype, 1.0)


def grouped_cost(work: GroupedGemm, gpu: Gpu, sustained: bool = True) -> tuple[float, Source]:
    """Seconds of all repeats: every expert has an equal share of the rows; one launch for all (`fused`) or one for each."""
    peak = _peak(gpu, work)
    fit, source = fit_of(gpu, work.dtype)
    size = BYTES[work.dtype]
    out = product_bytes(work)
    clock = sustained_clock(gpu, work.dtype) if sustained else None
    rows = -(-work.m // work.groups)
    m, n, k = (work.k, work.n, rows) if work.role == "wgrad" else (rows, work.n, work.k)
    if not work.fused:
        return gemm_seconds(m, n, k, gpu, fit, peak, size, out, 1, clock) * work.groups * work.repeat, source
    peak *= _shares()["grouped"].get(gpu.arch, _shares()["grouped"]["other"])
    return gemm_seconds(m, n, k, gpu, fit, peak, size, out, work.groups, clock) * work.repeat, source
