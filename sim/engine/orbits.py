"""Links between switches that are used by the same mix of ranks: one link is simulated for all of them.

Routes pick a spine by destination. So stages of one replica may use different spines, while each of these carries the same stages of
all replicas. Ranks of which each is simulated for many would never meet there. So links get colours, as ranks do in `sim.engine.fold`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.fold import Passage, users_of
from sim.engine.sharing import merged


def orbits(found: Sequence[Passage], stands_for: Sequence[int], capacity: Mapping[str, float]) -> dict[str, str]:
    """Link between switches that is not simulated -> the equal link that is. Links are equal when they have the same capacity and as
    many passages of each kind use them; a passage's kind is its purpose and who is simulated for its members. `stands_for[rank]`: the
    rank simulated in its place. `capacity`: link -> amount per second."""
    first: dict[object, str] = {}
    users = sorted(users_of(found, stands_for).items())
    one = {name: first.setdefault((capacity[name], taking), name) for name, taking in users}
    return {name: stands for name, stands in one.items() if stands != name}


def on_orbits(cost: Cost, one: Mapping[str, str]) -> Cost:
    """A collective's or message's cost on simulated links alone. `one` is what `orbits` found. Of a link that stands for several it
    takes the largest amount that it takes of any of these."""
    if one.keys().isdisjoint(name for name, _ in cost.uses):
        return cost
    taken: dict[str, float] = {}
    for name, amount in merged(cost.uses):
        link = one.get(name, name)
        taken[link] = max(taken.get(link, 0.0), amount)
    return replace(cost, uses=tuple(taken.items()))
