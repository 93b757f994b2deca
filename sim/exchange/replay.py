"""Simulates Chakra execution traces: computation takes the time that the trace says, communication is simulated on a topology.

The duration of a node comes from the trace (for a COMP_NODE without a duration: the roofline of the topology's device). Collectives and
messages have costs and share links as in any program. In traces of `sim.exchange.export`, ops also share the resources of their machine
(cores, disk, store, copies) with other ranks. Every rank is simulated by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sim.cost.price import Cost, Derived, Pricer
from sim.engine.agenda import uncollected
from sim.engine.run import simulate
from sim.exchange.program import program_of
from sim.exchange.reading import UNTIMED, Taken
from sim.exchange.shares import uses_of
from sim.exchange.workload import Workload, load_traces
from sim.files.machinefile import machine_words
from sim.program import Op
from sim.timeline import metrics
from sim.trace import Trace
from topologies.errors import BadInput, Refused
from topologies.load import Topology, load_topology


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay: time of a workload on a machine, in seconds."""

    workload: str
    topology: str
    ranks: int
    nodes: int
    seconds: float
    breakdown: metrics.Breakdown
    critical_path: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        lines = [f"{self.workload} on {self.topology}: {self.seconds * 1e3:,.3f} ms ({self.ranks} ranks, {self.nodes:,} nodes)"]
        lines += [f"  {name:<14} {spent * 1e3:12,.3f} ms on the critical path" for name, spent in self.critical_path]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (`sim.files.forms.exchange`); plain values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        found["step_time_s"] = found.pop("seconds")
        return found | {"critical_path": [{"class": name, "seconds": seconds} for name, seconds in self.critical_path]}


def replay(prefix: str | Path, topology: Topology | str | Path, *, groups: str | Path | None = None, edits: tuple[str, ...] = (),
           calibration: str | Path | None = None) -> Replay:  # fmt: skip
    """Reads the traces PREFIX.RANK.et and simulates them on `topology`; see `load_traces` and `run_traces`."""
    with uncollected():  # millions of nodes live to the end
        workload, machine = load_traces(prefix, groups), load_topology(topology, edits)
        trace = run_traces(workload, machine, calibration=calibration)
        return Replay(
            workload=workload.name,
            topology=machine_words(machine),
            ranks=len(workload.ranks),
            nodes=sum(map(len, workload.ranks)),
            seconds=trace.end,
            breakdown=metrics.breakdown(trace),
            critical_path=tuple(metrics.critical_path(trace)),
        )


def run_traces(
    workload: Workload,
    topology: Topology | str | Path,
    *,
    calibration: str | Path | None = None,
) -> Trace:
    """Simulates the traces on `topology`, every rank by itself. The end of the returned trace is the time of the workload.

    Args:
        calibration: times of gloo's collectives on this CPU host, from `steptwin probe`; None: none are known.

    Raises `BadInput` when the machine is too small, a group is not known, or ranks disagree about what they exchange, `Refused` for a
    calibration on a machine with GPUs, `UnknownName` for an unknown framework in the traces. Collectives behave as in this framework
    (PyTorch where the traces name none).
    """
    machine = load_topology(topology)
    world = len(workload.ranks)
    if world > machine.gpus:
        raise BadInput(f"the traces are of {world} ranks, {machine.name} has {machine.gpus}. Use more machines")
    program, taken = program_of(workload)
    inner = _pricer(machine, workload.framework or "pytorch", calibration, world)
    return simulate(program, Replayed(inner, taken, machine, workload.alone), symmetry=False)


def _pricer(machine: Topology, framework: str, calibration: str | Path | None, world: int) -> Pricer:
    from sim.framework.framework import load_framework

    if machine.kind == "cpu":
        from sim.cost.calibration import calibration_on
        from sim.cost.cpu_pricer import CpuPricer

        return CpuPricer(machine, calibration_on(calibration, machine))
    from sim.cost.gpu_pricer import GpuPricer
    from sim.cost.sustained import slowest

    if calibration is not None:
        raise Refused(
            f"{machine.name} has GPUs: kernels take what the traces say, and what ranks exchange is priced from the machine's links. "
            "A calibration has no effect on either: leave --calibration out"
        )
    return GpuPricer(machine, load_framework(framework), None, slowest(world))


class Replayed(Derived):
    """Costs of a workload: local nodes from the trace, collectives and messages from the machine."""

    def __init__(self, inner: Pricer, taken: Mapping[tuple[int, str], Taken], machine: Topology, alone: bool) -> None:
        super().__init__(inner)
        self._taken, self._machine, self._alone = taken, machine, alone

    def local(self, op: Op, rank: int) -> Cost:
        """The time in the trace, and the use of shared resources; no time for ops that only order others."""
        if op.kind not in ("compute", "copy", "host"):
            return Cost(0.0, "measured")
        taken = self._taken[rank, op.id]
        if taken.seconds == UNTIMED:
            return Cost(self._roofline(op, rank), "assumed")
        if taken.share is None:
            return Cost(taken.seconds, "measured", slowed=taken.slowed)
        uses = uses_of(taken.share, taken.moved, taken.seconds - taken.latency, rank, self._machine, taken.cores)
        return Cost(taken.seconds, "measured", taken.latency, uses)

    def _roofline(self, op: Op, rank: int) -> float:
        """FLOPs at the device's 16-bit peak, or bytes at its memory's rate, whichever takes longer: as ASTRA-sim does."""
        device = self._machine.device(rank)
        peak = device.flops.get("bf16") or max(device.flops.values(), default=math.inf)
        return max(op.flops / peak, sum(work.bytes for work in op.works) / (device.bandwidth or math.inf))

    def slowdown(self, rank: int) -> float:
        """1.0 for measured durations, which already contain the slowdown by collectives; else that of the machine."""
        return self.inner.slowdown(rank) if self._alone else 1.0
