"""Which lanes use which links: what they never share needs no sharing worked out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sim.cost.price import Cost
from sim.engine.sharing import merged
from sim.program import COMPUTE, HOST, Op

if TYPE_CHECKING:
    from sim.engine.pricing import Pricing

_USE = ("collective", "send", "recv", "copy")
Lane = tuple[object, str]
"""A simulated rank, or a group of them that meets, and a lane: one op at a time."""


class Links(NamedTuple):
    """Found by `links_of`."""

    private: frozenset[int]
    """Ids (id()) of collectives on compute lanes whose members are all folded into one rank and whose links no other lane uses."""
    quiet: bool
    """No collective can run beside compute."""
    lone: frozenset[str]
    """Resources that one lane alone uses, never for more than they have."""


def links_of(prices: Pricing, ranks: Iterable[int]) -> Links:
    """Looks through all segments that the ranks' threads call."""
    lanes: dict[str, set[str]] = {}
    users: dict[str, set[Lane]] = {}
    most: dict[str, float] = {}
    quiet = True
    found: list[tuple[list[Op], Cost]] = []
    known: dict[str, list[list[Op]]] = {}
    for rank in ranks:
        for name in dict.fromkeys(call.segment for calls in prices.program.threads(rank).values() for call in calls):
            if name not in known:
                known[name] = _alike(prices.program.segments[name])
            for ops in known[name]:
                op = ops[0]
                cost = _cost(prices, op, rank)
                user: Lane = rank, op.lane
                if op.kind == "collective":
                    quiet = quiet and (op.lane in (COMPUTE, HOST) or op.blocking)
                    met = prices.groups.represented(op.group, rank)
                    user = met, op.lane
                    if op.lane == COMPUTE and len(met) == 1:
                        found.append((ops, cost))
                for link, amount in merged(cost.uses):
                    lanes.setdefault(link, set()).add(op.lane)
                    if op.kind == "recv":  # its sender moves the message
                        continue
                    users.setdefault(link, set()).add(user)
                    # What one rank's own work takes of its machine, the ranks that it stands for take too.
                    most[link] = max(most.get(link, 0.0), amount if op.kind in ("collective", "send") else math.inf)
    private = frozenset(id(op) for ops, cost in found if all(lanes[link] == {COMPUTE} for link, _ in cost.uses) for op in ops)
    lone = (link for link, who in users.items() if len(who) == 1 and most[link] <= prices.pricer.capacity[link])
    return Links(private, quiet, frozenset(lone))


def _alike(ops: tuple[Op, ...]) -> list[list[Op]]:
    """The segment's ops that may use links, those together that cost the same."""
    found: dict[tuple[object, ...], list[Op]] = {}
    for op in ops:
        if op.kind in _USE:
            key = (op.kind, op.lane, op.name, op.bytes, op.group, op.peer, op.how, op.blocking)
            found.setdefault(key, []).append(op)
        elif op.lane not in (COMPUTE, HOST) and op.works:
            found[(id(op),)] = [op]
    return list(found.values())


def _cost(prices: Pricing, op: Op, rank: int) -> Cost:
    if op.kind == "collective":
        return prices.collective(op, rank)
    if op.kind == "send":
        return prices.message(op, rank)
    if op.kind == "recv":
        return prices.pricer.message(op, rank, prices.groups.peer_of(op, rank), 1)
    return prices.pricer.local(op, rank)
