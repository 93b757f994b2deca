"""A pipeline rank's line as its lowering takes it: each action with what its place in the line says of it."""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from sim.lower.schedule import Action, Kind, late, with_messages

_BLOCKING = ("gpipe", "1f1b")


class Turn(NamedTuple):
    """An action in its rank's line: a computation with the send of what it makes, or a receive."""

    action: Action
    first: bool
    """Of its sort on its stage: forwards, input gradients, and all that make weight gradients."""
    last: bool
    received: bool
    """What it works on comes in a message."""
    sends: bool
    """What it makes leaves in a message."""
    sort: int
    """The same for turns of one stage, kind, `first`, `last`, `received` and `sends`: from 0 on."""


@lru_cache(maxsize=128)
def turns(name: str, pp: int, microbatches: int, chunks: int, train: bool) -> tuple[tuple[Turn, ...], ...]:
    """Every rank's line; forwards alone where nothing is trained. Raises `BadInput` for sizes that the schedule cannot run."""
    grid = with_messages(name, pp, microbatches, chunks)
    if name in _BLOCKING:
        grid = tuple(map(late, grid))
    if not train:
        grid = tuple(tuple(action for action in line if action.kind in ("F", "SEND_F", "RECV_F")) for line in grid)
    return tuple(map(_turns, grid))


def _turns(line: tuple[Action, ...]) -> tuple[Turn, ...]:
    groups: dict[tuple[int, str], list[Action]] = {}
    for action in line:
        groups.setdefault((action.stage, "W" if action.kind in ("B", "W") else action.kind), []).append(action)
    first, last = ({group[at] for group in groups.values()} for at in (0, -1))
    present = set(line)
    sorts: dict[tuple[object, ...], int] = {}
    found: list[Turn] = []
    for action, after in zip_longest(line, line[1:]):
        if not action.sends:
            place = (action in first, action in last, action.computes and needs(action) in present, after is not None and after.sends)
            found.append(Turn(action, *place, sorts.setdefault((action.stage, action.kind, *place), len(sorts))))
    return tuple(found)


def needs(action: Action) -> Action:
    """The receive that brings what the action works on."""
    kind: Kind = "RECV_F" if action.kind == "F" else "RECV_B"
    return Action(action.stage, kind, -1 if action.kind == "W" else action.microbatch)
