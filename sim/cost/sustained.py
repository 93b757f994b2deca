"""The tensor-core rate in long training, as a share of that in a kernel benchmark.

A benchmark repeats one kernel for a short time, on a cool GPU and often on numbers that need little power. In training all kernels draw
power together, and the board lowers its clock until the draw meets the limit: A100 8192^3 runs at 258 TFLOP/s on
normally distributed numbers and at 295 on zeros (thonking.ai), H100 falls from 770 to 723 and H200 from 780 to 672 from
4096 to 8192 cubes. SimuMax's GEMMs on a B200 under load take 1.33 times as long as the short ones of aiconfigurator.
The rest is a number per GPU, fitted on published training steps (`sim.accuracy.refit`) and then raised by hand on the same
steps for five of the GPUs and dtypes (`params/sustained.toml` says which): an in-sample choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from statistics import NormalDist

from msgspec import structs

from sim.cost.device import NEAREST, as_sold, by_arch, table
from sim.cost.gemm import powered
from sim.cost.price import Source
from sim.work import BYTES
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu


@cache
def _clocks(kind: str) -> dict[str, float]:
    return table("sustained", kind, dict[str, float])


def training_clock(gpu: Gpu, dtype: str = "bf16") -> tuple[float, Source]:
    """Rate of tensor cores in training over that in kernel benchmarks, at most 1. 8-bit units may have a clock of their own.

    A GPU without a number of its own takes that of a similar one, scaled by the power limits (`kin_clock`).
    """
    clock, source = narrow_clock(gpu, _clocks("clock"), _clocks("fp8")) if is_narrow(dtype) else kin_clock(gpu, _clocks("clock"))
    return min(1.0, clock * steered(gpu) / capped(gpu)), source


def capped(gpu: Gpu) -> float:
    """The boost clock over that of the catalog's GPU of this name; 1 where either is not known. A lower one (`nvidia-smi --lock-gpu-clocks`) costs
    nothing where the power limit had lowered the clock further."""
    known = as_sold(gpu).clock
    return gpu.clock / known if gpu.clock and known else 1.0


def unraised(gpu: Gpu) -> Gpu:
    """The GPU with at most the catalog's boost clock and peaks: in training its power limit keeps matrix products from a higher clock."""
    raised = capped(gpu)
    if raised <= 1.0:
        return gpu
    return structs.replace(gpu, clock=gpu.clock / raised, flops={dtype: peak / raised for dtype, peak in gpu.flops.items()})


def steered(gpu: Gpu) -> float:
    """The clock under load with power steered to the cores (`Gpu.vboost`), over that without; 1 without vboost, or where no training steps show it."""
    return _clocks("vboost").get(gpu.arch, 1.0) if gpu.vboost else 1.0


def is_narrow(dtype: str) -> bool:
    """True for dtypes of fewer than 16 bits: their GEMMs may have a training clock of their own."""
    return BYTES.get(dtype, 2.0) < 2


def vector_clock(gpu: Gpu) -> float:
    """`training_clock` for fp32 products that run without matrix units; 1 where no training steps show less."""
    return min(1.0, _clocks("fp32").get(gpu.name, 1.0) / capped(gpu))


def narrow_clock(gpu: Gpu, clocks: Mapping[str, float], narrow: Mapping[str, float]) -> tuple[float, Source]:
    """The training clock of GEMMs below 16 bits: the GPU's own value in `narrow`; else that of its 16-bit GEMMs (`clocks`), times the ratio of the two
    on a similar GPU; where no similar GPU has both, that of its 16-bit GEMMs."""
    if gpu.name in narrow and _as_sold(gpu):
        return narrow[gpu.name], "fitted"
    clock, source = kin_clock(gpu, clocks)
    kin, known = NEAREST.get(gpu.arch, ()), {find_gpu(name).arch for name in clocks}
    lends = [arch for arch in (gpu.arch, *kin) if arch in known][:1]
    for arch in (gpu.arch, *(() if gpu.name in clocks else (*kin[:1], *lends))):
        for name in _own_first(gpu, narrow):
            if find_gpu(name).arch == arch:
                return min(1.0, clock * narrow[name] / kin_clock(find_gpu(name), clocks)[0]), "assumed"
    return clock, source


def kin_clock(gpu: Gpu, clocks: Mapping[str, float]) -> tuple[float, Source]:
    """The training clock of a GPU from `clocks` (GPU name -> clock): its own, or (also for its own name at another power limit) that of the nearest
    GPU, scaled by the watts per peak FLOP/s of both. The effect of a power limit that is already in the rate of its kernels (`powered`) is taken
    out, so that it counts once."""
    if gpu.name in clocks and _as_sold(gpu):
        return clocks[gpu.name], "fitted"
    for arch in (gpu.arch, *NEAREST.get(gpu.arch, ())):
        for name in _own_first(gpu, clocks):
            other = find_gpu(name)
            if other.arch == arch:
                follows, _ = by_arch(gpu, table("sustained", "follows", dict[str, float]))
                scaled = clocks[name] * _watts(gpu, _counted(gpu, other)) ** follows
                return min(1.0, scaled * powered(other, "bf16") / powered(gpu, "bf16")), "assumed"
    return 1.0, "assumed"


def _counted(gpu: Gpu, other: Gpu) -> Gpu:
    """The GPU whose watts per peak FLOP/s are compared with those of `gpu` when it takes the clock of `other`: `other` itself, or, where that is of
    another architecture, the GPU of `gpu`'s architecture in the table [told], whose power limit holds it down in benchmarks already."""
    name = table("sustained", "told", dict[str, str]).get(gpu.arch)
    told = find_gpu(name) if name else other
    return told if told.arch == gpu.arch != other.arch else other


def _as_sold(gpu: Gpu) -> bool:
    """True where the GPU has the power limit of the catalog's GPU of its name."""
    return _watts(gpu, find_gpu(gpu.name)) == 1.0


def _own_first(gpu: Gpu, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != gpu.name, name))


def _watts(gpu: Gpu, other: Gpu) -> float:
    """Watts per peak FLOP/s of the catalog (`as_sold`), over the other GPU's; 1 where a power limit or a peak is not known."""
    peaks = as_sold(gpu).flops
    key = "fp16" if "fp16" in peaks and "fp16" in other.flops else "fp32"
    if not (gpu.power and other.power and peaks.get(key) and other.flops.get(key)):
        return 1.0
    return gpu.power / other.power * other.flops[key] / peaks[key]


def board_spread() -> float:
    """Standard deviation of the rate under load among boards of one kind, as a share of their mean."""
    return table("sustained", "boards", dict[str, float])["spread"]


@cache
def slowest(gpus: int) -> float:
    """Clock of the slowest of `gpus` equal boards over that of the mean board: all others wait for it in every step.

    Chips of one kind differ (`board_spread`). The largest of n normal values lies
    where the distribution reaches (n - 0.375) / (n + 0.25) (Blom 1958).
    """
    return 1.0 - board_spread() * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 1.0
