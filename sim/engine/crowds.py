"""What ranks that are simulated as one take of a link together: their equal ops run at the same time, and only one of them is seen."""

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
"""By which rank the op of another one goes; None where it is no twin."""


class Crowds:
    """Of the meetings of one run: the twins of each op on the machine where it begins."""

    def __init__(self, world: int, near: Beside) -> None:
        """`near`: the ranks that may take what a rank takes; None: all of `world`."""
        self._world, self._near = world, near
        self._known: dict[tuple[object, ...], tuple[float, ...]] = {}
        """Of each link of a meeting, what all who are simulated as one take of it, over what one of them takes."""

    def beside(self, op: Op, rank: int, cost_of: CostOf, twin: Twin, capacity: Mapping[str, float]) -> Cost:
        """What the op costs from `rank` on, beside the same op of its twins. While they want more than a link has, all are as slow as it
        makes them."""
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
        """Of each link that an op takes, what its twins take with it, over what it takes alone; empty where they share none."""
        near = self._near(rank) if self._near else range(self._world)
        same = {by: other for other in near if other < self._world and (by := twin(other)) is not None}
        if len(same) < 2:
            return ()
        taken = together(cost, map(cost_of, same.values())).uses
        found = tuple(whole / own if own else 1.0 for (_, whole), (_, own) in zip(taken, merged(cost.uses), strict=True))
        return found if max(found) > 1.0 else ()


def crowds_of(groups: Groups, near: Beside) -> Crowds:
    """Those of these groups on this machine. Where one rank stands for each pipeline stage, plans that split their ranks alike share them."""
    return _by_stage(groups, near) if groups is by_stage(groups.mesh) else Crowds(groups.mesh.world, near)


@lru_cache(maxsize=64)
def _by_stage(groups: Groups, near: Beside) -> Crowds:
    return Crowds(groups.mesh.world, near)
