"""The engine: a program in virtual time.

SimPy's heap orders what happens; the rules are CUDA's (`lanes`, `threads`), the meeting of ranks is NCCL's
(`meeting`), and shared resources are shared max-min fairly (`sharing`). It knows ops and lanes, and no parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from msgspec.structs import replace

from sim.cost.price import Cost, Pricer
from sim.engine.agenda import uncollected
from sim.engine.environment import Environment
from sim.engine.fold import Symmetry, beside, passages, representatives
from sim.engine.groups import groups_of
from sim.engine.lanes import Lanes
from sim.engine.meeting import Arrival, Meetings
from sim.engine.pricing import Pricing
from sim.engine.sharing import Sharing
from sim.engine.state import Item, RankState
from sim.engine.steps import alone
from sim.engine.threads import Thread
from sim.program import COMPUTE, Call, Op, Program, full_id
from sim.timeline.metrics import while_loaded
from sim.trace import Span, Trace
from topologies.errors import BadInput


def simulate(
    program: Program,
    pricer: Pricer,
    symmetry: Symmetry = True,
    detail: bool = True,
    condensed: bool = False,
    alike: bool = False,
) -> Trace:
    """Plays `program` in virtual time and returns every op's span, in order of their ends.

    Ranks that are equal by the machine's `symmetry` are simulated once; their flows count on shared links.
    Without `detail`, runs of kernels are fused exactly (`sim.engine.fuse`): the same times, fewer spans.
    `condensed` also runs the inside of each stretch that meets nobody else only once (`sim.engine.condense`). `alike`: all ranks price
    equal ops alike.
    Raises `BadInput` when the program deadlocks.
    """
    # Unfolded, a group's members are ranks of their own: stretches end at every collective, and running them alone is not exact.
    with uncollected():
        engine = Engine(program, pricer, symmetry, detail and not condensed, condensed and symmetry is not False)
        engine.prices.alike = alike and symmetry is not False
        return engine.run()


class Engine:
    """One simulation. After `run`, `spans` holds what each op did, `sharing.moved` what went through each resource."""

    def __init__(self, program: Program, pricer: Pricer, symmetry: Symmetry, detail: bool = True, condensed: bool = False) -> None:
        self.program, self.pricer, self.detail, self.condensed = program, pricer, detail, condensed
        self.env = Environment()
        self.sharing = Sharing(self.env, pricer.capacity)
        self.stands_for = representatives(program, symmetry)
        groups = groups_of(program.mesh, self.stands_for)
        self.prices = Pricing(program, pricer, groups, symmetry is not False, alone, beside(symmetry), passages(symmetry, program))
        self.meetings = Meetings(groups, self._complete)
        self.lanes = Lanes(self.env, self.sharing, self.meetings, self.prices.meets, self._finished)
        self.states: dict[int, RankState] = {}
        self.spans: list[Span] = []
        self._changes: dict[int, list[tuple[float, int, int]]] = {}
        """Rank -> changes of its memory: (seconds, 1 for an allocation or 0 for a free, bytes)."""

    def run(self) -> Trace:
        """Runs all ranks to the end. Raises `BadInput` when some would wait for ever."""
        threads = []
        for rank in sorted(set(self.stands_for)):
            self.states[rank] = RankState(rank, self.pricer.slowdown(rank))
            self._changes[rank] = []
        if not self.detail:
            self.prices.shorten(self.states, self.condensed)
            self.sharing.idle = self.prices.idle
        for rank in self.states:
            for name in self.program.threads(rank):
                threads.append(Thread(name, self.states[rank], self._ops(rank, name), self.lanes))  # noqa: PERF401
        for thread in threads:
            thread.run()
        self.env.run()
        self.meetings.check_empty()
        stuck = [thread for thread in threads if not thread.done]
        if stuck:
            names = ", ".join(f"rank {t.rank} {t.name}" for t in stuck[:8])
            raise BadInput(f"the program deadlocks: these threads wait for an event that never comes: {names}")
        return self._trace()

    def _ops(self, rank: int, thread: str) -> Iterator[tuple[Call, Op, Cost, float]]:
        """The thread's ops with what they cost on this rank, and their FLOPs; segments are priced once."""
        priced: dict[str, list[tuple[Op, Cost, float]]] = {}
        for call in self.program.threads(rank)[thread]:
            ops = priced.get(call.segment)
            if ops is None:
                ops = priced[call.segment] = [(op, cost, op.flops) for op, cost in self.prices.segment(rank, thread, call.segment)]
            for op, cost, flops in ops:
                yield call, op, cost, flops

    def _complete(self, come: list[Arrival]) -> None:
        """All members have come: runs the transfer once for all of them."""
        last, start = max(come, key=itemgetter(1))
        items = [item for item, _ in come]
        cost = self._meeting_cost(items)
        for item, arrival in come:
            # A kernel that waits for its peers occupies its lane from its own arrival: spans show the wait, as NCCL's do.
            item.wait = start - arrival
            if arrival < start:
                item.after, item.bound = last.after, "peer"
            item.cost = replace(cost, host=item.cost.host, ready=item.cost.ready)
        # A message holds one or two SMs, a collective one for each channel: only the latter slows compute.
        slowed = [self.states[item.rank] for item in items if item.lane != COMPUTE and item.op.kind == "collective"]

        def begin() -> None:
            for state in slowed:
                self.lanes.comm_changed(state, +1)
            self.lanes.flow(last, end)

        def end() -> None:
            for state in slowed:
                self.lanes.comm_changed(state, -1)
            for item in items:
                state = self.states[item.rank]
                self.lanes.release(state, state.lane(item.lane), item, self.env.now)

        self.lanes.at(start, begin)

    def _meeting_cost(self, items: list[Item]) -> Cost:
        teller = items[1] if items[0].op.kind == "recv" else items[0]  # a message's sender knows
        return self.prices.meeting(teller.op, teller.rank)

    def _finished(self, item: Item) -> None:
        item.index = len(self.spans)
        self.spans.append(self._span(item))
        op = item.op
        # Frees sort before allocations at the same instant: the allocator hands blocks on.
        if op.alloc:
            self._changes[item.rank].append((item.start, 1, op.alloc))
        if op.free:
            self._changes[item.rank].append((item.end, 0, -op.free))
        item.after = item.mark = None  # else every item would hold all before it

    def _trace(self) -> Trace:
        program = self.program
        weight: dict[int, int] = {}
        for rank in self.stands_for:
            weight[rank] = weight.get(rank, 0) + 1
        trace = Trace(
            self.spans,
            "predicted",
            program.world,
            program.steps,
            weight,
            memory=self._memory() if self.detail else {},
            meta={"program": program.name, "backend": "gloo" if program.device == "cpu" else "nccl"},
            reported=-2 if program.steps > 2 and any(len(program.threads(rank)) > 1 for rank in self.states) else -1,
        )
        if program.device == "cpu" and trace.reported < -1:
            trace.reported = while_loaded(trace)
        return trace

    def _span(self, item: Item) -> Span:
        op, call, cost = item.op, item.call, item.cost
        # In the order of the fields: there is one for every op, and by name each takes a microsecond longer.
        return Span(
            item.rank, item.lane, full_id(item.rank, call, op), item.start, item.end, op.kind, op.cls, call.step,
            item.issued, cost.host, item.thread, op.name, op.bytes, item.flops,
            op.group, self.program.mesh.size(op.group) if op.group else 0,
            cost.source, item.after.index if item.after is not None else -1, item.bound, item.wait, cost.exposed, cost.late,
        )  # fmt: skip

    def _memory(self) -> dict[int, list[tuple[float, int]]]:
        resident = sum(self.program.resident.values())
        found: dict[int, list[tuple[float, int]]] = {}
        for rank, deltas in self._changes.items():
            used, line = resident, [(0.0, resident)]
            for time, _, delta in sorted(deltas):
                used += delta
                line.append((time, used))
            found[rank] = line
        return found
