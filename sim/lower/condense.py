"""Cuts long runs of ops that concern only this rank down to who must wait for whom.

Without time an op ends as soon as what it waits for has ended. A run of kernels, records and waits therefore does no more
than make lanes (and the thread) wait for lanes and events as they were before the run: a few waits in place of
thousands of ops, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.program import Op

Source = tuple[str, str]
"""("lane", name): the lane as the run found it; ("event", name): the latest record before the run."""
Run = list[Op]


def runs_of(ops: Iterable[Op], hard: Callable[[Op], bool]) -> list[Run]:
    """Splits ops into runs. Each op that concerns other ranks or threads (`hard`) is a run of its own."""
    found: list[Run] = [[]]
    for op in ops:
        if hard(op):
            found += [[op], []]
        else:
            found[-1].append(op)
    return [run for run in found if run]


class Waits:
    """What waits for what because of one run of ops that `thread` issues."""

    def __init__(self, run: Run, thread: str) -> None:
        self._own = thread
        self.lanes: dict[str, frozenset[Source]] = {}
        self.events: dict[str, tuple[frozenset[Source], str]] = {}
        """Event that the run records -> (what must have happened before it, its lane)."""
        self.thread: frozenset[Source] = frozenset()
        self.needs: set[str] = set()
        """Events that the run waits for and that were recorded before it."""
        for op in run:
            self._take(op)

    def _take(self, op: Op) -> None:
        if op.kind == "sync":
            self.thread |= self._event(op.event) if op.event else self._lane(op.name)
            return
        after = self._lane(op.lane) | self.thread
        if op.kind == "wait":
            after |= self._event(op.event)
        self.lanes[op.lane] = after
        if op.kind == "record":
            self.events[op.event] = after, op.lane
        if op.blocking or op.lane == self._own:
            self.thread |= after

    def _lane(self, name: str) -> frozenset[Source]:
        if name == self._own:  # its ops run while the thread does
            return self.thread
        return self.lanes.get(name, frozenset([("lane", name)]))

    def _event(self, name: str) -> frozenset[Source]:
        if name in self.events:
            return self.events[name][0]
        self.needs.add(name)
        return frozenset([("event", name)])


def condense(run: Run, waits: Waits, needed: set[str], thread: str) -> Run:
    """A short list of ops that makes the same lanes, events and thread wait for the same things; the run itself if that is not longer.
    `needed`: events that some run waits for."""
    kept = {event: found for event, found in waits.events.items() if event in needed}
    moved = {lane: sources - {("lane", lane)} for lane, sources in waits.lanes.items()}
    apart = {event: sources for event, (sources, lane) in kept.items() if sources != waits.lanes[lane]}
    used = {source for sources in (*moved.values(), *apart.values(), waits.thread) for source in sources}
    id = f"{run[0].id} .. {run[-1].id}"
    made = [Op(id, "record", lane, event=_mark(lane)) for kind, lane in sorted(used) if kind == "lane"]
    for lane, sources in moved.items():
        made += [Op(id, "wait", lane, event=_name(source)) for source in sorted(sources)]
    for event, sources in apart.items():  # recorded in mid-run: on a lane of its own
        made += [Op(id, "wait", f"{event} (recorded)", event=_name(source)) for source in sorted(sources)]
    made += [Op(id, "record", f"{event} (recorded)" if event in apart else kept[event][1], event=event) for event in kept]
    made += [Op(id, "sync", thread, event=_name(source)) for source in sorted(waits.thread)]
    return made if len(made) < len(run) else run


def _mark(lane: str) -> str:
    return f"{lane} (as found)"


def _name(source: Source) -> str:
    return _mark(source[1]) if source[0] == "lane" else source[1]
