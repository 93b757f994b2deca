"""What the pricers of CPU hosts and of GPU machines have in common: named resources, disks, slow ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sim.cost.between import Curve
from sim.cost.price import Cost
from sim.program import HOST, Op
from sim.work import HostWork
from topologies.graph import Topology


class Capacity(Mapping[str, float]):
    """Capacity of each resource by name. Directed links of the topology, disks (`n3.disk.read`, `n3.disk.write`) and the shared store: bytes/s, where
    `n3.store.read` is what one node gets and `store.read` what all nodes get together. `n3.cores`: the CPU cores of node 3."""

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
            if what in ("store.read", "store.write") and (store := self._topology.store(int(node[1:]))):
                return store.read if what == "store.read" else store.write
        if name in ("store.read", "store.write"):
            return self._topology.store_total(name == "store.write")
        return self._topology.rates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._topology.rates)

    def __len__(self) -> int:
        return len(self._topology.rates)


def share_of(op: Op) -> float:
    """The smallest `HostWork.share` of the op's works: the factor on what the op takes from disks and stores. 1 for an op without such works."""
    return min((work.share for work in op.works if isinstance(work, HostWork)), default=1.0)


SAVED = 1e9
"""Bytes per second that one thread turns into a file with torch.save, whatever the disk: 0.74 GB on an H200's host (torch 2.11, 4 to 34 MB,
`steptwin probe`), 0.4 to 0.8 on a small virtual machine; assumed for others. The writer of sharded checkpoints is one thread too (FileSystemWriter's
thread_count = 1)."""


class Common:
    """Base class of both pricers: disks and stragglers."""

    saved = Curve(())
    """Measured seconds of torch.save over bytes; empty where it was not measured."""

    def __init__(self, topology: Topology, factor: Callable[[int], float] | None = None) -> None:
        self.topology = topology
        self.capacity: Mapping[str, float] = Capacity(topology)
        self._factor = factor or (lambda _: 1.0)

    def stretch(self, rank: int) -> float:
        """Factor on the compute time of this rank: the noise of the plan, over the relative speed of its device in the topology."""
        return self._factor(rank) / self.topology.speed(rank)

    def cores(self, rank: int, threads: float = 1.0) -> tuple[tuple[str, float], ...]:
        """`Cost.uses` of an op that keeps `threads` cores of the rank's node busy."""
        return ((f"n{self.topology.node(rank)}.cores", threads),)

    def _disk(self, op: Op, rank: int) -> Cost:
        """The cost of reading samples one after the other, or of writing a checkpoint in one piece, on the node's disk or the shared store. Where
        torch.save was measured, its time is the cost of what the training thread writes to a disk: that thread is the bottleneck."""
        if self.saved and op.cls == "output" and op.lane == HOST and op.how == "disk" and op.bytes:
            seconds, inside = self.saved.at(op.bytes)
            return Cost(seconds, "measured" if inside else "fitted", uses=self.cores(rank))
        node = self.topology.node(rank)
        disk, store = self.topology.disk(node), self.topology.store(node) if op.how == "store" else None
        write = "write" in op.id or op.cls == "output"
        what = "write" if write else "read"
        files, share = sum(work.count for work in op.works if isinstance(work, HostWork)) or 1.0, share_of(op)
        latency = files * (store or disk).latency
        if store is None:
            rate = min(disk.write, SAVED) if write else disk.read
            return Cost(latency + op.bytes / rate, "assumed", latency, ((f"n{node}.disk.{what}", rate * share),))
        # Many connections write a checkpoint at once, but one thread prepares it (`SAVED`); one connection reads a sample.
        rate = min(store.write, store.total(write, self.topology.nodes), SAVED) if write else min(store.stream, store.read)
        uses = ((f"n{node}.store.{what}", rate * share), (f"store.{what}", rate * share))
        return Cost(latency + op.bytes / rate, "assumed", latency, uses)
