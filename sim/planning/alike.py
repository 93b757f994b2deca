"""Ranks that stay equal on a machine of which some parts are broken, slow or shared: they are simulated once.

Two ranks are equal when they play the same role at the same place of equal nodes, and every group of theirs holds the same mix of equal
ranks over equal cables: the coarsest equitable partition, refined from these colours (as `sim.engine.fold` does for whole machines).
A rank then stands for its equals on other nodes, never on its own, so that whatever the ranks of one node share is seen. Groups that fall
together must take no cable in common, or their flows would not be seen to share it; where two do, no rank is folded at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.cost.price import Pricer
from sim.program import Op, Program
from topologies.graph import Topology

_MEET = ("collective", "send", "recv")
_FEW = 16
"""Ranks up to which nothing is gained."""


def stand_ins(program: Program, pricer: Pricer, topology: Topology) -> list[int]:
    """For each rank of the program (rank r runs on rank r of the machine) the one that is simulated for it."""
    world = program.world
    each = list(range(world))
    if world <= _FEW:
        return each
    exchanges = _exchanges(program)
    groups = {axis: program.mesh.groups(axis) for axis in exchanges}
    prints = {(axis, members): _print(exchanges[axis], members, pricer) for axis, found in groups.items() for members in found}
    colours = _numbered([_place(program, topology, rank) for rank in each])
    while True:
        parts: list[list[object]] = [[colour] for colour in colours]
        for axis, found in groups.items():
            for members in found:
                inside = [colours[rank] for rank in members]
                # Messages go to neighbours, so that the order counts there; in collectives the mix does.
                ordered = any(op.kind != "collective" for op in exchanges[axis])
                mix: object = (tuple(inside) if ordered else tuple(sorted(inside)), prints[axis, members][0])
                for rank in members:
                    parts[rank].append(mix)
        finer = _numbered([tuple(part) for part in parts])
        if max(finer) == max(colours):
            break
        colours = finer
    first: dict[int, int] = {}
    found_ = [first.setdefault(colour, rank) for rank, colour in enumerate(colours)]
    return found_ if _apart(prints, found_) else each


def _place(program: Program, topology: Topology, rank: int) -> object:
    """Role and stage, the local place, the node's make, and how fast every rank of the node is."""
    node = topology.node(rank)
    cluster = topology.cluster
    mates = tuple(other - rank for other in _mates(program, topology, rank))
    speeds = tuple(topology.speed(rank + offset) for offset in mates)
    stage = program.mesh.coordinates(rank)["pp"]
    return program.role_of[rank], stage, topology.local(rank), id(cluster.machine(node)), mates, speeds


def _mates(program: Program, topology: Topology, rank: int) -> Iterator[int]:
    """Ranks of the program on the same node; they are numbered in a row unless ranks are dealt round the nodes."""
    node = topology.node(rank)
    if topology.cluster.scatter:
        yield from (other for other in range(program.world) if topology.node(other) == node)
        return
    low = rank
    while low > 0 and topology.node(low - 1) == node:
        low -= 1
    while low < program.world and topology.node(low) == node:
        yield low
        low += 1


def _exchanges(program: Program) -> dict[str, list[Op]]:
    """By mesh axis, one op of each kind, name, size and algorithm that ranks exchange along it."""
    found: dict[str, dict[object, Op]] = {}
    for ops in program.segments.values():
        for op in ops:
            if op.kind in _MEET:
                found.setdefault(op.group, {}).setdefault((op.kind, op.name, op.bytes, op.how, op.peer), op)
    return {axis: list(ops.values()) for axis, ops in found.items() if program.mesh.size(axis) > 1}


Print = tuple[object, frozenset[str]]


def _print(ops: list[Op], members: tuple[int, ...], pricer: Pricer) -> Print:
    """What everything that a group exchanges costs, and the resources that it takes."""
    figures: list[object] = []
    names: set[str] = set()
    for op in ops:
        if op.kind == "recv":  # the other side of a send
            continue
        if op.kind == "collective":
            costs = [pricer.collective(op, members, 1)]
        else:
            size = len(members)
            costs = [pricer.message(op, members[at], members[(at + op.peer) % size], 1) for at in range(size)]
        for cost in costs:
            rates = tuple((amount, pricer.capacity[name]) for name, amount in cost.uses)
            figures.append((cost.seconds, cost.latency, tuple(sorted(rates))))
            names.update(name for name, _ in cost.uses)
    return tuple(figures), frozenset(names)


def _apart(prints: dict[tuple[str, tuple[int, ...]], Print], stands_for: list[int]) -> bool:
    """Groups that fall together take no resource in common."""
    taken: dict[tuple[str, tuple[int, ...]], set[str]] = {}
    for (axis, members), (_, names) in prints.items():
        together = taken.setdefault((axis, tuple(sorted({stands_for[rank] for rank in members}))), set())
        if not together.isdisjoint(names):
            return False
        together |= names
    return True


def _numbered(keys: list[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
