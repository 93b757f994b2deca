"""A pipeline rank's line as its lowering takes it: turns of few sorts, each with what its place in the line says of it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sim.schedule import Action, Kind, late, with_messages
from sim.schedule.action import SHARDS
from sim.schedule.messages import needed
from sim.schedule.shards import by_actions
from sim.schedule.written import Name

_BLOCKING = ("gpipe", "1f1b")


class Sort(NamedTuple):
    """Turns that differ in their micro-batch alone: a computation with the send of what it makes, a receive; (SEND_F, SEND_B) compute
    that waits until a send has ended; or what FSDP does to a whole stage."""

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
    asked: str = ""
    """UNSHARD: the kind of the computation that it gathers for, the next one on its stage, and of that one the same; RESHARD: the kind of
    the last one."""
    beside: bool = False
    """Parameters of another stage may be on their way."""


class Line(NamedTuple):
    """One rank's turns, in order: each the index of its sort and its micro-batch."""

    sorts: tuple[Sort, ...]
    turns: tuple[tuple[int, int], ...]


@lru_cache(maxsize=128)
def lines(name: Name, pp: int, microbatches: int, chunks: int, train: bool, shards: bool = False) -> tuple[Line, ...]:
    """Every rank's line; forwards alone where nothing is trained. `shards`: FSDP's share is not a part of the passes. Then gradients
    are reduced after the last message, or (schedules that torch runs by actions) stages are gathered, freed and reduced in turns of their own.
    Under GPipe, forwards alone end when their last message has left (torch's _ScheduleForwardOnly): else who is ahead would get ever further.

    Raises `BadInput` for sizes that the schedule cannot run."""
    acts = shards and by_actions(name, chunks)
    grid = with_messages(name, pp, microbatches, chunks, acts)
    if name in _BLOCKING:
        grid = tuple(map(late, grid))
    if not train:
        grid = tuple(tuple(action for action in line if action.kind in ("F", "SEND_F", "RECV_F")) for line in grid)
    if acts:
        return tuple(_line(_placed(line), False, False, ends=False) for line in grid)
    plain = [[(action, "", False) for action in line] for line in grid]
    return tuple(_line(line, name == "1f1b", name == "gpipe" and (shards or not train), ends=True) for line in plain)


_Placed = tuple[Action, str, bool]
"""An action, and `asked` and `beside` of its turn."""


def _placed(actions: tuple[Action, ...]) -> list[_Placed]:
    """A line with FSDP's actions, each with the micro-batch of its stage's computation that it serves. What torch frees once more after
    it was reduced is left out (post_backward in _fsdp_param_group.py frees first)."""
    found: list[_Placed] = []
    pending: dict[int, int] = {}
    latest: dict[int, Action] = {}
    reduced: set[int] = set()
    for action in actions:
        stage, asked = action.stage, ""
        if action.kind == "UNSHARD":
            pending[stage] = len(found)
        elif action.kind == "RESHARD":
            if stage in reduced:
                continue
            asked, action = latest[stage].kind, Action(stage, "RESHARD", latest[stage].microbatch)
        elif action.kind == "REDUCE_GRAD":
            reduced.add(stage)
            action = Action(stage, "REDUCE_GRAD", latest[stage].microbatch)
        elif action.computes:
            latest[stage] = action
            if stage in pending:
                asked = action.kind
                found[pending.pop(stage)] = Action(stage, "UNSHARD", action.microbatch), asked, False
        found.append((action, asked, action.computes and bool(pending)))
    return found


def _line(placed: list[_Placed], awaits: bool, awaits_last: bool, ends: bool) -> Line:
    """`awaits`: a computation waits until what the one before it made has left; `awaits_last`: what `ends` the step waits for the last
    message to leave. `ends`: what the last weight gradients leave to do follows the rank's last message."""
    actions = [action for action, _, _ in placed]
    groups = [(action.stage, "W" if action.kind in ("B", "W") else action.kind) for action in actions]
    last = {group: at for at, group in enumerate(groups)}
    first = {group: at for at, group in reversed([*enumerate(groups)])}
    sorts: dict[Sort, int] = {}
    turns: list[tuple[int, int]] = []
    leaving: list[tuple[Sort, int]] = []
    left: list[tuple[Sort, int]] = []

    def takes(*more: tuple[Sort, int]) -> None:
        turns.extend((sorts.setdefault(sort, len(sorts)), its) for sort, its in more)

    for at, ((action, asked, beside), group) in enumerate(zip(placed, groups, strict=True)):
        stage, kind, microbatch = action.stage, action.kind, action.microbatch
        if action.sends:
            leaving = [*(leaving if awaits else []), (Sort(stage, kind), microbatch)] if awaits or awaits_last else []
            continue
        if kind in SHARDS:
            takes((Sort(stage, kind, asked=asked), microbatch))
            continue
        if action.computes and awaits:
            takes(*leaving)
            leaving = []
        received = action.computes and kind != "W" and (stage, needed(kind)) in first
        sends = at + 1 < len(actions) and actions[at + 1].sends
        sort = Sort(stage, kind, first[group] == at, last[group] == at, received, sends, asked=asked, beside=beside)
        takes((sort, microbatch))
        if ends and sort.last and group[1] == "W":
            left.append((sort._replace(late=True), microbatch))
    takes(*leaving, *left)
    return Line(tuple(sorts), tuple(turns))
