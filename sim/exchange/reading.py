"""Reads the nodes of one rank's trace: members, collectives, bytes and seconds."""

from __future__ import annotations

from typing import NamedTuple

from sim.exchange.chakra import Coll, Node
from sim.exchange.shares import SHARES, Share
from sim.exchange.workload import Workload
from topologies.errors import BadInput, Refused

UNTIMED = -1.0
"""Stands for seconds where the trace has FLOPs and bytes but no duration."""
_COLLECTIVES = {Coll.reduce_scatter_block: "reduce_scatter"}
_NEVER = (Coll.gather, Coll.scatter)
_SHARED: dict[str, Share] = {word: word for word in SHARES}


class Taken(NamedTuple):
    """Cost of a local node (neither a collective nor a message)."""

    seconds: float
    """Seconds when nothing else runs on the machine; `UNTIMED`: only FLOPs and bytes are known."""
    latency: float = 0.0
    """The first part of `seconds`, in which no shared resource is used."""
    share: Share | None = None
    moved: float = 0.0
    """Bytes that go through the shared resource (`share`)."""
    cores: float = 1.0
    slowed: float = 0.0
    """Seconds when a collective runs at the same time; 0: not in the trace, the machine's slowdown applies."""


class Reading:
    """Reads the nodes of one rank."""

    def __init__(self, workload: Workload, rank: int) -> None:
        self.workload, self.rank = workload, rank
        self.world = len(workload.ranks)

    def members(self, node: Node) -> tuple[int, ...]:
        """Ranks of a collective. Raises `BadInput` for a group that nobody declared."""
        name = str(node.attrs.get("pg_name", ""))
        if name in self.workload.groups:
            return self.workload.groups[name]
        if name not in ("", "0"):
            known = ", ".join(self.workload.groups) or "none"
            raise BadInput(
                f"rank {self.rank}, node {node.id}: group {name[:40]!r} is not known. Known: {known[:200]}; name a file of groups"
            )
        dims = node.attrs.get("involved_dim", ())
        if isinstance(dims, tuple) and not all(dims):
            raise Refused(
                f"rank {self.rank}, node {node.id} exchanges along some dimensions of a network (involved_dim) that only the simulator it "
                "was made for knows. Give it a process group (pg_name) instead"
            )
        return tuple(range(self.world))

    def group(self, node: Node) -> str:
        """The name that the program gives to a collective's group: "world", or that of its process group."""
        name = str(node.attrs.get("pg_name", ""))
        return name if name in self.workload.groups else "world"

    def whole(self, node: Node, name: str) -> int:
        """An attribute that must be a whole number of at least 0. Raises `BadInput`."""
        value = node.attrs.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadInput(f"rank {self.rank}, node {node.id} ({node.name[:60]}) needs the attribute {name}, a number that is not negative")
        return value

    def _seconds(self, node: Node) -> float:
        exact = node.attrs.get("steptwin.seconds")
        if isinstance(exact, float) and 0 <= exact < 1e9:
            return exact
        if node.duration or not self.count(node, "num_ops"):
            return node.duration * 1e-6
        return UNTIMED

    def taken(self, node: Node) -> Taken:
        """The cost of a local node. Shared resources are used only where the durations in the trace are those of ops that run alone."""
        seconds, latency = self._seconds(node), self.count(node, "steptwin.latency")
        share = _SHARED.get(str(node.attrs.get("steptwin.share"))) if self.workload.alone else None
        slowed = self.count(node, "steptwin.slowed")
        return Taken(
            seconds,
            min(latency, max(0.0, seconds)),
            share,
            self.count(node, "tensor_size") * (self.count(node, "steptwin.part") or 1.0),
            self.count(node, "steptwin.cores") or 1.0,
            max(slowed, seconds) if slowed and seconds > 0 else 0.0,
        )

    def count(self, node: Node, name: str) -> float:
        """A number that a node may have; 0 where it is absent, negative, or not below 1e30."""
        count = node.attrs.get(name, 0)
        return float(count) if isinstance(count, int | float) and 0 <= count < 1e30 else 0.0

    def collective(self, node: Node) -> tuple[str, int]:
        """Name and bytes of a collective in this project's convention (for an all_gather the bytes of the whole array). Raises `BadInput`
        or `Refused`."""
        number = self.whole(node, "comm_type")
        if number not in set(Coll) or number in _NEVER:
            raise Refused(f"rank {self.rank}, node {node.id}: collective type {number} is not simulated. Known: {', '.join(_names())}")
        name = _COLLECTIVES.get(Coll(number), Coll(number).name)
        own = node.attrs.get("steptwin.bytes")
        if isinstance(own, int) and not isinstance(own, bool) and own >= 0:
            return name, own
        size = self.whole(node, "comm_size") if name != "barrier" else 0
        return name, size * len(self.members(node)) if name == "all_gather" else size


def _names() -> list[str]:
    return [one.name for one in Coll if one not in _NEVER]
