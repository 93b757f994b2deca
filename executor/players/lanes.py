"""Lanes of a CPU rank: `compute` runs inline, communication beside it, as gloo's own threads do it.

A lane whose waits are always over when it reaches them (all its events come from work that runs inline) hands its
collectives to gloo at once. One that carries messages, or waits for another communication lane, gets a thread that keeps
its order. Every (lane, mesh axis) has a process group of its own, so that lanes never overtake each other inside one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist

from executor.players.arena import Arena
from sim.program import Op, Program
from topologies.errors import BadInput

# torch 2.13 renames these two; earlier releases have the old names only.
all_gather: Callable[..., dist.Work | None] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Callable[..., dist.Work | None] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
Issue = Callable[[], Callable[[], dist.Work | None]]
"""Called in program order by the host thread; gives what starts the communication, at once or later on a lane's thread."""
Group = tuple[dist.ProcessGroup | None, tuple[int, ...]]


class Flag:
    """An event that a lane has recorded: done, or a communication that is under way."""

    def __init__(self, work: dist.Work | None = None) -> None:
        self._work, self._set = work, threading.Event()

    def set(self) -> None:
        self._set.set()

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        else:
            self._set.wait()


DONE = Flag()
DONE.set()


class Mark:
    """Start and end of one op; the end may be written by another thread."""

    __slots__ = ("end", "issued", "start")

    def __init__(self, issued: float) -> None:
        self.issued, self.start, self.end = issued, issued, 0.0


class DirectLane:
    """Hands each collective to gloo as it comes; gloo's threads run them in order of issue."""

    def __init__(self) -> None:
        self._tail: dist.Work | None = None
        self._last: Mark | None = None

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        """Starts one collective; its mark ends when gloo says so."""
        before, self._last = self._last, mark
        mark.start = max(mark.issued, before.end) if before is not None else mark.issued
        work = self._tail = issue()
        assert work is not None

        def ended(_: object) -> None:
            mark.end = time.perf_counter()
            if before is not None:  # it could not really begin before the one ahead of it in this lane was through
                mark.start = min(max(mark.start, before.end), mark.end)

        work.get_future().add_done_callback(ended)
        return Flag(work)

    def record(self) -> Flag:
        return Flag(self._tail) if self._tail is not None else DONE

    def wait(self, flag: Flag) -> None:
        """Only flags of inline work or of this lane come here: over, or ahead in the same order."""

    def drain(self) -> None:
        """All of the lane's work has ended."""
        if self._tail is not None:
            self._tail.wait()
            self._tail = None
        while self._last is not None and self._last.end == 0.0:
            time.sleep(2e-5)  # the callback runs just after the wait returns


