"""What a system monitor would show while a run is under way: cores and memory (psutil), GPUs (nvidia-ml-py), ten times a second.

The samples are written to `usage.json` in the run's folder; without psutil there are none, and the run goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from executor.nvml import library
from executor.ranks.environment import leads
from executor.sampling import beside
from sim.files.runs import write_atomic
from topologies.thismachine import cores_of_process

PERIOD = 0.1
"""Seconds between samples. The operating system counts processor time in ticks of 1-10 ms: a single sample is accurate to some 10 %, the
mean of many is better."""


class Sample(msgspec.Struct, frozen=True):
    """One look at the machine."""

    time: float
    """Seconds on the clock of all spans (time.perf_counter)."""
    cores: tuple[float, ...]
    """Share of the time since the sample before in which each core was busy, 0 to 1, with all programs."""
    memory: int
    """Bytes of main memory in use."""
    gpus: tuple[float, ...] = ()
    """Share of the time in which each GPU ran a kernel (NVML's utilisation), 0 to 1."""
    gpu_memory: tuple[int, ...] = ()
    """Bytes of each GPU's memory in use, by all programs."""


class Usage(msgspec.Struct):
    """All samples of a run."""

    samples: list[Sample]
    period: float = PERIOD


@contextmanager
def watched(folder: Path, period: float = PERIOD) -> Iterator[Usage]:
    """Takes samples while the body runs, then writes `folder/usage.json`, even if the body fails. Of ranks that a launcher started, only
    the first one does so: they share the folder, and sampling would slow each one's steps."""
    usage = Usage([], period)
    if not leads():
        yield usage
        return
    try:
        with beside(partial(_watch, usage), period):
            yield usage
    finally:
        with suppress(OSError):  # a full disk must not hide why the run ended
            write_atomic(folder / "usage.json", msgspec.json.encode(usage))


def taken_by_others() -> float:
    """CPU seconds that this process's cores have spent so far on other programs than this process and its ended children; 0.0 without
    psutil."""
    try:
        import psutil
    except ImportError:
        return 0.0
    every = psutil.cpu_times(percpu=True)
    own = [every[core] for core in cores_of_process() if core < len(every)]
    guests = ("guest", "guest_nice")  # counted as user and nice, too
    still = sum(getattr(core, name, 0.0) for core in own for name in ("idle", "iowait", *guests))
    return sum(map(sum, own)) - still - sum(os.times()[:4])


def _watch(usage: Usage, stop: threading.Event) -> None:
    try:
        import psutil
    except ImportError:
        return
    nvml = library()
    gpus = _gpus(nvml)
    psutil.cpu_percent(percpu=True)
    while not stop.wait(usage.period):
        cores = tuple(min(1.0, share / 100) for share in psutil.cpu_percent(percpu=True))
        busy: tuple[float, ...] = ()
        held: tuple[int, ...] = ()
        with suppress(Exception):  # a driver that answers badly once must not end the samples of the cores
            busy = tuple(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100 for gpu in gpus)
            held = tuple(int(nvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in gpus)
        usage.samples.append(Sample(time.perf_counter(), cores, int(psutil.virtual_memory().used), busy, held))


def _gpus(nvml: Any) -> list[Any]:
    """Handles of all GPUs; an empty list if the driver reports none."""
    with suppress(Exception):
        return [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    return []
