"""The topology that the simulator uses: ranks, their devices, the paths between them and the rate of every link.

Equal nodes share one description, and paths and rates are computed on demand and cached, so that a large cluster is cheap.
Names of directed links are `FROM>TO` with full names (`n3/gpu0>n3/nvswitch`, `n0/nic2>net/leaf0.2`); a memory bus
has one name and no direction (`n3/dram@socket0`). NVLink and network rates are the specified ones, PCIe rates the usable
ones, rates between sockets those that NCCL assumes for GPU traffic. Further efficiencies belong to `sim.cost`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from topologies.affinity import NicUse
from topologies.cluster import Cluster
from topologies.errors import BadInput, Disconnected
from topologies.hardware import Cpu, Disk, Gpu, Nic, Store
from topologies.machine import Link, Machine
from topologies.path import Path
from topologies.rates import Rates, Sites
from topologies.travel import End, inside
from topologies.ways import Ways

if TYPE_CHECKING:
    import networkx


class Topology:
    """Machines as ranks use them. Made by `topologies.load.load_topology`; immutable."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.nodes = cluster.nodes
        self.gpus = cluster.ranks
        """Number of ranks that it can host."""
        self.kind = cluster.runs[0].machine.kind
        """cuda | cpu."""
        self.ranks_per_node = cluster.runs[0].ranks
        """Ranks of the first node. Where nodes differ, use `ranks_on(node)`."""
        self._ends = list(accumulate(run.count * run.ranks for run in cluster.runs))
        self._nodes = list(accumulate(run.count for run in cluster.runs))
        """`_ends`, `_nodes`: the ranks, and the nodes, up to the end of each run of equal nodes."""
        self._sites = Sites(cluster)
        self.rates = Rates(cluster, self._sites)
        """Bytes per second of each directed link, by full name."""
        self._below = self.rates.below()
        self._ways = Ways(cluster.fabric, self.rates, self._end)
        self._check()

    def __repr__(self) -> str:
        edits = f", edits={self.cluster.edits!r}" if self.cluster.edits else ""
        return f"Topology({self.name!r}, nodes={self.nodes}, ranks={self.gpus}{edits})"

    def __eq__(self, other: object) -> bool:
        """True where both describe the same cluster, whatever object or text each was made from."""
        return self is other or (isinstance(other, Topology) and self.cluster == other.cluster)

    def __hash__(self) -> int:
        return hash((self.name, self.nodes, self.gpus))

    def __reduce__(self) -> tuple[type[Topology], tuple[Cluster]]:
        """Pickles as its cluster (sweeps send topologies to other processes)."""
        return Topology, (self.cluster,)

    def _check(self) -> None:
        """Raises `Disconnected` where a rank cannot reach the others: by its NIC, or inside the only node."""
        seen: set[int] = set()
        for node in (*accumulate((run.count for run in self.cluster.runs[:-1]), initial=0), *self.cluster.special):
            site = self._sites[node]
            slots = [self._slot(place) for place in range(self.ranks_on(node))]
            if id(site) in seen or (self.kind == "cpu" and self.nodes == 1):
                continue
            seen.add(id(site))
            lost = [slot for slot in slots if site.nic_use(slot) is None]
            if lost and (self.nodes > 1 or any(inside(site, slots[0], slot) is None for slot in slots)):
                cut = next((s for s in lost if self.nodes > 1 or inside(site, slots[0], s) is None), lost[0])
                raise Disconnected(
                    f"machine '{site.machine.name}' (n{node}) is disconnected: {site.device(cut)} reaches "
                    f"{'no NIC' if self.nodes > 1 else f'neither {site.device(slots[0])} nor a NIC'}. "
                    "Join it in [tree] or [nvlink], or undo the fail= or without= that took its last link"
                )

    @property
    def symmetric(self) -> bool:
        """True if all nodes are equal and no rank is slow: one node then represents all."""
        return self.repeated and not (self.cluster.speeds or self.cluster.slow_nodes)

    @property
    def equal(self) -> bool:
        """True if all ranks have the same device and none is slow."""
        return not (self.cluster.speeds or self.cluster.slow_nodes) and len(self.devices(self.gpus)) == 1

    @property
    def repeated(self) -> bool:
        """True if all nodes are built and connected alike. Some may be slow."""
        c = self.cluster
        return len(c.runs) == 1 and not (c.special or c.fabric.failed)

    @property
    def narrow(self) -> bool:
        """True if a tier of switches has less bandwidth up than down (oversubscription): groups on different nodes then compete for the
        same cables."""
        return self._below > 0

    @property
    def rerouted(self) -> bool:
        """True if switches between the nodes, or their cables, have failed: their traffic then shares the other cables with the traffic
        there."""
        return bool(self.cluster.fabric.failed)

    @property
    def even(self) -> bool:
        """`even_on` of the first node."""
        return self.even_on(0)

    def even_on(self, node: int) -> bool:
        """True if all paths from and to the first device of the node have the same kind and rate (with NVSwitch, but not with PCIe on two
        sockets)."""
        first, *others = self.ranks_of(node)
        paths = [self.path(*pair) for other in others for pair in ((first, other), (other, first))]
        return len({(path.kind, path.rate) for path in paths}) <= 1

    # -- where a rank is

    def place(self, rank: int) -> tuple[int, int]:
        """(node, place on the node) of a rank."""
        if not 0 <= rank < self.gpus:
            raise BadInput(f"rank {rank} does not exist: {self.name} hosts ranks 0 to {self.gpus - 1}")
        if self.cluster.scatter:
            return rank % self.nodes, rank // self.nodes
        if len(self._ends) == 1:  # asked for very often
            return divmod(rank, self.ranks_per_node)
        at = bisect_right(self._ends, rank)
        run = self.cluster.runs[at]
        place = rank - self._ends[at] + run.count * run.ranks
        return self._nodes[at] - run.count + place // run.ranks, place % run.ranks

    def node(self, rank: int) -> int:
        """The node of a rank: the domain that its NVLink or its sockets span (72 GPUs in an NVL72)."""
        return self.place(rank)[0]

    def local(self, rank: int) -> int:
        """The rank's place on its node, from 0."""
        return self.place(rank)[1]

    def nodes_of(self, ranks: int) -> int:
        """Number of nodes that the first `ranks` ranks use. With `scatter`, ranks go to the nodes in turn, so that `ranks` ranks use that
        many nodes, or all."""
        return min(ranks, self.nodes) if self.cluster.scatter else self.node(ranks - 1) + 1

    def ranks_on(self, node: int) -> int:
        return self.cluster.run_of(node).ranks

    def on_node(self, rank: int) -> range:
        """All ranks of the rank's node: consecutive numbers, or with `scatter` every `nodes`-th."""
        node, place = self.place(rank)
        if self.cluster.scatter:
            return range(node, self.gpus, self.nodes)
        first = rank - place
        return range(first, first + self.ranks_on(node))

    def beside(self, rank: int) -> Sequence[int]:
        """The ranks whose messages may use the same cables as those of `rank`, including itself: the ranks of its node; with
        oversubscription (`narrow`) those of all nodes below the same switches; after a failure of a switch or cable (`rerouted`) all
        ranks."""
        if self.rerouted:
            return range(self.gpus)
        if not self.narrow or len(self.cluster.runs) > 1:
            return self.on_node(rank)
        first = self.node(rank) // self._below * self._below
        nodes = range(first, min(first + self._below, self.nodes))
        if self.cluster.scatter:
            return [other for node in nodes for other in range(node, self.gpus, self.nodes)]
        return range(nodes.start * self.ranks_per_node, nodes.stop * self.ranks_per_node)

    def first_ranks(self) -> range:
        """Ranks of the first node."""
        return self.on_node(0)

    def ranks_of(self, node: int) -> range:
        """Ranks of a node."""
        if self.cluster.scatter:
            return range(node, self.gpus, self.nodes)
        at = bisect_right(self._nodes, node)
        run = self.cluster.runs[at]
        first = self._ends[at] - (self._nodes[at] - node) * run.ranks
        return range(first, first + run.ranks)

    def node_kind(self, node: int) -> int:
        """An id that nodes have in common if they are built and connected alike."""
        return id(self._sites[node])

    def machine(self, node: int) -> Machine:
        """The node's description, edits applied."""
        return self._sites[node].machine

    def device_name(self, rank: int) -> str:
        """`n3/gpu0`, or `n3/socket1` on a CPU host."""
        node, site, slot = self._end(rank)
        return f"n{node}/{site.device(slot)}"

    def _end(self, rank: int) -> End:
        node, place = self.place(rank)
        return node, self._sites[node], self._slot(place)

    def _slot(self, place: int) -> int:
        return self.cluster.order[place] if self.cluster.order else place

    # -- what is there

    def device(self, rank: int) -> Gpu | Cpu:
        """The rank's GPU, or the socket that it runs on."""
        _, site, slot = self._end(rank)
        return site.processor(slot)

    def devices(self, ranks: int) -> list[tuple[Gpu | Cpu, float]]:
        """Each kind of device among the first `ranks` ranks, with its share of them."""
        kinds: list[tuple[Gpu | Cpu, float]] = []
        node = [self.device(rank) for rank in self.first_ranks()] if self.symmetric else []
        alike = bool(node) and all(device is node[0] or device == node[0] for device in node)
        found = node[:1] if alike else [self.device(rank) for rank in range(ranks)]  # of two kinds in a node, the last may have some alone
        while found:
            first, size = found[0], len(found)
            found = [device for device in found if device is not first and device != first]
            kinds.append((first, float(size - len(found))))
        whole = sum(count for _, count in kinds)
        return [(device, count / whole) for device, count in kinds]

    def host(self, node: int) -> Cpu:
        """The CPU of a node: one socket (`sockets` for all)."""
        return self._sites[node].machine.cpu

    def sockets(self, node: int) -> tuple[Cpu, ...]:
        """The CPUs of a node, one for each socket."""
        machine = self._sites[node].machine
        return (machine.cpu,) * len(machine.sockets)

    def host_memory(self, node: int) -> int:
        """Bytes of all sockets of a node; 0 where they are not known."""
        machine = self._sites[node].machine
        return machine.cpu.memory * len(machine.sockets)

    def cores(self, node: int) -> int:
        """CPU cores of the whole node."""
        machine = self._sites[node].machine
        return machine.cpu.cores * len(machine.sockets)

    def disk(self, node: int) -> Disk:
        """The disk of a node."""
        return self._sites[node].machine.disk

    def store(self, node: int) -> Store | None:
        """The store that all nodes share; None: the node's own disk is used instead."""
        return self._sites[node].machine.store

    def store_total(self, write: bool) -> float:
        """Bytes per second of the shared store for all nodes together. Raises `BadInput` where there is none."""
        store = self.store(0)
        if store is None:
            raise BadInput(f"{self.name} has no shared store: describe it in [store] (read, write, stream, latency)")
        return store.total(write, self.nodes)

    def speed(self, rank: int) -> float:
        """Relative speed of the rank's compute: 1.0, or less for a slow rank."""
        own = self.cluster.speeds.get(rank)
        if own is not None:
            return own
        return self.cluster.slow_nodes.get(self.node(rank), 1.0) if self.cluster.slow_nodes else 1.0

    def nic_of(self, rank: int) -> NicUse | None:
        """The NICs with affinity to the rank's device, and the number of ranks that share them; None if there are none."""
        _, site, slot = self._end(rank)
        return site.nic_use(slot)

    def nics(self, rank: int) -> tuple[Nic, ...]:
        """The NICs with affinity to the rank's device; none where the node has none."""
        use = self.nic_of(rank)
        return use.nics if use else ()

    def link(self, name: str) -> Link:
        """Kind, rate and latency of a directed link. Raises `KeyError`."""
        return self.rates.link(name)

    # -- paths

    def path(self, a: int, b: int) -> Path:
        """The path from rank `a` to rank `b`: over NVLink if possible, else PCIe, else the network. Raises `BadInput` where nothing
        connects them."""
        return self._ways.between(a, b)

    def host_path(self, rank: int, to_device: bool) -> Path:
        """The path of a copy between pinned host memory and the rank's device. The copy engine is its last link (`to_device`) or its first.

        A CPU rank copies inside its socket's memory."""
        return self._ways.host(rank, to_device)

    def graph(self, nodes: int | None = None) -> networkx.DiGraph[Any]:
        """Vertices with `kind` and edges with `kind`, `rate`, `latency` of the first `nodes` nodes and their fabric.

        By default all of up to eight nodes, the first node of a larger cluster."""
        from topologies.draw import graph

        return graph(self.cluster, self._sites, self.rates, nodes if nodes is not None else (self.nodes if self.nodes <= 8 else 1))
