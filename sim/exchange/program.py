"""Converts a Chakra workload to a program: each rank's graph of nodes becomes lanes of ops.

Each rank has two threads. `host` runs the CPU's nodes in order. `issue` launches the devices' nodes on their lanes without taking time, so
that only dependencies and lanes determine their order.
"""

from __future__ import annotations

from sim.exchange.agreement import agreed, matched
from sim.exchange.chakra import Kind, Node
from sim.exchange.order import ISSUE, Meet, Order
from sim.exchange.reading import Taken
from sim.exchange.workload import Communicators, Workload
from sim.mesh import AXES
from sim.program import HOST, Call, Op, Program, Role
from sim.words import split
from sim.work import MemoryBound, parse_work
from topologies.errors import BadInput

_MEET = (Kind.COLL, Kind.SEND, Kind.RECV)


def program_of(workload: Workload) -> tuple[Program, dict[tuple[int, str], Taken]]:
    """The program of a workload, and the cost of its local ops (neither collectives nor messages) by (rank, op).

    Raises `BadInput` for graphs with a cycle, unknown groups, and collectives or messages on which ranks disagree.
    """
    world = len(workload.ranks)
    orders = [Order(workload, rank) for rank in range(world)]
    collectives = agreed(orders)
    matched(orders)
    taken: dict[tuple[int, str], Taken] = {}
    segments: dict[str, tuple[Op, ...]] = {}
    roles: dict[str, Role] = {}
    for order in orders:
        rank = f"r{order.rank}"
        threads = _threads(order, collectives)
        segments |= {f"{rank}.{thread}": tuple(ops) for thread, ops in threads.items()}
        roles[rank] = Role({thread: (Call(f"{rank}.{thread}", "chakra"),) for thread in threads})
        taken |= {(order.rank, _name(node)): order.says.taken(node) for node in order.nodes if node.kind not in _MEET}
    mesh = Communicators({axis: world if axis == "dp_replicate" else 1 for axis in AXES}, table=workload.groups)
    return Program(workload.name, "cuda", mesh, segments, roles, tuple(f"r{rank}" for rank in range(world)), 1), taken


def _threads(order: Order, agreed: dict[Meet, tuple[str, int]]) -> dict[str, list[Op]]:
    """Ops of the two threads. `agreed`: name and bytes of each collective."""
    found: dict[str, list[Op]] = {HOST: [], ISSUE: []}
    for node in order.nodes:
        lane = order.lanes[node.id]
        ops = found[HOST if lane == HOST else ISSUE]
        for dep in order.waits[node.id]:
            ops.append(Op(f"n{node.id}.after.n{dep}", "sync" if lane == HOST else "wait", lane, event=f"n{dep}", shift=0))
        if node.kind == Kind.COLL:
            ops.append(_collective(order, node, lane, *agreed[order.meets[node.id]]))
        elif node.kind in _MEET:
            ops.append(_message(order, node, lane))
        else:
            ops.append(_local(order, node, lane))
        if node.id in order.marked:
            ops.append(Op(f"n{node.id}.done", "record", lane, event=f"n{node.id}", shift=0))
    for lane, last in order.last.items():
        if lane != HOST:
            found[HOST].append(Op(f"end.{lane}", "sync", HOST, event=f"n{last}", shift=0))
    return found


def _name(node: Node) -> str:
    return f"n{node.id}.{node.name}"


def _class(node: Node, otherwise: str) -> str:
    return str(node.attrs.get("steptwin.class", "")) or otherwise


def _collective(order: Order, node: Node, lane: str, what: str, size: int) -> Op:
    how, group = str(node.attrs.get("steptwin.how", "")), order.says.group(node)
    beside = tuple(map(parse_work, split(str(node.attrs.get("steptwin.beside", "")))))
    return Op(_name(node), "collective", lane, beside, name=what, bytes=size, group=group, cls=_class(node, "comm"), how=how)


def _message(order: Order, node: Node, lane: str) -> Op:
    sends, says = node.kind == Kind.SEND, order.says
    peer = says.whole(node, "comm_dst" if sends else "comm_src")
    if peer >= says.world or peer == order.rank:
        raise BadInput(f"rank {order.rank}, node {node.id} exchanges with rank {peer}; there are ranks 0 to {says.world - 1}")
    size, cls = says.whole(node, "comm_size"), _class(node, "comm")
    return Op(_name(node), "send" if sends else "recv", lane, bytes=size, group="world", peer=peer - order.rank, cls=cls)


def _local(order: Order, node: Node, lane: str) -> Op:
    if lane == HOST:
        return Op(_name(node), "host", HOST, cls=_class(node, "host"))
    moved = int(order.says.count(node, "tensor_size"))
    if node.kind != Kind.COMP:
        return Op(_name(node), "copy", lane, bytes=moved, cls=_class(node, "data"))
    work = MemoryBound("chakra", moved, 0, ops=order.says.count(node, "num_ops"))
    return Op(_name(node), "compute", lane, (work,), cls=_class(node, "compute"))
