"""The plans of `executor.gpu_plans` as cases: where each runs, and the machine that stands for one GPU with several ranks on it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from executor import gpu_plans
from sim.plan import Plan
from sim.planfile import load_plan
from sim.runs import write_atomic
from topologies.load import load_topology

Where = Literal["one", "node", "shared"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of the table."""

    name: str
    kind: str
    plan: Plan
    where: Where = "one"


def cases(gpus: int, small: bool = False) -> dict[str, Case]:
    """All plans by name; `small`: tiny ones of the same kinds."""
    groups: tuple[tuple[Where, dict[str, tuple[str, gpu_plans.Tree]]], ...] = (
        ("one", gpu_plans.single()),
        ("shared", gpu_plans.shared()),
        ("node", gpu_plans.node(gpus)),
    )
    shape = gpu_plans.shrunk if small else lambda tree: tree
    return {
        name: Case(name=name, kind=kind, plan=load_plan(shape(tree) | {"name": name}), where=where)
        for where, plans in groups
        for name, (kind, tree) in plans.items()
    }


def shared_machine(ranks: int, folder: Path) -> Path:
    """A stand-in for one GPU that `ranks` ranks share: as many GPUs on one socket, without peer-to-peer, each at a share of the speed.

    The driver gives processes of one GPU the whole of it in turn (time slices), so each computes at 1/ranks of its speed while all do;
    gloo copies to host memory, sums there and copies back, which is what GPUs without peer-to-peer do too. Assumed; not yet measured.
    """
    name = load_topology("this-machine").device(0).name
    path = folder / f"shared-{ranks}.toml"
    gpus = ", ".join(f'"gpu{at}"' for at in range(ranks))
    write_atomic(
        path,
        f'name = "shared-{ranks}"\nsource = "one GPU in {ranks} shares: assumed"\ngpu = "{name}"\ncpu = "epyc-7742"\n[tree]\nsocket0 = [{gpus}]\n',
    )
    return path


def slow(ranks: int) -> tuple[str, ...]:
    """The edits that leave each rank its share of the speed."""
    return tuple(f"slow=r{rank}:{1.0 / ranks:.6f}" for rank in range(ranks))
