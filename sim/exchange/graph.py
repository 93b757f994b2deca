"""A Chakra workload as a program: each rank's graph of nodes as lanes of ops.

Two threads: `host` runs the CPU's nodes in order, `issue` queues the devices' nodes on their lanes without taking time, so that nothing
but dependencies and lanes orders them. Lanes run in the order of the graph, ties by start time, then id. A lane waits for another's event
only where the graph says so, and not twice for what an earlier wait implies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sim.exchange.chakra import Coll, Kind, Node
from sim.exchange.shares import SHARES, Share
from sim.mesh import AXES, Mesh
from sim.program import COMPUTE, D2H, H2D, HOST, Call, Op, Program, Role
from sim.work import MemoryBound
from topologies.errors import BadInput, Refused

ISSUE = "issue"
"""The thread that queues what devices run; it takes no time."""
UNTIMED = -1.0
"""In place of seconds: the trace has FLOPs and bytes, and no duration."""
_NOTHING = (Kind.INVALID, Kind.METADATA)
_COLLECTIVES = {Coll.reduce_scatter_block: "reduce_scatter"}
_NEVER = (Coll.gather, Coll.scatter)


class Taken(NamedTuple):
    """What a node takes that needs no other rank."""

    seconds: float
    """With the machine to itself; `UNTIMED`: only FLOPs and bytes are known."""
    latency: float = 0.0
    """The first part of them, in which nothing is shared."""
    share: Share | None = None
    moved: float = 0.0
    """Bytes."""


class Workload(msgspec.Struct, frozen=True):
    """Traces of all ranks, read. `groups` by process group's name; the empty name means all ranks."""

    name: str
    ranks: tuple[tuple[Node, ...], ...]
    groups: dict[str, tuple[int, ...]]
    alone: bool = False
    """Durations are those of kernels that nothing runs beside (what `sim.exchange.export` writes), not measured ones."""
    framework: str = ""
    """Whose habits the collectives have, where the traces say it."""


class Communicators(Mesh, frozen=True):
    """A mesh whose groups are listed by name."""

    table: dict[str, tuple[int, ...]] = {}

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Members in their order. Raises `BadInput` for a rank that is not among them."""
        members = self.table[axis] if axis in self.table else tuple(range(self.world))
        if rank not in members:
            raise BadInput(f"rank {rank} takes part in an exchange of group {axis!r}, whose members are {str(members)[:80]}")
        return members

    def size(self, axis: str) -> int:
        """Members of a group; the world's axes as in every mesh."""
        return len(self.table[axis]) if axis in self.table else super().size(axis)


Meet = tuple[str, str, int]
"""A collective: group, lane, number on that lane."""


