"""Running work that shares resources: links, CPU cores, memory buses, all by one rule.

A *flow* wants `amount` per second of each resource that it names while it runs at full speed. When the wishes on
a resource pass its capacity, flows slow down max-min fairly: all rise together, measured in the resource that each
names first, until a resource is full; its users stay there and the others go on (progressive filling, Bertsekas and
Gallager, Data Networks, 6.5.2). Rates change only when a flow starts or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.engine.agenda import Clock

_SLACK = 1 + 1e-12
_SAME = 1e-12
"""Flows whose ends differ by less than this count as ending together: seconds, or a share of the time that has passed where this is
above one second. Equal flows may differ so by rounding alone. Without this, equal ranks would drift further and further apart, since
the first finds the link free."""
_FILLED = 1 << 14
"""At most so many mixes of flows have their rates kept."""
Want = tuple[int, float]
"""(id() of a flow's uses, which `Sharing._alike` keeps; its weight). Flows that want the same have the same rate."""
Uses = tuple[tuple[str, float], ...]
"""What a flow wants of each resource per second."""


class Flow:
    """Work of `remaining` seconds at full speed; `rate` is the share of full speed that it gets."""

    __slots__ = ("done", "rate", "remaining", "since", "taken", "ticket", "uses", "weight")

    def __init__(self, seconds: float, uses: Uses, now: float, done: Callable[[], None], share: float = 0.0, taken: Taken = ()) -> None:
        self.remaining, self.uses, self.since, self.done, self.taken = seconds, uses, now, done, taken
        self.rate = 0.0
        self.ticket = 0
        self.weight = share or uses[0][1]

    @property
    def crowded(self) -> list[tuple[str, Resource]]:
        """(name, resource) of those of its resources whose flows together want more than there is."""
        return [(name, resource) for (name, _), (resource, _) in zip(self.uses, self.taken, strict=True) if resource.wish > resource.most]


class Resource:
    """One resource: what it has per second, what the flows on it want, and what went through it."""

    __slots__ = ("capacity", "most", "moved", "users", "wish")

    def __init__(self, capacity: float) -> None:
        self.capacity, self.most = capacity, capacity * _SLACK
        self.users: dict[Flow, float] = {}
        self.wish = self.moved = 0.0

    @property
    def crowded(self) -> bool:
        """Do its flows want more than it has?"""
        return self.wish > self.most


Taken = tuple[tuple[Resource, float], ...]
"""`Uses` with the resources themselves in place of their names."""


class Sharing:
    """All flows of a simulation."""

    def __init__(self, clock: Clock, capacity: Mapping[str, float]) -> None:
        self._clock, self._source = clock, capacity
        self._resources: dict[str, Resource] = {}
        self._known: dict[int, tuple[Uses, Uses, Taken, float]] = {}
        """id() of a flow's uses -> (these, kept so that the id stays theirs; each resource once and without `idle` ones; the same as
        `Taken`; what it wants of the first resource)."""
        self._alike: dict[Uses, Uses] = {}
        """One object for all equal uses of flows."""
        self._filled: dict[tuple[Want, ...], dict[Want, float]] = {}
        """What all flows want that can slow each other -> the rate of each. Equal layers and ranks ask for the same mix again."""
        self.idle: frozenset[str] = frozenset()
        """Resources that never limit a flow, so that their use need not be tracked."""

    @property
    def moved(self) -> dict[str, float]:
        """Resource -> amount used in total (bytes through a link, core seconds), but for `idle` ones."""
        return {name: resource.moved for name, resource in self._resources.items() if resource.moved}

    def limit(self, left: Mapping[str, float]) -> None:
        """Sets the capacity (per second) of these resources. Call it before anything starts."""
        self._resources.update((name, Resource(capacity)) for name, capacity in left.items())

    def start(self, seconds: float, uses: Uses, done: Callable[[], None], share: float = 0.0) -> None:
        """Starts a flow. Calls `done` when it has done `seconds` of work at full speed. `share`: where the flow stands for several
        equal ones, what one of these takes of the first resource; 0: it is a single flow."""
        known = self._known.get(id(uses))
        if known is None:
            once = tuple(use for use in merged(uses) if use[1])  # an exchange of no bytes waits for nobody
            binding = tuple(use for use in once if use[0] not in self.idle)
            binding = self._alike.setdefault(binding, binding)
            known = self._known[id(uses)] = (
                uses,
                binding,
                tuple((self._resource(name), amount) for name, amount in binding),
                once[0][1] if once else 0.0,
            )
        _, binding, taken, first = known
        if not taken:
            self._clock.after(seconds, done)
            return
        flow = Flow(seconds, binding, self._clock.now, done, share or first, taken)
        crowded = False
        for resource, amount in taken:
            wish = resource.wish = resource.wish + amount
            resource.users[flow] = amount
            resource.moved += amount * seconds
            if wish > resource.most:
                crowded = True
        if crowded:
            self._refill([name for name, _ in binding])
        else:
            self._set_rate(flow, 1.0)

    def _resource(self, name: str) -> Resource:
        found = self._resources.get(name)
        if found is None:
            found = self._resources[name] = Resource(self._source[name])
        return found

    def _finish(self, first: Flow) -> None:
        ended = self._with(first)
        crowded = [name for flow in ended for name, _ in flow.crowded]
        for flow in ended:
            flow.ticket += 1
            for resource, amount in flow.taken:
                users = resource.users
                del users[flow]
                # An empty resource restarts from zero, so that rounding never accumulates.
                resource.wish = resource.wish - amount if users else 0.0
        if crowded:
            self._refill(crowded)
        for flow in ended:
            flow.done()

    def _with(self, first: Flow) -> dict[Flow, None]:
        """The flows that end now: `first`, and those that share a crowded resource with it and have no more work left than rounding
        explains."""
        now = self._clock.now
        least = _SAME * max(1.0, now)
        beside = (flow for _, resource in first.crowded for flow in resource.users)
        return {first: None} | {flow: None for flow in beside if flow.remaining - (now - flow.since) * flow.rate <= least * flow.rate}

    def _set_rate(self, flow: Flow, rate: float) -> None:
        now = self._clock.now
        if flow.rate == rate:
            return
        flow.remaining = max(0.0, flow.remaining - (now - flow.since) * flow.rate)
        flow.since, flow.rate = now, rate
        flow.ticket += 1
        self._clock.after(flow.remaining / rate, self._due, flow, flow.ticket)

    def _due(self, flow: Flow, ticket: int) -> None:
        """The flow ends, unless its rate has changed since."""
        if flow.ticket == ticket:
            self._finish(flow)

    def _refill(self, touched: list[str]) -> None:
        flows, names = self._component(touched)
        wants = [(id(flow.uses), flow.weight) for flow in flows]
        mix = tuple(sorted(wants))
        rates = self._filled.get(mix)
        if rates is None:
            if len(self._filled) == _FILLED:
                self._filled.clear()
            filled = fill(flows, {n: (self._resources[n].capacity, self._resources[n].users) for n in names})
            rates = self._filled[mix] = dict(zip(wants, filled.values(), strict=True))
        for flow, want in zip(flows, wants, strict=True):
            self._set_rate(flow, rates[want])

    def _component(self, names: list[str]) -> tuple[dict[Flow, None], list[str]]:
        """The flows whose rates can change, and the crowded resources among all that they use. Resources that are not crowded limit no
        flow."""
        flows: dict[Flow, None] = {}
        seen: dict[str, None] = {}
        stack = names
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen[name] = None
            for flow in self._resources[name].users:
                if flow not in flows:
                    flows[flow] = None
                    stack.extend(other for other, _ in flow.uses if other not in seen and self._resources[other].crowded)
        return flows, [name for name in seen if self._resources[name].crowded]


def merged(uses: Uses) -> Uses:
    """Each resource once: a flow that crosses a link twice (by way of host memory, say) uses it doubly."""
    if len({name for name, _ in uses}) == len(uses):
        return uses
    sums: dict[str, float] = {}
    for name, amount in uses:
        sums[name] = sums.get(name, 0.0) + amount
    return tuple(sums.items())


def fill(flows: Mapping[Flow, None], crowded: dict[str, tuple[float, dict[Flow, float]]]) -> dict[Flow, float]:
    """Max-min fair rates (0, 1] of `flows` on the crowded resources {name: (capacity, users)}."""
    rates: dict[Flow, float] = {}
    left = {name: capacity for name, (capacity, _) in crowded.items()}
    levels = {name: _level(capacity, users, rates) for name, (capacity, users) in crowded.items()}
    while levels and len(rates) < len(flows):
        level, name = min((level, name) for name, level in levels.items())
        del levels[name]
        touched: dict[str, None] = {}
        for flow in crowded[name][1]:
            if flow in rates:
                continue
            rates[flow] = min(1.0, level / flow.weight)
            for other, amount in flow.uses:
                if other in left:
                    left[other] -= amount * rates[flow]
                    touched[other] = None
        levels.update((other, _level(left[other], crowded[other][1], rates)) for other in touched if other in levels)
    return {flow: rates.get(flow, 1.0) for flow in flows}


def _level(left: float, users: dict[Flow, float], rates: dict[Flow, float]) -> float:
    """The level at which the flows that are not yet fixed fill what is left: sum(use * min(1, level / weight)) = left."""
    waiting = sorted(((flow.weight, amount) for flow, amount in users.items() if flow not in rates), key=lambda pair: pair[0])
    slope = sum(amount / weight for weight, amount in waiting)
    for weight, amount in waiting:
        if weight * slope >= left:
            return max(left, 0.0) / slope if slope > 0 else float("inf")
        left -= amount
        slope -= amount / weight
    return float("inf")
