"""Finds which lanes use which links. For links that lanes never share, no sharing needs to be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from sim.cost.price import Cost
from sim.engine.groups import Groups
from sim.engine.sharing import merged
from sim.program import COMPUTE, HOST, MOVES, Op, Program

_LOST = 0.001
"""Collectives that lose less than this share of a step to others on their links may still stand in stretches (`sim.engine.condense`),
which do not show that loss."""
_EQUAL = 1e-12
"""Shares whose relative difference is not larger count as equal."""
Lane = tuple[object, str]
"""(a simulated rank, or the ranks that meet in a collective; their lane), which runs one op at a time."""
Wishes = dict[str, dict[tuple[Lane, str, int], float]]
"""Link -> {(lane, segment, id() of the op): what the op wants of the link per second}."""
CostOf = Callable[[Op, int], Cost]
"""(op, rank) -> what the op costs on that rank."""


class Links(NamedTuple):
    """What `links_of` finds."""

    private: frozenset[int]
    """Ids (id()) of collectives on compute lanes whose members are all folded into one rank and whose links no other lane
    of any simulated rank uses."""
    quiet: bool
    """No collective can run beside compute."""
    idle: frozenset[str]
    """Resources that never slow an op down: either one lane alone uses them, and never more than they have; or whoever fills them would
    fill another resource first."""
    contended: frozenset[int]
    """Ids (id()) of collectives whose members are all folded into one rank and which lose more than `_LOST` of a step to others on the
    same links."""


def links_of(
    program: Program, groups: Groups, ranks: Iterable[int], cost_of: CostOf, capacity: Mapping[str, float], computes: Callable[[int], float]
) -> Links:
    """Looks through all segments that the ranks' threads call. `capacity`: what each link has per second; `computes`: seconds
    that a rank's kernels take."""
    taken: dict[str, dict[object, float]] = {}
    private: list[tuple[list[Op], Cost]] = []
    users: dict[str, set[Lane]] = {}
    wishes: Wishes = {}
    quiet = True
    known: dict[str, list[list[Op]]] = {}
    for rank in ranks:
        for name, often in Counter(call.segment for calls in program.threads(rank).values() for call in calls).items():
            if name not in known:
                known[name] = _alike(program.segments[name], program.device == "cpu")
            for ops in known[name]:
                op = ops[0]
                cost = cost_of(op, rank)
                user: Lane = rank, op.lane
                if op.kind == "collective":
                    quiet = quiet and (op.lane in (COMPUTE, HOST) or op.blocking)
                    met = groups.represented(op.group, rank)
                    user = met, op.lane
                    if len(met) == 1:
                        private.append((ops, cost))
                for link, amount in merged(cost.uses):
                    filled = amount * (cost.seconds - cost.latency) * len(ops) * often / capacity[link]
                    by = taken.setdefault(link, {})
                    by[user[0]] = by.get(user[0], 0.0) + filled
                    users.setdefault(link, set()).add(user)
                    wishes.setdefault(link, {})[user, name, id(op)] = amount
    found = [(ops, cost) for ops, cost in private if ops[0].lane == COMPUTE]
    alone = {id(op) for ops, _ in found for op in ops}
    alone -= {id(op) for ops, cost in found if any(len(users[link]) > 1 for link, _ in cost.uses) for op in ops}
    never = idle(wishes, capacity)
    lost = _losses({link: filled for link, filled in taken.items() if link not in never}, cache(computes))
    hurt = frozenset(id(op) for ops, cost in private if any(link in lost for link, _ in cost.uses) for op in ops)
    return Links(frozenset(alone), quiet, never, hurt)


def _losses(taken: Mapping[str, Mapping[object, float]], computes: Callable[[int], float]) -> set[str]:
    """Links on which a rank's own collectives lose more than `_LOST` of its step to others. The step is taken as the rank's time on the
    link and its kernels' time. If both sides are there at any moment with equal chance, they overlap for the product of their shares of
    the step. `taken`: link -> {who meets: seconds for which it fills the link}."""
    found = set()
    for link, filled in taken.items():
        whole = sum(filled.values())
        for who, own in filled.items():
            if isinstance(who, tuple) and len(who) == 1 and own < whole:
                step = own + computes(who[0])
                if own * (whole - own) > _LOST * step * step:
                    found.add(link)
    return found


def idle(wishes: Wishes, capacity: Mapping[str, float]) -> frozenset[str]:
    """Links that can be left out: without them, all ops get the same rates.

    A link never binds if all its users, at the most that each may want, also use another link and want as large a share of that one.
    """
    found: set[str] = set()
    links: dict[tuple[Lane, str, int], list[str]] = {}
    for link, mine in wishes.items():
        if len({user for user, _, _ in mine}) == 1 and max(mine.values()) <= capacity[link]:
            found.add(link)
            continue
        for use in mine:
            links.setdefault(use, []).append(link)
    for link, mine in wishes.items():
        if link in found:
            continue
        share = capacity[link] * (1 + _EQUAL)
        for other in links[next(iter(mine))]:
            theirs, room = wishes[other], capacity[other]
            if other != link and other not in found and all(wish * room <= theirs.get(use, 0.0) * share for use, wish in mine.items()):
                found.add(link)
                break
    return frozenset(found)


def _alike(ops: tuple[Op, ...], cores: bool) -> list[list[Op]]:
    """The segment's ops that may use links, in lists of ops that cost the same. `cores`: kernels run on the host's cores, which loaders
    use too."""
    found: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        if op.kind in MOVES:
            key = (op.kind, op.lane, op.name, op.bytes, op.group, op.peer, op.how, op.blocking, id(op.works))
            found.setdefault(key, []).append(op)
        elif op.works and (op.kind == "host" or cores):
            found[(id(op),)] = [op]
    return list(found.values())
