"""A thread's calls by turns: what many micro-batches repeat is said once.

Each step of a thread has turns of few sorts. A program whose ops are shown or played holds its calls one by one; where only a step's
time matters, the turns do, and calls are made when they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from sim.program import Call, Op, Role


class Turns(NamedTuple):
    """Turns one after the other, in one step."""

    step: int
    before: int
    """Index of the calls of turn number 0."""
    names: list[tuple[str, ...]]
    """By sort of turn: the segments that it calls."""
    turns: Sequence[tuple[int, int]]
    """Each turn's sort and its number, which is its micro-batch's in this step."""
    micro: bool = True
    """The turns are micro-batches'."""

    def calls(self) -> Iterator[Call]:
        """The calls, in order."""
        step, at = self.step, f"s{self.step}"
        for sort, number in self.turns:
            for name in self.names[sort]:
                yield Call(name, f"{at}/mb{number}" if self.micro else at, self.before + number, step)


def single(name: str, step: int) -> Turns:
    """One call of a segment that no micro-batch needs."""
    return Turns(step, step, [(name,)], ((0, 0),), False)


class Line(Sequence[Call]):
    """A thread's calls; `turns` holds them in short."""

    def __init__(self, turns: Sequence[Turns]) -> None:
        self.turns = turns

    def __iter__(self) -> Iterator[Call]:
        for turns in self.turns:
            yield from turns.calls()

    def __len__(self) -> int:
        return sum(len(turns.names[sort]) for turns in self.turns for sort, _ in turns.turns)

    @overload
    def __getitem__(self, at: int) -> Call: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Call, ...]: ...
    def __getitem__(self, at: int | slice) -> Call | tuple[Call, ...]:
        return tuple(self)[at]


def turns_of(calls: Sequence[Call]) -> Sequence[Turns]:
    """Calls as turns: a step's segments are its sorts."""
    if isinstance(calls, Line):
        return calls.turns
    found: list[Turns] = []
    sorts: dict[str, int] = {}
    turns: list[tuple[int, int]] = []
    for call in calls:
        if not found or found[-1].step != call.step:
            sorts, turns = {}, []
            found.append(Turns(call.step, 0, [], turns))
        if call.segment not in sorts:
            sorts[call.segment] = len(sorts)
            found[-1].names.append((call.segment,))
        turns.append((sorts[call.segment], call.index))
    return found


def called(segments: Mapping[str, tuple[Op, ...]], roles: Mapping[str, Role]) -> dict[str, tuple[Op, ...]]:
    """The segments that some thread calls, and not those that a pipeline has cut or joined with its messages."""
    parts = (part for role in roles.values() for calls in role.threads.values() for part in turns_of(calls))
    names = {name for part in parts for sort in part.names for name in sort}
    return {name: ops for name, ops in segments.items() if name in names}
