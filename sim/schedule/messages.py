"""Sends and receives between the actions of all ranks.

The sender puts the receive in its peer's list at the moment of its own send (torch's `_add_send_recv`): both ends of a pair list
their messages in the same order, and one global order exists in which all can run.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.schedule.action import RECEIVES, Action, Kind
from sim.schedule.placement import rank_of
from sim.schedule.written import Name, Written
from topologies.errors import BadInput

Grid = tuple[tuple[Action, ...], ...]
"""The actions of each rank."""


def add_messages(name: Name, pp: int, stages: int, computes: Sequence[Sequence[Action]]) -> Grid:
    """The actions of all ranks with their messages: a SEND follows the action whose result it sends, and its RECV is listed at the same moment.

    `computes` has the computation of each rank, `stages` is the number of stages of the whole pipeline. Raises `BadInput` if the
    schedule deadlocks; the message shows the action at which each rank is stuck.
    """
    lists: list[list[Action]] = [[] for _ in range(pp)]
    at = [0] * pp
    there: list[set[Action]] = [set() for _ in range(pp)]
    while any(at[rank] < len(computes[rank]) for rank in range(pp)):
        moved = False
        for rank in range(pp):
            if at[rank] == len(computes[rank]) or not _ready(computes[rank][at[rank]], there[rank], stages):
                continue
            action = computes[rank][at[rank]]
            lists[rank].append(action)
            for found in _handed_on(action):
                peer = rank_of(name, pp, found.stage) if 0 <= found.stage < stages else rank
                if peer != rank:
                    lists[rank].append(Action(action.stage, sent(action.kind), action.microbatch))
                    lists[peer].append(found)
                there[peer].add(found)
            at[rank] += 1
            moved = True
        if not moved:
            raise BadInput(f"the schedule cannot run: {_stuck(name, computes, at)}")
    return tuple(map(tuple, lists))


def _stuck(name: Name, computes: Sequence[Sequence[Action]], at: Sequence[int]) -> str:
    """The action at which each unfinished rank is stuck, as text for an error."""
    here = [(rank, index) for rank, index in enumerate(at) if index < len(computes[rank])]
    return ", ".join(
        f"rank {rank} at {computes[rank][index]}" + (f" ({name.at(rank, index)})" if isinstance(name, Written) else "")
        for rank, index in here
    )


def _ready(action: Action, there: set[Action], stages: int) -> bool:
    if action.kind == "F":
        return action.stage == 0 or Action(action.stage, "RECV_F", action.microbatch) in there
    if action.kind in ("B", "I"):
        return action.stage == stages - 1 or Action(action.stage, "RECV_B", action.microbatch) in there
    return True


def sent(kind: Kind) -> Kind:
    """The kind of send that carries the result of an action of this kind."""
    return "SEND_F" if kind == "F" else "SEND_B"


def needed(kind: Kind) -> Kind:
    """The kind of receive that brings the input of an action of this kind."""
    return "RECV_F" if kind == "F" else "RECV_B"


def _handed_on(action: Action) -> tuple[Action, ...]:
    """The receive, on the neighbouring stage, of this action's result; empty for W, which sends nothing. The stage may not exist."""
    if action.kind == "F":
        return (Action(action.stage + 1, "RECV_F", action.microbatch),)
    if action.kind in ("B", "I"):
        return (Action(action.stage - 1, "RECV_B", action.microbatch),)
    return ()


def late(actions: Sequence[Action]) -> tuple[Action, ...]:
    """One rank's actions with each receive moved to just before the action that needs it.

    Blocking schedules post their receives so (Megatron's 1F1B, torch's Schedule1F1B).
    """
    made: list[Action] = []
    held: set[Action] = set()
    for action in actions:
        if action.kind in RECEIVES:
            held.add(action)
            continue
        needs = Action(action.stage, needed(action.kind), action.microbatch)
        if action.computes and needs in held and action.kind != "W":
            held.remove(needs)
            made.append(needs)
        made.append(action)
    return tuple(made)
