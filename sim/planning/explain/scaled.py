"""One resource made faster: a kind of op through its price, a kind of link in the machine itself."""

from __future__ import annotations

import msgspec

from sim.cost.price import Cost, Derived, Pricer
from sim.program import MESSAGE, Op
from sim.trace import Span
from sim.work import MemoryBound
from topologies.cluster import Cluster
from topologies.graph import Topology
from topologies.machine import Link, Machine

COMPUTE, MEMORY, COLLECTIVES, MESSAGES, HOST, INPUT = "compute", "memory-bound kernels", "collectives", "point-to-point", "host", "input"
KINDS = (COMPUTE, MEMORY, COLLECTIVES, MESSAGES, HOST, INPUT)
"""Resources that are scaled one at a time."""
_PRODUCTS = ("gemm", "attention", "conv", "moe", "rnn")
"""Classes of kernels that the arithmetic units bound, where an op does not say its kernels; memory bounds the others."""


def kind_of(op: Op | Span) -> str:
    """The resource in `KINDS` that an op spends its time on; "" if it is none of them, as for copies that are not input."""
    if op.kind == "collective":
        return COLLECTIVES
    if op.kind in MESSAGE:
        return MESSAGES
    if op.cls == "data" or op.lane.startswith("loader"):
        return INPUT
    if op.kind == "compute":
        return COMPUTE if op.cls in _PRODUCTS else MEMORY
    return HOST if op.kind == "host" else ""


class Shares:
    """Splits an op's seconds between resources, at the prices of a pricer."""

    def __init__(self, pricer: Pricer) -> None:
        self._pricer = pricer
        self._known: dict[tuple[int, int], tuple[dict[str, float], Op]] = {}

    def of(self, op: Op, rank: int) -> dict[str, float]:
        """Shares of the op's seconds by resource; they sum to 1.

        An op gets two shares if it is a chain of compute-bound and memory-bound kernels: unfused attention, or a GEMM with casts before it.
        """
        kind = kind_of(op)
        moving = tuple(work for work in op.works if isinstance(work, MemoryBound))
        if kind not in (COMPUTE, MEMORY) or not op.works:
            return {kind: 1.0}
        if len(moving) in (0, len(op.works)):
            return {MEMORY if moving else COMPUTE: 1.0}
        known = self._known.get((id(op), rank))
        if known is None or known[1] is not op:
            products = tuple(work for work in op.works if not isinstance(work, MemoryBound))
            one, other = (self._pricer.local(msgspec.structs.replace(op, works=works), rank).seconds for works in (products, moving))
            share = one / (one + other) if one + other > 0 else 1.0
            known = self._known[id(op), rank] = ({COMPUTE: share, MEMORY: 1.0 - share}, op)
        return known[0]


class Scaled(Derived):
    """A pricer in which one resource of `KINDS` is `factor` times as fast."""

    def __init__(self, inner: Pricer, kind: str, factor: float) -> None:
        super().__init__(inner)
        self._kind, self._factor, self._shares = kind, factor, Shares(inner)

    def _scale(self, cost: Cost, share: float, host: bool) -> Cost:
        """The cost with the faster resource, which takes `share` of its seconds; with `host`, its time on the host is faster, too."""
        device, launch = 1.0 - share + share / self._factor, (1.0 / self._factor if host else 1.0)
        seconds, spent, ready = cost.seconds * device, cost.host * launch, cost.ready
        if ready:
            # A chain of kernels ends one launch after its device time, or one kernel after its launches, whichever is the slower chain.
            by_device, by_host = seconds + (ready - cost.seconds) * launch, spent + (ready - cost.host) * device
            ready = by_device if cost.seconds >= cost.host else by_host
        # What it uses (links, cores) is faster with it: contention stays what it was.
        slowed = cost.slowed * device
        return msgspec.structs.replace(cost, seconds=seconds, latency=cost.latency * device, host=spent, ready=ready, slowed=slowed)

    def local(self, op: Op, rank: int) -> Cost:
        """Faster in the op's share of the resource. For the host, the launches of every op are faster."""
        share = self._shares.of(op, rank).get(self._kind, 0.0)
        return self._scale(self.inner.local(op, rank), share, self._kind == HOST)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """Faster as a whole, latency and all."""
        return self._scale(self.inner.collective(op, members, siblings), float(self._kind == COLLECTIVES), False)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """Faster as a whole, latency and all."""
        return self._scale(self.inner.message(op, source, target, siblings), float(self._kind == MESSAGES), False)


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
