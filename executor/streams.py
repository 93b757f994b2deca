"""The player on CUDA: every lane is a stream, `record` and `wait` are CUDA events, collectives run on NCCL.

Times come from events around each op, read after the pass; nothing synchronises inside it but what the program says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

from executor.arena import Arena, free_memory
from executor.bodies import Body, body, spin
from executor.events import cuda_event, cuda_stream
from executor.feeder import Crossing, read_bytes
from executor.lanes import Group, communication, make_groups
from executor.play import Player, now
from executor.world import World
from sim.program import HOST, Call, Op, Program

_DEVICE = ("compute", "copy", "collective", "send", "recv")


class StreamPlayer(Player):
    """One CUDA rank's host thread."""

    def __init__(self, world: World, program: Program, crossing: Crossing, seconds: Callable[[Op], float], file: Path) -> None:
        self._world, self._crossing, self._program = world, crossing, program
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._events: dict[str, torch.cuda.Event] = {}
        self._bodies: dict[int, Body] = {}
        self._tags: Counter[tuple[str, str, int]] = Counter()
        groups = make_groups(program, world.rank)
        arena = Arena(world.device, free_memory(world.device), recent=64 << 20, distant=2 << 30)
        with torch.no_grad():
            for _, op in program.ops(world.rank, HOST):
                if op.lane != HOST:
                    self._streams.setdefault(op.lane, cuda_stream(world.device))
                if id(op) not in self._bodies:
                    self._bodies[id(op)] = self._make(op, arena, groups, seconds, file)

    def _make(self, op: Op, arena: Arena, groups: dict[tuple[str, str], Group], seconds: Callable[[Op], float], file: Path) -> Body:
        if op.kind == "compute":
            calls = [body(work, arena) for work in op.works]
            return lambda: [call() for call in calls]
        if op.kind == "host":
            length = seconds(op)
            return lambda: spin(length)
        if op.kind == "copy":
            return self._copy(op, arena, file)
        if op.kind in ("collective", "send", "recv"):
            issue = communication(op, groups, self._world.rank, arena, self._tags)

            def run() -> None:
                work = issue()()
                if work is not None:
                    work.wait()  # this lane's stream waits, the host goes on

            return run
        return lambda: None

    def _copy(self, op: Op, arena: Arena, file: Path) -> Body:
        if op.how in ("disk", "store"):
            return lambda: read_bytes(file, op.bytes, op.how)
        pageable = op.how == "pageable"
        host = torch.ones(max(1, op.bytes), dtype=torch.uint8)
        host = host if pageable else host.pin_memory()
        device = arena.distant(max(1, op.bytes), dtype=torch.uint8)
        source, target = (device, host) if "d2h" in op.lane else (host, device)
        return lambda: target.copy_(source, non_blocking=not pageable)

    @torch.no_grad()
    def run(self, ops: list[tuple[Call, Op]], turn: int) -> tuple[list[tuple[float, float, float]], list[tuple[int, float]]]:
        torch.cuda.synchronize(self._world.device)
        zero = cuda_event()
        zero.record()
        zero.synchronize()
        origin = now()
        host: list[tuple[float, float]] = []
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event] | None] = []
        marks: list[tuple[int, torch.cuda.Event]] = []
        for i, (call, op) in enumerate(ops):
            start = now()
            pairs.append(self._one(call, op, turn))
            host.append((start, now()))
            if i + 1 == len(ops) or ops[i + 1][0].step != call.step:
                marks.append((call.step, self._step_end()))
                self._world.beat.phase(f"turn {turn}, step {call.step}")
        torch.cuda.synchronize(self._world.device)
        ends = [(-1, origin), *((step, origin + zero.elapsed_time(event) * 1e-3) for step, event in marks)]
        for (_, before), (_, after) in pairwise(ends):
            self._world.beat.step(after - before)
        found = []
        for (start, end), pair in zip(host, pairs, strict=True):
            if pair is not None:
                found.append((origin + zero.elapsed_time(pair[0]) * 1e-3, origin + zero.elapsed_time(pair[1]) * 1e-3, start))
            else:
                found.append((start, end, start))
        return found, ends

    def _step_end(self) -> torch.cuda.Event:
        """An event behind the compute lane's work so far."""
        event = cuda_event()
        event.record(self._streams.get("compute", torch.cuda.current_stream()))
        return event

    def _one(self, call: Call, op: Op, turn: int) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if op.kind in ("record", "wait", "sync"):
            self._order(call, op, turn)
            return None
        if op.lane == HOST or op.kind not in _DEVICE:
            self._bodies[id(op)]()
            return None
        stream = self._streams[op.lane]
        start, end = cuda_event(), cuda_event()
        with torch.cuda.stream(stream):
            start.record(stream)
            self._bodies[id(op)]()
            end.record(stream)
        if op.blocking:
            end.synchronize()
        return start, end

    def _order(self, call: Call, op: Op, turn: int) -> None:
        if op.kind == "record":
            event = self._events[op.event] = cuda_event(timing=False)
            event.record(self._streams.get(op.lane, torch.cuda.current_stream()))
            if op.event in self._crossing.names:
                event.synchronize()
                self._crossing.record(call, op, turn)
        elif op.shift is not None:
            self._crossing.wait(HOST, call, op, turn)
        elif op.kind == "sync" and not op.event:
            if op.name:
                self._streams[op.name].synchronize()
            else:
                torch.cuda.synchronize(self._world.device)
        elif op.event in self._events:
            if op.lane == HOST or op.kind == "sync":
                self._events[op.event].synchronize()
            else:
                self._streams[op.lane].wait_event(self._events[op.event])
