"""A pipeline rank's line as its lowering takes it: turns of few sorts, each with what its place in the line says of it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sim.lower.schedule import Action, Kind, late, with_messages
from sim.lower.schedule.messages import needed

_BLOCKING = ("gpipe", "1f1b")


class Sort(NamedTuple):
    """Turns that differ in their micro-batch alone: a computation with the send of what it makes, a receive; or (SEND_F, SEND_B) compute
    that waits until a send has ended."""

    stage: int
    kind: Kind
    first: bool = False
    """Of its kind on its stage: forwards, input gradients, and all that make weight gradients."""
    last: bool = False
    received: bool = False
    """What it works on comes in a message."""
    sends: bool = False
    """What it makes leaves in a message."""
    late: bool = False
    """What is left to do of it after the rank's last message."""


class Line(NamedTuple):
    """One rank's turns, in order: each the index of its sort and its micro-batch."""

    sorts: tuple[Sort, ...]
    turns: tuple[tuple[int, int], ...]


@lru_cache(maxsize=128)
def lines(name: str, pp: int, microbatches: int, chunks: int, train: bool) -> tuple[Line, ...]:
    """Every rank's line; forwards alone where nothing is trained. Raises `BadInput` for sizes that the schedule cannot run."""
    grid = with_messages(name, pp, microbatches, chunks)
    if name in _BLOCKING:
        grid = tuple(map(late, grid))
    if not train:
        grid = tuple(tuple(action for action in line if action.kind in ("F", "SEND_F", "RECV_F")) for line in grid)
    return tuple(_line(line, name == "1f1b") for line in grid)


def _line(actions: tuple[Action, ...], awaits: bool) -> Line:
    """`awaits`: a computation waits until what the one before it made has left."""
    groups = [(action.stage, "W" if action.kind in ("B", "W") else action.kind) for action in actions]
    last = {group: at for at, group in enumerate(groups)}
    first = {group: at for at, group in reversed([*enumerate(groups)])}
    sorts: dict[Sort, int] = {}
    turns: list[tuple[int, int]] = []
    leaving: list[tuple[Sort, int]] = []
    left: list[tuple[Sort, int]] = []

    def takes(*more: tuple[Sort, int]) -> None:
        turns.extend((sorts.setdefault(sort, len(sorts)), its) for sort, its in more)

    for at, (action, group) in enumerate(zip(actions, groups, strict=True)):
        stage, kind, microbatch = action.stage, action.kind, action.microbatch
        if action.sends:
            leaving += [(Sort(stage, kind), microbatch)] if awaits else []
            continue
        if action.computes:
            takes(*leaving)
            leaving = []
        received = action.computes and kind != "W" and (stage, needed(kind)) in first
        sends = at + 1 < len(actions) and actions[at + 1].sends
        sort = Sort(stage, kind, first[group] == at, last[group] == at, received, sends)
        takes((sort, microbatch))
        if sort.last and group[1] == "W":
            left.append((sort._replace(late=True), microbatch))
    takes(*leaving, *left)
    return Line(tuple(sorts), tuple(turns))
