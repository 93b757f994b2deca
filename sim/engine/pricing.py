"""What the ops of each simulated rank cost: every segment is priced, condensed and fused once for each rank that calls it.

Both engines ask here: the one that makes a trace (`run`), and the one that only says when steps end (`clocks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sim.cost.price import Cost, Pricer
from sim.engine.condense import Alone, condense, outside_events, shape_of, stretches
from sim.engine.crowds import Beside
from sim.engine.fold import Passage
from sim.engine.fuse import Priced, fuse, span
from sim.engine.groups import Groups
from sim.engine.links import links_of
from sim.engine.machine import LOADER, crowding, neighbours, steady, together
from sim.engine.meeting_costs import MeetingCosts
from sim.program import COMPUTE, HOST, LATER, MEETING, Op, Program

_OFTEN = 4
"""A segment is condensed only if it is called at least this often: before the simulation, condensing runs its inside twice, alone and
beside a collective."""
RunAlone = Callable[["Pricing", list[Priced], int, bool], Alone]


class Pricing:
    """Costs of one program's ops. `groups` says who meets whom; `folded`: equal groups count on shared links."""

    def __init__(
        self,
        program: Program,
        pricer: Pricer,
        groups: Groups,
        folded: bool,
        alone: RunAlone,
        beside: Beside = None,
        between: Sequence[Passage] = (),
    ) -> None:
        """`alone`: runs ops by themselves on an idle rank (`sim.engine.steps.alone`). `beside`: (rank) -> the ranks that may use the same resources; None: all
        may. `between`: the links between nodes that collectives and messages use (`sim.engine.fold.passages`)."""
        self.program, self.pricer, self.groups, self.folded, self._run_alone = program, pricer, groups, folded, alone
        self.fused = self.condensed = False
        self.alike = False
        """All ranks price equal ops alike, so that a segment of the same ops is priced once for all of them."""
        self.shares: Mapping[str, float] = {}
        """By resource: the share, 0 to 1, that other programs leave to this program's loader processes."""
        self._shared: dict[tuple[int, ...], list[Priced]] = {}
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self._crowding: dict[tuple[int, str], float] = {}
        self.local: frozenset[int] = frozenset()
        """Ids (id()) of collectives that meet nobody else and share no link with another lane: ops like any other."""
        self.quiet = False
        """No collective can run beside compute, so that fused runs may hold collectives, which are never slowed."""
        self.idle: frozenset[str] = frozenset()
        """Resources that never limit an op (`sim.engine.links`)."""
        self._contended: frozenset[int] = frozenset()
        """Ids of collectives that lose much to others on the same links, and so cannot be run by themselves."""
        self._met = MeetingCosts(program, pricer, groups, folded, beside, between)
        """Costs of collectives and messages in the whole run. A part that is run alone (`alone`) takes them from the whole, as its own groups have one rank."""
        self._stretches: dict[tuple[object, ...], list[Priced]] = {}
        self._outside: dict[int, frozenset[str]] = {}

    def shorten(self, ranks: Iterable[int], condensed: bool) -> None:
        """From now on runs of kernels are fused and, with `condensed`, stretches that meet no other simulated rank are run once.
        `ranks`: those that are simulated."""
        self.fused, self.condensed = True, condensed
        self.local, self.quiet, self.idle, self._contended = links_of(
            self.program, self.groups, ranks, self._cost, self.pricer.capacity, self._computes
        )

    def segment(self, rank: int, thread: str, name: str) -> list[Priced]:
        """The ops of a segment with what they cost on this rank."""
        line = self.program.segments[name]
        if thread.startswith(LOADER) and self.program.device != "cpu":
            return steady(
                [(op, self.pricer.local(op, rank)) for op in line], self._crowded(rank, thread if thread in self.program.segments else name)
            )
        if thread != HOST or not self.fused:
            return self.priced(line, rank)
        condensed = self.condensed and self._often(rank, thread, name) and (not self.alike or self._beside(line))
        key = (condensed, *map(id, line)) if self.alike else ()
        ops = self._shared.get(key) if key else None
        if ops is None:
            ops = self._shortened(line, rank, condensed)
            if key and not any(cost.uses for _, cost in ops):  # links and disks are the rank's own
                self._shared[key] = ops
        return ops

    def unshared(self, rank: int, thread: str, name: str) -> list[Priced]:
        """`segment` without contention: each op costs what it costs alone."""
        if thread.startswith(LOADER):
            return self.segment(rank, thread, name)
        local = self.pricer.local
        return [(op, local(op, rank)) for op in self.program.segments[name]]

    def _beside(self, line: tuple[Op, ...]) -> bool:
        """Whether the segment holds collectives beside compute. Without them, the ops of short programs compose exactly without
        condensing."""
        return any(op.kind == "collective" and op.lane != COMPUTE for op in line)

    def priced(self, line: tuple[Op, ...], rank: int) -> list[Priced]:
        """Each op with its cost. If ranks are folded, its uses include those of the ranks of the same machine for which `rank` stands."""
        local = self.pricer.local
        costs = [local(op, rank) for op in line]
        if self.folded:
            stands_for, world = self.groups.stands_for, self.program.world
            for i, cost in enumerate(costs):
                if cost.uses:
                    near = neighbours(self.pricer, line[i], cost, rank, world)
                    costs[i] = together(cost, (there for other, there in near if stands_for(other) == rank))
        return list(zip(line, costs, strict=True))

    def _shortened(self, line: tuple[Op, ...], rank: int, condensed: bool) -> list[Priced]:
        ops = self.priced(line, rank)
        if condensed:
            ops = self._condensed(ops, rank)
        return fuse(
            [(op, self.whole(op, cost, rank) if id(op) in self.local else cost) for op, cost in ops],
            self.local if self.quiet else frozenset(),
            self.quiet,
            self.pricer.slowdown(rank),
        )

    def _crowded(self, rank: int, batch: str) -> float:
        """The factor by which the rank's loader processes are slower than one alone. It is found from the segment of a whole `batch`;
        what a late loader does before its first batch has the same factor."""
        key = (rank, batch)
        if key not in self._crowding:
            ops = [(op, self.pricer.local(op, rank)) for op in self.program.segments[batch]]
            self._crowding[key] = crowding(ops, self.pricer, rank, self.program, self.shares)
        return self._crowding[key]

    def _calls(self, rank: int, thread: str) -> Counter[str]:
        """How often the rank's thread calls each segment."""
        key = (self.program.role_of[rank], thread)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = Counter(call.segment for call in self.program.threads(rank)[thread])
        return found

    def _often(self, rank: int, thread: str, name: str) -> bool:
        """Whether it is worth while to run the segment's inside beforehand. A segment and its `LATER` one count together: they take
        turns on the same lanes, and the order there would be lost if only one of them became a stretch."""
        calls, first = self._calls(rank, thread), name.removesuffix(LATER)
        return calls[first] + calls[first + LATER] >= _OFTEN

    def whole(self, op: Op, cost: Cost, rank: int) -> Cost:
        """The cost of a collective that is treated as an op like any other: its time, and no use of links."""
        whole = self.collective(op, rank)
        return Cost(whole.seconds, whole.source, host=cost.host)

    def collective(self, op: Op, rank: int) -> Cost:
        """The cost of a collective of the rank's group."""
        return self._met.collective(op, rank)

    def message(self, op: Op, rank: int) -> Cost:
        """The cost of a message that `rank` sends."""
        return self._met.message(op, rank)

    def meets(self, op: Op) -> bool:
        """Whether the op must meet other ranks: a collective or message that is not `local`."""
        return op.kind in MEETING and id(op) not in self.local

    def meeting(self, op: Op, rank: int) -> Cost:
        """The cost of a collective of the rank's group, or of a message that it sends."""
        return self.collective(op, rank) if op.kind == "collective" else self.message(op, rank)

    def _cost(self, op: Op, rank: int) -> Cost:
        if op.kind in ("collective", "send"):
            return self.meeting(op, rank)
        return self.priced((op,), rank)[0][1]  # includes the uses of ranks for which it stands

    def _computes(self, rank: int) -> float:
        """Seconds of the kernels that the rank's thread launches in all steps."""
        local, calls = self.pricer.local, self._calls(rank, HOST)
        spent = {
            name: sum(local(op, rank).seconds for op in self.program.segments[name] if op.lane == COMPUTE and op.works) for name in calls
        }
        return sum(spent[name] * often for name, often in calls.items())

    def _condensed(self, ops: list[Priced], rank: int) -> list[Priced]:
        """Stretches that meet nobody else become one op each; equal stretches are run once."""
        outside = self._outside.get(rank)
        if outside is None:
            outside = self._outside[rank] = outside_events(self.program, rank)
        slow, found = self.pricer.slowdown(rank), list[Priced]()

        def own(op: Op) -> bool:
            return id(op) not in self._contended and len(self.groups.represented(op.group, rank)) == 1

        for part in stretches(ops, own, outside):
            if len(part) == 1:
                found += part
                continue
            # Where a stretch's collectives cost the same on another rank, equal stretches of that rank do too.
            shares = tuple(self.collective(op, rank) for op, _ in part if op.kind == "collective")
            shape = (slow, shape_of(part), shares)
            known = self._stretches.get(shape)
            if known is None:
                known = self._stretches[shape] = condense(
                    part, lambda some, beside: self.alone(some, rank, beside), lambda op: self.collective(op, rank).seconds, slow
                )
            found += known
        return found

    def alone(self, ops: list[Priced], rank: int, beside: bool) -> Alone:
        """Runs `ops` by themselves on an idle rank; with `beside`, next to a collective that never ends."""
        # Nothing else runs: collectives on the compute lane are work like any other unless another lane communicates beside them.
        quiet = all(op.lane in (COMPUTE, HOST) for op, _ in ops if op.kind == "collective")
        local = frozenset(id(op) for op, _ in ops if op.kind == "collective") if quiet else frozenset()
        ops = [(op, self.whole(op, cost, rank) if id(op) in local else cost) for op, cost in ops]
        slow = self.pricer.slowdown(rank)
        if all(_fits(op, cost, local) for op, cost in ops) and not (beside and any(cost.host for _, cost in ops)):
            end = span(ops, slow, beside)
            return Alone(end, end)
        inner = Pricing(self.program, self.pricer, self.groups.alone(rank), self.folded, self._run_alone)
        inner._met, inner.local, inner.idle = self._met, local, self.idle
        return self._run_alone(inner, fuse(ops, local, quiet, slow), rank, beside)


def _fits(op: Op, cost: Cost, local: frozenset[int]) -> bool:
    """Whether `span` can tell the time of a run that holds the op."""
    return op.kind == "host" or (op.lane == COMPUTE and not cost.uses and (op.kind == "compute" or id(op) in local))
