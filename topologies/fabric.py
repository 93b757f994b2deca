"""The network between nodes: leaf switches for each rail, spine switches above them, and core switches above the spines.

NIC k of a node belongs to rail k modulo `rails`. A leaf connects the NICs of one rail of `pod` nodes (`rails = 1`: all their NICs),
and each leaf has one uplink to every spine. Names: `net/leaf2.5` (pod 2, rail 5), `net/spine3`.
With `block` > 0 there are three tiers: `block` pods share spines, and core switches connect these blocks. `net/spine1.3` is a spine of
block 1. `net/core3` above it stands for all core switches over spine 3 of each block, and one link stands for all cables of a spine to
them.
Routes between leaves pick the spine by destination, as InfiniBand's fat-tree routing does (d-mod-k: Zahavi et al.,
"Optimized InfiniBand fat-tree routing for shift all-to-all communication patterns", 2009), so shifts do not collide.
With `rail_only` there is no spine: each rail is a separate network, and traffic to another rail goes over NVLink first (Wang et al.,
"Rail-only: A low-cost high-performance network for training LLMs with trillion parameters", 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec

from topologies.errors import Disconnected
from topologies.table import Table


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The switches between nodes: leaves of `pod` nodes on each of `rails` rails, and spines above them (a fat tree of two or three tiers)."""

    rails: int = 1
    pod: int = 32
    """Nodes that share leaf switches."""
    oversubscription: float = 1.0
    """Rate of a leaf down to its NICs divided by its rate up to the spines."""
    spines: int = 0
    """Number of spines (with `block`: of each block); 0: pod / oversubscription, so that an uplink carries at least the NICs of one node on
    its rail."""
    block: int = 0
    """Pods that share spines; core switches connect the blocks of pods. 0: all pods share the spines, and there are no core switches."""
    core_oversubscription: float = 1.0
    """Rate of a spine down to its leaves divided by its rate up to the core switches."""
    rail_only: bool = False
    """True: there are no spines, and leaves are not connected. A rail with several tiers of switches is modelled as one leaf with a larger
    `pod`."""
    hop: float = 0.3e-6
    """Seconds from one switch to the next: a switch (0.1-0.15 us, InfiniBand) and its cables. Assumed."""
    uplink: float = 0.0
    """Bytes per second of one uplink in one direction; 0: computed from the rates of the NICs below and `oversubscription`."""
    failed: frozenset[str] = frozenset()
    """Names of the directed links, spines and core switches that have failed."""
    source: str = ""

    @property
    def spine_count(self) -> int:
        return 0 if self.rail_only else self.spines or max(1, int(self.pod / self.oversubscription))

    def leaf(self, node: int, rail: int) -> str:
        return f"net/leaf{node // self.pod}.{rail}"

    @property
    def block_nodes(self) -> int:
        """Nodes below the spines of one block; 0: all nodes share the spines."""
        return self.pod * self.block

    def block_of(self, pod: int) -> int:
        return pod // self.block if self.block else 0

    def spine_name(self, pod: int, place: int) -> str:
        """The spine at `place` over the leaves of a pod."""
        return f"net/spine{self.block_of(pod)}.{place}" if self.block else f"net/spine{place}"

    def between(self, pod_a: int, leaf_a: str, pod_b: int, leaf_b: str, key: int) -> tuple[str, ...]:
        """The switches that a flow passes between two leaves, in order. `key` picks the spine; where a switch or link on this way has
        failed, the next spine is tried. Raises `Disconnected` where no way is left."""
        count, apart = self.spine_count, self.block_of(pod_a) != self.block_of(pod_b)
        for step in range(count):
            place = (key + step) % count
            up, down = self.spine_name(pod_a, place), self.spine_name(pod_b, place)
            way = (up, f"net/core{place}", down) if apart else (up,)
            hops = pairwise((leaf_a, *way, leaf_b))
            if not self.failed or not {*way, *(f"{u}>{v}" for u, v in hops)} & self.failed:
                return way
        if not self.rail_only:
            raise Disconnected(f"the network is disconnected: no spine is left between {leaf_a} and {leaf_b}")
        if pod_a != pod_b:
            raise Disconnected(
                f"without spines nothing joins the nodes of {leaf_a} and {leaf_b}: say how many nodes a rail joins, e.g. pod={self.pod * (max(pod_a, pod_b) + 1)}"
            )
        raise Disconnected(
            f"without spines nothing joins the rails of {leaf_a} and {leaf_b}, and no NVLink leads to a GPU whose NIC is on the rail: rails=1, or keep the spines"
        )


KEYS = ("rails", "pod", "oversubscription", "spines", "block", "core_oversubscription", "rail_only", "hop", "uplink", "source")


def read_fabric(value: object, where: str, base: Fabric | None = None) -> Fabric:
    """Reads a fabric from the table `[fabric]` (None: an empty one). Absent keys are as in `base`, or the defaults. Raises `BadInput`."""
    table = Table({} if value is None else value, where, KEYS)
    base = base or Fabric()
    return msgspec.structs.replace(
        base,
        rails=table.whole("rails", base.rails, least=1, most=256),
        pod=table.whole("pod", base.pod, least=1, most=65536),
        oversubscription=table.number("oversubscription", base.oversubscription, least=1.0),
        spines=table.whole("spines", base.spines, most=65536),
        block=table.whole("block", base.block, most=65536),
        core_oversubscription=table.number("core_oversubscription", base.core_oversubscription, least=1.0),
        rail_only=table.truth("rail_only", base.rail_only),
        hop=table.duration("hop", base.hop),
        uplink=table.rate("uplink", base.uplink),
        source=table.text("source", base.source),
    )


def merge_fabric(base: object, own: object) -> object:
    """The `[fabric]` table of a file merged over that of its base, key by key; None where neither has one."""
    return {**base, **own} if isinstance(base, Mapping) and isinstance(own, Mapping) else (own if own is not None else base)
