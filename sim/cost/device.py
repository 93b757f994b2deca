"""Fitted parameters, and which of them apply to a GPU.

`params/*.toml` hold what was fitted, GPU by GPU and architecture by architecture, each with its source. A GPU
that was not measured takes the parameters of its own architecture, else those of the nearest one (`NEAREST`);
all rates are shares of a GPU's specification, so they carry over. Costs from another architecture are `assumed`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from sim.cost.price import Source
from topologies.devices import gpu as find_gpu
from topologies.devices import shelf
from topologies.errors import Refused
from topologies.hardware import Gpu

T = TypeVar("T")

PARAMS = Path(__file__).parent / "params"

NEAREST = {
    "sm37": ("sm60", "sm61", "sm70"),
    "sm60": ("sm61", "sm70", "sm80"),
    "sm61": ("sm60", "sm70", "sm80"),
    "sm70": ("sm75", "sm80", "sm60"),
    "sm75": ("sm70", "sm80", "sm60"),
    "sm80": ("sm86", "sm120", "sm89", "sm90", "sm70"),
    "sm86": ("sm80", "sm120", "sm89"),
    "sm89": ("sm86", "sm120", "sm80"),
    "sm90": ("sm100", "sm80"),
    "sm100": ("sm103", "sm90", "sm80"),
    "sm103": ("sm100", "sm90", "sm80"),
    "sm107": ("sm103", "sm100", "sm90", "sm80"),
    "sm120": ("sm80", "sm89", "sm86"),
    "gfx908": ("gfx90a", "gfx942", "sm80"),
    "gfx90a": ("gfx908", "gfx942", "sm80"),
    "gfx942": ("gfx90a", "gfx908", "sm90", "sm80"),
}
"""For each architecture, those whose parameters may stand in for its own, the most similar first. Similar means the same kind of matrix units:
synchronous mma (sm70-89, sm120), warp-group and tensor memory (sm90-107), AMD's. Where none of that kind is left, the generation before stands in."""
TWO_DIES = ("sm100", "sm103", "sm107")
"""Data-centre Blackwell and Rubin: two dies behind one address space."""
GROUPED = ("sm90", *TWO_DIES)
"""Hopper and its data-centre successors: warp groups issue matrix products, and NVSwitches reduce (NVLS)."""
ANY = "sm80"
"""The architecture that is tried last, and the only one for architectures that `NEAREST` does not list."""

STORED = {"mxfp8": "fp8", "rowfp8": "fp8", "nvfp4": "fp4"}
"""dtype -> the dtype at whose peak FLOP/s it runs."""
BLOCKS = {"mxfp8": "fp4", "nvfp4": "fp4"}
"""Dtypes with one scale for each block of values -> the dtype whose units a GPU must have for them: matrix units that apply block scales came with
the 4-bit units (PTX ISA, mma .block_scale: sm_100 and later)."""


@cache
def document(name: str) -> Mapping[str, object]:
    """The content of `params/NAME.toml` as plain values."""
    return tomllib.loads((PARAMS / f"{name}.toml").read_text("utf-8"))


def table(name: str, key: str, kind: type[T]) -> T:
    """One table of a parameter file, converted to `kind`."""
    return msgspec.convert(document(name)[key], kind)


def as_sold(gpu: Gpu) -> Gpu:
    """The catalog entry of this name: the power limit goes with the peaks and the clock of that entry, not with those that a what-if sets. A GPU
    whose name is not in the catalog is returned unchanged."""
    return find_gpu(gpu.name) if gpu.name in shelf("gpus") else gpu


def choose(gpu: Gpu, fits: Mapping[str, str]) -> tuple[str, Source]:
    """The key of `fits` (GPU name -> architecture) whose parameters describe this GPU, and their source.

    The GPU's own key, else the first by name of its architecture ("fitted"); else the first by name of the nearest architecture ("assumed").
    """
    if gpu.name in fits:
        return gpu.name, "fitted"
    for place, arch in enumerate((gpu.arch, *NEAREST.get(gpu.arch, ()), ANY)):
        found = [key for key, of in fits.items() if of == arch]
        if found:
            return sorted(found)[0], "fitted" if place == 0 else "assumed"
    return sorted(fits)[0], "assumed"


def by_arch(gpu: Gpu, values: Mapping[str, T]) -> tuple[T, Source]:
    """The value of the GPU's architecture ("fitted"), or of the nearest one that has a value ("assumed")."""
    for place, arch in enumerate((gpu.arch, *NEAREST.get(gpu.arch, ()), ANY)):
        if arch in values:
            return values[arch], "fitted" if place == 0 else "assumed"
    return next(iter(values.values())), "assumed"


def peak_flops(gpu: Gpu, dtype: str) -> float:
    """Dense peak FLOP/s of a dtype. On a GPU without TF32 units tf32 runs as fp32 (as in torch). Raises `Refused` for a dtype that the GPU has no
    units for."""
    key = STORED.get(dtype, dtype)
    if key not in gpu.flops and key == "tf32":
        key = "fp32"
    if key not in gpu.flops or (dtype in BLOCKS and BLOCKS[dtype] not in gpu.flops):
        known = ", ".join(sorted({*gpu.flops, *(name for name, units in BLOCKS.items() if units in gpu.flops)}))
        raise Refused(f"{gpu.name} ({gpu.arch}) has no units for {dtype}. Allowed on it: {known}. Choose such a precision, or another GPU")
    return gpu.flops[key]
