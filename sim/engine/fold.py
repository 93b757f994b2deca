"""Which ranks do the same thing: they are simulated once.

Two ranks are equal when they play the same role, sit on equal places of a symmetric machine, and every group of
theirs holds the same mix of equal ranks. That is the coarsest equitable partition, found by refining colours until
nothing changes (colour refinement; Paige and Tarjan 1987). When roles follow the pipeline coordinate alone it is known
at once: one rank per stage.
"""

from __future__ import annotations

from sim.program import MEETING, Program

_REFINE_LIMIT = 1 << 14


def representatives(program: Program, symmetric: bool) -> list[int]:
    """For each rank the rank that stands for it (itself, when it is simulated)."""
    world = program.world
    if not symmetric or world == 1:
        return list(range(world))
    mesh = program.mesh
    if len(set(program.role_of)) == 1 and mesh.size("pp") == 1:
        return [0] * world
    stage = mesh.places("pp")
    if len(set(zip(stage, program.role_of, strict=True))) == mesh.size("pp"):
        first: dict[int, int] = {}
        return [first.setdefault(at, rank) for rank, at in enumerate(stage)]
    if world > _REFINE_LIMIT:
        return list(range(world))
    return _refine(program, stage)


def _refine(program: Program, stage: list[int]) -> list[int]:
    mesh = program.mesh
    used = dict.fromkeys(op.group for ops in program.segments.values() for op in ops if op.kind in MEETING)
    axes = [axis for axis in used if mesh.size(axis) > 1]
    groups = {axis: mesh.groups(axis) for axis in axes}
    keys: list[object] = list(zip(program.role_of, stage, strict=True))
    colours, count = _number(keys)
    while True:
        parts: list[list[object]] = [[colour] for colour in colours]
        for axis in axes:
            for group in groups[axis]:
                inside = [colours[rank] for rank in group]
                for rank, met in zip(group, _met(axis, inside), strict=True):
                    parts[rank].append(met)
        colours, now = _number([tuple(part) for part in parts])
        if now == count:
            first: dict[int, int] = {}
            return [first.setdefault(colour, rank) for rank, colour in enumerate(colours)]
        count = now


def _met(axis: str, inside: list[int]) -> list[tuple[int, ...]]:
    """What each member of a group meets there. pp and cp exchange with neighbours: the others in order, from the member's own place on, since
    the one behind a slow rank waits for it and the one before does not. Elsewhere the mix."""
    if axis not in ("pp", "cp"):
        return [tuple(sorted(inside))] * len(inside)
    return [tuple(inside[place:] + inside[:place]) for place in range(len(inside))]


def _number(keys: list[object]) -> tuple[list[int], int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys], len(numbers)
