"""The player on CUDA: every lane is a stream, `record` and `wait` are CUDA events, collectives run on NCCL.

Times of ops come from events around each, read after the pass, less what two events around a kernel read beside it; nothing synchronises inside
it but what the program says. Where the host is late, the first event is passed before the kernel is there, and the two hold its launch as well: of
such an op the length is taken that it has in a pass whose kernels stand ready behind the host (`_stood`). Two events around each op take some
microseconds of the host and one or two of the device: passes whose steps are timed have none but at the steps' ends.

A launch takes the host as long as the program's times say, which are those of a training step: there it goes through modules and autograd, finds
caches and branch predictors full of other code, and lists of the optimizer are launched by a loop in C++. Here it is a bare call: the host spins for
what is left of its time, and what a call takes longer is taken off the next ones.
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
"""Ops that stand ready at a time behind a stream that is held: of more, with their events, the queue to the device would be full."""
_HOLD = 30_000_000
"""Cycles, 10 ms of the fastest clock: in so long a host launches `_READY` ops, a multi-tensor update of some hundred kernels among them."""
POOL = 32
"""Streams of one priority on a device; torch gives them out in turn, to communicators of NCCL too (c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""
_KEPT = 16
"""Results that are kept until as many others have come. What is given back at once is taken again by the next kernel, which would write into lines that
L2 holds; a step's kernels write to memory that was last touched long ago, as the probe's do (`executor.kernels.bodies.held`)."""
_HOSTS = 4
"""Buffers of one size in host memory that copies take in turn."""
_SMALL = 1 << 18
"""Elements of the kernel by which is told what events around a kernel take: some microseconds of any GPU."""
Pair = tuple[torch.cuda.Event, torch.cuda.Event]


def refuse_aliases(lanes: set[str], groups: dict[tuple[str, str], Group]) -> None:
    """Raises `Refused` where lanes and communicators are more than torch has streams: it gives the first ones again, two lanes would wait for
    each other though nothing in the program says so, and ranks perhaps for ever."""
    communicators = 1 + sum(group is not None for group, _ in groups.values())  # and that of all ranks
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
        """`cuda`: the rank's device unless a test brings a stand-in."""
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
        """id(op) of what is launched on a stream."""
        self._tags: Counter[tuple[str, str, int]] = Counter()
        self._meant = {id(op): seconds(op) for _, op in program.ops(world.rank, HOST)}
        """id(op): host seconds that it takes, of what is launched those of its launch."""
        self._owed, self._through = 0.0, 0.0
        """Host seconds that calls have taken longer than they are meant to, and that nothing has been shortened by yet; the moment at which the host was
        through with the op before: what the player does between two of them is the next one's."""
        self._lengths: list[float | None] | None = None
        """Of each op the device seconds where nothing waits for the host; None: no such pass has been made."""
        groups = make_groups(program, world, apart=world.kind == "cuda")
        refuse_aliases({op.lane for _, op in program.ops(world.rank, HOST)} - {HOST}, groups)
        connect(program, groups, world.rank, world.device)
        arena = of_gpu(world.device, free_memory(world.device) // (world.local_size if world.shared else 1), 2 << 30)
        with torch.no_grad():
            for _, op in program.ops(world.rank, HOST):
                if op.lane != HOST and op.lane not in self._streams:
                    self._streams[op.lane] = self._cuda.stream()
                if id(op) not in self._bodies:
                    self._to(op.lane)  # autograd runs a backward on the stream of its forward: the lane's, from the beginning
                    self._bodies[id(op)] = self._make(op, arena, groups, file)
                    world.beat.touch()
            self._to(HOST)
        self._cuda.synchronize()
        # All that was prepared has left it idle: at a sixth of the clock it would take longer to write moments down, too.
        wake(self._cuda.device)
        small = arena.recent(_SMALL)
        self._around = around(self._cuda, lambda: torch.add(small, small))

    def serve(self, turns: int) -> Sequence[Beside]:
        """None: programs with a server are refused on GPUs."""
        return []

    def _paid(self, meant: float) -> None:
        """The host goes on when an op has taken its time, since the end of the one before."""
        self._owed += now() - self._through - meant
        if self._owed < 0.0:
            spin(-self._owed)
            self._owed = 0.0
        self._through = now()

    def _to(self, lane: str) -> None:
        """Makes a lane's stream the current one: changing it costs microseconds, so only where it is another."""
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
        """Pinned memory of so many bytes, some of it in turn: what is offloaded may be as large as the model, and is pinned for good."""
        kept = self._hosts.setdefault(size, deque())
        kept.append(self._cuda.pinned(size) if len(kept) < _HOSTS else kept.popleft())
        return kept[-1]

    @torch.no_grad()
    def run(
        self, ops: list[tuple[Call, Op]], turn: int, watched: bool = True
    ) -> tuple[list[tuple[float, float, float]], list[tuple[int, float]]]:
        """One pass. Events are read after the device has passed all of them, and used again in the next pass; `watched`: each op has two. The first
        such pass of a rank alone tells the ops' lengths: its steps take as long as they may."""
        if watched and not self._pairs:
            self._pairs = [self._pair(op) for _, op in ops]
        stood = watched and self._lengths is None and self._world.size == 1
        self._cuda.synchronize()
        zero = self._cuda.event()
        zero.record()
        origin = now()  # an idle device comes to it at once; the host hears of that some microseconds later
        zero.synchronize()
        self._owed = math.inf if stood else 0.0  # with endless time to be taken off, the host rushes through
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
        """(start, end, issued) of the i-th op of a pass, which the host has begun and ended with at the moments `host`."""
        (issued, through), pair = host, self._pairs[i]
        if pair is None:
            return issued, through, issued
        begin, until = (origin + zero.elapsed_time(event) * 1e-3 for event in pair)
        until = max(begin, until - self._around)
        length = self._lengths[i] if self._lengths is not None else None
        if length is not None and begin < through:  # the device stood there before all of it was launched
            begin = max(begin, until - length)
        return begin, until, issued

    def _stood(self, op: Op, ready: int) -> int:
        """How many more ops find the streams held after this one, in a pass whose kernels stand ready behind the host. What the host waits for ends
        that. For ranks alone: another one might wait for what stands here."""
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
        """An event behind the compute lane's work so far."""
        event = self._cuda.event()
        event.record(self._streams.get("compute", self._cuda.default()))
        return event

    def _one(self, call: Call, op: Op, turn: int, pair: Pair | None) -> float:
        """Runs or launches an op. The moment at which that was done, before the host waits for anything."""
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
        self._through = now()  # what the host has waited for is no launch
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
        """An event behind the lane's work so far. What the host thread records has happened: it waits for nobody."""
        if op.lane != HOST:
            event = self._cuda.event(timing=False)
            event.record(self._streams[op.lane])
            self._events.add(call, op, turn, event)
            if op.event in self._crossing.names:
                event.synchronize()
        if op.event in self._crossing.names:
            self._crossing.record(call, op, turn)
