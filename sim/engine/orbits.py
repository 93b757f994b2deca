"""Links between switches that the same mix of ranks takes: one is simulated for all of them.

Routes pick a spine by destination, so that stages of one replica may lie on different ones while each of these carries the same stages of
all replicas. Ranks that are simulated once would never meet there. Colours of links, as `sim.engine.fold` has colours of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.sharing import merged


def orbits(users: Iterable[tuple[object, Cost]], capacity: Mapping[str, float]) -> dict[str, str]:
    """For each link between switches that is not simulated itself the one that stands for it. `users`: of every meeting who meets there, by who is
    simulated for them, and its cost."""
    mixes: dict[str, list[int]] = {}
    numbers: dict[object, int] = {}
    for who, cost in users:
        number = numbers.setdefault(who, len(numbers))
        for name, _ in cost.uses:
            if name.startswith("net/") and ">net/" in name:
                mixes.setdefault(name, []).append(number)
    first: dict[object, str] = {}
    found = {name: first.setdefault((capacity[name], *sorted(mix)), name) for name, mix in sorted(mixes.items())}
    return {name: stands for name, stands in found.items() if stands != name}


def on_orbits(cost: Cost, stands_for: Mapping[str, str]) -> Cost:
    """What a meeting costs on the links that are simulated: of equal ones it takes as much as of each."""
    if stands_for.keys().isdisjoint(name for name, _ in cost.uses):
        return cost
    taken: dict[str, float] = {}
    for name, amount in merged(cost.uses):
        one = stands_for.get(name, name)
        taken[one] = max(taken.get(one, 0.0), amount)
    return replace(cost, uses=tuple(taken.items()))
