"""What each op adds to the step, exactly to first order: derivatives along the critical path of one simulated trace.

Every time of a run is made of earlier ones: an op ends its cost after it began, it began when the span `after` it had ended plus what the
launches between the two took. Walking back from the end of the step, the derivative of that end by each op's seconds comes out of one
pass (reverse accumulation, as in Griewank and Walther, "Evaluating Derivatives", 2008, chapter 3; of event systems it is the perturbation
analysis of Ho and Cao, 1991). Weights are not 0 and 1 alone where a kernel runs beside a collective: it runs at 1/slow of its speed meanwhile, so that
its end also depends on when the collective began and ended. The step is the end of its window less the beginning, so both are walked.

Costs that all grow by one factor make the step grow by it, so what the ops and the launches add sums to the step (Euler; tested).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sim.cost.price import Cost
from sim.program import COMPUTE, ORDERS
from sim.timeline.metrics import ends_with, window
from sim.trace import Span, Trace

Slow = Callable[[int], float]
"""rank -> factor on its kernels while a collective runs beside them."""
CostOf = Callable[[Span], Cost | None]
"""What an op that needs no other rank costs alone; None: as long as its span."""


class Gradient(msgspec.Struct, frozen=True):
    """Seconds that the step owes to each span (index in the trace) and to launches: its derivative by the logarithm of their cost."""

    spans: dict[int, float]
    launches: float

    @property
    def total(self) -> float:
        """The step, where every cost that counts is an op's or a launch's."""
        return sum(self.spans.values()) + self.launches


def gradient(trace: Trace, slow: Slow, cost_of: CostOf) -> Gradient:
    """Of the reported step of a predicted trace."""
    begin, end = window(trace)
    walk = _Walk(trace, slow, cost_of)
    late = walk.back(ends_with(trace, end))
    early = walk.back(ends_with(trace, begin)) if begin > 0 else Gradient({}, 0.0)
    spans = dict(late.spans)
    for index, seconds in early.spans.items():
        spans[index] = spans.get(index, 0.0) - seconds
    return Gradient({index: seconds for index, seconds in spans.items() if seconds}, late.launches - early.launches)


class _Stretch(NamedTuple):
    """Some collective runs beside compute from `begin` to `end` (seconds); which began it, and which ended it."""

    begin: float
    end: float
    first: int
    last: int


def _merged(spans: list[Span], rank: int) -> list[_Stretch]:
    """The stretches of a rank, in order."""
    found: list[_Stretch] = []
    mine = ((s.start + s.wait, s.end, index) for index, s in enumerate(spans) if s.rank == rank and _beside(s))
    for begin, end, index in sorted(mine):
        if found and begin <= found[-1].end:
            one = found[-1]
            if end > one.end:
                found[-1] = one._replace(end=end, last=index)
        else:
            found.append(_Stretch(begin, end, index, index))
    return found


def _beside(span: Span) -> bool:
    return span.kind == "collective" and span.lane != COMPUTE


class _Walk:
    """One trace, walked from several ends."""

    def __init__(self, trace: Trace, slow: Slow, cost_of: CostOf) -> None:
        self._spans, self._slow, self._cost_of = trace.spans, slow, cost_of
        self._beside = {rank: _merged(trace.spans, rank) for rank in trace.ranks if slow(rank) > 1.0}

    def back(self, last: int) -> Gradient:
        """d end / d ln cost, for the end of span `last`, of every span before it."""
        self._owed: dict[int, float] = {}
        self._launches = 0.0
        self._weights: dict[int, float] = {}
        self._heap: list[int] = []
        if last >= 0:
            self._push(last, 1.0)
        while self._heap:  # what a span waited for stands before it in the trace, so that all of its weight has come when it is its turn
            index = -heapq.heappop(self._heap)
            weight = self._weights.pop(index)
            if weight:
                self._span(index, weight)
        return Gradient(self._owed, self._launches)

    def _push(self, index: int, weight: float) -> None:
        if index not in self._weights:
            self._weights[index] = 0.0
            heapq.heappush(self._heap, -index)
        self._weights[index] += weight

    def _owe(self, index: int, seconds: float) -> None:
        self._owed[index] = self._owed.get(index, 0.0) + seconds

    def _span(self, index: int, weight: float) -> None:
        """Hands the weight of a span's end on."""
        span = self._spans[index]
        if span.kind in ORDERS:
            self._before(index, span.end, weight)
            return
        begun = span.start + span.wait
        edges = self._edges(span, begun) if span.kind == "compute" and span.lane == COMPUTE else []
        if edges:
            weight = self._stretched(index, span, begun, edges, weight)
        else:
            self._alone(index, span, begun, weight)
        self._before(index, begun, weight)

    def _alone(self, index: int, span: Span, begun: float, weight: float) -> None:
        """Nothing changes its speed. Where launches are the slower chain of its kernels, it ends one kernel after the last of them."""
        seconds = span.end - begun
        cost = self._cost_of(span) if span.bound == "host" else None
        if cost is not None and cost.ready and cost.host > cost.seconds:
            own = min(seconds, max(0.0, cost.ready - cost.host))
            self._launches += weight * (seconds - own)
            seconds = own
        self._owe(index, weight * seconds)

    def _edges(self, span: Span, begun: float) -> list[tuple[float, int, int]]:
        """Stretches in which its rank communicates while it runs: (time, +1 begins / -1 ends, the collective that does it)."""
        found: list[tuple[float, int, int]] = []
        stretches = self._beside.get(span.rank, [])
        at = bisect_left(stretches, begun, key=lambda one: one.end)
        while at < len(stretches) and stretches[at].begin < span.end:
            one = stretches[at]
            found += [(one.begin, 1, one.first), (one.end, -1, one.last)]
            at += 1
        return found

    def _slowed(self, span: Span) -> float:
        """How many times longer it takes beside a collective: some ops say so themselves (`Cost.slowed`)."""
        cost = self._cost_of(span)
        return cost.slowed / cost.seconds if cost is not None and cost.slowed and cost.seconds else self._slow(span.rank)

    def _stretched(self, index: int, span: Span, begun: float, edges: list[tuple[float, int, int]], weight: float) -> float:
        """A kernel beside collectives: work = sum of rate x time between the moments at which the rate changes. Returns the weight of its
        beginning; what hangs on a collective's beginning or end goes there."""
        slow = 1.0 / self._slowed(span)
        # A change at the very moment when it begins counts as inside: the span before ends just before that.
        first = rate = slow if edges[0][0] < begun else 1.0
        moments: list[tuple[int, int, float]] = []
        work, at = 0.0, begun
        for time, sign, other in edges:
            if not begun <= time < span.end:
                continue
            now = slow if sign > 0 else 1.0
            moments.append((other, sign, rate - now))
            work += rate * (time - at)
            at, rate = time, now
        work += rate * (span.end - at)
        for other, sign, change in moments:
            part = -weight * change / rate
            if sign < 0:
                self._push(other, part)
            else:
                self._before(other, self._spans[other].start + self._spans[other].wait, part)
        self._owe(index, weight * work / rate)
        return weight * first / rate

    def _before(self, index: int, time: float, weight: float) -> None:
        """`time` is when the span `after` had ended, and what launches took since."""
        span = self._spans[index]
        before = span.after if 0 <= span.after != index else -1
        ended = self._spans[before].end if before >= 0 else 0.0
        self._launches += weight * (time - ended)
        if before >= 0:
            self._push(before, weight)
