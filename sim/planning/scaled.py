"""One resource made faster: every kind of op by its price, every kind of link in the machine itself."""

from __future__ import annotations

import msgspec

from sim.cost.price import Cost, Pricer
from sim.program import MESSAGE, Op
from sim.trace import Span
from topologies.cluster import Cluster
from topologies.graph import Topology
from topologies.machine import Link, Machine

COMPUTE, MEMORY, COLLECTIVES, MESSAGES, HOST, INPUT = "compute", "memory-bound kernels", "collectives", "point-to-point", "host", "input"
KINDS = (COMPUTE, MEMORY, COLLECTIVES, MESSAGES, HOST, INPUT)
"""Resources that are scaled one at a time."""
_PRODUCTS = ("gemm", "attention", "conv", "moe", "rnn")
"""Classes of kernels that the arithmetic units bound; memory bounds the others."""


def kind_of(op: Op | Span) -> str:
    """The resource that an op spends its time on; "" for what is none of `KINDS` (copies of no input)."""
    if op.kind == "collective":
        return COLLECTIVES
    if op.kind in MESSAGE:
        return MESSAGES
    if op.cls == "data" or op.lane.startswith("loader"):
        return INPUT
    if op.kind == "compute":
        return COMPUTE if op.cls in _PRODUCTS else MEMORY
    return HOST if op.kind == "host" else ""


class Scaled:
    """A pricer with one resource of `KINDS` `factor` times as fast."""

    def __init__(self, inner: Pricer, kind: str, factor: float) -> None:
        self._inner, self._kind, self._factor = inner, kind, factor
        self.capacity = inner.capacity

    def _scale(self, cost: Cost, applies: bool, host: bool) -> Cost:
        device, launch = (1.0 / self._factor if applies else 1.0), (1.0 / self._factor if host else 1.0)
        seconds, spent, ready = cost.seconds * device, cost.host * launch, cost.ready
        if ready:
            # A chain of kernels ends one launch after its device time, or one kernel after its launches, whichever is the slower chain.
            by_device, by_host = seconds + (ready - cost.seconds) * launch, spent + (ready - cost.host) * device
            ready = by_device if cost.seconds >= cost.host else by_host
        # What it uses (links, cores) is faster with it: contention stays what it was.
        return Cost(seconds, cost.source, cost.latency * device, cost.uses, spent, ready)

    def local(self, op: Op, rank: int) -> Cost:
        """Faster where the op is of the kind; launches of every op are the host's."""
        return self._scale(self._inner.local(op, rank), kind_of(op) == self._kind, self._kind == HOST)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """Faster as a whole, latency and all."""
        return self._scale(self._inner.collective(op, members, siblings), self._kind == COLLECTIVES, False)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """Faster as a whole, latency and all."""
        return self._scale(self._inner.message(op, source, target, siblings), self._kind == MESSAGES, False)

    def slowdown(self, rank: int) -> tuple[float, float]:
        """As it was."""
        return self._inner.slowdown(rank)


def link_kinds(topology: Topology) -> tuple[str, ...]:
    """Kinds of links inside the nodes, and "net" where there are several: NICs and the switches' uplinks together."""
    cluster = topology.cluster
    machines = [*(run.machine for run in cluster.runs), *cluster.special.values()]
    found = dict.fromkeys(link.kind for machine in machines for link in machine.links.values())
    return (*found, "net") if cluster.nodes > 1 else tuple(found)


def faster_links(topology: Topology, kind: str, factor: float) -> Topology:
    """The same machine with every link of a kind at `factor` times its rate; latencies stay."""
    cluster = topology.cluster
    runs = tuple(msgspec.structs.replace(run, machine=_machine(run.machine, kind, factor)) for run in cluster.runs)
    special = {node: _machine(machine, kind, factor) for node, machine in cluster.special.items()}
    changed: Cluster = msgspec.structs.replace(cluster, runs=runs, special=special)
    if kind == "net" and cluster.fabric.uplink:
        changed = msgspec.structs.replace(changed, fabric=msgspec.structs.replace(cluster.fabric, uplink=cluster.fabric.uplink * factor))
    return Topology(changed)


def _machine(machine: Machine, kind: str, factor: float) -> Machine:
    if kind == "net":
        nics = {name: msgspec.structs.replace(nic, rate=nic.rate * factor) for name, nic in machine.nics.items()}
        return msgspec.structs.replace(machine, nics=nics)
    links = {name: Link(one.kind, one.rate * factor, one.latency) if one.kind == kind else one for name, one in machine.links.items()}
    return msgspec.structs.replace(machine, links=links)
