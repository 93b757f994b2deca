"""Links between switches that the same mix of ranks takes: one is simulated for all of them.

Routes pick a spine by destination, so that stages of one replica may lie on different ones while each of these carries the same stages of
all replicas. Ranks that are simulated once would never meet there. Colours of links, as `sim.engine.fold` has colours of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.fold import Passage, users_of
from sim.engine.sharing import merged


def orbits(found: Sequence[Passage], stands_for: Sequence[int], capacity: Mapping[str, float]) -> dict[str, str]:
    """For each link between switches that is not simulated itself the one that stands for it: as many passages of each kind take it, by who is
    simulated for their members."""
    first: dict[object, str] = {}
    users = sorted(users_of(found, stands_for).items())
    one = {name: first.setdefault((capacity[name], taking), name) for name, taking in users}
    return {name: stands for name, stands in one.items() if stands != name}


def on_orbits(cost: Cost, one: Mapping[str, str]) -> Cost:
    """What a meeting costs on the links that are simulated: of equal ones it takes as much as of each."""
    if one.keys().isdisjoint(name for name, _ in cost.uses):
        return cost
    taken: dict[str, float] = {}
    for name, amount in merged(cost.uses):
        link = one.get(name, name)
        taken[link] = max(taken.get(link, 0.0), amount)
    return replace(cost, uses=tuple(taken.items()))
