"""Wires: a wire is two lanes of two ranks that hold nothing but the messages of one rank to the other.

A message begins when both ranks have come to it and their lanes are free. On a wire both lanes become free at the same time, when the
message before has ended. So neither needs a queue: an end only keeps the messages that its peer has not come to yet. Pipelines send on
such lanes, with two exceptions: two ranks alone, whose messages up and down meet in one order, and V shapes, whose lanes serve both
neighbours.
"""

from __future__ import annotations

from collections import Counter

from sim.engine.inorder.moves import End
from sim.program import COMPUTE, MESSAGE, Op, Program


def ends_of(sends: str, receives: str) -> tuple[End, End]:
    """The two ends of a new wire, with the names of their lanes."""
    ends = End(sends), End(receives)
    ends[0].other, ends[1].other = ends[1], ends[0]
    return ends


def wires_of(program: Program) -> dict[str, str]:
    """Lane that is an end of a wire -> name of the lane at the other end. Such a lane holds only messages, each right after a wait for
    an event that was just recorded on the compute lane, and records of their ends."""
    messages = [(line, at, op) for line in program.segments.values() for at, op in enumerate(line) if op.kind in MESSAGE]
    known, names = Counter[str](), {op.lane for _, _, op in messages}
    lanes: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
    for line, at, op in messages:
        if _follows(line, at):
            sends = op.kind == "send"
            to = op.peer if sends else -op.peer
            lanes.setdefault((op.group, to % program.mesh.size(op.group)), (set(), set()))[not sends].add(op.lane)
            known[op.lane] += 3 if _recorded(line, at) else 2
    used = Counter(op.lane for line in program.segments.values() for op in line if op.lane in names) if names else known
    served = Counter(lane for pair in lanes.values() for side in pair for lane in side)
    found: dict[str, str] = {}
    for pair in lanes.values():
        both = [lane for side in pair for lane in side]
        if all(len(side) == 1 for side in pair) and all(served[lane] == 1 and used[lane] == known[lane] for lane in both):
            found |= {both[0]: both[1], both[1]: both[0]}
    return found


def _follows(line: tuple[Op, ...], at: int) -> bool:
    """Whether the op comes right after a wait of its lane for an event that the compute lane has just recorded."""
    if at < 2:
        return False
    made, waits = line[at - 2], line[at - 1]
    known = (made.kind, made.lane, waits.kind, waits.lane, waits.event) == ("record", COMPUTE, "wait", line[at].lane, made.event)
    return known and made.shift is None and waits.shift is None


def _recorded(line: tuple[Op, ...], at: int) -> bool:
    return at + 1 < len(line) and (line[at + 1].kind, line[at + 1].lane) == ("record", line[at].lane)
