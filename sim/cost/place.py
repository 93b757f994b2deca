"""What the pricers of all machines share: named resources, disks, slow ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sim.cost.price import Cost
from sim.program import Op
from topologies.graph import Topology


class Capacity(Mapping[str, float]):
    """Resources by name: directed links from the topology, `n3.cores`, `n3.disk.read`, `n3.disk.write`."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def __getitem__(self, name: str) -> float:
        node, _, what = name.partition(".")
        if node[1:].isdigit():
            if what == "cores":
                return float(self._topology.cores(int(node[1:])))
            if what in ("disk.read", "disk.write"):
                disk = self._topology.disk(int(node[1:]))
                return disk.read if what == "disk.read" else disk.write
        return self._topology.rates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._topology.rates)

    def __len__(self) -> int:
        return len(self._topology.rates)


class Common:
    """What both pricers share: disks, stragglers."""

    def __init__(self, topology: Topology, factor: Callable[[int], float] | None = None) -> None:
        self.topology = topology
        self.capacity: Mapping[str, float] = Capacity(topology)
        self._factor = factor or (lambda _: 1.0)

    def stretch(self, rank: int) -> float:
        """How much longer compute takes on this rank: noise of the plan, and a slow device of the topology."""
        return self._factor(rank) / self.topology.speed(rank)

    def cores(self, rank: int) -> tuple[tuple[str, float], ...]:
        """One CPU thread at work."""
        return ((f"n{self.topology.node(rank)}.cores", 1.0),)

    def _disk(self, op: Op, rank: int) -> Cost:
        node = self.topology.node(rank)
        disk = self.topology.disk(node)
        write = "write" in op.id or op.cls == "output"
        rate = disk.write if write else disk.read
        seconds = disk.latency + op.bytes / rate
        return Cost(seconds, "assumed", disk.latency, ((f"n{node}.disk.{'write' if write else 'read'}", rate),))