class Order:
    """The nodes of one rank in the order in which lanes run them, with what each waits for."""

    def __init__(self, workload: Workload, rank: int) -> None:
        self.workload, self.rank = workload, rank
        self.world = len(workload.ranks)
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
            raise BadInput(f"{self.workload.name}: rank {self.rank}'s graph has a cycle, through node {stuck} or behind it")
        return found

    def _idle(self, node: Node) -> bool:
        """It takes no time: metadata, or a collective of one rank."""
        if node.kind > Kind.COLL:
            raise Refused(f"rank {self.rank}, node {node.id} ({node.name[:60]}) has type {node.kind}; types 0 to 7 are simulated")
        return node.kind in _NOTHING or (node.kind == Kind.COLL and len(self.members(node)) == 1)

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
            group = self.group(node)
            number = self._met.get((group, lane), 0)
            self._met[group, lane] = number + 1
            self.meets[node.id] = (group, lane, number)

    def group(self, node: Node) -> str:
        """The name that the program gives to a collective's group: "world", or that of its process group."""
        name = str(node.attrs.get("pg_name", ""))
        return name if name in self.workload.groups else "world"

    def _lane(self, node: Node) -> str:
        """The lane that the trace names, or one for each kind of unit: CPU, kernels, copies, each communicator, each peer."""
        own = node.attrs.get("steptwin.lane")
        if isinstance(own, str) and own not in ("", ISSUE):
            return own
        if node.kind == Kind.COMP:
            return HOST if node.attrs.get("is_cpu_op") is True else COMPUTE
        if node.kind == Kind.COLL:
            return f"comm.{self.group(node)}"
        if node.kind in (Kind.SEND, Kind.RECV):
            return f"comm.send.{self._whole(node, 'comm_dst')}" if node.kind == Kind.SEND else f"comm.recv.{self._whole(node, 'comm_src')}"
        return H2D if node.kind == Kind.MEM_LOAD else D2H

    def _whole(self, node: Node, name: str) -> int:
        """An attribute that must be a number, not negative. Raises `BadInput`."""
        value = node.attrs.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadInput(f"rank {self.rank}, node {node.id} ({node.name[:60]}) needs the attribute {name}, a number that is not negative")
        return value

    # -- ops

    def threads(self, agreed: dict[Meet, tuple[str, int]], taken: dict[tuple[int, str], Taken]) -> dict[str, list[Op]]:
        """Ops of the two threads. `agreed`: name and bytes of each collective; `taken` gets what the nodes take, by (rank, op)."""
        found: dict[str, list[Op]] = {HOST: [], ISSUE: []}
        for node in self.nodes:
            lane = self.lanes[node.id]
            ops = found[HOST if lane == HOST else ISSUE]
            for dep in self.waits[node.id]:
                ops.append(Op(f"n{node.id}.after.n{dep}", "sync" if lane == HOST else "wait", lane, event=f"n{dep}", shift=0))
            ops.append(self._op(node, lane, agreed, taken))
            if node.id in self.marked:
                ops.append(Op(f"n{node.id}.done", "record", lane, event=f"n{node.id}", shift=0))
        for lane, last in self.last.items():
            if lane != HOST:
                found[HOST].append(Op(f"end.{lane}", "sync", HOST, event=f"n{last}", shift=0))
        return found

    def _op(self, node: Node, lane: str, agreed: dict[Meet, tuple[str, int]], taken: dict[tuple[int, str], Taken]) -> Op:
        name, cls = f"n{node.id}.{node.name}", str(node.attrs.get("steptwin.class", ""))
        if node.kind == Kind.COLL:
            what, size = agreed[self.meets[node.id]]
            how = str(node.attrs.get("steptwin.how", ""))
            return Op(name, "collective", lane, name=what, bytes=size, group=self.group(node), cls=cls or "comm", how=how)
        if node.kind in (Kind.SEND, Kind.RECV):
            peer = self._whole(node, "comm_dst" if node.kind == Kind.SEND else "comm_src")
            if peer >= self.world or peer == self.rank:
                raise BadInput(f"rank {self.rank}, node {node.id} exchanges with rank {peer}; there are ranks 0 to {self.world - 1}")
            kind, size = ("send" if node.kind == Kind.SEND else "recv"), self._whole(node, "comm_size")
            return Op(name, "send" if kind == "send" else "recv", lane, bytes=size, group="world", peer=peer - self.rank, cls=cls or "comm")
        taken[self.rank, name] = self._taken(node)
        moved = int(self._count(node, "tensor_size"))
        if lane == HOST:
            return Op(name, "host", HOST, cls=cls or "host")
        if node.kind != Kind.COMP:
            return Op(name, "copy", lane, bytes=moved, cls=cls or "data")
        return Op(name, "compute", lane, (MemoryBound("chakra", moved, 0, ops=self._count(node, "num_ops")),), cls=cls or "compute")

    def _seconds(self, node: Node) -> float:
        exact = node.attrs.get("steptwin.seconds")
        if isinstance(exact, float) and 0 <= exact < 1e9:
            return exact
        if node.duration or not self._count(node, "num_ops"):
            return node.duration * 1e-6
        return UNTIMED

    def _taken(self, node: Node) -> Taken:
        seconds, latency = self._seconds(node), self._count(node, "steptwin.latency")
        share = next((word for word in SHARES if word == node.attrs.get("steptwin.share")), None) if self.workload.alone else None
        return Taken(seconds, min(latency, max(0.0, seconds)), share, self._count(node, "tensor_size"))

    def _count(self, node: Node, name: str) -> float:
        """A figure that a node may have; 0 where it has none that is finite and not negative."""
        count = node.attrs.get(name, 0)
        return float(count) if isinstance(count, int | float) and 0 <= count < 1e30 else 0.0

    def collective(self, node: Node) -> tuple[str, int]:
        """Name and bytes, as this project counts them (of an all_gather the whole array). Raises `BadInput` or `Refused`."""
        number = self._whole(node, "comm_type")
        if number not in set(Coll) or number in _NEVER:
            raise Refused(f"rank {self.rank}, node {node.id}: collective type {number} is not simulated. Known: {', '.join(_names())}")
        name = _COLLECTIVES.get(Coll(number), Coll(number).name)
        own = node.attrs.get("steptwin.bytes")
        if isinstance(own, int) and not isinstance(own, bool) and own >= 0:
            return name, own
        size = self._whole(node, "comm_size") if name != "barrier" else 0
        return name, size * len(self.members(node)) if name == "all_gather" else size


