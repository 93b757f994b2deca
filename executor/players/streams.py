"""The player on CUDA: every lane is a stream, `record` and `wait` are CUDA events, collectives run on NCCL.

An op's time comes from one event before it and one after it. They are read after the pass, and what the two events themselves add is
subtracted. Within a pass nothing synchronises except what the program says. If the host is late, the device reaches the first event before
the kernel is launched, and the time between the events includes the launch. Such an op gets the length that it has in a pass where all
kernels are queued before the device comes to them (`_stood`). The two events cost the host some microseconds and the device one or two:
passes whose steps are timed have events only at the ends of steps.

A launch takes as much host time as the program says, which is its time in a training step. There a call goes through modules and autograd,
caches and branch predictors are full of other code, and lists of an optimizer are launched by a loop in C++. Here it is a bare call: the
host spins for the rest of that time, and time that a call takes beyond it is made up for by the next ones.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from executor.arena import Arena, free_memory, of_gpu
from executor.device_times import around
from executor.kernels.bodies import in_turn, spin
from executor.kernels.site import Body
from executor.players.communication import Group, communication, connect, make_groups
from executor.players.disk import copy_file
from executor.players.events import Cuda, wake
from executor.players.feeder import Crossing, Kept
from executor.players.player import Beside, Player, now
from executor.ranks.world import World
from sim.program import EVENTS, FILED, HOST, MEETING, ORDERS, Call, Op, Program
from topologies.errors import Refused

_DEVICE = ("compute", "copy", "collective", "send", "recv")
_READY = 100
"""Ops that are queued at a time behind a held stream. With more ops and their events, the launch queue of the device would be full."""
_HOLD = 30_000_000
"""Clock cycles for which streams are held: 10 ms at the fastest clock. In this time a host can launch `_READY` ops, even if one of them is
a multi-tensor update of some hundred kernels."""
POOL = 32
"""Streams of one priority that torch has for a device. It gives them out in turn, also to NCCL communicators (c10/cuda/CUDAStream.cpp,
kStreamsPerPool)."""
_KEPT = 16
"""How many of the latest results are kept alive. Memory that is freed at once is reused by the next kernel, which would write to lines that
are still in L2. In a training step kernels write to memory that was last touched long ago, as they do in the probe
(`executor.kernels.bodies.held`)."""
_HOSTS = 4
"""Pinned host buffers of one size, which copies use in turn."""
_SMALL = 1 << 18
"""Elements of the kernel that is used to measure what events around a kernel add; it lasts some microseconds on any GPU."""
Pair = tuple[torch.cuda.Event, torch.cuda.Event]


def refuse_aliases(lanes: set[str], groups: dict[tuple[str, str], Group]) -> None:
    """Raises `Refused` if lanes and communicators need more streams than torch has (`POOL`). torch would give some streams out twice: two
    lanes would wait for each other although the program does not say so, and ranks might deadlock."""
    communicators = 1 + sum(group is not None for group, _ in groups.values())  # 1: the communicator of all ranks
    if len(lanes) + communicators > POOL:
        raise Refused(
            f"a rank of this program has {len(lanes)} lanes and {communicators} communicators, and torch has {POOL} streams for both: two would share "
            "one. Use fewer kinds of parallelism at once"
        )


class StreamPlayer(Player):
    """One CUDA rank's host thread."""

    def __init__(
        self, world: World, program: Program, crossing: Crossing, seconds: Callable[[Op], float], file: Path, cuda: Cuda | None = None
    ) -> None:
        """`cuda`: None for the rank's own device; tests pass a stand-in."""
        self._world, self._crossing, self._program = world, crossing, program
        self._cuda = cuda or Cuda(world.device)
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._on: str | None = None
        """The lane whose stream is current; None: the default stream."""
        self._events: Kept[torch.cuda.Event] = Kept(crossing)
        self._pairs: list[Pair | None] = []
        self._bodies: dict[int, Body] = {}
        self._hosts: dict[int, deque[torch.Tensor]] = {}
        self._made: deque[object] = deque(maxlen=_KEPT)
        self._queued = {id(op) for _, op in program.ops(world.rank, HOST) if op.lane != HOST and op.kind in _DEVICE and op.how not in FILED}
        """id(op) of the ops that are launched on a stream."""
        self._tags: Counter[tuple[str, str, int]] = Counter()
        self._meant = {id(op): seconds(op) for _, op in program.ops(world.rank, HOST)}
        """id(op) -> host seconds that the op is meant to take: of a host op its length, of one on a stream its launch."""
        self._owed, self._through = 0.0, 0.0
        """`_owed`: host seconds by which calls were longer than meant, and which later ops have not made up for yet. `_through`: when the
        host had finished the previous op; the player's own work between two ops counts as the later one's."""
        self._lengths: list[float | None] | None = None
        """Device seconds of each op in a pass where no kernel waits for the host (None: an op without a stream); None before such a
        pass."""
        groups = make_groups(program, world, apart=world.kind == "cuda")
        refuse_aliases({op.lane for _, op in program.ops(world.rank, HOST)} - {HOST}, groups)
        connect(program, groups, world.rank, world.device)
        arena = of_gpu(world.device, free_memory(world.device) // (world.local_size if world.shared else 1), 2 << 30)
        with torch.no_grad():
            for _, op in program.ops(world.rank, HOST):
                if op.lane != HOST and op.lane not in self._streams:
                    self._streams[op.lane] = self._cuda.stream()
                if id(op) not in self._bodies:
                    self._to(op.lane)  # autograd runs backward on the stream of its forward, so forward must run on the lane's stream
                    self._bodies[id(op)] = self._make(op, arena, groups, file)
                    world.beat.touch()
            self._to(HOST)
        self._cuda.synchronize()
        # The GPU was idle while the host prepared. At a sixth of its clock even recording an event would take longer.
        wake(self._cuda.device)
        small = arena.recent(_SMALL)
        self._around = around(self._cuda, lambda: torch.add(small, small))

    def serve(self, turns: int) -> Sequence[Beside]:
        """No threads: programs with a parameter server are refused on GPUs."""
        return []

    def _paid(self, meant: float) -> None:
        """Spins until an op has taken `meant` host seconds since the end of the previous op, less what calls before it took too long."""
        self._owed += now() - self._through - meant
        if self._owed < 0.0:
            spin(-self._owed)
            self._owed = 0.0
        self._through = now()

    def _to(self, lane: str) -> None:
        """Makes the lane's stream the current one (the default stream for a lane without one). A change costs microseconds, so it is made
        only if the stream differs."""
        wanted = lane if lane in self._streams else None
        if wanted != self._on:
            self._cuda.use(self._streams[wanted] if wanted is not None else self._cuda.default())
            self._on = wanted

    def _make(self, op: Op, arena: Arena, groups: dict[tuple[str, str], Group], file: Path) -> Body:
        if op.kind == "compute":
            return in_turn(op.works, arena)
        if op.kind == "copy":
            return self._copy(op, arena, file)
        if op.kind in MEETING:
            issue = communication(op, groups, self._world.rank, arena, self._tags)

            def run() -> None:
                work = issue()()
                if work is not None:
                    work.wait()  # this lane's stream waits, the host goes on

            return run
        return lambda: None

    def _copy(self, op: Op, arena: Arena, file: Path) -> Body:
        size = max(1, op.bytes)
        if op.how in FILED:
            return lambda: copy_file(op, file, self._world.rank)
        if op.lane == HOST:  # host memory to host memory
            here, there = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
            return lambda: there.copy_(here)
        pageable = op.how == "pageable"
        host = torch.ones(size, dtype=torch.uint8) if pageable else self._pinned(size)
        device = arena.distant(size, dtype=torch.uint8)
        source, target = (device, host) if "d2h" in op.lane else (host, device)
        return lambda: target.copy_(source, non_blocking=not pageable)

    def _pinned(self, size: int) -> torch.Tensor:
        """`size` bytes of pinned memory, from `_HOSTS` buffers in turn: offloaded data may be as large as the model, and torch does not
        unpin."""
        kept = self._hosts.setdefault(size, deque())
        kept.append(self._cuda.pinned(size) if len(kept) < _HOSTS else kept.popleft())
        return kept[-1]

    @torch.no_grad()
    def run(
        self, ops: list[tuple[Call, Op]], turn: int, watched: bool = True
    ) -> tuple[list[tuple[float, float, float]], list[tuple[int, float]]]:
        """One pass (`Player.run`). `watched`: each op has two events, which are read after the pass and reused in the next one. Without
        other ranks, the first watched pass measures the ops' lengths (`_stood`); the length of its own steps is of no use."""
        if watched and not self._pairs:
            self._pairs = [self._pair(op) for _, op in ops]
        stood = watched and self._lengths is None and self._world.size == 1
        self._cuda.synchronize()
        zero = self._cuda.event()
        zero.record()
        origin = now()  # an idle device reaches the event at once; the host learns of it some microseconds later
        zero.synchronize()
        self._owed = math.inf if stood else 0.0  # with an infinite debt of time the host never spins
        self._through = now()
        host: list[tuple[float, float]] = []
        marks: list[tuple[int, torch.cuda.Event]] = []
        ready = 0
        for i, (call, op) in enumerate(ops):
            if stood:
                ready = self._stood(op, ready)
            start = now()
            host.append((start, self._one(call, op, turn, self._pairs[i] if watched else None)))
            if i + 1 == len(ops) or ops[i + 1][0].step != call.step:
                marks.append((call.step, self._step_end()))
                self._world.beat.phase(f"turn {turn}, step {call.step}")
        self._to(HOST)
        self._cuda.synchronize()
        ends = [(-1, origin), *((step, origin + zero.elapsed_time(event) * 1e-3) for step, event in marks)]
        for (_, before), (_, after) in pairwise(ends):
            self._world.beat.step(after - before)
        found = [self._span(at, origin, zero, i) for i, at in enumerate(host)] if watched else []
        if stood:
            self._lengths = [
                until - begin if pair is not None else None for (begin, until, _), pair in zip(found, self._pairs, strict=True)
            ]
        return found, ends

    def _span(self, host: tuple[float, float], origin: float, zero: torch.cuda.Event, i: int) -> tuple[float, float, float]:
        """(start, end, issued) of the i-th op of a pass in seconds. `host`: when the host began and finished it; `origin`: when `zero`
        was."""
        (issued, through), pair = host, self._pairs[i]
        if pair is None:
            return issued, through, issued
        begin, until = (origin + zero.elapsed_time(event) * 1e-3 for event in pair)
        until = max(begin, until - self._around)
        length = self._lengths[i] if self._lengths is not None else None
        if length is not None and begin < through:  # the device waited here for the launch
            begin = max(begin, until - length)
        return begin, until, issued

    def _stood(self, op: Op, ready: int) -> int:
        """For a pass whose kernels are queued before the device runs them: holds the streams when the last hold is used up. `ready`: ops
        that can still be queued behind the hold; returns how many after `op`, 0 if the host waits for it. Only without other ranks: one
        might wait for an op that is held here."""
        if id(op) not in self._queued:
            return 0 if op.kind == "sync" or (op.kind == "wait" and op.lane == HOST) else ready
        if not ready:
            self._cuda.synchronize()
            for lane in self._streams:
                self._to(lane)
                self._cuda.hold(_HOLD)
            ready = _READY
        return 0 if op.blocking or op.how == "pageable" else ready - 1

    def _pair(self, op: Op) -> Pair | None:
        return (self._cuda.event(), self._cuda.event()) if id(op) in self._queued else None

    def _step_end(self) -> torch.cuda.Event:
        """A new event after the compute lane's work so far."""
        event = self._cuda.event()
        event.record(self._streams.get("compute", self._cuda.default()))
        return event

    def _one(self, call: Call, op: Op, turn: int, pair: Pair | None) -> float:
        """Runs or launches an op. Returns when that was done, in seconds, before the host waits for the op's end."""
        if op.kind in ORDERS:
            self._order(call, op, turn)
        elif id(op) not in self._queued:
            self._bodies[id(op)]()
        else:
            stream = self._streams[op.lane]
            self._to(op.lane)
            if pair is not None:
                pair[0].record(stream)
            self._made.append(self._bodies[id(op)]())
            if pair is not None:
                pair[1].record(stream)
        through, queued = now(), id(op) in self._queued
        if op.kind == "host" or (op.lane != HOST and (op.kind in EVENTS or (queued and op.how != "pageable"))):
            self._paid(self._meant[id(op)])
            if not (queued and op.blocking):
                return through if op.kind != "host" else now()
            self._streams[op.lane].synchronize()
        self._through = now()  # waiting does not count as the next op's launch
        return through

    def _order(self, call: Call, op: Op, turn: int) -> None:
        if op.kind == "record":
            self._record(call, op, turn)
        elif op.shift is not None and op.event not in self._crossing.inner:
            self._crossing.wait(HOST, call, op, turn)
        elif op.kind == "sync" and not op.event:
            if op.name:
                self._streams[op.name].synchronize()
            else:
                self._cuda.synchronize()
        elif (event := self._events.awaited(call, op, turn)) is not None:
            if op.lane == HOST or op.kind == "sync":
                event.synchronize()
            else:
                self._streams[op.lane].wait_event(event)

    def _record(self, call: Call, op: Op, turn: int) -> None:
        """Records an event after the lane's work so far. On the host's lane none is needed: that work is done already."""
        if op.lane != HOST:
            event = self._cuda.event(timing=False)
            event.record(self._streams[op.lane])
            self._events.add(call, op, turn, event)
            if op.event in self._crossing.names:
                event.synchronize()
        if op.event in self._crossing.names:
            self._crossing.record(call, op, turn)
