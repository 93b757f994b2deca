"""Links of a cluster by full name. Each is computed on demand, so that 2,048 nodes are as cheap as one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from topologies.affinity import NicUse, nearest
from topologies.cluster import ON_NODE, Cluster, full
from topologies.hardware import Cpu, Gpu
from topologies.machine import Link, Machine
from topologies.route import Router

_EQUAL = 1.0 + 1e-9


class Site:
    """A machine with its routes and the NICs of its GPUs. Equal nodes share one site.

    `slots`: the numbers of the devices that ranks use."""

    def __init__(self, machine: Machine, rails: int, slots: Sequence[int]) -> None:
        self.machine = machine
        self.router = Router(machine)
        self._names = tuple(machine.gpus)
        self._uses = nearest(machine, self.router, [self._names[slot] for slot in slots] if self._names else (), len(slots))
        used = {name for use in self._uses.values() for name in use.names}
        self.rails = {name: place % rails for place, name in enumerate(machine.cabled) if name in used}
        """NIC -> rail, for the NICs that ranks use (storage NICs are on no rail)."""

    def device(self, slot: int) -> str:
        """The vertex of the rank on device `slot`: its GPU, or on a CPU host its socket (sockets take turns, as OS schedulers spread
        processes)."""
        return self._names[slot] if self._names else self.machine.sockets[slot % len(self.machine.sockets)]

    def processor(self, slot: int) -> Gpu | Cpu:
        """The GPU of a rank, or the CPU that it runs on."""
        return self.machine.gpus[self.device(slot)] if self.machine.gpus else self.machine.cpu

    def nic_use(self, slot: int) -> NicUse | None:
        return self._uses.get(self._names[slot] if self._names else "")

    def owner(self, rail: int, near: str) -> tuple[str, str] | None:
        """(GPU, NIC): a GPU that `near` reaches over NVLink and whose own NIC is on this rail."""
        owners = [
            (gpu, nic)
            for gpu, use in self._uses.items()
            for nic in use.names
            if self.rails[nic] == rail and use.kind in ("PIX", "PXB", "C2C")
        ]
        owners = [(gpu, nic) for gpu, nic in owners if (leg := self.router.leg(near, gpu)) is not None and leg.kind == "NVL"]
        # Where a rail has several NICs on the node, each GPU takes the owner in its own part of the node.
        return owners[self._names.index(near) * len(owners) // len(self._names)] if owners else None

    def rail_rate(self, rail: int) -> float:
        """Bytes per second of all NICs of the node on a rail."""
        return sum(self.machine.nics[nic].rate for nic, at in self.rails.items() if at == rail)


class Sites(Mapping[int, Site]):
    """Node -> site, without one entry per node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        rails = cluster.fabric.rails
        made: dict[tuple[int, int], Site] = {}
        pairs = [(run.machine, run.ranks) for run in cluster.runs]
        pairs += [(machine, cluster.run_of(node).ranks) for node, machine in cluster.special.items()]
        for machine, ranks in pairs:
            if (id(machine), ranks) not in made:
                made[id(machine), ranks] = Site(machine, rails, cluster.order or range(ranks))
        self._made = made
        self._nodes = cluster.nodes
        self._only = next(iter(made.values())) if len(made) == 1 else None

    def __getitem__(self, node: int) -> Site:
        if not 0 <= node < self._nodes:
            raise KeyError(node)
        return self._only or self._made[id(self._cluster.machine(node)), self._cluster.run_of(node).ranks]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._cluster.nodes))

    def __len__(self) -> int:
        return self._cluster.nodes

    def kinds(self) -> tuple[Site, ...]:
        return tuple(self._made.values())


