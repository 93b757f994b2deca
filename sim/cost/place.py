"""What the pricers of all machines share: named resources, disks, slow ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sim.cost.between import Curve
from sim.cost.price import Cost
from sim.program import HOST, Op
from sim.work import HostWork
from topologies.graph import Topology


class Capacity(Mapping[str, float]):
    """Resources by name: directed links from the topology, `n3.cores`, `n3.disk.read`, `n3.disk.write`; `n3.store.read` is what one node
    gets of the shared store, `store.read` what all get."""

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
    """Of what a thread's op takes from its machine, the part that counts."""
    return min((work.share for work in op.works if isinstance(work, HostWork)), default=1.0)


SAVED = 1e9
"""Bytes per second that one thread turns into a file with torch.save, whatever the disk: 0.74 GB on an H200's host (torch 2.11, 4 to 34 MB,
`steptwin probe`), 0.4 to 0.8 on a small virtual machine; assumed for others. The writer of sharded checkpoints is one thread too (FileSystemWriter's
thread_count = 1)."""


class Common:
    """What both pricers share: disks, stragglers."""

    saved = Curve(())
    """Seconds of torch.save by bytes, where it was timed."""

    def __init__(self, topology: Topology, factor: Callable[[int], float] | None = None) -> None:
        self.topology = topology
        self.capacity: Mapping[str, float] = Capacity(topology)
        self._factor = factor or (lambda _: 1.0)

    def stretch(self, rank: int) -> float:
        """How much longer compute takes on this rank: noise of the plan, and a slow device of the topology."""
        return self._factor(rank) / self.topology.speed(rank)

    def cores(self, rank: int, threads: float = 1.0) -> tuple[tuple[str, float], ...]:
        """So many CPU threads at work."""
        return ((f"n{self.topology.node(rank)}.cores", threads),)

    def _disk(self, op: Op, rank: int) -> Cost:
        """Samples read one after the other, or a checkpoint written in one piece: to the node's disk, or the shared store. What the training
        thread writes to a disk takes what torch.save was timed to take: the thread is what binds it."""
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
        # A checkpoint is written by many connections at once, of what one thread makes ready; a sample is read by one.
        rate = min(store.write, store.total(write, self.topology.nodes), SAVED) if write else min(store.stream, store.read)
        uses = ((f"n{node}.store.{what}", rate * share), (f"store.{what}", rate * share))
        return Cost(latency + op.bytes / rate, "assumed", latency, uses)