class ThreadLane:
    """Keeps its order on a thread of its own: messages, and waits for other lanes."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            if self._error is None:
                try:
                    action()
                except BaseException as error:  # told to the host thread at its next wait
                    self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        flag = Flag()

        def action() -> None:
            mark.start = time.perf_counter()
            try:
                work = issue()
                assert work is not None
                work.wait()
            finally:
                mark.end = time.perf_counter()
                flag.set()

        self._queue.put(action)
        return flag

    def record(self) -> Flag:
        flag = Flag()
        self._queue.put(flag.set)
        return flag

    def wait(self, flag: Flag) -> None:
        if flag is not DONE:
            self._queue.put(flag.wait)

    def drain(self) -> None:
        self.record().wait()
        self._check()


Lane = DirectLane | ThreadLane


MEETING = ("collective", "send", "recv")
MESSAGES = "messages"
"""All messages along one mesh axis share a process group: the k-th send of a pair meets the k-th receive, whatever their lanes."""
DOWN = "messages.down"
"""NCCL runs the messages of a pair of ranks one after the other, whichever way they go: two ranks that both send first would wait for each
other for ever. There, messages from a later rank of the axis to an earlier one have a group of their own."""


def is_comm(lane: str) -> bool:
    """Lanes that carry communication are named `comm.<group>`."""
    return lane.startswith("comm")


def make_lanes(program: Program, rank: int) -> dict[str, Lane]:
    """One object per communication lane of a rank."""
    threaded: set[str] = set()
    recorded: dict[str, set[str]] = {}
    every = [op for thread in program.threads(rank) for _, op in program.ops(rank, thread)]
    for op in every:
        if op.kind == "record":
            recorded.setdefault(op.event, set()).add(op.lane)
    for op in every:
        # gloo's messages and its reduce_scatter tell nobody when they end: somebody must wait for them.
        if op.kind in ("send", "recv") or op.name == "reduce_scatter":
            threaded.add(op.lane)
        if op.kind == "wait" and is_comm(op.lane) and any(is_comm(source) and source != op.lane for source in recorded.get(op.event, ())):
            threaded.add(op.lane)
    return {lane: ThreadLane(lane) if lane in threaded else DirectLane() for lane in {op.lane for op in every} if is_comm(lane)}


def make_groups(program: Program, rank: int, apart: bool = False) -> dict[tuple[str, str], Group]:
    """A process group for each (lane, mesh axis); every rank makes all of them, in the same order. `apart`: messages have one for each
    direction (`DOWN`)."""
    meeting = [op for ops in program.segments.values() for op in ops if op.kind in MEETING]
    pairs = sorted({(op.lane if op.kind == "collective" else MESSAGES, op.group) for op in meeting})
    pairs += [(DOWN, axis) for lane, axis in pairs if lane == MESSAGES and apart]
    found: dict[tuple[str, str], Group] = {}
    for lane, axis in pairs:
        for ranks in program.mesh.groups(axis):
            group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
            if rank in ranks:
                found[lane, axis] = (group, ranks)
    return found


def communication(op: Op, groups: dict[tuple[str, str], Group], rank: int, arena: Arena, tags: Counter[tuple[str, str, int]]) -> Issue:
    """Issues the op's collective or message without waiting, over buffers made now. None where the group is one rank.

    `tags` counts messages by direction and pair, in the order of issue.
    """
    handle, ranks = groups[op.lane if op.kind == "collective" else MESSAGES, op.group]
    if handle is None or len(ranks) == 1:
        return lambda: _nothing
    count = len(ranks)
    whole = arena.recent(max(count, op.bytes // 4 // count * count)) if op.kind == "collective" else arena.recent(max(1, op.bytes // 4))
    if op.kind in ("send", "recv"):
        peer = ranks[(ranks.index(rank) + op.peer) % count]
        handle = message_group(groups, op, ranks.index(rank), ranks.index(peer))
        move = dist.isend if op.kind == "send" else dist.irecv
        key = (op.kind, op.group, peer)

        def issue() -> Callable[[], dist.Work | None]:
            tags[key] += 1
            tag = tags[key]
            return lambda: move(whole, peer, group=handle, tag=tag)

        return issue
    call = _collective(op, whole, handle, ranks, arena)
    return lambda: call


def message_group(groups: dict[tuple[str, str], Group], op: Op, own: int, other: int) -> dist.ProcessGroup | None:
    """The group that carries a message between two places of an axis: that of its direction, where directions are apart."""
    source, target = (own, other) if op.kind == "send" else (other, own)
    lane = DOWN if source > target and (DOWN, op.group) in groups else MESSAGES
    return groups[lane, op.group][0]


def _nothing() -> None:
    return None


def _collective(
    op: Op, whole: torch.Tensor, handle: dist.ProcessGroup, ranks: tuple[int, ...], arena: Arena
) -> Callable[[], dist.Work | None]:
    count = len(ranks)
    part = whole[: whole.numel() // count]
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=handle, async_op=True),
        "broadcast": lambda: dist.broadcast(whole, ranks[0], group=handle, async_op=True),
        "reduce": lambda: dist.reduce(whole, ranks[0], group=handle, async_op=True),
        "barrier": lambda: dist.barrier(group=handle, async_op=True),
    }
    if op.name in ("all_gather", "reduce_scatter", "all_to_all"):
        other = arena.recent(whole.numel() if op.name == "all_to_all" else part.numel())
        calls |= {
            "all_gather": lambda: all_gather(whole, other, group=handle, async_op=True),
            "reduce_scatter": lambda: reduce_scatter(other, whole, group=handle, async_op=True),
            "all_to_all": lambda: dist.all_to_all_single(other, whole, group=handle, async_op=True),
        }
    if op.name not in calls:
        raise BadInput(f"op {op.id}: unknown collective '{op.name}'. Allowed: {', '.join(sorted(calls))}")
    return calls[op.name]
