"""The order in which the lanes of one rank run the nodes of its graph.

The order follows the dependencies; nodes that are free at the same time are ordered by start time, then id. A lane waits for an event of
another lane only where the graph has a dependency that no earlier wait of this lane implies.
"""

from __future__ import annotations

import heapq

from sim.exchange.chakra import Kind, Node
from sim.exchange.reading import Reading
from sim.exchange.workload import Workload
from sim.program import COMPUTE, D2H, H2D, HOST
from topologies.errors import BadInput, Refused

ISSUE = "issue"
"""The thread that launches the devices' nodes; it takes no time."""
_NOTHING = (Kind.INVALID, Kind.METADATA)
Meet = tuple[str, str, int]
"""Identifies a collective: group, lane, and its number among the collectives of this group on this lane."""


class Order:
    """The nodes of one rank in the order in which lanes run them, and the nodes that each waits for."""

    def __init__(self, workload: Workload, rank: int) -> None:
        self.name, self.rank = workload.name, rank
        self.says = Reading(workload, rank)
        nodes = {node.id: node for node in workload.ranks[rank]}
        self.nodes: list[Node] = []
        """The nodes that run, in order. Metadata and other nodes without effect are left out; their dependencies are passed on."""
        self.lanes: dict[int, str] = {}
        self.waits: dict[int, list[int]] = {}
        self.marked: set[int] = set()
        self.last: dict[str, int] = {}
        self.meets: dict[int, Meet] = {}
        self._met: dict[tuple[str, str], int] = {}
        self._place: dict[int, int] = {}
        self._seen: dict[str, dict[str, int]] = {}
        """Lane -> other lane -> place (index in `nodes`) of the latest node there that it has waited for."""
        through: dict[int, frozenset[int]] = {}
        for node in self._sorted(nodes):
            before = frozenset(dep for direct in (*node.ctrl, *node.data) for dep in through[direct])
            if self._idle(node):
                through[node.id] = before
            else:
                through[node.id] = frozenset((node.id,))
                self._take(node, before)
        self.marked |= {last for lane, last in self.last.items() if lane != HOST}

    def _sorted(self, nodes: dict[int, Node]) -> list[Node]:
        """Sorts nodes topologically, ties by start time, then id. Raises `BadInput` where the graph has a cycle."""
        left = {node.id: len({*node.ctrl, *node.data}) for node in nodes.values()}
        after: dict[int, list[int]] = {}
        for node in nodes.values():
            for dep in {*node.ctrl, *node.data}:
                after.setdefault(dep, []).append(node.id)
        ready = [(node.start, node.id) for node in nodes.values() if not left[node.id]]
        heapq.heapify(ready)
        found: list[Node] = []
        while ready:
            _, at = heapq.heappop(ready)
            found.append(nodes[at])
            for other in after.get(at, ()):
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (nodes[other].start, other))
        if len(found) < len(nodes):
            stuck = next(number for number, count in left.items() if count > 0)
            raise BadInput(f"{self.name}: rank {self.rank}'s graph has a cycle, through node {stuck} or behind it")
        return found

    def _idle(self, node: Node) -> bool:
        """True for nodes without effect: metadata, or a collective of one rank. Raises `Refused` for an unknown type."""
        if node.kind > Kind.COLL:
            raise Refused(f"rank {self.rank}, node {node.id} ({node.name[:60]}) has type {node.kind}; types 0 to 7 are simulated")
        return node.kind in _NOTHING or (node.kind == Kind.COLL and len(self.says.members(node)) == 1)

    def _take(self, node: Node, before: frozenset[int]) -> None:
        lane = self.lanes[node.id] = self._lane(node)
        seen = self._seen.setdefault(lane, {})
        latest: dict[str, int] = {}
        for dep in before:
            other = self.lanes[dep]
            if other != lane and self._place[dep] > max(seen.get(other, -1), self._place.get(latest.get(other, -1), -1)):
                latest[other] = dep
        for other, dep in latest.items():
            seen[other] = self._place[dep]
        self.waits[node.id] = sorted(latest.values())
        self.marked |= set(latest.values())
        self._place[node.id] = len(self.nodes)
        self.nodes.append(node)
        self.last[lane] = node.id
        if node.kind == Kind.COLL:
            group = self.says.group(node)
            number = self._met.get((group, lane), 0)
            self._met[group, lane] = number + 1
            self.meets[node.id] = (group, lane, number)

    def _lane(self, node: Node) -> str:
        """The lane that the trace names; else a lane by kind: the CPU, kernels, copies to or from the device, each communicator, each
        peer."""
        own = node.attrs.get("steptwin.lane")
        if isinstance(own, str) and own not in ("", ISSUE):
            return own
        if node.kind == Kind.COMP:
            return HOST if node.attrs.get("is_cpu_op") is True else COMPUTE
        if node.kind == Kind.COLL:
            return f"comm.{self.says.group(node)}"
        if node.kind == Kind.SEND:
            return f"comm.send.{self.says.whole(node, 'comm_dst')}"
        if node.kind == Kind.RECV:
            return f"comm.recv.{self.says.whole(node, 'comm_src')}"
        return H2D if node.kind == Kind.MEM_LOAD else D2H
