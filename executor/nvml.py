"""What the driver reports of the GPUs (NVML): their properties, and while they work, clocks, power, temperature and throttling.

A step time is not reproducible without the clock at which it ran. The sampler runs in the process that starts the ranks, which never
opens a CUDA context itself. Without nvidia-ml-py or a driver nothing is recorded, and the run goes on.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

from executor.sampling import beside

PERIOD = 0.2
"""Seconds between samples: NVML refreshes power and clocks some ten times a second."""
_BUSY = 0.05
"""Samples in which the GPU ran kernels for less than this share of the time are ignored: they do not show the clocks of training."""


def library() -> Any:
    """pynvml, initialised; None without the library, a driver or the permission."""
    with suppress(Exception):
        import pynvml

        found: Any = pynvml
        found.nvmlInit()
        return found
    return None


@contextmanager
def clocks(period: float = PERIOD, nvml: Any = None) -> Iterator[dict[str, Any]]:
    """Samples the first GPU while the body runs. The dictionary is filled when the body has ended, with medians over the samples in which
    the GPU was busy, and the share of them in which its clocks were throttled (`held_down`); it stays empty without NVML.

    `nvml` stands in for pynvml in tests.
    """
    found: dict[str, Any] = {}
    nvml = nvml or library()
    if nvml is None:
        yield found
        return
    samples = list[dict[str, float]]()
    try:
        with beside(partial(_watch, nvml, period, samples), period):
            yield found
    finally:
        busy = [one for one in samples if one.get("busy", 0.0) >= _BUSY] or samples
        found |= {name: statistics.median(values) for name in _NAMES if (values := [one[name] for one in busy if name in one])}
        if held := [one["held_down"] > 0 for one in busy if "held_down" in one]:  # some drivers do not report it
            found["held_down"] = sum(held) / len(held)
        found["samples"] = len(busy)


def device_facts(nvml: Any = None) -> dict[str, Any]:
    """Name, driver, memory, power limit and highest clocks of the first GPU; {} without NVML."""
    nvml = nvml or library()
    if nvml is None:
        return {}
    found: dict[str, Any] = {}
    with suppress(Exception):  # NVML raises its own errors for each figure that a device does not report
        found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        found["count"] = nvml.nvmlDeviceGetCount()
    with suppress(Exception):
        gpu = first_gpu(nvml)
        found["name"] = _text(nvml.nvmlDeviceGetName(gpu))
        found["memory_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)
        found["highest_sm_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)
        found["highest_memory_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM)
        found["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3
    with suppress(Exception):  # boards without MIG raise
        if nvml.nvmlDeviceGetMigMode(first_gpu(nvml))[0]:
            found["slices"] = True
    return found


def driver() -> str:
    """Version of the driver; "" without NVML."""
    return str(device_facts().get("driver", ""))


class Meter:
    """The power that one GPU draws, as a share of its power limit."""

    def __init__(self, at: int = 0, nvml: Any = None) -> None:
        """`at`: CUDA's number of the GPU. Raises `LookupError` if NVML is missing or does not report power."""
        self._nvml = nvml or library()
        if self._nvml is None:
            raise LookupError("no NVML: pip install nvidia-ml-py")
        try:
            self._gpu = first_gpu(self._nvml, at=at)
            self._limit = self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu) / 1e3
            self._nvml.nvmlDeviceGetPowerUsage(self._gpu)
        except Exception as error:  # NVML's own errors
            raise LookupError(f"NVML tells no power: {error}") from None

    def joules(self) -> float:
        """Joules that the GPU has drawn since its driver was loaded; the counter is updated every few hundredths of a second. 0 if it has
        no counter."""
        with suppress(Exception):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)) / 1e3
        return 0.0

    def share(self, looks: Sequence[tuple[float, float]]) -> float:
        """Mean power draw over the limit. `looks`: readings of the counter as (seconds, joules), of which those count where it had changed;
        the draw is the slope of a line through them. Without a counter it is the driver's current figure, on newer GPUs a mean over the
        last second."""
        changed = [now for before, now in pairwise(looks) if now[1] > before[1]]
        if len(changed) > 1:
            return float(statistics.linear_regression(*zip(*changed, strict=True)).slope / self._limit)
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1e3 / self._limit)


def first_gpu(nvml: Any, variables: Mapping[str, str] = os.environ, at: int = 0) -> Any:
    """The driver's handle of the GPU that CUDA calls 0 (or `at`). CUDA_VISIBLE_DEVICES names GPUs by number or by the beginning of a UUID
    (GPU-8d3f...). Raises `LookupError` if the driver knows no GPU of that name, and for a MIG slice (MIG-...): the driver's figures would
    be of another GPU, or of the whole one."""
    seen = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
    first = seen[at].strip() if at < len(seen) else ""
    if first.startswith("MIG-"):
        raise LookupError(f"{first} is a slice of a GPU, and the driver's figures are of whole ones")
    if not first.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else at)
    known = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    for gpu in known:
        if _text(nvml.nvmlDeviceGetUUID(gpu)).startswith(first):
            return gpu
    raise LookupError(f"the driver knows no GPU {first}")


_NAMES = ("sm_mhz", "memory_mhz", "watts", "celsius", "busy")
_IDLE = 1
"""nvmlClocksThrottleReasonGpuIdle, which does not count as throttling."""


def _watch(nvml: Any, period: float, samples: list[dict[str, float]], stop: threading.Event) -> None:
    try:
        gpu = first_gpu(nvml)
    except Exception:
        return
    while not stop.wait(period):
        samples.append(_look(nvml, gpu))


def _look(nvml: Any, gpu: Any) -> dict[str, float]:
    """One sample; figures that the device does not report are left out."""
    asked: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "watts": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "busy": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
        "held_down": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & ~_IDLE,
    }
    found: dict[str, float] = {}
    for name, ask in asked.items():
        with suppress(Exception):
            found[name] = float(ask())
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
