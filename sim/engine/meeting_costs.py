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
        """`folded`: equal groups count on shared links; `near`: the ranks that may take what a rank takes; None: all. `between`: what meetings
        take between nodes."""
        self._program, self._pricer, self._groups, self._folded, self._near = program, pricer, groups, folded, near
        self._known: dict[tuple[object, ...], Cost] = {}
        """By what is sent, how, in which group, and the rank: equal layers ask for the same."""
        self._worked: dict[int, dict[int, float]] = {}
        """Of each rank: seconds that it has worked before each meeting."""
        self._crowds = crowds_of(groups, near)
        self._orbits = orbits(between, list(map(groups.stands_for, range(program.world))), pricer.capacity) if between else {}

    def collective(self, op: Op, rank: int) -> Cost:
        """A collective of the rank's group, which NCCL runs as if alone, beside those of the groups that are simulated as this one."""
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
        """A message that `rank` sends; where the rank stands for all of a ring, the ring's slowest hop, for which all of it waits."""
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
        """A meeting's cost after what the rank computes before it."""
        if not cost.drift and not cost.wander:
            return cost
        found = self._worked.get(rank)
        if found is None:
            calls = (call.segment for call in self._program.threads(rank)[HOST])
            found = self._worked[rank] = worked(calls, self._program.segments, lambda op: self._pricer.local(op, rank).seconds)
        return met(cost, found.get(id(op), cost.drift_after))

    def _hop(self, op: Op, rank: int) -> Cost:
        """A message from `rank`. Where its peer is simulated as `rank` is, it arrives at `rank` from who is as far before: the links at its
        end are those on which `rank` itself is reached, where other messages may wait for them."""
        groups = self._groups
        peer = groups.peer_of(op, rank)
        cost = self._pricer.message(op, rank, peer, 1)
        if not self._folded or not cost.uses or groups.stands_for(peer) != groups.stands_for(rank):
            return cost
        come = self._pricer.message(op, peer_of(groups.members(op.group, rank), rank, -op.peer), rank, 1)
        leave, arrive = ((len(one.uses) + 1) // 2 for one in (cost, come))  # the one before may be below other switches
        return replace(cost, uses=(*cost.uses[:leave], *come.uses[arrive:]))

    def _beside_twins(self, op: Op, rank: int, cost_of: CostOf, twin: Twin) -> Cost:
        """What the op costs from `rank` on, beside the same op of those that are simulated as one with it."""
        if not self._folded:
            return cost_of(rank)
        return on_orbits(self._crowds.beside(op, rank, cost_of, twin, self._pricer.capacity), self._orbits)


def _waited_for(own: Cost, slowest: Cost) -> Cost:
    """A ring's slowest hop. One that is slower by its way's latency alone takes what the rank's own does, whose links its other ops are on."""
    if slowest.seconds - slowest.latency > (own.seconds - own.latency) * _EQUAL:
        return slowest
    return replace(own, seconds=slowest.seconds, latency=slowest.latency)
