"""The engine: a program in virtual time.

SimPy's heap orders what happens; the rules are CUDA's (`lanes`, `threads`), the meeting of ranks is NCCL's
(`meeting`), and shared resources are shared max-min fairly (`sharing`). It knows ops and lanes, and no parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator

import simpy

from sim.cost.price import Cost, Pricer
from sim.engine.fold import representatives
from sim.engine.lanes import Lanes
from sim.engine.meeting import Meetings
from sim.engine.sharing import Sharing
from sim.engine.state import Item, RankState
from sim.engine.threads import Thread
from sim.program import COMPUTE, Call, Op, Program
from sim.trace import Span, Trace
from topologies.errors import BadInput

_FREE = Cost(0.0, "assumed")


def simulate(program: Program, pricer: Pricer, fold: bool = True, symmetric: bool = True) -> Trace:
    """Plays `program` in virtual time and returns every op's span, in order of their ends.

    With `fold`, equal ranks of a symmetric machine are simulated once; their flows count on shared links.
    Raises `BadInput` when the program deadlocks.
    """
    return Engine(program, pricer, fold and symmetric).run()


class Engine:
    """One simulation. After `run`, `sharing.moved` holds what went through each resource."""

    def __init__(self, program: Program, pricer: Pricer, fold: bool) -> None:
        self.program, self.pricer = program, pricer
        self.env = simpy.Environment()
        self.sharing = Sharing(self.env, pricer.capacity)
        self.stands_for = representatives(program, fold)
        self.folded = fold
        self.lanes = Lanes(self.env, self.sharing, self._arrive, self._finished)
        self.meetings = Meetings(program.mesh, self.stands_for.__getitem__, self._complete)
        self.states: dict[int, RankState] = {}
        self.items: list[Item] = []
        self._costs: dict[tuple[int, int], Cost] = {}
        self._meet_costs: dict[tuple[int, tuple[int, ...]], Cost] = {}

    def run(self) -> Trace:
        threads = []
        for rank in sorted(set(self.stands_for)):
            slow = self.pricer.slowdown(rank)[0]
            self.states[rank] = RankState(rank, slow)
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
        for call in self.program.threads(rank)[thread]:
            ops = priced.get(call.segment)
            if ops is None:
                ops = priced[call.segment] = [(op, local(op, rank)) for op in self.program.segments[call.segment]]
            for op, cost in ops:
                yield call, op, cost

    def _arrive(self, item: Item, time: float) -> None:
        self.meetings.arrive(item, time)

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
        beside = [self.states[item.rank] for item in items if item.lane != COMPUTE]

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
        op, mesh = first.op, self.program.mesh
        if op.kind == "collective":
            members = self.meetings.members(op.group, first.rank)
            siblings = mesh.world // len(members) // (mesh.size("pp") if op.group != "pp" else 1) if self.folded else 1
        else:
            sender = first if op.kind == "send" else items[1]
            members = (sender.rank, self.meetings.peer(sender))
            siblings = mesh.world // mesh.size("pp") if self.folded else 1
        key = (id(op), members)
        cost = self._meet_costs.get(key)
        if cost is None:
            if op.kind == "collective":
                cost = self.pricer.collective(op, members, max(1, siblings))
            else:
                cost = self.pricer.message(op, members[0], members[1], max(1, siblings))
            self._meet_costs[key] = cost
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
        return Trace(spans, "predicted", program.world, program.steps, weight, self._memory(), {"program": program.name})

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
            flops=sum(work.flops for work in op.works),
            group=op.group,
            group_size=self.program.mesh.size(op.group) if op.group else 0,
            source=item.cost.source,
            after=item.after.index if item.after is not None else -1,
            bound=item.bound,
            wait=item.wait,
        )

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
