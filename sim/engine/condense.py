"""Simulates the inside of a segment once: a stretch of ops that meets no other simulated rank becomes one op.

An example of a stretch is a stage's forward of one micro-batch with its tensor-parallel collectives. Whatever lanes it uses inside, it is
a max-plus linear map of the clocks of host and stream. With D its time when launches are far ahead, H the time of its launches and G its
time from an idle start: stream' = max(stream + D, host + G) (see `fuse`). D and G are found by running the stretch alone. The map is
exact while no collective from outside runs beside the stretch, or while one runs beside all of it (that case is simulated, too); in
between, the slowdown is taken as spread evenly over the stretch. What its collectives lose to messages that use the same links is left
out: less than 1e-3 of a step (`sim.engine.links.Links.contended`). Another lane begins a stretch's first op when compute begins the
stretch, and not while the stretch before still computes. So FSDP's first all-gather in each pass is exposed: 0.1 to 0.7 % of the steps of
16 layers and more, 1 to 3 % of those of four layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sim.cost.price import Cost, weakest
from sim.engine.fuse import APART, Priced
from sim.program import COMPUTE, HOST, MEETING, MESSAGE, Op, Program

_SLACK = 1 + 1e-12
_LEAST = 4
"""A stretch of fewer ops stays as it is."""


class Alone(NamedTuple):
    """A stretch run by itself from an idle start, in seconds."""

    compute: float
    """End of the last op on the compute lane."""
    end: float
    """End of the last op on any lane other than the host's."""
    lost: float = 0.0
    """Seconds by which collectives beside them lengthened the compute lane's kernels."""


def outside_events(program: Program, rank: int) -> frozenset[str]:
    """Events that tie segments or threads of a rank together: numbered ones, those that two threads name, and those that one segment
    waits for and another records."""
    home: dict[str, str] = {}
    outside: set[str] = set()
    for thread, calls in program.threads(rank).items():
        for name in dict.fromkeys(call.segment for call in calls):
            recorded: set[str] = set()
            for op in program.segments[name]:
                if not op.event:
                    continue
                if op.shift is not None or home.setdefault(op.event, thread) != thread:
                    outside.add(op.event)
                elif op.kind == "record":
                    recorded.add(op.event)
                elif op.event not in recorded:  # waits for what another segment recorded
                    outside.add(op.event)
    return frozenset(outside)


def stretches(
    ops: list[Priced], private: Callable[[Op], bool], outside: frozenset[str], rings: bool = False, stops: bool = False
) -> list[list[Priced]]:
    """Cuts a segment into stretches that stand alone (two ops or more) and single ops that do not.

    `private(op)`: one simulated rank stands for all members of the op's group. `outside`: events of `outside_events`. `rings`: a stretch
    may hold messages among ranks that are simulated as one; what these lose to other transfers is left out. `stops`: a stretch may end
    with a copy that the thread waits for (counted tokens); a collective beside the whole stretch is taken to lengthen the gap of that
    copy, too.

    A segment with any other copy (offloading) is not cut into stretches: such copies hold up its kernels in ways that no stretch run by
    itself shows.
    """
    if any(op.kind == "copy" and not (stops and op.blocking) for op, _ in ops):
        return [[one] for one in ops]
    bound = set(outside)

    def meets(op: Op) -> bool:
        return op.kind in MEETING and not (private(op) and (rings or op.kind == "collective"))

    # Ops on the lane of a message stay single: what the lane waits for must still hold up the message.
    shared = {op.lane for op, _ in ops if op.lane != COMPUTE and meets(op)}
    beside = [at for at, (op, _) in enumerate(ops) if op.kind == "collective" and op.lane != COMPUTE]
    if any(op.kind in MESSAGE and meets(op) for op, _ in ops[: beside[-1] if beside else 0]):
        shared |= {ops[at][0].lane for at in beside}  # a message cuts where their lanes may still be busy

    def own(op: Op) -> bool:
        return op.lane not in shared and not meets(op) and (not op.blocking or (stops and op.kind == "copy"))

    while True:
        cut = _cut(ops, own, bound)
        home: dict[str, int] = {}
        leaks = {op.event for i, part in enumerate(cut) for op, _ in part if op.event and home.setdefault(op.event, i) != i}
        if leaks <= bound:
            return cut
        bound |= leaks


