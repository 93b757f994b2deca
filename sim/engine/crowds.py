"""What several ranks take of a link together when one of them is simulated for all: their equal ops run at the same time, but the
simulation sees only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.groups import Groups, by_stage
from sim.engine.machine import together
from sim.engine.sharing import merged
from sim.program import Op

Beside = Callable[[int], Sequence[int]] | None
CostOf = Callable[[int], Cost]
Twin = Callable[[int], int | None]
"""(other rank) -> the rank under which its op is counted (for a collective the first of its group, so that a group counts once). None:
its op is no twin."""


class Crowds:
    """The twins of each collective and message of one run. Twins are equal ops of ranks that are simulated as one and begin on the same
    machine."""

    def __init__(self, world: int, near: Beside) -> None:
        """`near`: (rank) -> the ranks that may use the same resources; None: all of `world` may."""
        self._world, self._near = world, near
        self._known: dict[tuple[object, ...], tuple[float, ...]] = {}
        """For each link of an op: what all twins together take of it, divided by what one of them takes. Empty: they share no link."""

    def beside(self, op: Op, rank: int, cost_of: CostOf, twin: Twin, capacity: Mapping[str, float]) -> Cost:
        """The cost of the op as `rank` starts it, while its twins run at the same time. `cost_of(rank)`: the cost of one of them alone.
        Where they want more than a link has, all of them slow down alike."""
        cost = cost_of(rank)
        if not cost.uses:
            return cost
        key = (op.kind, op.group, op.peer, rank, *[name for name, _ in cost.uses])
        crowd = self._known.get(key)
        if crowd is None:
            crowd = self._known[key] = self._crowd(cost, rank, cost_of, twin)
        if not crowd:
            return cost
        uses = merged(cost.uses)
        whole = [(name, amount * many) for (name, amount), many in zip(uses, crowd, strict=True)]
        slower = max(1.0, *(amount / capacity[name] for name, amount in whole))
        return replace(
            cost,
            seconds=cost.latency + (cost.seconds - cost.latency) * slower,
            uses=tuple((name, amount / slower) for name, amount in whole),
            share=(cost.share or uses[0][1]) / slower,
        )

    def _crowd(self, cost: Cost, rank: int, cost_of: CostOf, twin: Twin) -> tuple[float, ...]:
        """For each link of the op: what all twins together take of it, divided by what one takes alone. Empty where they share no link."""
        near = self._near(rank) if self._near else range(self._world)
        same = {by: other for other in near if other < self._world and (by := twin(other)) is not None}
        if len(same) < 2:
            return ()
        taken = together(cost, map(cost_of, same.values())).uses
        found = tuple(whole / own if own else 1.0 for (_, whole), (_, own) in zip(taken, merged(cost.uses), strict=True))
        return found if max(found) > 1.0 else ()


def crowds_of(groups: Groups, near: Beside) -> Crowds:
    """The `Crowds` of these groups. Where one rank stands for each pipeline stage, plans that split their ranks alike share one object."""
    return _by_stage(groups, near) if groups is by_stage(groups.mesh) else Crowds(groups.mesh.world, near)


@lru_cache(maxsize=64)
def _by_stage(groups: Groups, near: Beside) -> Crowds:
    return Crowds(groups.mesh.world, near)
