"""The laws that every program keeps: checked before one is played, where a slip would hang all ranks, and held by tests for plans of every kind.

* names lead somewhere; groups are axes of the mesh
* each send has one receive: the k-th that a issues to b meets the k-th that b issues from a, of the same size
* the members of a group issue the same collectives in the same order on each lane
* a wait follows a record of its event by the same thread; a numbered wait has a record of that number
* device memory never falls below what is resident
* it runs to its end: a dry run without time (`sim.lower.checks.dryrun`) finishes on all ranks

Laws of one rank are checked once for each role, laws between ranks for one rank of each kind (`sim.engine.fold`), since equal ranks
behave alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from sim.engine.fold import representatives
from sim.files.programfile import check_names
from sim.lower.checks.dryrun import dry_run
from sim.mesh import peer_of
from sim.program import EVENTS, MEETING, MESSAGE, ORDERS, Call, Op, Program
from topologies.errors import BadInput

Key = tuple[str, str]
Run = tuple[tuple[object, ...], ...]
"""What a role does for one key (a group and lane, or a peer), call by call. Equal calls share one value."""


def verify(program: Program) -> None:
    """Raises `BadInput` that names the op and the law which it breaks."""
    check_names(program)
    for op in {id(op): op for ops in program.segments.values() for op in ops}.values():
        _check_op(program, op)
    for name in dict.fromkeys(program.role_of):
        _check_waits(program, name)
        _check_memory(program, name)
    stands_for = representatives(program, True)
    ranks = sorted(set(stands_for))
    _check_collectives(program, ranks)
    _check_messages(program, ranks)
    dry_run(program, stands_for)


def _check_op(program: Program, op: Op) -> None:
    """Checks the laws that concern the op alone."""
    if op.kind in MEETING:
        size = program.mesh.size(op.group)
        if op.kind != "collective" and op.peer % size == 0 and size > 1:
            raise BadInput(f"op {op.id} ({op.kind} in {op.group}) is a message to itself: peer = {op.peer} in a group of {size}")
        if op.kind == "collective" and not op.name:
            raise BadInput(f"op {op.id} is a collective without a name. Allowed: all_reduce, all_gather, reduce_scatter, ...")
    if op.kind in EVENTS and not op.event:
        raise BadInput(f"op {op.id} ({op.kind}) names no event")
    if min(op.bytes, op.alloc, op.free) < 0:
        raise BadInput(f"op {op.id} has a negative size: bytes = {op.bytes}, alloc = {op.alloc}, free = {op.free}")


def _check_waits(program: Program, name: str) -> None:
    """Checks that each wait follows a record of its event by the same thread, and that numbered waits have a record on some thread of
    the role."""
    summaries: dict[str, tuple[dict[str, Op], set[str], list[Op]]] = {}
    recorded: set[tuple[str, int]] = set()
    awaited: list[tuple[str, int, Call, Op]] = []
    for thread, calls in program.roles[name].threads.items():
        known: set[str] = set()
        for call in calls:
            if call.segment not in summaries:
                summaries[call.segment] = _events(program.segments[call.segment])
            needs, makes, numbered = summaries[call.segment]
            for event, op in needs.items():
                if event not in known:
                    where = f"role {name}, thread {thread}, {call.at}/{op.id}"
                    raise BadInput(f"{where} waits for event {event!r}, which the thread has not recorded before")
            known |= makes
            for op in numbered:
                number = call.index + (op.shift or 0)
                if op.kind != "record":
                    awaited.append((op.event, number, call, op))
                elif (op.event, number) in recorded:
                    raise BadInput(f"role {name}, {call.at}/{op.id} records event {op.event!r} number {number} a second time")
                else:
                    recorded.add((op.event, number))
    for event, number, call, op in awaited:
        if number >= 0 and (event, number) not in recorded:
            raise BadInput(f"role {name}, {call.at}/{op.id} waits for event {event!r} number {number}, which no thread records")


def _events(ops: tuple[Op, ...]) -> tuple[dict[str, Op], set[str], list[Op]]:
    """(events needed from before, events recorded, ops with numbered events) of a segment."""
    needs: dict[str, Op] = {}
    makes: set[str] = set()
    numbered: list[Op] = []
    for op in ops:
        if op.kind not in ORDERS or not op.event:
            continue
        if op.shift is not None:
            numbered.append(op)
        elif op.kind == "record":
            makes.add(op.event)
        elif op.event not in makes:
            needs.setdefault(op.event, op)
    return needs, makes, numbered


def _check_memory(program: Program, name: str) -> None:
    """Checks that ops, in the order of issue, never free more bytes than were allocated."""

    @cache
    def change(segment: str) -> tuple[int, int, str]:
        """(sum, lowest point, the op there)."""
        used, low, where = 0, 0, ""
        for op in program.segments[segment]:
            used += op.alloc - op.free
            if used < low:
                low, where = used, op.id
        return used, low, where

    for thread, calls in program.roles[name].threads.items():
        used = 0
        for call in calls:
            total, low, where = change(call.segment)
            if used + low < 0:
                raise BadInput(f"role {name}, thread {thread}, {call.at}/{where} frees {-used - low} bytes more than were allocated")
            used += total


def _runs(program: Program, role: str, kinds: Mapping[str, tuple[tuple[Key, object], ...]]) -> dict[Key, Run]:
    """Key -> what the role's calls do for it, in order. Calls that do nothing for it are left out."""
    found: dict[Key, list[tuple[object, ...]]] = {}
    grouped: dict[str, dict[Key, tuple[object, ...]]] = {}
    for calls in program.roles[role].threads.values():
        for call in calls:
            if call.segment not in grouped:
                mine: dict[Key, list[object]] = {}
                for key, value in kinds[call.segment]:
                    mine.setdefault(key, []).append(value)
                grouped[call.segment] = {key: tuple(values) for key, values in mine.items()}
            for key, values in grouped[call.segment].items():
                found.setdefault(key, []).append(values)
    return {key: tuple(values) for key, values in found.items()}


