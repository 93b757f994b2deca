"""Host-device sync points of a predicted step: where the training thread waits for the device, and for how long.

A sync point is an op that the thread issues to the device and waits for: `.item()` and printing (four bytes to pageable memory), a copy
from pageable memory, a tensor that is created on the CPU and then moved, `synchronize()`; and an asynchronous checkpoint that waits until
the previous one is written. A CPU has no sync points, because the thread itself computes.
"""

from __future__ import annotations

import msgspec

from sim.program import D2H, HOST, Op, Program, full_id
from sim.trace import Trace

_ITEM_BYTES = 8
_WORDS = {
    "output/loss": "print(loss.item())",
    "output/print": "print(tensor)",
    "output/before": "checkpoint before",
    "data/move": "created on the CPU, then moved",
}


class SyncPoint(msgspec.Struct, frozen=True):
    """One place in the loop where the host waits for the device."""

    op: str
    """In a user's words: `.item()`, `print(tensor)`, `synchronize()`, `pageable copy`, `blocking copy`, `checkpoint before`."""
    where: str
    """The op's id in the program, such as `data/h2d`."""
    per_step: float
    """Times per optimizer step on one rank; 0.1: every tenth step."""
    seconds: float
    """Mean seconds per step for which the host waits there."""
    adds: float | None = None
    """Mean seconds by which the sync point makes the step longer; None where this was not computed."""


def words(op: Op) -> str:
    """A user's name for this op; "" where the host does not wait for the device."""
    if op.kind == "sync" and op.id not in _WORDS:
        return "" if op.event else "synchronize()"
    if op.id in _WORDS:
        return _WORDS[op.id]
    if op.kind != "copy" or not op.blocking or op.lane == HOST:
        return ""
    if op.lane == D2H and op.bytes <= _ITEM_BYTES:
        return ".item()"
    return "pageable copy" if op.how == "pageable" else "blocking copy"


def sync_points(program: Program, trace: Trace) -> list[SyncPoint]:
    """Sync points of the reported step on the first simulated rank, longest first; [] on a CPU."""
    if program.device == "cpu" or not trace.spans:
        return []
    step, rank = max(0, program.steps + trace.reported), trace.ranks[0]
    mine = (span for span in trace.spans if span.rank == rank and span.step == step)
    held = {span.id: span.end - (span.issued if span.issued >= 0 else span.start) for span in mine}
    counts: dict[tuple[str, str], list[float]] = {}
    for call, op in program.ops(rank):
        word = words(op) if call.step == step else ""
        if word:
            counts.setdefault((word, op.id), []).append(max(0.0, held.get(full_id(rank, call, op), 0.0)))
    found = [SyncPoint(word, where, float(len(each)), sum(each)) for (word, where), each in counts.items()]
    return sorted(found, key=lambda point: (-point.seconds, point.where))


def spread(points: list[SyncPoint], every: int, adds: float) -> list[SyncPoint]:
    """Converts sync points that occur in each step to those of a loop where only every `every`-th step has them. `adds`: their
    `SyncPoint.adds`."""
    return [msgspec.structs.replace(p, per_step=p.per_step / every, seconds=p.seconds / every, adds=adds) for p in points]
