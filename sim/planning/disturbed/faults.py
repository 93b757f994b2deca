"""What a fault costs: the step of a plan on a topology that is whole, and on the same one with something failed or slow.

A fault is one edit of `topologies.edits` ("fail=nvswitch:1", "fail=nic:n0/nic1", "fail=spine:0", "slow=r3:0.8"), or `flap=WHAT:DUTY`:
a part that is down for the fraction DUTY of the time ("flap=nic:n0/nic1:0.3"). While it is down the step is that of `fail=WHAT`, so in
one second (1 - DUTY) / whole + DUTY / failed steps are made: the mean step is weighted by time, which is the harmonic mean of the two.
Without the part some ranks may not reach each other, as where it is a node's only NIC: no step is made while it is down.
What a restart, a time-out or a reconnection costs is not in it; `sim.planning.capacity.goodput` counts interruptions. What logging and checkpoints
add to a step is taken to be the same with the fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sim.files.machinefile import machine_words
from sim.memory.report import UNFIT
from sim.plan import Plan
from sim.planning.progress import Progress, Say
from sim.predict import predict_setting
from sim.result.figures import fits
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.stalls import output_seconds
from sim.tables import Tabular
from topologies.errors import BadInput, Disconnected
from topologies.load import Topology, load_topology

T = TypeVar("T")
SLOW = 0.8
"""Speed of the slow GPU among the faults tried by default: thermal throttling of this order is what fleet studies look for (assumed)."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One row: seconds per step with the fault, and how many times the whole machine's step that is."""

    fault: str
    step_time_s: float
    slowdown: float


class Faults(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """The table of a plan on a topology. Prints as text; `to_dict()` is its JSON, `to_frame()` its rows."""

    plan: str
    topology: str
    step_time_s: float
    """Seconds per step when nothing is broken, as `predict` says it."""
    rows: tuple[Fault, ...]
    fits: bool = True
    """Does the plan fit into memory? If not, the figures are what it would take if it did."""

    def __str__(self) -> str:
        width = max([len("fault"), *(len(row.fault) for row in self.rows)])
        lines = [f"{'fault':<{width}}  {'step, ms':>12}  slowdown", f"{'none':<{width}}  {self.step_time_s * 1e3:12.3f}  1.000"]
        lines += [f"{row.fault:<{width}}  {row.step_time_s * 1e3:12.3f}  {row.slowdown:.3f}" for row in self.rows]
        return "\n".join([*lines, *([] if self.fits else [UNFIT])])

    def _rows(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(row) for row in self.rows]


def faults(
    plan: Plan | str | Path | dict[str, Any],
    topology: Topology | str | Path,
    tried: str | tuple[str, ...] = (),
    *,
    edits: tuple[str, ...] = (),
    say: Say | None = None,
) -> Faults:
    """The step of `plan` under each fault of `tried` (none given: the `usual` ones), each alone, on `topology` after `edits`.

    `say` is told how far it is. Raises `BadInput` for a fault that the machine does not have (before anything is simulated), or after which some
    ranks cannot reach each other.
    """
    setting = bind(plan, topology, edits)
    tried = (tried,) if isinstance(tried, str) else tried or usual(setting.topology, setting.plan.world)
    held = {fault: _read(fault) for fault in tried}
    longest: dict[str, float] = {}
    for edit, duty in held.values():
        longest[edit] = max(duty, longest.get(edit, 0.0))
    broken = {edit: _unless_apart(partial(_broken, setting, edit), setting, duty) for edit, duty in longest.items()}
    progress = Progress(1 + len(broken), "machines simulated, the whole one and each with a fault", say)
    whole = _step(setting)
    stall = output_seconds(setting, pricer_for(setting), whole, [])
    whole += stall
    progress.more()
    steps = {}
    for edit, there in broken.items():
        step = None if there is None else _unless_apart(partial(_step, there), there, longest[edit])
        steps[edit] = math.inf if step is None else step + stall
        progress.more()
    rows = []
    for fault in tried:
        edit, duty = held[fault]
        step = 1.0 / ((1.0 - duty) / whole + duty / steps[edit])
        rows.append(Fault(fault=fault, step_time_s=step, slowdown=step / whole))
    return Faults(
        plan=setting.plan.name or setting.plan.model_name,
        topology=machine_words(setting.topology),
        step_time_s=whole,
        rows=tuple(rows),
        fits=fits(setting),
    )


def usual(topology: Topology, ranks: int) -> tuple[str, ...]:
    """A slow rank, and where there are such parts: an NVSwitch chip (else an NVLink) down, a NIC flapping and down (a node's only one, which plans of
    `ranks` on several nodes need, flaps alone), a spine down."""
    found = [f"slow=r0:{SLOW}"]
    machine = topology.machine(0)
    if machine.chips:
        found.append("fail=nvswitch:n0/1")
    else:
        cable = next((name for name, link in machine.links.items() if link.kind in ("nvlink", "xgmi")), None)
        if cable is not None:
            ends = cable.split(">")
            found.append(f"fail=link:n0/{ends[0]}-n0/{ends[1]}")
    fabric = topology.cluster.fabric
    if topology.nodes > 1 and machine.nics:
        nic = next(iter(machine.nics))
        # On rails without spines nothing leads from another NIC to the rail of the one that is down.
        others = len(machine.nics) > 1 and (not fabric.rail_only or fabric.rails == 1)
        found += [f"flap=nic:n0/{nic}:0.1"] if others or topology.nodes_of(ranks) > 1 else []
        found += [f"fail=nic:n0/{nic}"] if others else []
    if topology.nodes > fabric.pod and fabric.spine_count > 1:  # nodes below the same leaves send nothing over spines
        found.append(f"fail=spine:{fabric.spine_name(0, 0).removeprefix('net/spine')}")
    return tuple(found)


def _read(fault: str) -> tuple[str, float]:
    """(edit, fraction of time for which it holds): what flaps is the same machine, while it is down, as what has failed. Raises `BadInput`."""
    key, _, value = fault.partition("=")
    if key.strip() in ("fail", "slow"):
        return fault, 1.0
    what, colon, duty = value.rpartition(":")
    try:
        share = float(duty)
    except ValueError:
        share = -1.0
    if key.strip() != "flap" or not colon or not 0.0 <= share <= 1.0:
        raise BadInput(
            f"cannot read the fault {fault[:80]!r}. Write fail=nic:n0/nic1, fail=link:gpu0-nvswitch, fail=spine:0, slow=r3:0.8, "
            "or flap=nic:n0/nic1:0.3 for a part that is down for 0.3 of the time (0 to 1)"
        )
    return f"fail={what}", share


def _broken(setting: Setting, edit: str) -> Setting:
    """The setting with the fault that an edit makes. Raises `BadInput`."""
    return msgspec.structs.replace(setting, topology=load_topology(setting.topology, (edit,)))


def _unless_apart(found: Callable[[], T], setting: Setting, duty: float) -> T | None:
    """What is found while a part is down for `duty` of the time; None where ranks on several nodes do not reach each other then. Raises
    `Disconnected` where that is for good, or a plan on one node may not notice."""
    try:
        return found()
    except Disconnected:
        if duty == 1.0 or setting.topology.nodes_of(setting.plan.world) == 1:
            raise
        return None


def _step(setting: Setting) -> float:
    """Without output, as `predict` says it: ranks are put together only where a fault leaves them equal."""
    return predict_setting(setting.quiet, detail=False).step_time_s