def _difference(ours: Run, theirs: Run) -> tuple[int, object, object] | None:
    """(place, what we do, what they do) where two runs part; calls may be cut differently."""
    if ours == theirs:
        return None
    mine, other = [v for call in ours for v in call], [v for call in theirs for v in call]
    for place in range(max(len(mine), len(other))):
        here, there = mine[place : place + 1], other[place : place + 1]
        if here != there:
            return place, here[0] if here else None, there[0] if there else None
    return None


def _check_collectives(program: Program, ranks: Iterable[int]) -> None:
    mesh = program.mesh
    kinds = {
        name: tuple(((op.group, op.lane), (op.name, op.bytes)) for op in ops if op.kind == "collective" and mesh.size(op.group) > 1)
        for name, ops in program.segments.items()
    }
    runs = {role: _runs(program, role, kinds) for role in dict.fromkeys(program.role_of)}
    axes = sorted({key[0] for run in runs.values() for key in run})
    checked: set[tuple[str, str, str]] = set()
    for rank in ranks:
        role = program.role_of[rank]
        for axis in axes:
            for peer in mesh.group(axis, rank):
                other = program.role_of[peer]
                if other == role or (axis, role, other) in checked:
                    continue
                checked.add((axis, role, other))
                for key in sorted(key for key in {*runs[role], *runs[other]} if key[0] == axis):
                    parted = _difference(runs[role].get(key, ()), runs[other].get(key, ()))
                    if parted is not None:
                        place, here, there = parted
                        raise BadInput(
                            f"collective {place} in group {axis} on lane {key[1]}: rank {rank} runs {_show(here)}, rank {peer} {_show(there)}"
                        )


def _show(value: object) -> str:
    return f"{value[0]} of {value[1]} bytes" if isinstance(value, tuple) else f"{value} bytes" if value is not None else "nothing"


def _check_messages(program: Program, ranks: Iterable[int]) -> None:
    mesh = program.mesh
    kinds = {
        name: tuple(((f"{op.kind} {op.group}", str(op.peer % mesh.size(op.group))), op.bytes) for op in ops if op.kind in MESSAGE)
        for name, ops in program.segments.items()
    }
    runs = {role: _runs(program, role, kinds) for role in dict.fromkeys(program.role_of)}
    checked: set[tuple[str, str, Key]] = set()
    for rank in ranks:
        role = program.role_of[rank]
        for key in runs[role]:
            kind, axis = key[0].split(" ")
            group = mesh.group(axis, rank)
            peer = peer_of(group, rank, int(key[1]))
            other = program.role_of[peer]
            if (role, other, key) in checked:
                continue
            checked.add((role, other, key))
            answer = (f"{'recv' if kind == 'send' else 'send'} {axis}", str(-int(key[1]) % len(group)))
            parted = _difference(runs[role][key], runs[other].get(answer, ()))
            if parted is not None:
                place, here, there = parted
                raise BadInput(
                    f"{kind} {place} of rank {rank} {'to' if kind == 'send' else 'from'} rank {peer} in group {axis} is {_show(here)}, "
                    f"its {answer[0].split(' ')[0]} {_show(there)}"
                )
