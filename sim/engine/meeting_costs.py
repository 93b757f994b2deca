"""What collectives and messages cost between simulated ranks, each of which may stand for many."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.cost.price import Cost, Pricer, met
from sim.engine.crowds import Beside, CostOf, Twin, crowds_of
from sim.engine.fold import Passage
from sim.engine.groups import Groups
from sim.engine.orbits import on_orbits, orbits
from sim.engine.worked import worked
from sim.mesh import peer_of
from sim.program import HOST, Op, Program

_EQUAL = 1 + 1e-6


class MeetingCosts:
    """Costs of one program's meetings."""

    def __init__(
        self, program: Program, pricer: Pricer, groups: Groups, folded: bool, near: Beside, between: Sequence[Passage] = ()
    ) -> None:
        """`folded`: some ranks stand for others, whose groups count on shared links, too. `near`: (rank) -> the ranks that may use the
        same resources; None: all may. `between`: the links between nodes that collectives and messages use."""
        self._program, self._pricer, self._groups, self._folded, self._near = program, pricer, groups, folded, near
        self._known: dict[tuple[object, ...], Cost] = {}
        """Cost by what is sent, how, in which group, and the rank. Equal layers ask for the same cost."""
        self._worked: dict[int, dict[int, float]] = {}
        """Rank -> {id() of a collective or message: seconds that the rank computes between the one before and this one} (`worked`)."""
        self._crowds = crowds_of(groups, near)
        self._orbits = orbits(between, list(map(groups.stands_for, range(program.world))), pricer.capacity) if between else {}

    def collective(self, op: Op, rank: int) -> Cost:
        """The cost of a collective of the rank's group: NCCL runs it as if it were alone, but the groups that are simulated as this one
        run theirs at the same time."""
        key = (op.name, op.cls, op.bytes, op.how, op.works, op.lane, op.group, rank)
        cost = self._known.get(key)
        if cost is None:
            groups, axis = self._groups, op.group

            def alone(other: int) -> Cost:
                return self._pricer.collective(op, groups.members(axis, other), 1)

            def twin(other: int) -> int | None:
                return groups.members(axis, other)[0] if groups.represented(axis, other) == groups.represented(axis, rank) else None

            cost = self._known[key] = self._beside_twins(op, groups.members(axis, rank)[0], alone, twin)
        return self._after(op, cost, rank)

    def message(self, op: Op, rank: int) -> Cost:
        """The cost of a message that `rank` sends. Where the rank stands for all of a ring: the cost of the ring's slowest hop, for
        which all members wait."""
        key = (op.peer, op.bytes, op.lane, op.group, rank)
        cost = self._known.get(key)
        if cost is None:
            groups = self._groups
            ring = groups.members(op.group, rank) if groups.represented(op.group, rank) == (rank,) else (rank,)

            def alone(other: int) -> Cost:
                return self._hop(op, other)

            def twin(other: int) -> int | None:
                return other if groups.stands_for(other) == rank else None

            hops = {one: self._beside_twins(op, one, alone, twin) for one in ring}
            cost = self._known[key] = _waited_for(hops[rank], max(hops.values(), key=lambda hop: hop.seconds))
        return self._after(op, cost, rank)

    def _after(self, op: Op, cost: Cost, rank: int) -> Cost:
        """The cost once it is known how long the rank has computed since it last met others (`sim.cost.price.met`)."""
        if not cost.drift and not cost.wander:
            return cost
        found = self._worked.get(rank)
        if found is None:
            calls = (call.segment for call in self._program.threads(rank)[HOST])
            found = self._worked[rank] = worked(calls, self._program.segments, lambda op: self._pricer.local(op, rank).seconds)
        return met(cost, found.get(id(op), cost.drift_after))

    def _hop(self, op: Op, rank: int) -> Cost:
        """The cost of a message from `rank`. Where `rank` stands for its peer, too, the links at the receiving end are those of the
        message that arrives at `rank` itself, from the rank that is as far before it: other messages of `rank` may wait for these
        links."""
        groups = self._groups
        peer = groups.peer_of(op, rank)
        cost = self._pricer.message(op, rank, peer, 1)
        if not self._folded or not cost.uses or groups.stands_for(peer) != groups.stands_for(rank):
            return cost
        come = self._pricer.message(op, peer_of(groups.members(op.group, rank), rank, -op.peer), rank, 1)
        leave, arrive = ((len(one.uses) + 1) // 2 for one in (cost, come))  # the one before may be below other switches
        return replace(cost, uses=(*cost.uses[:leave], *come.uses[arrive:]))

    def _beside_twins(self, op: Op, rank: int, cost_of: CostOf, twin: Twin) -> Cost:
        """The cost of the op as `rank` starts it, while the ranks that are simulated as one with it run the same op."""
        if not self._folded:
            return cost_of(rank)
        return on_orbits(self._crowds.beside(op, rank, cost_of, twin, self._pricer.capacity), self._orbits)


def _waited_for(own: Cost, slowest: Cost) -> Cost:
    """The cost of a ring's slowest hop. If this is slower by the latency of its path alone, the rank's own hop with that time: the
    rank's other ops use the links of its own hop."""
    if slowest.seconds - slowest.latency > (own.seconds - own.latency) * _EQUAL:
        return slowest
    return replace(own, seconds=slowest.seconds, latency=slowest.latency)
