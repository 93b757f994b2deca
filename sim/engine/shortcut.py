"""Shortens runs of ops before they stand in a program: applies `condense` and `fuse` to a stretch once for all equal layers.

For pipelines in which one rank is simulated for each stage, on machines where all stages' ranks have equal places.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from itertools import pairwise

from sim.cost.price import Cost, Pricer
from sim.engine.condense import Alone, condense, stretches
from sim.engine.fuse import Priced, fuse
from sim.engine.groups import by_stage
from sim.engine.inorder.moves import Unordered
from sim.engine.inorder.run import alone_in_order
from sim.engine.pricing import Pricing
from sim.engine.steps import alone
from sim.mesh import Mesh
from sim.program import COMPUTE, EVENTS, HOST, MEETING, Op, Program
from topologies.graph import Topology

_LAUNCHED = frozenset({*EVENTS, *MEETING})
"""Kinds of ops that cost a GPU's rank by itself only their launch, which always costs the same."""


class Shortcut:
    """A pricer that also knows the ops that `shorten` makes."""

    def __init__(self, pricer: Pricer, mesh: Mesh, topology: Topology) -> None:
        self._pricer, self._topology = pricer, topology
        self.coarse = False
        """Whether to leave out what transfers inside a layer lose to others on their links, and what gaps lose to collectives beside
        them."""
        self.capacity = pricer.capacity
        self.alike = True
        """Every collective (and message of a ring) that was shortened, or left in a shortened run, costs the same on all stages."""
        self._ranks = [mesh.rank({"pp": stage}) for stage in range(mesh.size("pp"))]
        self._groups = by_stage(mesh)
        self._prices = Pricing(Program("", "cuda", mesh, {}, {}, (), 1), pricer, self._groups, True, alone, topology.beside)
        self._costs: dict[int, tuple[Cost, Op]] = {}
        self._launches: dict[tuple[str, bool, int], Cost] = {}
        """Costs of ops of kind `_LAUNCHED`: (kind, whether the thread itself runs it, rank) -> cost."""
        self._met: dict[int, tuple[Op, float, float]] = {}
        """id() -> (collective or message in what was shortened, its seconds, its latency)."""
        self._places: dict[int, tuple[tuple[int, ...], tuple[int, ...] | None]] = {}
        """First member of a group -> (the group, its places as of `_inside`)."""
        self._local, self.collective, self.message, self.slowdown = pricer.local, pricer.collective, pricer.message, pricer.slowdown

    def local(self, op: Op, rank: int) -> Cost:
        """The cost of an op that needs no other rank."""
        kind = op.kind
        if kind == "compute":
            found = self._costs.get(id(op))
            return found[0] if found is not None else self._local(op, rank)
        if kind not in _LAUNCHED:
            return self._local(op, rank)
        key = (kind, op.lane == HOST, rank)
        cost = self._launches.get(key)
        if cost is None:
            cost = self._launches[key] = self._local(op, rank)
        return cost

    def adopt(self, other: Shortcut) -> bool:
        """Takes over what another plan's shortcut has made, and returns its `alike`. Returns False and takes nothing if some collective
        or message in it does not cost the same here, on every stage."""
        for op, seconds, latency in other._met.values():
            cost = self._prices.meeting(op, 0)
            if (cost.seconds, cost.latency) != (seconds, latency) or not self._equal(op):
                return False
        self._costs, self._met = other._costs, other._met
        return other.alike

    def shorten(self, ops: tuple[Op, ...], beside: bool) -> tuple[Op, ...]:
        """Fewer ops that take the same time: runs of kernels become one op; where nothing runs `beside` them, so do whole stretches
        with their collectives. Returns `ops` as they are, and clears `alike`, if one of their collectives or messages does not cost the
        same on every stage."""
        priced = [(op, self.local(op, 0)) for op in ops]
        for op in ops:
            if (op.kind == "collective" or (self._rings and op.kind == "send")) and id(op) not in self._met:
                if not self._equal(op):
                    self.alike = False
                    return ops
                cost = self._prices.meeting(op, 0)
                self._met[id(op)] = (op, cost.seconds, cost.latency)
        found = fuse(priced if beside else self._condensed(priced), slow=self.slowdown(0))
        own = set(map(id, ops))
        for op, cost in found:
            if id(op) not in own:
                self._costs[id(op)] = (cost, op)
        return tuple(op for op, _ in found)

    def _condensed(self, ops: list[Priced]) -> list[Priced]:
        slow, found = self.slowdown(0), list[Priced]()
        for part in stretches(ops, self._private, frozenset(), self._rings, self.coarse):
            found += condense(part, self._alone, lambda op: self._prices.collective(op, 0).seconds, slow) if len(part) > 1 else part
        return found

    def _alone(self, ops: list[Priced], beside: bool) -> Alone:
        if self.coarse:
            with suppress(Unordered):
                return alone_in_order(self._prices, ops, 0, beside)
        return self._prices.alone(ops, 0, beside)

    def _private(self, op: Op) -> bool:
        """Whether all members are on one stage, where one rank stands for them. In a pipeline, a collective on the compute lane must
        also stay inside a node: over NICs it would share links with the messages between stages."""
        if len(self._groups.represented(op.group, 0)) > 1:
            return False
        return len(self._ranks) == 1 or op.lane != COMPUTE or op.kind != "collective" or self.inside(op.group)

    @cached_property
    def _rings(self) -> bool:
        """Whether rings' messages are shortened, too. They are if `coarse`, or where they lose nothing to other messages: inside a
        node, with the neighbouring stages on other nodes."""
        node = self._topology.node
        return self.coarse or (self.inside("cp") and all(node(one) != node(other) for one, other in pairwise(self._ranks)))

    def _equal(self, op: Op) -> bool:
        """Whether the collective or message costs the same on every stage."""
        here = self._groups.members(op.group, 0)
        inside = self._inside(here)
        one: Cost | None = None
        for rank in self._ranks[1:]:
            there = self._groups.members(op.group, rank)
            if inside is not None and self._inside(there) == inside:
                continue
            one = one or self._prices.meeting(op, 0)
            other = self._prices.meeting(op, rank)
            if (one.seconds, one.latency, [use for _, use in one.uses]) != (other.seconds, other.latency, [use for _, use in other.uses]):
                return False
        return True

    def inside(self, *axes: str) -> bool:
        """Whether rank 0's group along each of these axes lies in one node."""
        return all(self._inside(self._groups.members(axis, 0)) is not None for axis in axes)

    def _inside(self, members: tuple[int, ...]) -> tuple[int, ...] | None:
        """The members' places in their node; None where they lie on several nodes."""
        found = self._places.get(members[0], ((), None))
        if found[0] is not members:
            one = len({self._topology.node(rank) for rank in members}) == 1
            found = self._places[members[0]] = (members, tuple(self._topology.local(rank) for rank in members) if one else None)
        return found[1]
