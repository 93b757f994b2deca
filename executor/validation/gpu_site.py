"""Where and how all plans of one call of `executor.validation.gpu_twin` run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from executor.twin import Say
from topologies.load import Topology


class Site(msgspec.Struct, kw_only=True):
    """Where and how all plans of a call run."""

    folder: Path
    machine: Topology
    device: str
    gpus: int
    steps: int
    quick: bool
    say: Say
    end: float
    """Moment (time.monotonic) after which no plan is begun."""
    made_with: tuple[str, ...]
    versions: dict[str, str] = {}
    """Of the driver, torch and this program (its commit): what each row that is made now says of itself."""
    unprobed: str = ""
    """Why there is no calibration."""
    unmet: dict[str, str] = {}
    """Calibrations, by the name of their file, whose collectives could not be probed, and why: it is not tried again for each of their plans."""


def gpu_name(machine: Topology, device: str) -> str:
    """The catalog's name of the GPU, as folders are called; `cpu` without one."""
    return machine.device(0).name if device == "cuda" else "cpu"
