"""How many steps must be simulated until every further step takes the same time.

The period of a max-plus system is no less than that of any of its lanes (Baccelli et al., ch. 3). If kernel launches bind, the device first
catches up with the thread; until then, steps are shorter than the time that their thread spends. If loaders bind, the first step may end
late because of work that only it does, and the second step then seems too short; or the second step itself does such work, and only a
further step shows that it was too long. On a CPU host, loaders share the cores with training: steps are longer while the loaders fill their
store, and shorter after they have made the last batch. A step between these two is as long as every further step.
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
    """Some simulated steps of a program; the reported one takes `step` seconds."""

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
    """Seconds of the reported step."""


S = TypeVar("S", bound=Simulated)


def until_settled(simulated: Callable[[int], S], steps: int) -> S:
    """The result of `simulated(steps)`; the number of steps is doubled until they have settled."""
    while not settled((found := simulated(steps)).program, found.pricer, found.step, found.trace):
        steps *= 2
    return found


def settled(program: Program, pricer: Pricer, step: float, trace: Trace | None = None) -> bool:
    """Does every further step take `step` seconds, as the last one of the program does? Also true once `MOST` steps are simulated (on a CPU
    host more, to fill and empty the store of the loaders). `trace`: all simulated steps; None: the single steps are not known."""
    least = max(host_seconds(program, pricer), loader_seconds(program, pricer)) * (1 - _CLOSE)
    more = 2 * stored(program) if program.device == "cpu" else 0  # until the store is full, and from it alone at the end
    return program.steps >= MOST + more or (step >= least and (trace is None or program.steps > _LOOKED + more or _level(trace)))


def _level(trace: Trace) -> bool:
    """Does the reported step take as long as the step before or after it, or (if two sorts of steps alternate) the second one before it?
    The first step is not compared. True without loaders and checkpoint writers, as then no thread works beside the steps."""
    if not any(span.thread == WRITER or span.thread.startswith("loader") for span in trace.spans):
        return True
    if trace.backend == "gloo" and (window(trace)[1] > loaded_until(trace) or not _balanced(trace)):
        return False  # a step is shorter once loaders no longer use cores, and longer while they fill their store
    times = step_times(trace)
    at = len(times) + trace.reported
    near = [times[other] for other in (at - 2, at - 1, at + 1) if 0 < other < len(times)]
    return not near or any(abs(other - times[at]) <= _CLOSE * times[at] for other in near)


def _balanced(trace: Trace) -> bool:
    """In the reported step, does each rank with loaders either wait for a batch, or do its loaders wait for room in their store?"""
    begin, end = window(trace)
    inside = [span for span in trace.spans if span.start < end - _MOMENT and span.end > begin + _MOMENT]
    loading = {span.rank for span in inside if span.thread.startswith("loader")}
    waits = {span.rank for span in inside if span.kind in ("sync", "wait") and span.seconds > _MOMENT and _fed(span)}
    return loading <= waits


def _fed(span: Span) -> bool:
    return span.lane.startswith("loader") or (span.lane == HOST and span.cls == "data")


def stored(program: Program) -> int:
    """For how many steps the loader processes can hold batches ready at most (the prefetch queue)."""
    found = 0
    for role in program.roles.values():
        calls = [call for thread, made in role.threads.items() if thread.startswith("loader") for call in made if call.segment == thread]
        back = max((-op.shift for call in calls[:1] for op in program.segments[call.segment] if op.shift is not None), default=0)
        found = max(found, -(-back // max(1, sum(_last(program, call) for call in calls))))
    return found


def host_seconds(program: Program, pricer: Pricer) -> float:
    """Seconds for which the busiest training thread works in the last step of the program, without its waits."""
    found = 0.0
    for name, rank in _ranks(program).items():
        calls = [call.segment for call in program.roles[name].threads[HOST] if _last(program, call)]
        each = {segment: sum(spent(op, pricer.local(op, rank)) for op in program.segments[segment]) for segment in set(calls)}
        found = max(found, sum(map(each.__getitem__, calls)))
    return found


def loader_seconds(program: Program, pricer: Pricer, shares: Mapping[str, float] | None = None) -> float:
    """Seconds for which each loader process of the busiest rank works for one step, without its waits: the batches of the last step,
    divided among the processes. If the thread that pins the batches needs longer, its seconds.

    On the host of GPUs, the loaders slow each other and this is included. On a CPU host it is not: there the simulation shares cores and
    buses moment by moment. `shares`: resource -> share of it that loaders of other programs leave to these; None: there are no other
    programs."""
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
    """Seconds in which a loader process makes one batch. `segment`: the ops of that batch."""
    costs = [(op, pricer.local(op, rank)) for op in program.segments[segment]]
    if program.device != "cpu":
        costs = steady(costs, crowding(costs, pricer, rank, program, shares))
    return sum(cost.seconds for _, cost in costs)
