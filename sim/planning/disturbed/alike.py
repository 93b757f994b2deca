"""Ranks that stay equal on a machine of which some parts are broken, slow or shared by several jobs: they are simulated once.

Two ranks are equal when they play the same role at the same place of equal nodes, whose other ranks are equal too, and every group of
theirs holds the same mix of equal ranks over equal cables: the coarsest equitable partition, refined from these colours (as
`sim.engine.fold` does for whole machines). A rank then stands for its equals on other nodes, never on its own, and all ranks of a node are
stood for by those of one node, so that whatever the ranks of a node share is seen. Groups that fall together must take no cable in common,
or their flows would not be seen to share it: those that do are told apart, and ranks refined once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.cost.price import Pricer
from sim.mesh import peer_of
from sim.program import MEETING, Op, Program
from topologies.graph import Topology

_FEW = 16
"""Ranks up to which nothing is gained."""


class Placed(NamedTuple):
    """A job: its rank r runs on rank `places[r]` of the cluster; the pricer knows the job's ranks."""

    program: Program
    pricer: Pricer
    places: Sequence[int]


def stand_ins(jobs: Sequence[Placed], topology: Topology) -> list[list[int]]:
    """For each job, for each of its ranks the one that is simulated for it."""
    each = [list(range(job.program.world)) for job in jobs]
    if sum(map(len, each)) <= _FEW:
        return each
    groups = [_Groups(job) for job in jobs]
    nodes = [[topology.node(place) for place in job.places] for job in jobs]
    colours = _numbered([[_place(at, job, rank, topology) for rank in each[at]] for at, job in enumerate(jobs)])
    while True:
        colours = _refined(groups, colours, nodes)
        stands_for = [_first(mine, where) for mine, where in zip(colours, nodes, strict=True)]
        lots = [one.lots(mine) for one, mine in zip(groups, stands_for, strict=True)]
        if not any(any(lot) for found in lots for lot in found):
            return stands_for
        colours = _numbered([list(zip(mine, found, strict=True)) for mine, found in zip(colours, lots, strict=True)])


def _refined(groups: Sequence[_Groups], colours: list[list[int]], nodes: list[list[int]]) -> list[list[int]]:
    """The coarsest equitable partition that is no coarser than `colours`."""
    while True:
        mates: dict[int, list[int]] = {}
        for mine, where in zip(colours, nodes, strict=True):
            for colour, node in zip(mine, where, strict=True):
                mates.setdefault(node, []).append(colour)
        around = {node: tuple(sorted(found)) for node, found in mates.items()}
        parts = [found.parts(mine, [around[node] for node in where]) for found, mine, where in zip(groups, colours, nodes, strict=True)]
        finer = _numbered(parts)
        if max(map(max, finer)) == max(map(max, colours)):
            return finer
        colours = finer


def _first(colours: list[int], nodes: list[int]) -> list[int]:
    """Of each colour the rank on the lowest node, which is the same node for all colours of equal nodes."""
    first: dict[int, int] = {}
    for rank in sorted(range(len(colours)), key=lambda rank: (nodes[rank], rank)):
        first.setdefault(colours[rank], rank)
    return [first[colour] for colour in colours]


def _place(job: int, placed: Placed, rank: int, topology: Topology) -> object:
    """Job, role and stage, the local place, the node's make, and the device's speed."""
    program, place = placed.program, placed.places[rank]
    machine = id(topology.cluster.machine(topology.node(place)))
    stage = program.mesh.coordinates(rank)["pp"]
    return job, program.role_of[rank], stage, topology.local(place), machine, topology.speed(place)


class _Groups:
    """Who exchanges what in one job, with what it costs."""

    def __init__(self, job: Placed) -> None:
        self._exchanges = _exchanges(job.program)
        self._groups = {axis: job.program.mesh.groups(axis) for axis in self._exchanges}
        self._ordered = {axis: any(op.kind != "collective" for op in ops) for axis, ops in self._exchanges.items()}
        """Messages go to neighbours, so that the order of ranks counts there; in collectives their mix does."""
        self._prints = {
            (axis, members): _print(self._exchanges[axis], members, job.pricer) for axis, found in self._groups.items() for members in found
        }

    def parts(self, colours: list[int], around: list[tuple[int, ...]]) -> list[object]:
        """For each rank its colour, its node's colours, and the mix and costs of each of its groups."""
        found: list[list[object]] = [[colour, node] for colour, node in zip(colours, around, strict=True)]
        for axis, groups in self._groups.items():
            for members in groups:
                inside = [colours[rank] for rank in members]
                mix = (tuple(inside) if self._ordered[axis] else tuple(sorted(inside)), self._prints[axis, members][0])
                for rank in members:
                    found[rank].append(mix)
        return [tuple(part) for part in found]

    def lots(self, stands_for: list[int]) -> list[tuple[int, ...]]:
        """For each rank, by axis, the number of its group's lot: groups that fall together and take a resource in common are in different ones,
        0 where none do."""
        found: list[list[int]] = [[] for _ in stands_for]
        taken: dict[tuple[str, tuple[int, ...]], list[set[str]]] = {}
        for (axis, members), (_, names) in self._prints.items():
            lots = taken.setdefault((axis, tuple(sorted({stands_for[rank] for rank in members}))), [])
            lot = next((at for at, together in enumerate(lots) if together.isdisjoint(names)), len(lots))
            lots += [set()] if lot == len(lots) else []
            lots[lot] |= names
            for rank in members:
                found[rank].append(lot)
        return [tuple(own) for own in found]


def _exchanges(program: Program) -> dict[str, list[Op]]:
    """By mesh axis, one op of each kind, name, size and algorithm that ranks exchange along it."""
    found: dict[str, dict[object, Op]] = {}
    for ops in program.segments.values():
        for op in ops:
            if op.kind in MEETING:
                found.setdefault(op.group, {}).setdefault((op.kind, op.name, op.bytes, op.how, op.peer, op.works), op)
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
            costs = [pricer.message(op, rank, peer_of(members, rank, op.peer), 1) for rank in members]
        for cost in costs:
            rates = tuple((amount, pricer.capacity[name]) for name, amount in cost.uses)
            figures.append((cost.seconds, cost.latency, tuple(sorted(rates))))
            names.update(name for name, _ in cost.uses)
    return tuple(figures), frozenset(names)


def _numbered(keys: Sequence[Sequence[object]]) -> list[list[int]]:
    numbers: dict[object, int] = {}
    return [[numbers.setdefault(key, len(numbers)) for key in row] for row in keys]