def _cut(ops: list[Priced], own: Callable[[Op], bool], bound: set[str]) -> list[list[Priced]]:
    found: list[list[Priced]] = []
    last = ""
    for op, cost in ops:
        kind = _inside(op, own, bound)
        if kind and kind == last:
            found[-1].append((op, cost))
        else:
            found.append([(op, cost)])
        last = "" if op.blocking else kind
    return found


def _inside(op: Op, own: Callable[[Op], bool], bound: set[str]) -> str:
    """The class of the stretch that the op may join, "compute" or one of `APART`. "": it must stay alone, for example because it is not
    `own`."""
    if op.kind == "sync" or op.event in bound or not own(op):
        return ""
    if op.kind == "host":
        return "compute" if op.lane == HOST and op.cls not in APART else ""
    return op.cls if op.cls in APART else "compute"


def condense(
    part: list[Priced], alone: Callable[[list[Priced], bool], Alone], meeting: Callable[[Op], float], slow: float = 1.0
) -> list[Priced]:
    """Makes one op of a stretch, in a list. `alone(ops, beside)` runs ops by themselves from an idle start; with `beside`, next to a
    collective that lasts through all of them and slows kernels by the factor `slow`. `meeting(op)`: a collective's seconds.

    A stretch whose communication outlasts its compute is returned as it is: the next op may run beside it. So is one that is too short. A
    stretch that ends with a copy for which the thread waits becomes a blocking op. Exposed are collectives between its kernels, and the
    time that kernels wait for collectives beside them.
    """
    device = [op for op, _ in part if op.kind in ("compute", "collective")]
    if len(part) < _LEAST or not any(op.kind == "compute" for op in device):
        return part
    host = sum(cost.seconds if op.kind == "host" else cost.host for op, cost in part)
    free = [(op, _unlaunched(op, cost)) for op, cost in part]
    stops = part[-1][0].blocking
    seconds, end, lost = alone(free[:-1] if stops else free, False)
    if end > seconds * _SLACK:
        return part
    copied = alone(free, False).end - seconds if stops else 0.0
    beside = alone(free, True).compute + copied if slow != 1.0 else 0.0
    exposed = _exposed(part, seconds - lost, meeting)
    seconds += copied
    ready = alone(part, False).end if host > 0 else seconds
    source = weakest(cost.source for op, cost in part if op.kind == "compute")
    whole = Op(
        f"{device[0].id}..{device[-1].id}",
        "compute",
        COMPUTE,
        cls=device[0].cls if device[0].cls in APART else "compute",
        blocking=stops,
        alloc=sum(op.alloc for op, _ in part),
        free=sum(op.free for op, _ in part),
    )
    return [(whole, Cost(seconds, source, host=host, ready=max(ready, seconds), slowed=beside, exposed=exposed))]


def _exposed(part: list[Priced], seconds: float, meeting: Callable[[Op], float]) -> float:
    """Seconds in which a stretch only communicates: collectives between its kernels, and the time that its kernels wait for other
    collectives. `seconds`: the stretch with its launches far ahead, less what its kernels lose to collectives beside them."""
    between = sum(meeting(op) if op.kind == "collective" else cost.exposed for op, cost in part if op.lane == COMPUTE)
    kernels = sum(cost.seconds - cost.exposed for op, cost in part if op.kind == "compute" and op.lane == COMPUTE)
    last = max((at for at, (op, _) in enumerate(part) if op.kind == "collective"), default=len(part))
    # Kernels on other lanes that work on the result of the last collective.
    kernels += sum(cost.seconds for op, cost in part[last:] if op.kind == "compute" and op.lane != COMPUTE)
    return min(max(between, seconds - kernels), seconds)


def _unlaunched(op: Op, cost: Cost) -> Cost:
    """The cost of the same work with its launches far ahead: no host time is left."""
    if op.kind == "host":
        return Cost(0.0, cost.source)
    return Cost(cost.seconds, cost.source, cost.latency, cost.uses, slowed=cost.slowed, share=cost.share)


def shape_of(part: list[Priced]) -> tuple[object, ...]:
    """What decides a stretch's time: kinds, lanes, costs and which op waits for which. Equal layers have equal shapes."""
    events: dict[str, int] = {}
    return tuple(
        (op.kind, op.lane, op.group, op.name, op.bytes, events.setdefault(op.event, len(events)) if op.event else -1, cost)
        for op, cost in part
    )
