"""How many steps must be simulated until every further step takes the same time.

The period of a max-plus system is no less than that of any of its lanes (Baccelli et al., ch. 3). Where launches bind, the device first
works off what it was behind by: until then its steps are shorter than what their thread spends. Where loaders bind, the first step may end
late by what only it does, and the second seems the shorter for it; or the second itself does what no later one does, and a further one
shows that it was too long. On a CPU host, whose cores loaders share with training, steps are longer while these fill their store, and shorter
when the last batch is made: between the two a step is what it is for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from sim.cost.price import Pricer
from sim.engine.machine import crowding, spent, steady
from sim.lower.output import WRITER
from sim.program import HOST, PINNER, Call, Program
from sim.timeline.metrics import loaded_until, step_times, window
from sim.trace import Span, Trace

MOST = 24
"""Steps that are simulated at most: by then the host's lead over the device is nearly used up."""
_LOOKED = 8
"""Where loaders make steps differ, more steps are simulated up to this number; steps that still differ then do so permanently."""
_CLOSE = 1e-3
"""Two times count as equal if they differ by no more than this share."""
_MOMENT = 1e-9
"""Seconds up to which a wait counts as none (rounding)."""


class Simulated(Protocol):
    """Some steps of a program, of which the reported one takes `step` seconds."""

    @property
    def program(self) -> Program: ...
    @property
    def pricer(self) -> Pricer: ...
    @property
    def step(self) -> float: ...
    @property
    def trace(self) -> Trace: ...


class Steps(NamedTuple):
    """Some simulated steps."""

    program: Program
    trace: Trace
    pricer: Pricer
    step: float
    """Seconds of the reported one."""


S = TypeVar("S", bound=Simulated)


def until_settled(simulated: Callable[[int], S], steps: int) -> S:
    """The result of `simulated(steps)`; the number of steps is doubled until they have settled."""
    while not settled((found := simulated(steps)).program, found.pricer, found.step, found.trace):
        steps *= 2
    return found


def settled(program: Program, pricer: Pricer, step: float, trace: Trace | None = None) -> bool:
    """Does every further step take `step` seconds as the program's last one does, or have `MOST` steps been simulated? `trace`: all simulated steps; None: not
    known step by step."""
    least = max(host_seconds(program, pricer), loader_seconds(program, pricer)) * (1 - _CLOSE)
    more = 2 * stored(program) if program.device == "cpu" else 0  # until the store is full, and from it alone at the end
    return program.steps >= MOST + more or (step >= least and (trace is None or program.steps > _LOOKED + more or _level(trace)))


def _level(trace: Trace) -> bool:
    """Does the reported step take as long as one beside it, or (of two sorts in turn) the one before that, all but the first? Without loaders
    and writers of checkpoints it does: no thread works beside the steps."""
    if not any(span.thread == WRITER or span.thread.startswith("loader") for span in trace.spans):
        return True
    if trace.backend == "gloo" and (window(trace)[1] > loaded_until(trace) or not _balanced(trace)):
        return False  # the cores that loaders no longer take make a step shorter, those with which they fill their store longer
    times = step_times(trace)
    at = len(times) + trace.reported
    near = [times[other] for other in (at - 2, at - 1, at + 1) if 0 < other < len(times)]
    return not near or any(abs(other - times[at]) <= _CLOSE * times[at] for other in near)


def _balanced(trace: Trace) -> bool:
    """Does each rank with loaders wait for a batch in the reported step, or they for room in their store?"""
    begin, end = window(trace)
    inside = [span for span in trace.spans if span.start < end - _MOMENT and span.end > begin + _MOMENT]
    loading = {span.rank for span in inside if span.thread.startswith("loader")}
    waits = {span.rank for span in inside if span.kind in ("sync", "wait") and span.seconds > _MOMENT and _fed(span)}
    return loading <= waits


def _fed(span: Span) -> bool:
    return span.lane.startswith("loader") or (span.lane == HOST and span.cls == "data")


def stored(program: Program) -> int:
    """For how many steps at most loader processes hold batches ready (the prefetch queue)."""
    found = 0
    for role in program.roles.values():
        calls = [call for thread, made in role.threads.items() if thread.startswith("loader") for call in made if call.segment == thread]
        back = max((-op.shift for call in calls[:1] for op in program.segments[call.segment] if op.shift is not None), default=0)
        found = max(found, -(-back // max(1, sum(_last(program, call) for call in calls))))
    return found


def host_seconds(program: Program, pricer: Pricer) -> float:
    """Seconds that the busiest training thread works in the program's last step, without its waits."""
    found = 0.0
    for name, rank in _ranks(program).items():
        calls = [call.segment for call in program.roles[name].threads[HOST] if _last(program, call)]
        each = {segment: sum(spent(op, pricer.local(op, rank)) for op in program.segments[segment]) for segment in set(calls)}
        found = max(found, sum(map(each.__getitem__, calls)))
    return found


def loader_seconds(program: Program, pricer: Pricer, shares: Mapping[str, float] | None = None) -> float:
    """Seconds that each loader process of the busiest rank works for one step, without its waits: the batches of the last step, divided among them; or the
    seconds of the thread that pins the batches, where that is more. On a GPU's host each process is as slow as all of them make each other; on CPU hosts, where
    they share cores and buses moment by moment, nothing is shared. `shares`: by resource, the share that other programs' loaders leave to these."""
    found = 0.0
    for name, rank in _ranks(program).items():
        threads = program.roles[name].threads
        pinned = sum(_last(program, call) for call in threads.get(PINNER, ()))
        found = max(found, pinned * sum(pricer.local(op, rank).seconds for op in program.segments.get(PINNER, ())))
        loaders = {thread: calls for thread, calls in threads.items() if thread.startswith("loader")}
        made = [call.segment for thread, calls in loaders.items() for call in calls if _last(program, call) and call.segment == thread]
        each = {segment: _batch(program, pricer, rank, segment, shares) for segment in set(made)}
        found = max(found, sum(map(each.__getitem__, made)) / max(1, len(loaders)))
    return found


def _ranks(program: Program) -> dict[str, int]:
    """One rank of each role."""
    return {name: rank for rank, name in enumerate(program.role_of)}


def _last(program: Program, call: Call) -> bool:
    return call.step == program.steps - 1


def _batch(program: Program, pricer: Pricer, rank: int, segment: str, shares: Mapping[str, float] | None) -> float:
    """Of a loader process, to make a batch."""
    costs = [(op, pricer.local(op, rank)) for op in program.segments[segment]]
    if program.device != "cpu":
        costs = steady(costs, crowding(costs, pricer, rank, program, shares))
    return sum(cost.seconds for _, cost in costs)