class Rates(Mapping[str, float]):
    """Directed link -> bytes per second. `link` gives kind and latency too."""

    def __init__(self, cluster: Cluster, places: Sites) -> None:
        self._cluster, self._sites = cluster, places
        self._memo: dict[str, Link] = {}
        rails = range(cluster.fabric.rails)
        self._rail_rate = {rail: max(site.rail_rate(rail) for site in places.kinds()) for rail in rails}

    def __getitem__(self, name: str) -> float:
        return self.link(name).rate

    def link(self, name: str) -> Link:
        """The directed link (or memory bus) with this name. Raises `KeyError`."""
        found = self._memo.get(name)
        if found is None:
            found = self._memo[name] = self._find(name)
        return found

    def _find(self, name: str) -> Link:
        if name in self._cluster.fabric.failed:
            raise KeyError(name)
        a, arrow, b = name.partition(">")
        if a.startswith("net/") and b.startswith("net/"):
            return self._uplink(name, a, b)
        inner, outer = (b, a) if a.startswith("net/") else (a, b)
        match = ON_NODE.match(inner)
        if not match or int(match.group(1)) >= self._cluster.nodes:
            raise KeyError(name)
        node, short = int(match.group(1)), match.group(2)
        site = self._sites[node]
        if not arrow:
            return site.machine.links[short]
        if outer.startswith("net/"):
            rail = site.rails[short]
            if outer != self._cluster.fabric.leaf(node, rail):
                raise KeyError(name)
            return Link("net", site.machine.nics[short].rate, site.machine.nics[short].latency)
        prefix = f"n{node}/"
        if not outer.startswith(prefix):
            raise KeyError(name)
        return site.machine.links[f"{short}>{outer[len(prefix) :]}"]

    def _uplink(self, name: str, a: str, b: str) -> Link:
        """The link between a leaf and a spine, or a spine and a core switch. Raises `KeyError` where the fabric does not have it."""
        fabric = self._cluster.fabric
        low, high = (b, a) if (a.startswith("net/core") or b.startswith("net/leaf")) else (a, b)
        if {low, high} & fabric.failed:
            raise KeyError(name)
        leaf = re.fullmatch(r"net/leaf(\d{1,7})\.(\d{1,3})", low)
        if leaf is None:
            return self._core_link(name, low, high)
        pod, rail, place = int(leaf.group(1)), int(leaf.group(2)), re.search(r"\d{1,7}\Z", high)
        fits = place is not None and int(place[0]) < fabric.spine_count and high == fabric.spine_name(pod, int(place[0]))
        if not fits or rail >= fabric.rails or pod * fabric.pod >= self._cluster.nodes:
            raise KeyError(name)
        return Link("spine", self._up(rail), fabric.hop)

    def _up(self, rail: int) -> float:
        """Bytes per second of one uplink of a leaf."""
        fabric = self._cluster.fabric
        return fabric.uplink or fabric.pod * self._rail_rate[rail] / fabric.oversubscription / fabric.spine_count

    def below(self) -> int:
        """Number of nodes below the switches whose rate up is less than their rate down: those of a pod (leaves), or of a block (spines
        under core switches). 0: no tier is oversubscribed between the nodes."""
        fabric = self._cluster.fabric
        if fabric.rail_only:
            return 0
        if 0 < fabric.block_nodes < self._cluster.nodes and fabric.core_oversubscription > 1.0:
            return fabric.block_nodes
        wide = all(self._up(rail) * fabric.spine_count * _EQUAL >= fabric.pod * rate for rail, rate in self._rail_rate.items())
        return 0 if wide or self._cluster.nodes <= fabric.pod else fabric.pod

    def _core_link(self, name: str, spine: str, core: str) -> Link:
        """One link that stands for all cables of a spine to the core switches above it."""
        fabric = self._cluster.fabric
        match = re.fullmatch(r"net/spine(\d{1,7})\.(\d{1,7})", spine)
        if (
            match is None
            or not 0 < fabric.block_nodes < self._cluster.nodes
            or int(match.group(2)) >= fabric.spine_count
            or core != f"net/core{int(match.group(2))}"
        ):
            raise KeyError(name)
        if int(match.group(1)) * fabric.block_nodes >= self._cluster.nodes:
            raise KeyError(name)
        down = fabric.block * sum(self._up(rail) for rail in range(fabric.rails))
        return Link("spine", down / fabric.core_oversubscription, fabric.hop)

    def __iter__(self) -> Iterator[str]:
        fabric = self._cluster.fabric
        for node in range(self._cluster.nodes):
            site = self._sites[node]
            yield from full(node, site.machine.links)
            if self._cluster.nodes > 1:
                for nic, rail in site.rails.items():
                    yield from self._both(f"n{node}/{nic}", fabric.leaf(node, rail))
        if self._cluster.nodes > 1:
            for pod in range(-(-self._cluster.nodes // fabric.pod)):
                for rail in range(fabric.rails):
                    for place in range(fabric.spine_count):
                        yield from self._both(f"net/leaf{pod}.{rail}", fabric.spine_name(pod, place))
            blocks = -(-self._cluster.nodes // fabric.block_nodes) if fabric.block else 1
            for block in range(blocks if blocks > 1 else 0):
                for place in range(fabric.spine_count):
                    yield from self._both(f"net/spine{block}.{place}", f"net/core{place}")

    def _both(self, a: str, b: str) -> Iterator[str]:
        failed = self._cluster.fabric.failed
        if not {a, b} & failed:
            yield from (name for name in (f"{a}>{b}", f"{b}>{a}") if name not in failed)

    def __len__(self) -> int:
        return sum(1 for _ in self)
