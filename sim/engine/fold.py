"""Finds ranks that do the same thing, so that one of them is simulated for all.

Two ranks are equal when they have the same role and equal places on a symmetric machine, and when each of their groups, and all ranks
that share a resource with them, hold the same mix of equal ranks. That is the coarsest equitable partition, found by refining colours
until nothing changes (colour refinement; Paige and Tarjan 1987). When roles follow the pipeline coordinate alone, and all ranks of a
stage have equal places, it is known at once: one rank per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from sim.mesh import NEIGHBOURS, Mesh
from sim.program import MEETING, Program

_REFINE_LIMIT = 1 << 14
"""With more ranks than this, colours are not refined."""
_CLASSES = 128
"""At most so many kinds of ranks are each simulated where they differ by their neighbours alone; with more, one rank stands for each
stage. Where stages share a node at their ends, every rank is of a kind of its own, but steps differ by less than 1 % from those of one
rank for each stage."""


class Passage(NamedTuple):
    """The links between nodes that one group's collectives, or one rank's messages, use."""

    purpose: str
    """What the passage is for: equal passages of equal ranks have equal texts."""
    members: tuple[int, ...]
    links: tuple[str, ...]
    """Names of the links, in the same order for equal passages."""


Crossing = Callable[[tuple[str, ...]], Sequence[Passage]]
"""(mesh axes) -> all passages of collectives and messages along them, in the same order for every rank."""


class Places(NamedTuple):
    """The places of ranks on a machine: all that can make two ranks of one role differ."""

    alike: bool
    """All ranks of a stage have equal places."""
    beside: Callable[[int], Sequence[int]]
    """(rank) -> the ranks that may use the same resources, itself included: those on its node (`Topology.beside`), also ranks that the plan does not
    use."""
    kind: Callable[[int], object]
    """Equal ranks have equal kinds."""
    shared: Callable[[int], tuple[str, ...]]
    """(rank) -> names of the resources that it may share with others, in the same order for all ranks."""
    slowest: Callable[[int], tuple[tuple[int, ...], ...]] | None = None
    """(rank) -> a key that grows with the time that its groups take, where groups are placed on nodes in different ways. If one rank stands for a whole
    stage, it is the one with the largest key, since the others wait for it. None: all groups are placed alike."""
    free: Callable[[Sequence[str], Sequence[int]], int] | None = None
    """(mesh axes along which ranks meet, ranks that stand for others) -> a bit mask of rank numbers: ranks of one role that differ in
    these bits alone are equal though their places differ. None: there are no such bits."""
    slow: bool = False
    """Some ranks compute more slowly than others of their role, so one rank cannot stand for its whole stage."""
    crossing: Crossing | None = None
    """None where links between nodes are fast enough for all that use them at once."""


_PLACES = 16
"""With `Places.free`, colours may pass the limit by this factor during refinement, since places of an uneven node may prove equal at the
end."""
Symmetry = Places | bool
"""True: all ranks of a stage have equal places. False: each rank is simulated."""


def alike(symmetry: Symmetry) -> bool:
    """Whether all ranks of a stage have equal places."""
    return symmetry if isinstance(symmetry, bool) else symmetry.alike


def beside(symmetry: Symmetry) -> Callable[[int], Sequence[int]] | None:
    """(rank) -> the ranks that may use the same resources (`Places.beside`); None: not known."""
    return None if isinstance(symmetry, bool) else symmetry.beside


def passages(symmetry: Symmetry, program: Program) -> Sequence[Passage]:
    """The links between nodes that the program's collectives and messages use. Empty where these links are fast enough for all, or where
    `symmetry` does not describe them."""
    return () if isinstance(symmetry, bool) or symmetry.crossing is None else symmetry.crossing(meets_along(program))


def users_of(found: Sequence[Passage], colours: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Link -> its users, as a sorted tuple of numbers, one for each passage. Passages of the same purpose whose members have the same
    colours have the same number."""
    numbers: dict[object, int] = {}
    users: dict[str, list[int]] = {}
    for purpose, members, links in found:
        who = numbers.setdefault((purpose, *sorted(colours[rank] for rank in members)), len(numbers))
        for link in links:
            users.setdefault(link, []).append(who)
    return {link: tuple(sorted(taking)) for link, taking in users.items()}


def meets_along(program: Program) -> tuple[str, ...]:
    """Mesh axes of more than one rank along which ranks run collectives or send messages."""
    groups = dict.fromkeys(op.group for ops in program.segments.values() for op in ops if op.kind in MEETING)
    return tuple(axis for axis in groups if program.mesh.size(axis) > 1)


def representatives(program: Program, symmetry: Symmetry) -> list[int]:
    """For each rank the rank that stands for it (itself, when it is simulated)."""
    world = program.world
    if symmetry is False or world == 1:
        return list(range(world))
    mesh, same = program.mesh, alike(symmetry)
    if same and len(set(program.role_of)) == 1 and mesh.size("pp") == 1:
        return [0] * world
    stage = mesh.places("pp")
    slow = not isinstance(symmetry, bool) and symmetry.slow
    known = not slow and len(set(zip(stage, program.role_of, strict=True))) == mesh.size("pp")
    if world <= _REFINE_LIMIT and not (known and same):
        refined = _refine(mesh, program.role_of, meets_along(program), None if symmetry is True else symmetry, _CLASSES if known else world)
        if refined:
            return refined
    if not known:
        return list(range(world))
    slowest = None if isinstance(symmetry, bool) else symmetry.slowest
    return _slowest(stage, slowest) if slowest else _firsts(stage)


