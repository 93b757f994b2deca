"""The network between nodes: leaf switches by rail, spines above, each uplink with its own rate.

NIC k of a node belongs to rail k modulo `rails`; a leaf takes one rail of `pod` nodes (`rails = 1`: all NICs of them),
and each leaf has one uplink to every spine. Names: `net/leaf2.5` (pod 2, rail 5), `net/spine3`.
Routes between leaves pick the spine by destination, as InfiniBand's fat-tree routing does (d-mod-k: Zahavi et al.,
"Optimized InfiniBand fat-tree routing for shift all-to-all communication patterns", 2009), so shifts do not collide.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topologies.errors import BadInput
from topologies.table import Table


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The switches between nodes: leaves of `pod` nodes on each of `rails` rails, and spines above them (a fat tree)."""

    rails: int = 1
    pod: int = 32
    """Nodes that share leaf switches."""
    oversubscription: float = 1.0
    """Rate down from a leaf to its NICs over the rate up to the spines."""
    spines: int = 0
    """0: as many as give each uplink the rate of one NIC."""
    hop: float = 0.3e-6
    """Seconds from one switch to the next: a switch (0.1-0.15 us, InfiniBand) and its cables. Assumed."""
    uplink: float = 0.0
    """Bytes per second of one uplink in one direction; 0: what the NICs below and `oversubscription` give."""
    failed: frozenset[str] = frozenset()
    """Directed links and spines that are out of service."""
    source: str = ""

    @property
    def spine_count(self) -> int:
        return self.spines or max(1, round(self.pod / self.oversubscription))

    def leaf(self, node: int, rail: int) -> str:
        return f"net/leaf{node // self.pod}.{rail}"

    def spine(self, leaf_a: str, leaf_b: str, key: int) -> str:
        """The spine of a flow with this key; the next one in service where links have failed. Raises `BadInput`."""
        count = self.spine_count
        for step in range(count):
            spine = f"net/spine{(key + step) % count}"
            if not self.failed or not {f"{leaf_a}>{spine}", f"{spine}>{leaf_b}", spine} & self.failed:
                return spine
        raise BadInput(f"the network is disconnected: no spine is left between {leaf_a} and {leaf_b}")


def read_fabric(value: object, where: str) -> Fabric:
    """A fabric from `[fabric]`. Raises `BadInput`."""
    table = Table({} if value is None else value, where, ("rails", "pod", "oversubscription", "spines", "hop", "uplink", "source"))
    base = Fabric()
    return Fabric(
        rails=table.whole("rails", base.rails, least=1, most=256),
        pod=table.whole("pod", base.pod, least=1, most=65536),
        oversubscription=table.number("oversubscription", base.oversubscription, least=1.0),
        spines=table.whole("spines", base.spines, most=65536),
        hop=table.duration("hop", base.hop),
        uplink=table.rate("uplink"),
        source=table.text("source"),
    )


def merge_fabric(base: object, own: object) -> object:
    """`[fabric]` of a file over that of its base."""
    return {**base, **own} if isinstance(base, Mapping) and isinstance(own, Mapping) else (own if own is not None else base)
