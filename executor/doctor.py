"""What is installed, which devices are there, and what is missing for what: `steptwin doctor`."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from importlib import metadata
from typing import Any

from executor.needs import unusable
from topologies.thismachine import cores

_NEEDS = {
    "predict": ("simpy", "networkx", "msgspec"),
    "reports": ("plotly",),
    "run, play, probe": ("torch",),
    "sweep on a cluster": ("joblib", "distributed"),
    "search": ("optuna",),
    "measured kernel tables": ("aiconfigurator_core", "pyarrow"),
    "GPU inventory": ("pynvml",),
}
_DISTRIBUTION = {"aiconfigurator_core": "aiconfigurator-core", "pynvml": "nvidia-ml-py"}
_EXTRA = {
    "torch": "torch",
    "pynvml": "torch",
    "joblib": "sweep",
    "distributed": "sweep",
    "optuna": "search",
    "aiconfigurator_core": "tables",
    "pyarrow": "tables",
}


def doctor() -> dict[str, Any]:
    """Plain values: versions, devices, the compiler for torch.compile, and what is missing for each thing that StepTwin does. Imports torch
    only to list devices and backends."""
    rows, broken = [], _broken_torch()
    for what, modules in _NEEDS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None or (name == "torch" and broken)]
        extras = sorted({_EXTRA[name] for name in missing if name in _EXTRA})
        anew = "--force-reinstall " if "torch" in missing and broken else ""
        remedy = f'pip install {anew}"steptwin[{",".join(extras)}]"' if extras else ""
        rows.append({"for": what, "ready": not missing, "missing": missing, "remedy": remedy})
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": cores(),
        "versions": {name: _version(name) for modules in _NEEDS.values() for name in modules if _version(name)},
        "devices": _devices(broken),
        "backends": _backends(broken),
        "compiler": shutil.which("cc") or shutil.which("gcc") or "none",
        "rows": rows,
    }


def _version(module: str) -> str:
    try:
        return metadata.version(_DISTRIBUTION.get(module, module))
    except metadata.PackageNotFoundError:
        return ""


def _broken_torch() -> str:
    """Why torch is installed but cannot be imported, for example as a CUDA library is missing; "" if it can, or is not installed."""
    if importlib.util.find_spec("torch") is None:
        return ""
    try:
        importlib.import_module("torch")
    except Exception as error:  # whatever a broken installation raises
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _devices(broken: str) -> list[str]:
    if broken:
        return [f"cpu (torch is installed and cannot be imported: {broken})"]
    if importlib.util.find_spec("torch") is None:
        return ["cpu (torch is not installed: devices are not asked for)"]
    import torch

    count = torch.cuda.device_count()
    why = unusable() if count else ""  # a driver that is too old counts its GPUs, but gives no names
    found = [f"cpu ({count} GPUs that torch {torch.__version__} cannot use: {why})"] if why else []
    found = found or [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]
    return found or ["cpu"]


def _backends(broken: str) -> list[str]:
    """Backends of torch.distributed that are available."""
    if importlib.util.find_spec("torch") is None or broken:
        return []
    import torch

    return [name for name in ("gloo", "nccl") if getattr(torch.distributed, f"is_{name}_available")()]
