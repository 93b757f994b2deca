"""What is left of a kernel benchmark's tensor-core rate in training, hour after hour.

A benchmark repeats one kernel for a moment, on a cool GPU and often on tame numbers. In training all kernels draw
power together, and the board lowers its clock until the draw meets the limit: A100 8192^3 runs at 258 TFLOP/s on
normally distributed numbers and at 295 on zeros (thonking.ai), H100 falls from 770 to 723 and H200 from 780 to 672 from
4096 to 8192 cubes. The rest is a number per GPU, fitted on published training steps (`sim.accuracy.refit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from sim.cost.device import NEAREST, table
from sim.cost.price import Source
from sim.work import BYTES
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu


@cache
def _clocks(kind: str) -> dict[str, float]:
    return table("sustained", kind, dict[str, float])


_assumed: list[float] = []


def assume(clock: float | None) -> None:
    """For refits: all GPUs keep `clock`; None gives each its own again. Prices already known are forgotten."""
    from sim.cost.kernel import forget

    _assumed[:] = [] if clock is None else [clock]
    forget()


def training_clock(gpu: Gpu, dtype: str = "bf16") -> tuple[float, Source]:
    """Rate of tensor cores in training over that in kernel benchmarks, at most 1. 8-bit units may have a clock of their own.

    A GPU without a number takes that of the nearest architecture, scaled by the watts that it has for each peak FLOP/s:
    where the limit binds, the rate that can be fed grows as the limit does.
    """
    if _assumed:
        return _assumed[0], "assumed"
    narrow = _clocks("fp8") if BYTES.get(dtype, 2.0) < 2 else {}
    return (narrow[gpu.name], "fitted") if gpu.name in narrow else kin_clock(gpu, _clocks("clock"))


def kin_clock(gpu: Gpu, clocks: Mapping[str, float]) -> tuple[float, Source]:
    """The clock of a GPU from those of some, by name or by kinship."""
    if gpu.name in clocks:
        return clocks[gpu.name], "fitted"
    for arch in (gpu.arch, *NEAREST.get(gpu.arch, ())):
        for name in sorted(clocks):
            other = find_gpu(name)
            if other.arch == arch:
                return min(1.0, clocks[name] * _watts(gpu, other)), "assumed"
    return 1.0, "assumed"


def _watts(gpu: Gpu, other: Gpu) -> float:
    """Watts per peak FLOP/s over the other GPU's; 1 where a limit is not known."""
    key = "fp16" if "fp16" in gpu.flops and "fp16" in other.flops else "fp32"
    if not (gpu.power and other.power and gpu.flops.get(key) and other.flops.get(key)):
        return 1.0
    return (gpu.power / gpu.flops[key]) / (other.power / other.flops[key])
