"""The engine: a program in virtual time.

SimPy's heap orders what happens; the rules are CUDA's (`lanes`, `threads`), the meeting of ranks is NCCL's
(`meeting`), and shared resources are shared max-min fairly (`sharing`). It knows ops and lanes, and no parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import simpy

from sim.cost.price import Cost, Pricer
from sim.engine.condense import condense, outside_events, shape_of, stretches
from sim.engine.fold import representatives
from sim.engine.fuse import fuse
from sim.engine.lanes import MEET, Lanes
from sim.engine.meeting import Meetings
from sim.engine.sharing import Sharing
from sim.engine.state import Item, RankState
from sim.engine.threads import Thread
from sim.program import COMPUTE, HOST, Call, Op, Program, Role
from sim.trace import Span, Trace
from topologies.errors import BadInput

_FREE = Cost(0.0, "assumed")


def simulate(
    program: Program, pricer: Pricer, fold: bool = True, symmetric: bool = True, detail: bool = True, condensed: bool = False
) -> Trace:
    """Plays `program` in virtual time and returns every op's span, in order of their ends.

    With `fold`, equal ranks of a symmetric machine are simulated once; their flows count on shared links.
    Without `detail`, runs of kernels are fused exactly (`sim.engine.fuse`): the same times, fewer spans.
    `condensed` also runs the inside of each stretch that meets nobody else only once (`sim.engine.condense`).
    Raises `BadInput` when the program deadlocks.
    """
    folded = fold and symmetric
    # Unfolded, a group's members are ranks of their own: stretches end at every collective, and running them alone is not exact.
    return Engine(program, pricer, folded, detail and not condensed, condensed and folded).run()


class Engine:
    """One simulation. After `run`, `sharing.moved` holds what went through each resource."""

    def __init__(self, program: Program, pricer: Pricer, fold: bool, detail: bool = True, condensed: bool = False) -> None:
        self.program, self.pricer, self.detail, self.condensed = program, pricer, detail, condensed
        self._stretches: dict[tuple[object, ...], list[tuple[Op, Cost]]] = {}
        self.env = simpy.Environment()
        self.sharing = Sharing(self.env, pricer.capacity)
        self.stands_for = representatives(program, fold)
        self.folded = fold
        self.lanes = Lanes(self.env, self.sharing, self._meets, self._arrive, self._finished, self._number)
        self.meetings = Meetings(program.mesh, self.stands_for.__getitem__, self._complete)
        self.states: dict[int, RankState] = {}
        self.items: list[Item] = []
        self._flops: dict[int, float] = {}
        self._local: frozenset[int] = frozenset()
        self._quiet = False
        """No collective can run beside compute, so that fused runs may hold collectives, which are never slowed."""
        self._meet_costs: dict[tuple[int, str, int], Cost] = {}
        """By op, group and rank: hashing the members of a large group would cost more than looking them up."""

    def run(self) -> Trace:
        """Runs all ranks to the end. Raises `BadInput` when some would wait for ever."""
        threads = []
        for rank in sorted(set(self.stands_for)):
            self.states[rank] = RankState(rank, self.pricer.slowdown(rank)[0])
        if not self.detail:
            self._local = self._private_collectives()
        for rank in self.states:
            for name in self.program.threads(rank):
                threads.append(Thread(name, self.states[rank], self._ops(rank, name), self.lanes))  # noqa: PERF401
        for thread in threads:
            thread.run()
        self.env.run()
        self.meetings.check_empty()
        stuck = [thread for thread in threads if not thread.done]
        if stuck:
            names = ", ".join(f"rank {t._state.rank} {t.name}" for t in stuck[:8])
            raise BadInput(f"the program deadlocks: these threads wait for an event that never comes: {names}")
        return self._trace()

    def _ops(self, rank: int, thread: str) -> Iterator[tuple[Call, Op, Cost]]:
        """The thread's ops with what they cost on this rank; segments are priced once."""
        priced: dict[str, list[tuple[Op, Cost]]] = {}
        local = self.pricer.local
        outside = outside_events(self.program, rank) if self.condensed else frozenset()
        for call in self.program.threads(rank)[thread]:
            ops = priced.get(call.segment)
            if ops is None:
                ops = [(op, local(op, rank)) for op in self.program.segments[call.segment]]
                if self.condensed and thread == HOST:
                    ops = self._condensed(ops, rank, outside)
                if not self.detail and thread == HOST:
                    ops = fuse(
                        [(op, self._alone(op, cost, rank)) for op, cost in ops], self._local if self._quiet else frozenset(), self._quiet
                    )
                priced[call.segment] = ops
            for op, cost in ops:
                yield call, op, cost

    def _condensed(self, ops: list[tuple[Op, Cost]], rank: int, outside: frozenset[str]) -> list[tuple[Op, Cost]]:
        """Stretches that meet nobody else become one op each; equal stretches are run once."""
        found: list[tuple[Op, Cost]] = []
        for part in stretches(ops, lambda op: len(self.meetings.represented(op.group, rank)) == 1, outside):
            if len(part) == 1:
                found += part
                continue
            shape = (self.states[rank].slow, shape_of(part), self._shares(part, rank))
            known = self._stretches.get(shape)
            if known is None:
                known = self._stretches[shape] = condense(part, lambda some: self._alone_seconds(some, rank))
            found += known
        return found

    def _shares(self, part: list[tuple[Op, Cost]], rank: int) -> tuple[Cost, ...]:
        """What the stretch's collectives cost on this rank: where they are equal, equal stretches of other ranks are too."""
        return tuple(self._collective_cost(op, rank) for op, _ in part if op.kind == "collective")

    def _alone_seconds(self, ops: list[tuple[Op, Cost]], rank: int) -> tuple[float, float]:
        """When compute and when all of `ops` have ended, run by themselves on an idle rank."""
        # Nothing else runs: collectives on the compute lane are work like any other unless another lane communicates beside them.
        quiet = all(op.lane in (COMPUTE, HOST) for op, _ in ops if op.kind == "collective")
        local = frozenset(id(op) for op, _ in ops if op.kind == "collective") if quiet else frozenset()
        ops = fuse([(op, self._whole(op, cost, rank) if id(op) in local else cost) for op, cost in ops], local, quiet)
        program = msgspec.structs.replace(
            self.program,
            segments={"alone": ()},
            roles={"alone": Role({HOST: (Call("alone", "alone"),)})},
            role_of=self.program.role_of[:1],
            steps=1,
        )
        inner = Engine(program, self.pricer, self.folded)
        inner.stands_for, inner.meetings = [rank], self.meetings.alone(rank, inner._complete)
        inner._meet_costs, inner._local = self._meet_costs, local
        state = inner.states[rank] = RankState(rank, self.pricer.slowdown(rank)[0])
        call = Call("alone", "alone")
        thread = Thread(HOST, state, iter([(call, op, cost) for op, cost in ops]), inner.lanes)
        thread.run()
        inner.env.run()
        compute = max((item.end for item in inner.items if item.lane == COMPUTE), default=0.0)
        return compute, max((item.end for item in inner.items if item.lane != HOST), default=0.0)

    def _meets(self, op: Op) -> bool:
        return op.kind in MEET and id(op) not in self._local

    def _alone(self, op: Op, cost: Cost, rank: int) -> Cost:
        """The whole cost of a collective that meets nobody else and shares no link with another lane."""
        return self._whole(op, cost, rank) if id(op) in self._local else cost

    def _whole(self, op: Op, cost: Cost, rank: int) -> Cost:
        whole = self._collective_cost(op, rank)
        return Cost(whole.seconds, whole.source, host=cost.host)

    def _private_collectives(self) -> frozenset[int]:
        """Collectives on compute lanes whose members are all folded into one rank and whose links no other lane uses."""
        used: dict[str, set[str]] = {}
        self._quiet = True
        found: list[tuple[Op, Cost]] = []
        for rank in self.states:
            for name in dict.fromkeys(call.segment for calls in self.program.threads(rank).values() for call in calls):
                for op in self.program.segments[name]:
                    if op.kind == "collective":
                        cost = self._collective_cost(op, rank)
                        self._quiet = self._quiet and (op.lane in (COMPUTE, HOST) or op.blocking)
                        if op.lane == COMPUTE and len(self.meetings.represented(op.group, rank)) == 1:
                            found.append((op, cost))
                    elif op.kind in ("send", "recv"):
                        cost = self.pricer.message(op, rank, self.meetings.peer_of(op, rank), 1)
                    else:
                        continue
                    for link, _ in cost.uses:
                        used.setdefault(link, set()).add(op.lane)
        return frozenset(id(op) for op, cost in found if all(used[link] == {COMPUTE} for link, _ in cost.uses))

    def _collective_cost(self, op: Op, rank: int) -> Cost:
        key = (id(op), op.group, rank)
        cost = self._meet_costs.get(key)
        if cost is None:
            mesh = self.program.mesh
            members = self.meetings.members(op.group, rank)
            siblings = mesh.world // len(members) // (mesh.size("pp") if op.group != "pp" else 1) if self.folded else 1
            cost = self._meet_costs[key] = self.pricer.collective(op, members, max(1, siblings))
        return cost

    def _arrive(self, item: Item, time: float) -> None:
        self.meetings.arrive(item, time)

    def _number(self, item: Item) -> None:
        self.meetings.number(item)

    def _complete(self, items: list[Item], arrivals: list[float]) -> None:
        """All have come: the transfer runs once for all of them."""
        start = max(arrivals)
        last = items[arrivals.index(start)]
        cost = self._meeting_cost(items)
        for item, arrival in zip(items, arrivals, strict=True):
            # A kernel that waits for its peers occupies its lane from its own arrival: spans show the wait, as NCCL's do.
            item.wait = start - arrival
            if arrival < start:
                item.after, item.bound = last.after, "peer"
            item.cost = Cost(cost.seconds, cost.source, cost.latency, cost.uses, item.cost.host, item.cost.ready)
        # A message holds one or two SMs, a collective one for each channel: only the latter slows compute.
        beside = [self.states[item.rank] for item in items if item.lane != COMPUTE and item.op.kind == "collective"]

        def begin() -> None:
            for state in beside:
                self.lanes.comm_changed(state, +1)
            self.lanes.flow(last, end)

        def end() -> None:
            for state in beside:
                self.lanes.comm_changed(state, -1)
            for item in items:
                self.lanes.release(self.states[item.rank], item, self.env.now)

        self.lanes.at(start, begin)

    def _meeting_cost(self, items: list[Item]) -> Cost:
        first = items[0]
        if first.op.kind == "collective":
            return self._collective_cost(first.op, first.rank)
        sender = first if first.op.kind == "send" else items[1]
        key = (id(sender.op), sender.op.group, sender.rank)
        cost = self._meet_costs.get(key)
        if cost is None:
            ends = (sender.rank, self.meetings.peer_of(sender.op, sender.rank))
            mesh = self.program.mesh
            siblings = mesh.world // mesh.size("pp") if self.folded else 1
            cost = self._meet_costs[key] = self.pricer.message(sender.op, *ends, max(1, siblings))
        return cost

    def _finished(self, item: Item) -> None:
        item.index = len(self.items)
        self.items.append(item)

    def _trace(self) -> Trace:
        program = self.program
        weight: dict[int, int] = {}
        for rank in self.stands_for:
            weight[rank] = weight.get(rank, 0) + 1
        spans = [self._span(item) for item in self.items]
        return Trace(
            spans,
            "predicted",
            program.world,
            program.steps,
            weight,
            self._memory() if self.detail else {},
            {"program": program.name},
            -2 if program.steps > 2 and any(len(program.threads(rank)) > 1 for rank in self.states) else -1,
        )

    def _span(self, item: Item) -> Span:
        op, call = item.op, item.call
        return Span(
            rank=item.rank,
            lane=item.lane,
            id=f"r{item.rank}/{call.at}/{op.id}",
            start=item.start,
            end=item.end,
            kind=op.kind,
            cls=op.cls,
            step=call.step,
            issued=item.issued,
            launch=item.cost.host,
            thread=item.thread,
            name=op.name,
            bytes=op.bytes,
            flops=self._flops_of(op),
            group=op.group,
            group_size=self.program.mesh.size(op.group) if op.group else 0,
            source=item.cost.source,
            after=item.after.index if item.after is not None else -1,
            bound=item.bound,
            wait=item.wait,
        )

    def _flops_of(self, op: Op) -> float:
        found = self._flops.get(id(op))
        if found is None:
            found = self._flops[id(op)] = sum(work.flops for work in op.works)
        return found

    def _memory(self) -> dict[int, list[tuple[float, int]]]:
        resident = sum(self.program.resident.values())
        changes: dict[int, list[tuple[float, int, int]]] = {rank: [] for rank in self.states}
        for item in self.items:
            # Frees sort before allocations at the same instant: the allocator hands blocks on.
            if item.op.alloc:
                changes[item.rank].append((item.start, 1, item.op.alloc))
            if item.op.free:
                changes[item.rank].append((item.end, 0, -item.op.free))
        found: dict[int, list[tuple[float, int]]] = {}
        for rank, deltas in changes.items():
            used, line = resident, [(0.0, resident)]
            for time, _, delta in sorted(deltas):
                used += delta
                line.append((time, used))
            found[rank] = line
        return found
