"""Settings that are common to all plans of one call of `executor.validation.gpu_twin`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from executor.twin import Say
from topologies.load import Topology


class Site(msgspec.Struct, kw_only=True):
    """Where and how all plans of one call run. `gpus`: GPUs that may be used; `steps`: most timed steps of a plan; `quick`: a short
    probe."""

    folder: Path
    machine: Topology
    device: str
    gpus: int
    steps: int
    quick: bool
    say: Say
    end: float
    """Time (time.monotonic) after which no plan is begun."""
    made_with: tuple[str, ...]
    versions: dict[str, str] = {}
    """Versions of the driver, torch and this program (its commit), which are written into each new row."""
    unprobed: str = ""
    """Why there is no calibration; "" if there is one."""
    unmet: dict[str, str] = {}
    """Name of a calibration's file -> why its collectives could not be probed, so that this is not tried again for other plans."""


def gpu_name(machine: Topology, device: str) -> str:
    """The catalog's name of the GPU, which is used for folders; `cpu` without a GPU."""
    return machine.device(0).name if device == "cuda" else "cpu"