def _names() -> list[str]:
    return [one.name for one in Coll if one not in _NEVER]


def program_of(workload: Workload) -> tuple[Program, dict[tuple[int, str], Taken]]:
    """The program of a workload, and what those of its ops take that need no other rank, by (rank, op).

    Raises `BadInput` for graphs with a cycle, unknown groups, and exchanges about which ranks disagree.
    """
    world = len(workload.ranks)
    orders = [Order(workload, rank) for rank in range(world)]
    agreed = _agreed(orders)
    _matched(orders)
    taken: dict[tuple[int, str], Taken] = {}
    segments: dict[str, tuple[Op, ...]] = {}
    roles: dict[str, Role] = {}
    for order in orders:
        rank = f"r{order.rank}"
        threads = order.threads(agreed, taken)
        segments |= {f"{rank}.{thread}": tuple(ops) for thread, ops in threads.items()}
        roles[rank] = Role({thread: (Call(f"{rank}.{thread}", "chakra"),) for thread in threads})
    mesh = Communicators({axis: world if axis == "dp_replicate" else 1 for axis in AXES}, table=workload.groups)
    return Program(workload.name, "cuda", mesh, segments, roles, tuple(f"r{rank}" for rank in range(world)), 1), taken


def _agreed(orders: Sequence[Order]) -> dict[Meet, tuple[str, int]]:
    """Name and most bytes of every collective. Raises `BadInput` where members run different ones, or not equally many."""
    found: dict[tuple[Meet, tuple[int, ...]], list[tuple[int, str, int]]] = {}
    for order in orders:
        for node in order.nodes:
            if node.id in order.meets:
                members = order.members(node)
                found.setdefault((order.meets[node.id], members), []).append((order.rank, *order.collective(node)))
    agreed: dict[Meet, tuple[str, int]] = {}
    for (meet, members), rows in found.items():
        where = f"collective number {meet[2]} of group {meet[0]!r} on lane {meet[1]}"
        came = {rank for rank, _, _ in rows}
        if strangers := sorted(came - set(members)):
            raise BadInput(f"{where}: ranks {str(strangers)[:80]} take part and are no members of {str(members)[:80]}")
        if missing := sorted(set(members) - came):
            raise BadInput(f"{where}: ranks {str(missing)[:80]} do not take part, of the members {str(members)[:80]}")
        if len({name for _, name, _ in rows}) > 1:
            raise BadInput(f"{where}: ranks disagree what it is: {', '.join(f'rank {rank} {name}' for rank, name, _ in rows[:8])}")
        agreed[meet] = (rows[0][1], max(size for _, _, size in rows))
    return agreed


def _matched(orders: Sequence[Order]) -> None:
    """Raises `BadInput` unless each pair of ranks sends and receives the same messages (tag, bytes) in the same order."""
    sent: dict[tuple[int, int], list[tuple[object, object]]] = {}
    received: dict[tuple[int, int], list[tuple[object, object]]] = {}
    for order in orders:
        for node in order.nodes:
            if node.kind in (Kind.SEND, Kind.RECV):
                ends = (order.rank, node.attrs.get("comm_dst")) if node.kind == Kind.SEND else (node.attrs.get("comm_src"), order.rank)
                side = sent if node.kind == Kind.SEND else received
                side.setdefault(ends, []).append((node.attrs.get("comm_tag", 0), node.attrs.get("comm_size")))  # type: ignore[arg-type]
    for ends in {*sent, *received}:
        out, back = sent.get(ends, []), received.get(ends, [])
        if out != back:
            at = next((i for i, (a, b) in enumerate(zip(out, back, strict=False)) if a != b), min(len(out), len(back)))
            raise BadInput(
                f"rank {ends[0]} sends {len(out)} messages to rank {ends[1]}, which receives {len(back)}; from number {at} on they differ in "
                "tag, bytes or order"
            )
