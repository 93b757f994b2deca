"""Which ranks of a cluster each of several jobs takes, and what its ops cost in those places."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sim.cost.collective.cables import nodes_of, ring_cables
from sim.cost.price import Cost, Derived, Pricer
from sim.program import Op
from topologies.errors import BadInput
from topologies.load import Topology

PLACEMENTS = ("compact", "spread")


def placed(worlds: Sequence[int], machine: Topology, placement: str | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """For each job the ranks of the cluster that it takes. Raises `BadInput`."""
    if sum(worlds) > machine.gpus:
        raise BadInput(
            f"the jobs need {' + '.join(map(str, worlds))} ranks, {machine.name} has {machine.gpus}. Use more machines or smaller plans"
        )
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise BadInput(f"placement {placement[:40]!r}: allowed are {', '.join(PLACEMENTS)}, or the ranks of each job")
        if placement == "spread":
            return _spread(worlds, machine)
        starts = [sum(worlds[:at]) for at in range(len(worlds))]
        return [tuple(range(start, start + world)) for start, world in zip(starts, worlds, strict=True)]
    found = [tuple(ranks) for ranks in placement]
    if [len(ranks) for ranks in found] != list(worlds):
        raise BadInput(f"the placement gives {[len(ranks) for ranks in found]} ranks to jobs that need {list(worlds)}")
    flat = [rank for ranks in found for rank in ranks]
    if len(set(flat)) != len(flat) or not all(0 <= rank < machine.gpus for rank in flat):
        raise BadInput(f"the placement must name each rank at most once, 0 to {machine.gpus - 1} on {machine.name}")
    return found


def _spread(worlds: Sequence[int], machine: Topology) -> list[tuple[int, ...]]:
    """Every job on as many nodes as it can be: ranks are dealt node by node, local place by local place; each job's in order."""
    dealt = sorted(range(machine.gpus), key=lambda rank: (machine.local(rank), machine.node(rank)))
    found, at = [], 0
    for world in worlds:
        found.append(tuple(sorted(dealt[at : at + world])))
        at += world
    return found


def spoken(ranks: Sequence[int]) -> str:
    """`0-63`, `0-3 8-11 .. 120-123`: runs of ranks, the first two and the last of many."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [f"{first}-{last}" if last > first else str(first) for first, last in runs]
    return " ".join(words if len(words) <= 4 else [*words[:2], "..", words[-1]])


class PlacedPricer(Derived):
    """A pricer that knows the job's rank r as rank `places[r]` of the cluster, and every cable of the network that a collective takes."""

    def __init__(self, inner: Pricer, places: tuple[int, ...], topology: Topology) -> None:
        super().__init__(inner)
        self._places, self._topology = places, topology
        self._known: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[str, ...]]] = {}
        """By members: their ranks of the cluster, and the cables between these."""

    def local(self, op: Op, rank: int) -> Cost:
        return self.inner.local(op, self._places[rank])

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """As the pricer says of those ranks; what it wishes of one NIC's cables, it wishes of every NIC's between them."""
        known = self._known.get(members)
        if known is None:
            ranks = tuple(self._places[member] for member in members)
            known = self._known[members] = (ranks, ring_cables(self._topology, nodes_of(self._topology, ranks)))
        ranks, cables = known
        cost = self.inner.collective(op, ranks, siblings)
        wish = max((amount for name, amount in cost.uses if "net/" in name), default=0.0)
        if not wish:
            return cost
        inside = tuple(use for use in cost.uses if "net/" not in use[0])
        network = tuple((name, wish) for name in cables)
        return msgspec.structs.replace(cost, uses=network + inside)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self.inner.message(op, self._places[source], self._places[target], siblings)

    def slowdown(self, rank: int) -> float:
        return self.inner.slowdown(self._places[rank])
