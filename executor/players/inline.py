"""The player on a CPU: compute, copies and host ops run on the thread that issues them, communication runs beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from executor.arena import Arena, of_cpu
from executor.kernels.bodies import in_turn, spin
from executor.kernels.site import Body
from executor.players.communication import Issue, communication, make_groups
from executor.players.disk import copy_file
from executor.players.feeder import Crossing, Kept
from executor.players.lanes import DONE, Flag, Mark, is_comm, make_lanes
from executor.players.player import Player, now
from executor.players.servers import Server, start_servers
from executor.ranks.world import World
from sim.program import FILED, HOST, MEETING, ORDERS, Call, Op, Program


class InlinePlayer(Player):
    """One CPU rank's host thread."""

    def __init__(self, world: World, program: Program, crossing: Crossing, seconds: Callable[[Op], float], file: Path) -> None:
        self._world, self._crossing = world, crossing
        self._lanes = make_lanes(program, world.rank)
        self._groups = groups = make_groups(program, world)
        self._arena = arena = of_cpu(world.device, world.local_size)
        self._flags: Kept[Flag] = Kept(crossing)
        self._tags: Counter[tuple[str, str, int]] = Counter()
        self._issues: dict[int, Issue] = {}
        self._bodies: dict[int, Body] = {}
        """id(op) -> the callable that runs the op. Ids stay valid, as the program keeps its ops alive."""
        with torch.no_grad():
            for _, op in program.ops(world.rank, HOST):
                if id(op) in self._bodies or id(op) in self._issues:
                    continue
                if op.kind in MEETING:
                    self._issues[id(op)] = communication(op, groups, world.rank, arena, self._tags)
                else:
                    self._bodies[id(op)] = self._make(op, arena, seconds, file)
                world.beat.touch()
        self._program = program

    def serve(self, turns: int) -> list[Server]:
        """Starts the rank's threads of a parameter server."""
        return start_servers(self._program, self._world.rank, self._crossing, turns, self._groups, self._arena)

    def _make(self, op: Op, arena: Arena, seconds: Callable[[Op], float], file: Path) -> Body:
        if op.kind == "compute":
            return in_turn(op.works, arena)
        if op.kind == "host":
            length = seconds(op)
            return lambda: spin(length)
        if op.kind == "copy":
            return self._copy(op, arena, file)
        return lambda: None

    def _copy(self, op: Op, arena: Arena, file: Path) -> Body:
        if op.how in FILED:
            return lambda: copy_file(op, file, self._world.rank)
        source = arena.recent(max(1, op.bytes), dtype=torch.uint8)
        target = arena.distant(max(1, op.bytes), dtype=torch.uint8)
        return lambda: target.copy_(source)

    @torch.no_grad()
    def run(
        self, ops: list[tuple[Call, Op]], turn: int, watched: bool = True
    ) -> tuple[list[tuple[float, float, float]], list[tuple[int, float]]]:
        marks: list[Mark] = []
        begin = now()
        ends: list[tuple[int, float]] = [(-1, begin)]
        for i, (call, op) in enumerate(ops):
            mark = Mark(now())
            marks.append(mark)
            self._one(call, op, mark, turn)
            if i + 1 == len(ops) or ops[i + 1][0].step != call.step:
                at = now()
                self._world.beat.phase(f"turn {turn}, step {call.step}")
                self._world.beat.step(at - ends[-1][1])
                ends.append((call.step, at))
        for lane in self._lanes.values():
            lane.drain()
        return [(m.start, max(m.end, m.start), m.issued) for m in marks], ends

    def _one(self, call: Call, op: Op, mark: Mark, turn: int) -> None:
        if op.kind in MEETING:
            if self._communicate(op, mark):
                return
        elif op.kind in ORDERS:
            self._order(call, op, turn)
        else:
            self._bodies[id(op)]()
        mark.end = now()

    def _communicate(self, op: Op, mark: Mark) -> bool:
        """Starts the communication. True: its lane sets `mark.end` later. False: it is over already, in a group of one rank, or on the
        compute lane, where this thread waits for it."""
        if self._program.mesh.size(op.group) == 1:
            return False
        start = self._issues[id(op)]()
        lane = self._lanes.get(op.lane)
        if lane is None:
            work = start()
            if work is not None:
                work.wait()
            return False
        flag = lane.communicate(start, mark)
        if op.blocking:
            flag.wait()
        return True

    def _order(self, call: Call, op: Op, turn: int) -> None:
        lane = self._lanes.get(op.lane)
        if op.kind == "record":
            self._record(call, op, turn)
        elif op.shift is not None and op.event not in self._crossing.inner:
            self._crossing.wait(HOST, call, op, turn)
        elif op.kind == "sync" and not op.event:
            for name, each in self._lanes.items():
                if op.name in ("", name):
                    each.drain()
        elif lane is not None and op.kind == "wait":
            lane.wait(self._flags.awaited(call, op, turn) or DONE)
        elif not is_comm(op.lane):
            (self._flags.awaited(call, op, turn) or DONE).wait()

    def _record(self, call: Call, op: Op, turn: int) -> None:
        """Records an event behind the lane's work so far. If another thread waits for the event, waits for that work and then tells it."""
        lane = self._lanes.get(op.lane)
        flag = lane.record() if lane is not None else DONE
        self._flags.add(call, op, turn, flag)
        if op.event in self._crossing.names:
            flag.wait()
            self._crossing.record(call, op, turn)
