"""Two traces side by side: by op id where both ran the same program, by class and order where they did not.

Signed errors are (predicted - measured) / measured. A measured time is the median over steps, with its spread
(10th and 90th percentile) beside it: machines are noisy and the table says so.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from sim.imported.names import NAMED, told
from sim.program import EVENTS, MEETING, ORDERS, cpu_lane
from sim.tables import Tabular, aligned
from sim.timeline.asynchrony import mean_step, served
from sim.timeline.metrics import breakdown, step_time, step_times
from sim.trace import Span, Trace

_STEP = re.compile(r"/s\d+(?=/)")


class Measured(msgspec.Struct, frozen=True):
    """Seconds with their spread over `count` steps."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Measured:
        """Median, 10th and 90th percentile. Raises `ValueError` on an empty list."""
        if not values:
            raise ValueError("no measured values")
        ordered = sorted(values)
        low, high = ordered[int(0.1 * (len(ordered) - 1))], ordered[-(-9 * (len(ordered) - 1) // 10)]
        return cls(statistics.median(ordered), low, high, len(ordered))


class Pair(msgspec.Struct, frozen=True):
    """One op in both traces; seconds are of the work, without waiting for peers where the measured trace tells that."""

    id: str
    rank: int
    lane: str
    cls: str
    kind: str
    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        return self.predicted - self.measured


class ClassError(msgspec.Struct, frozen=True):
    """Seconds per step and rank in one class of op."""

    cls: str
    predicted: float = msgspec.field(name="predicted_s")
    measured: float = msgspec.field(name="measured_s")
    ops: int

    @property
    def error(self) -> float | None:
        """Signed relative error; None when nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured > 0 else None


class Comparison(Tabular, msgspec.Struct, frozen=True):
    """What was predicted beside what was measured. Prints as a table; `to_frame()` has a row for each class of op."""

    predicted_step: float
    measured_step: Measured
    classes: tuple[ClassError, ...]
    pairs: tuple[Pair, ...] = ()
    missing: tuple[str, ...] = ()
    """Predicted ops without a measured span (by id)."""
    extra: tuple[str, ...] = ()
    origin: str = "played"
    ranks: tuple[int, ...] = ()
    """Of the predicted ones, those that the measured ones were laid beside; (): all."""

    @property
    def error(self) -> float:
        """Signed error of the step time."""
        return (self.predicted_step - self.measured_step.median) / self.measured_step.median

    def __str__(self) -> str:
        measured = self.measured_step
        spread = f"{_ms(measured.median)} (10th to 90th percentile of {measured.count} steps: {_ms(measured.low)} to {_ms(measured.high)})"
        rows = [
            (row.cls, _ms(row.predicted), _ms(row.measured), "not measured" if row.error is None else f"{row.error:+z.1%}")
            for row in self.classes
        ]
        head = ("class of op, per step and rank", "predicted", self.origin, "error")
        return f"step: predicted {_ms(self.predicted_step)}, {self.origin} {spread}, error {self.error:+z.1%}\n{aligned(head, rows)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the pairs stay out (a summary names the worst of them)."""
        return {
            "predicted_step_s": self.predicted_step,
            "measured_step_s": msgspec.to_builtins(self.measured_step),
            "error": self.error,
            "classes": [msgspec.to_builtins(row) | {"error": row.error} for row in self.classes],
            "missing": list(self.missing),
            "extra": list(self.extra),
        }

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.to_dict()["classes"]
        return rows


def _ms(value: float) -> str:
    return f"{value * 1e3:,.3f} ms"


def _key(span: Span) -> str:
    return _STEP.sub("", span.id)


def reported(trace: Trace, every: int = 1) -> list[Span]:
    """Spans of the step that figures are of, or of so many that end with it."""
    numbers = sorted({s.step for s in trace.spans}) or [0]
    number = numbers[max(-len(numbers), trace.reported)]
    # By the step that they belong to, not by the clock: the host runs ahead of the devices.
    return [s for s in trace.spans if number - every < s.step <= number]


def comparable_seconds(measured: Trace) -> Callable[[Span], float]:
    """Seconds of a span, of either trace. Profilers and players time a message from when its rank begins it, so that it holds what it waits for
    peers (NCCL's kernels spin meanwhile): unless the measured trace tells such waits apart, predicted messages hold theirs too."""
    waits = _waits(measured)
    return lambda span: span.seconds - waits(span)


def _waits(measured: Trace) -> Callable[[Span], float]:
    """Seconds for which a span, of either trace, waits for peers, as far as the measured trace tells them apart."""
    told = any(span.wait for span in measured.spans)
    return lambda span: span.wait if told or span.kind not in MEETING else 0.0


def _recorded(span: Span) -> bool:
    """Whether a profiler of the devices alone would hold the span."""
    return span.kind != "host" and not (span.kind == "copy" and cpu_lane(span.lane))


def breakdowns(predicted: Trace, measured: Trace) -> tuple[dict[str, float], dict[str, float]]:
    """Where a step of each goes, in the classes that the measured trace tells apart (`sim.timeline.metrics.breakdown`): messages may hold what they
    wait for (`comparable_seconds`), and where devices alone were recorded, `idle_s` is all time in which one does nothing, whatever it waits for."""
    waits, alone = _waits(measured), all(_recorded(span) and not span.launch for span in measured.spans)
    ordered = any(span.kind in EVENTS for span in measured.spans)  # files hold none
    seen = [
        span
        for span in predicted.spans
        if (ordered or span.kind not in EVENTS) and (not alone or (_recorded(span) and span.kind != "sync"))
    ]
    spans = [replace(span, wait=waits(span), launch=0.0 if alone else span.launch) for span in seen]
    of = mean_step if served(predicted) else breakdown
    ours, theirs = (asdict(of(trace)) for trace in (replace(predicted, spans=spans), measured))
    if alone:
        for found in (ours, theirs):
            found["idle_s"] = found.pop("bubble_s") + found.pop("host_s")
    return ours, theirs


def step_of(trace: Trace, every: int = 1) -> float:
    """Seconds of the step that is reported, or the mean of so many that end with it; of ranks that do not wait for each other, of the mean one."""
    if served(trace):
        return mean_step(trace).total
    if every == 1:
        return step_time(trace)
    times = step_times(trace)
    last = len(times) + max(-len(times), trace.reported)
    return statistics.fmean(times[max(0, last + 1 - every) : last + 1])


def align_by_id(predicted: Trace, played: Trace, steps: list[float]) -> Comparison:
    """Joins the two traces op by op; `steps` are the measured step times.

    An op's measured time is its median over the played steps, whose number its id is compared without; `missing` and `extra` are of whole ids.
    """
    seen = {span.id for span in played.spans}
    wanted = {span.id for span in predicted.spans}
    times: dict[str, list[float]] = {}
    seconds_of = comparable_seconds(played)
    for span in played.spans:
        times.setdefault(_key(span), []).append(seconds_of(span))
    pairs = [
        Pair(s.id, s.rank, s.lane, s.cls, s.kind, seconds_of(s), statistics.median(times[_key(s)]))
        for s in reported(predicted)
        if s.kind not in ORDERS and _key(s) in times
    ]
    return Comparison(
        step_of(predicted),
        Measured.of(steps),
        _by_class([(p.cls or p.kind, p.predicted, p.measured, 1) for p in pairs], len({p.rank for p in pairs})),
        tuple(pairs),
        tuple(sorted(wanted - seen)),
        tuple(sorted(seen - wanted)),
        played.origin,
    )


def _by_class(rows: Iterable[tuple[str, float, float, int]], ranks: int = 1) -> tuple[ClassError, ...]:
    """Sums of (class, predicted seconds, measured seconds, predicted ops) over so many `ranks`, the largest first."""
    sums: dict[str, tuple[float, float, int]] = {}
    for name, predicted, measured, ops in rows:
        p, m, count = sums.get(name, (0.0, 0.0, 0))
        sums[name] = p + predicted, m + measured, count + ops
    n = max(ranks, 1)
    found = [ClassError(name, p / n, m / n, count) for name, (p, m, count) in sums.items()]
    return tuple(sorted(found, key=lambda row: -max(row.predicted, row.measured)))


def align_by_class(predicted: Trace, stock: Trace, steps: list[float], every: int = 1) -> Comparison:
    """Compares seconds per step and rank by class of op; of plans that do something every few steps, per mean step of such a period."""
    wanted = [s for s in reported(predicted, every) if s.kind not in ORDERS]
    # Loaders are processes of their own, which a profiler of the training one does not see.
    if not any(s.lane.startswith("loader") for s in stock.spans):
        wanted = [s for s in wanted if not s.lane.startswith("loader")]
    # Profiles of several groups at once, and those of others, do not say what a collective is for: then all of them are one class.
    plain = any(s.cls == "comm" for s in stock.spans)
    name_of: Callable[[Span], str] = lambda s: "comm" if plain and s.cls.startswith("comm.") else s.cls or s.kind  # noqa: E731
    if stock.origin == "imported" and NAMED.issuperset(s.cls for s in stock.spans):  # kernels that others recorded, by their names
        wanted = [s for s in wanted if _recorded(s)]
        name_of = lambda s: told(s.cls)  # noqa: E731
    count = max(1, len({s.step for s in stock.spans}))
    ranks = max(1, len(stock.ranks))
    weight, seconds_of = predicted.weight, comparable_seconds(stock)
    total = sum(weight.get(rank, 1) for rank in predicted.ranks) or 1
    ours = [(name_of(s), seconds_of(s) * weight.get(s.rank, 1) / (total * every), 0.0, 1) for s in wanted]
    theirs = [(name_of(s), 0.0, seconds_of(s) / (count * ranks), 0) for s in stock.spans if s.kind not in ORDERS]
    return Comparison(step_of(predicted, every), Measured.of(steps), _by_class(ours + theirs), origin=stock.origin)


def guilty(comparison: Comparison) -> tuple[str, float]:
    """The class that accounts for most of the step's error, and its signed seconds; ("", 0) where none is off in that direction."""
    sign = math.copysign(1.0, comparison.error)
    worst = max(comparison.classes, key=lambda row: sign * (row.predicted - row.measured), default=None)
    if worst is None or sign * (worst.predicted - worst.measured) <= 0:
        return "", 0.0
    return worst.cls, worst.predicted - worst.measured