def _slowest(stage: list[int], slowest: Callable[[int], tuple[tuple[int, ...], ...]]) -> list[int]:
    """For each rank the one of its stage that all others wait for: the one with the largest key."""
    keys = [slowest(rank) for rank in range(len(stage))]
    found = {at: max((rank for rank, of in enumerate(stage) if of == at), key=keys.__getitem__) for at in set(stage)}
    return [found[at] for at in stage]


def _firsts(colours: list[int]) -> list[int]:
    """For each rank the first one of its colour."""
    first: dict[int, int] = {}
    return [first.setdefault(colour, rank) for rank, colour in enumerate(colours)]


@lru_cache(maxsize=8)
def _refine(mesh: Mesh, role_of: tuple[str, ...], axes: tuple[str, ...], places: Places | None, most: int) -> list[int]:
    """For each rank the first rank of its colour, once colours are refined. Empty where there are more than `most` colours. `axes`: mesh
    axes along which ranks meet. Cached, as one plan asks several times."""
    world = mesh.world
    groups = {axis: mesh.groups(axis) for axis in axes}
    kinds = [places.kind(rank) if places else 0 for rank in range(world)]
    shared = [places.shared(rank) if places else () for rank in range(world)]
    between = places.crossing(axes) if places and places.crossing else ()
    keys: list[object] = list(zip(role_of, mesh.places("pp"), kinds, strict=True))
    colours, count = _number(keys)
    while count <= most * (_PLACES if places and places.free else 1):
        parts: list[list[object]] = [[colour] for colour in colours]
        for axis in axes:
            for group in groups[axis]:
                inside = [colours[rank] for rank in group]
                for rank, met in zip(group, _met(axis, inside), strict=True):
                    parts[rank].append(met)
        sharing: dict[str, list[int]] = {}
        for rank, names in enumerate(shared):
            for name in dict.fromkeys(names):
                sharing.setdefault(name, []).append(colours[rank])
        mixes = {name: tuple(sorted(users)) for name, users in sharing.items()}
        for rank, names in enumerate(shared):
            parts[rank] += [mixes[name] for name in names]
        for members, mix in _crossed(between, colours):
            for rank in members:
                parts[rank].append(mix)
        colours, now = _number([tuple(part) for part in parts])
        if now == count:
            found = _firsts(colours)
            lots = _lots(groups, found) if places and places.slow else []
            if lots:
                colours, count = _number(list(zip(colours, lots, strict=True)))
                continue
            return found if not places or not places.free else _merged(found, role_of, places.free(list(axes), sorted(set(found))), most)
        count = now
    return []


def _lots(groups: Mapping[str, Sequence[tuple[int, ...]]], stands_for: Sequence[int]) -> list[object]:
    """For each rank a key that tells apart groups which would be simulated as one. Such groups have the same representatives, and each
    holds one of these itself. The simulation would load the links of only one of the groups, and ranks that share links with the other
    would not wait for it. Empty where there are no such groups."""
    found: list[list[object]] = [[] for _ in stands_for]
    apart = False
    for axis, of in groups.items():
        shown: dict[tuple[int, ...], int] = {}
        for group in of:
            if any(stands_for[rank] == rank for rank in group):
                who = tuple(sorted({stands_for[rank] for rank in group}))
                lot = shown[who] = shown.get(who, -1) + 1
                apart = apart or lot > 0
                for rank in group if lot else ():
                    found[rank].append((axis, lot))
    return [tuple(own) for own in found] if apart else []


def _crossed(between: Sequence[Passage], colours: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """For each passage: its members, and a number. Passages have the same number if they have the same purpose and share their links with
    the same mix of users."""
    users = users_of(between, colours)
    mixes = dict(zip(users, _number(list(users.values()))[0], strict=True))
    numbers = _number([(purpose, *(mixes[link] for link in links)) for purpose, _, links in between])[0]
    return [(one.members, number) for one, number in zip(between, numbers, strict=True)]


def _merged(found: list[int], role_of: tuple[str, ...], free: int, most: int) -> list[int]:
    """For each rank the one that stands for it once ranks that differ in the `free` bits of their numbers alone are merged (if no two of
    these differ in role). Empty where more than `most` ranks stand for others."""
    if all(role == role_of[rank & ~free] for rank, role in enumerate(role_of)):
        found = [found[rank & ~free] for rank in range(len(found))]
    return found if len(set(found)) <= most else []


def _met(axis: str, inside: list[int]) -> list[tuple[int, ...]]:
    """For each member of a group, the colours that it meets there. Along `NEIGHBOURS` (pp, rings of cp and dp) members exchange with
    neighbours, so order counts: the colours from the member's own place on, since the rank behind a slow one waits for it and the one
    before does not. Along other axes: the sorted mix."""
    if axis not in NEIGHBOURS:
        return [tuple(sorted(inside))] * len(inside)
    return [tuple(inside[place:] + inside[:place]) for place in range(len(inside))]


def _number(keys: list[object]) -> tuple[list[int], int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys], len(numbers)
