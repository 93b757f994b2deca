"""The plans of `executor.validation.gpu_plans` as cases: where each runs, and the machine that stands for one GPU that several ranks
share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from executor.needs import unusable
from executor.nvml import device_facts
from executor.validation import gpu_plans
from sim.files.planfile import load_plan
from sim.files.runs import write_atomic
from sim.plan import Plan
from topologies.errors import BadInput, Refused
from topologies.load import Topology, load_topology
from topologies.nvidia import catalog_key, hidden
from topologies.thismachine import cores, nearest_cpu

Where = Literal["one", "node", "shared"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of the table. `where`: on one GPU, on all GPUs of the node, or with ranks that share one GPU."""

    name: str
    kind: str
    plan: Plan
    where: Where = "one"


def cases(gpus: int, small: bool = False) -> dict[str, Case]:
    """Name -> case of all plans, the first ones of each group first. `small`: tiny plans of the same kinds."""
    groups: tuple[tuple[Where, dict[str, tuple[str, gpu_plans.Tree]]], ...] = (
        ("one", gpu_plans.single()),
        ("shared", gpu_plans.shared()),
        ("node", gpu_plans.node(gpus)),
    )
    shape = gpu_plans.shrunk if small else lambda tree: tree
    found = [
        Case(name=name, kind=kind, plan=load_plan(shape(tree) | {"name": name}), where=where)
        for where, plans in groups
        for name, (kind, tree) in plans.items()
    ]
    # The first plans of each group, then the rest: if time runs out, only more plans of the same kinds are missing.
    place = {id(case): (at >= _FIRST[where]) for where in _FIRST for at, case in enumerate(one for one in found if one.where == where)}
    return {case.name: case for case in sorted(found, key=lambda case: place[id(case)])}


_FIRST: dict[Where, int] = {"one": 11, "shared": 1, "node": 4}


def this_machine(device: str, folder: Path) -> Topology:
    """This computer with devices of kind `device`. Raises `Refused` if it has none, or if its GPU is a MIG slice.

    If nvidia-smi is missing or cannot tell how the GPUs are linked (in some containers), the GPUs that NVML or torch counts are assumed to
    be on one socket.
    """
    facts = _facts() if device == "cuda" and not hidden() else {}
    named = device == "cuda" and "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if named or facts.get("slices") or "MIG" in facts.get("name", "").split():
        raise Refused(
            "this machine's GPU is cut into slices (MIG), whose rates are not in the catalog: the table would compare a slice with predictions of "
            "the whole. Have MIG turned off (nvidia-smi -mig 0), or take another GPU (CUDA_VISIBLE_DEVICES)"
        )
    try:
        machine = load_topology("this-machine")
    except BadInput as error:
        if not facts:
            raise
        return _counted(facts, str(error), folder)
    if facts and machine.kind != device:
        machine = _counted(facts, "no nvidia-smi", folder)
    if machine.kind != device:
        raise Refused(
            f"this machine's devices are of kind {machine.kind}, asked for was {device}. Without a GPU, `--device cpu` walks the same way with "
            "tiny plans; with one, CUDA_VISIBLE_DEVICES= hides it"
        )
    return machine


def _counted(facts: dict[str, Any], why: str, folder: Path) -> Topology:
    """A machine with as many GPUs as were counted, on one socket. `why`: noted as its source."""
    key = catalog_key(facts["name"], round(facts.get("memory_bytes", 0) / 2**20))
    return load_topology(_on_one_socket("this-machine", f"{facts['by']}; {why}"[:200], key, facts.get("count", 1), folder))


def _facts() -> dict[str, Any]:
    """Facts about the GPUs from NVML, or from torch without NVML; {} if there are none. torch's name of a MIG slice contains its
    profile."""
    if (facts := device_facts()).get("name"):
        return facts | {"by": "NVML"}
    return facts | {"by": "torch"} if (facts := _seen_by_torch()) else {}


_LOOK = "import torch; one = torch.cuda.get_device_properties(0); print(torch.cuda.device_count(), one.total_memory, one.name)"


def _seen_by_torch() -> dict[str, Any]:
    """The same facts from torch in a separate process, since asking opens a CUDA context; {} if torch sees no GPU."""
    try:
        done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=_PATIENCE, check=True)
        count, memory, name = done.stdout.strip().split(" ", 2)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {"count": int(count), "memory_bytes": int(memory), "name": name}


_PATIENCE = 120.0
"""Most seconds to import torch and to ask for its devices."""


def visible_gpus(machine: Topology) -> int:
    """Number of the machine's GPUs that torch can compute on. Raises `Refused` if there are none, as ranks would compute on the CPU: with a
    torch without CUDA, without visible GPUs, or with a driver that is too old for torch's CUDA, which still counts its GPUs
    (`torch.cuda.device_count` asks NVML)."""
    import torch

    count = torch.cuda.device_count()
    why = unusable() if count else ""
    if why or count < 1:
        raise Refused(
            f"torch {torch.__version__} {f'cannot use the GPUs of {machine.name}: {why}' if why else f'sees no GPU of {machine.name}'}. Install a "
            "build with CUDA that this driver runs (nvidia-smi names its newest CUDA; a version with +cpu has none), or look at CUDA_VISIBLE_DEVICES"
        )
    return min(count, machine.gpus)


def _on_one_socket(name: str, source: str, gpu: str, count: int, folder: Path) -> Path:
    gpus = ", ".join(f'"gpu{at}"' for at in range(count))
    text = (
        f'name = "{name}"\nsource = {msgspec.json.encode(source).decode()}\ngpu = "{gpu}"\n'
        f'[cpu]\nbase = "{nearest_cpu() or "epyc-7742"}"\ncores = {cores()}\n[tree]\nsocket0 = [{gpus}]\n'
    )
    return write_atomic(folder / f"{name}.toml", text)


def shared_machine(ranks: int, gpu: str, folder: Path) -> Path:
    """A stand-in for one GPU that `ranks` ranks share: as many GPUs on one socket, which are meant to run without peer-to-peer and each at
    a share of the speed (`slow`).

    The driver gives the whole GPU to its processes in turn (time slices), so while all compute, each has 1/ranks of the speed. gloo copies
    to host memory, sums there and copies back, as GPUs without peer-to-peer do. Assumed; not yet measured.
    """
    return _on_one_socket(f"shared-{ranks}", f"one GPU in {ranks} shares: assumed", gpu, ranks, folder)


def slow(ranks: int) -> tuple[str, ...]:
    """The edits of the machine that give each rank 1/ranks of the speed."""
    return tuple(f"slow=r{rank}:{1.0 / ranks:.6f}" for rank in range(ranks))
