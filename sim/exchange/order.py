"""The order in which the lanes of one rank run the nodes of its graph.

Lanes run in the order of the graph, ties by start time, then id. A lane waits for another's event only where the graph says so, and not
twice for what an earlier wait implies.
"""

from __future__ import annotations

import heapq

from sim.exchange.chakra import Kind, Node
from sim.exchange.reading import Reading
from sim.exchange.workload import Workload
from sim.program import COMPUTE, D2H, H2D, HOST
from topologies.errors import BadInput, Refused

ISSUE = "issue"
"""The thread that queues what devices run; it takes no time."""
_NOTHING = (Kind.INVALID, Kind.METADATA)
Meet = tuple[str, str, int]
"""A collective: group, lane, number on that lane."""


class Order:
    """The nodes of one rank in the order in which lanes run them, with what each waits for."""

    def __init__(self, workload: Workload, rank: int) -> None:
        self.name, self.rank = workload.name, rank
        self.says = Reading(workload, rank)
        nodes = {node.id: node for node in workload.ranks[rank]}
        self.nodes: list[Node] = []
        """What runs; metadata and other nodes without effect only pass dependencies on."""
        self.lanes: dict[int, str] = {}
        self.waits: dict[int, list[int]] = {}
        self.marked: set[int] = set()
        self.last: dict[str, int] = {}
        self.meets: dict[int, Meet] = {}
        self._met: dict[tuple[str, str], int] = {}
        self._place: dict[int, int] = {}
        self._seen: dict[str, dict[str, int]] = {}
        """By lane: how far along each other lane it has waited."""
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
        """Nodes after all they depend on; ties by start time, then id. Raises `BadInput` where the graph has a cycle."""
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
        """It takes no time: metadata, or a collective of one rank."""
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
        """The lane that the trace names, or one for each kind of unit: CPU, kernels, copies, each communicator, each peer."""
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
