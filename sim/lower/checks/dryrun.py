"""Runs a program without time: threads issue ops, lanes run them in order, and an op that meets other ranks waits for these.

A program that ends here ends at any speed, since no op looks at the clock. If it stops early, the error's text is a grid that shows at
which op each lane is stuck, as torch's pipelining prints its schedules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from sim.engine.groups import groups_of
from sim.lower.checks.inflight import Go, Item, Lane, Rank
from sim.lower.checks.stuck import grid, row
from sim.lower.condense import Waits, condense, runs_of
from sim.program import EVENTS, MEETING, MESSAGE, Call, Op, Program
from topologies.errors import BadInput


def dry_run(program: Program, stands_for: list[int]) -> None:
    """Runs the program. `stands_for[rank]`: the rank that is run in its place. Raises `BadInput` with the grid of stuck ops if it
    deadlocks."""
    run = _Run(program, stands_for)
    run.start()
    run.check()


class _Thread:
    """A CPU thread and the op at which it is."""

    def __init__(self, run: _Run, rank: Rank, name: str) -> None:
        self.run, self.rank, self.name = run, rank, name
        calls = run.program.threads(rank.number)[name]
        ops = run.relevant(calls, name)
        self.ops = ((call, op) for call in calls for op in ops[call.segment])
        self.at: Item | None = None
        self.finished = False

    def go(self) -> None:
        """Issues ops until one holds the thread."""
        for call, op in self.ops:
            item = self.at = Item(call, op)
            if op.kind in EVENTS or op.event:
                item.mark = self.rank.mark(self.name, call, op)
            if op.kind == "sync":
                if not self._sync(item):
                    return
                continue
            self.run.issue(self.rank, item)
            if (op.blocking or op.lane == self.name) and not item.done:
                item.waiters.append(self.go)
                return
        self.at = None
        self.finished = True

    def _sync(self, item: Item) -> bool:
        """False when the thread must wait: for the event, for the lane, or for all lanes of the device (not for other threads' lanes)."""
        if item.mark is not None:
            if not item.mark.fired:
                item.mark.waiters.append(self.go)
            return item.mark.fired
        named, threads = item.op.name, self.run.program.threads(self.rank.number)
        lanes = [self.rank.lane(named)] if named else [lane for name, lane in self.rank.lanes.items() if name not in threads]
        open_items = [lane.last for lane in lanes if lane.last is not None and not lane.last.done]
        left = len(open_items)

        def one() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.go()

        for waiting in open_items:
            waiting.waiters.append(one)
        return not open_items


class _Run:
    def __init__(self, program: Program, stands_for: list[int]) -> None:
        self.program, self._groups = program, groups_of(program.mesh, stands_for)
        self._relevant: dict[tuple[tuple[str, ...], str], dict[str, list[Op]]] = {}
        self._ranks = [Rank(number) for number in sorted(set(stands_for))]
        self._open: dict[tuple[object, ...], list[tuple[Rank, Item]]] = {}
        self._alone: dict[str, bool] = {}
        self._ready: deque[Go] = deque()
        self._threads = [_Thread(self, rank, name) for rank in self._ranks for name in program.threads(rank.number)]

    def start(self) -> None:
        """Runs all threads to their ends, or until all are stuck. What may go on is kept in a list, since programs are too long for
        nested calls."""
        self._ready.extend(thread.go for thread in self._threads)
        while self._ready:
            self._ready.popleft()()

    def relevant(self, calls: Sequence[Call], thread: str) -> dict[str, list[Op]]:
        """The thread's segments, condensed: runs of ops that concern no other rank or thread become a few waits."""
        names = tuple(dict.fromkeys(call.segment for call in calls))
        key = (names, thread)
        if key not in self._relevant:
            cut = {name: [(run, Waits(run, thread)) for run in runs_of(self.program.segments[name], self._is_hard)] for name in names}
            needed = {event for runs in cut.values() for run, waits in runs for event in self._needs(run, waits)}
            self._relevant[key] = {
                name: [op for run, waits in runs for op in (run if self._is_hard(run[0]) else condense(run, waits, needed, thread))]
                for name, runs in cut.items()
            }
        return self._relevant[key]

    def _needs(self, run: list[Op], waits: Waits) -> set[str]:
        return {op.event for op in run if op.event} if self._is_hard(run[0]) else waits.needs

    def _is_hard(self, op: Op) -> bool:
        """Whether the op concerns other ranks or threads: messages, collectives among several simulated ranks, numbered events, syncs
        on all lanes."""
        if op.kind == "collective":
            return not self._meets_itself(op.group)
        return op.kind in MESSAGE or op.shift is not None or (op.kind == "sync" and not op.event and not op.name)

    def _meets_itself(self, axis: str) -> bool:
        """Whether every group of the axis is simulated as one rank."""
        if axis not in self._alone:
            self._alone[axis] = all(len(self._groups.represented(axis, rank.number)) == 1 for rank in self._ranks)
        return self._alone[axis]

    def issue(self, rank: Rank, item: Item) -> None:
        """Queues the op; runs the lane as far as it goes."""
        if item.op.kind in MESSAGE:
            side = (item.op.kind, self._groups.pair(item.op, rank.number))
            item.turn = rank.turns.get(side, 0)
            rank.turns[side] = item.turn + 1
        lane = rank.lane(item.op.lane)
        lane.last = item
        lane.queue.append(item)
        self._advance(rank, lane)

    def _advance(self, rank: Rank, lane: Lane) -> None:
        while lane.queue and lane.busy is None:
            item = lane.queue.popleft()
            kind = item.op.kind
            if kind == "wait" and item.mark is not None and not item.mark.fired:
                lane.busy = item
                item.mark.waiters.append(partial(self._end, rank, lane, item))
            elif kind in MEETING:
                lane.busy = item
                self._meet(rank, item)
            else:
                self._done(item)

    def _end(self, rank: Rank, lane: Lane, item: Item) -> None:
        lane.busy = None
        self._done(item)
        self._advance(rank, lane)

    def _done(self, item: Item) -> None:
        item.done = True
        if item.op.kind == "record" and item.mark is not None:
            self._ready.extend(item.mark.fire())
        self._ready.extend(item.waiters)
        item.waiters = []

    def _meet(self, rank: Rank, item: Item) -> None:
        op = item.op
        if op.kind == "collective":
            needed = self._groups.represented(op.group, rank.number)
            base: tuple[object, ...] = (op.group, op.lane, needed)
            item.turn = rank.turns.get(base, 0)
            rank.turns[base] = item.turn + 1
            count = len(needed)
        else:
            base, count = self._groups.pair(op, rank.number), 2
        met = self._open.setdefault((base, item.turn), [])
        met.append((rank, item))
        if len(met) == count:
            del self._open[base, item.turn]
            self._ready.extend(partial(self._end, there, there.lane(one.op.lane), one) for there, one in met)

    def check(self) -> None:
        """Raises `BadInput` when a thread or a lane has not come to its end."""
        rows = [
            row(thread.rank.number, thread.name, thread.at) for thread in self._threads if not thread.finished and thread.at is not None
        ]
        for rank in self._ranks:
            for name, lane in rank.lanes.items():
                if lane.busy is not None:
                    rows.append(row(rank.number, name, lane.busy, len(lane.queue)))
        if rows:
            raise BadInput(f"the program deadlocks: {len(rows)} threads and lanes are stuck\n{grid(rows)}")
