"""A pipeline rank's list of actions in the form that lowering uses: turns of a few sorts.

A turn is one action on one micro-batch. Its sort says what its position in the list implies, e.g. that it is the first of its kind.
"""

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
    """Turns that differ only in their micro-batch.

    A turn is a computation together with the send of its result, a receive, a wait of the compute stream until a send has ended (SEND_F,
    SEND_B), or one of FSDP's actions on a whole stage.
    """

    stage: int
    kind: Kind
    first: bool = False
    """The first of its kind on its stage; B and W count as one kind, as both make weight gradients."""
    last: bool = False
    received: bool = False
    """Its input comes in a message."""
    sends: bool = False
    """Its result is sent in a message."""
    late: bool = False
    """This turn is the rest of the last weight gradients, which runs after the rank's last message."""
    asked: str = ""
    """For UNSHARD, the kind of the next computation on its stage, for which it gathers; that computation has its own kind here, too.
    For RESHARD, the kind of the last computation on its stage. Else ""."""
    beside: bool = False
    """The parameters of another stage may be gathered at the same time."""


class Line(NamedTuple):
    """One rank's turns, in order; each is a pair of an index into `sorts` and a micro-batch."""

    sorts: tuple[Sort, ...]
    turns: tuple[tuple[int, int], ...]


@lru_cache(maxsize=128)
def lines(name: Name, pp: int, microbatches: int, chunks: int, train: bool, shards: bool = False) -> tuple[Line, ...]:
    """The line of every rank; without `train` it has only forwards and their messages.

    `shards` says that FSDP's work is not a part of the passes. Gradients are then reduced after the last message; in schedules that torch
    runs by actions, stages are gathered, freed and reduced in turns of their own instead. Under GPipe without `train`, the step ends when
    the last message has been sent (torch's _ScheduleForwardOnly); otherwise the first ranks would get further ahead with each step.

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
"""An action, and the values of `asked` and `beside` for its turn."""


def _placed(actions: tuple[Action, ...]) -> list[_Placed]:
    """The actions with `asked` and `beside`; FSDP's actions get the micro-batch of the computation of their stage that they belong to.

    A RESHARD after the stage's REDUCE_GRAD is left out: the parameters are free by then (post_backward in _fsdp_param_group.py frees first).
    """
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
    """The turns of one rank.

    With `awaits`, a computation waits until the messages before it have been sent. With `awaits_last`, the end of the step waits until the
    last message has been sent. With `ends`, the rest of each stage's last weight gradients follows at the end, as turns that are `late`.
    """
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
