"""The page of a comparison: predicted beside played and stock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reports.figures import deviation
from reports.page import Card, Page
from reports.pages.prediction import FOOT, headline, notes_of, per_device, prediction_body, timelines
from reports.scene import Scene
from reports.words import ranks, rate, seconds
from sim.align import Comparison, breakdowns
from sim.result.compare import OTHER_WORK
from sim.timeline.asynchrony import served
from sim.timeline.metrics import step_numbers, step_times
from sim.trace import Trace

_RUNS = {"played": "played op by op", "stock": "trained by PyTorch itself", "imported": "measured elsewhere"}


def _told(found: Mapping[str, Comparison]) -> str:
    """A phrase for what the prediction is compared with."""
    return " and ".join(["the same plan predicted", *(_RUNS.get(name, name) for name in found)])


def comparison_page(
    title: str,
    summary: Mapping[str, Any],
    traces: Sequence[Trace],
    found: Mapping[str, Comparison],
    times: Mapping[str, Sequence[float]],
    notes: Sequence[str],
    scene: Scene,
) -> str:
    """The text of the page: predicted against played (op by op) and stock (class by class). `traces`: the predicted one first; that of
    stock is not drawn, as its ops have no ids."""
    page = Page(
        title,
        f"{summary['model']['name']} on {summary['topology']}, {ranks(summary['gpus'])}: {_told(found)}.",
    )
    foreign = [note for note in notes if note.startswith(OTHER_WORK)]  # shown before the figures, which then have no meaning
    page.warnings(foreign)
    page.cards(_cards(summary, found))
    page.warnings([*notes_of(summary), *(note for note in notes if note not in foreign)])
    files = [f"{trace.origin}.json.gz" for trace in traces] if scene.trace_file else []
    timelines(page, _drawn(traces, found), _worst(found), files, summary)
    if "stock" in found:
        page.note(
            "What PyTorch trained by itself stands in the charts below: its profile has stretches of time by class, and no ops to draw here."
        )
    for name, one in found.items():
        page.section(
            f"Error by class, against {name}", "Time per step and rank in each class of op; the figure beside a bar is the signed error."
        )
        page.figure(deviation.class_errors(one))
        _waterfall(page, name, one, traces)
    page.section("Measured steps", "Machines are noisy: every step is shown, and the median is what counts.")
    page.figure(deviation.step_times(times, summary["step_time_s"], _numbers(traces, times)))
    for name, one in found.items():
        if one.pairs:
            _ops(page, name, one)
    page.part("The prediction by itself", "From here on nothing is measured: all figures are of the predicted step.")
    prediction_body(page, summary, traces[0], scene)
    return page.text(FOOT + " Errors are signed, (predicted - measured) / measured.")


def _drawn(traces: Sequence[Trace], found: Mapping[str, Comparison]) -> list[Trace]:
    """The traces to draw, those with ops. In measured ones the reported step is the one nearest the median, which the cards show."""
    shown = [trace for trace in traces if trace.origin != "stock"]
    return [_nearest(trace, found[trace.origin].measured_step.median) if trace.origin in found else trace for trace in shown]


def _waterfall(page: Page, name: str, one: Comparison, traces: Sequence[Trace]) -> None:
    """Adds the waterfall: with classes that sum to the step if there is a measured trace, else with times of ops by class."""
    ours, theirs = traces[0], next((trace for trace in traces if trace.origin == name), None)
    how = "What each class takes more (up) or less (down) than predicted; 'rest' is "
    if theirs is None:
        page.section(f"From the predicted step to the measured one ({name})", how + "what overlaps or belongs to no op.")
        page.figure(deviation.waterfall(one))
        return
    page.section(f"From the predicted step to the measured one ({name})", how + "how far the traced step nearest the median is from it.")
    ours = ours.of(one.ranks) if one.ranks else ours
    page.figure(deviation.waterfall(one, *breakdowns(ours, _nearest(theirs, one.measured_step.median))))


def _nearest(trace: Trace, median: float) -> Trace:
    """The trace, with the step nearest to `median` seconds as the reported one. The first step, which begins with the recording, does not
    count."""
    times = step_times(trace)
    if len(times) < 2:
        return trace
    at = min(range(1, len(times)), key=lambda number: abs(times[number] - median))
    return msgspec.structs.replace(trace, reported=at - len(times))


def _cards(summary: Mapping[str, Any], found: Mapping[str, Comparison]) -> list[Card]:
    """Cards: step time, rate and MFU of each run beside the predicted ones, then figures that only the prediction has."""
    step, rated, mfu, *others = [
        (value, name if name.endswith("predicted") else f"{name}, predicted", note) for value, name, note in headline(summary)
    ]
    times: list[Card] = []
    rates: list[Card] = []
    used: list[Card] = []
    unit, predicted, whole = per_device(summary)
    for name, one in found.items():
        m = one.measured_step
        times.append((seconds(m.median), f"step time, {name}", f"median of {m.count}; {seconds(m.low)} to {seconds(m.high)} (p10 to p90)"))
        times.append((f"{one.error:+z.1%}", f"error against {name}", "(predicted - measured) / measured"))
        faster = summary["step_time_s"] / m.median  # the same tokens and FLOPs in another time
        rates.append(
            (rate(faster * predicted), f"{unit}, {name}", f"{rate(faster * whole)} / s in all; what the plan takes, over the median step")
        )
        if summary["mfu"] is not None:
            used.append((f"{faster * summary['mfu']:.1%}", f"MFU, {name}", "the plan's model FLOPs over the median step"))
    return [step, *times, rated, *rates, mfu, *used, *others]


def _numbers(traces: Sequence[Trace], times: Mapping[str, Sequence[float]]) -> dict[str, list[int]]:
    """Origin -> numbers of the measured steps in an imported trace, whose first step may not count. Our own runs are left out: they have
    more steps than their traces."""
    found = {trace.origin: step_numbers(trace)[-len(times[trace.origin]) :] for trace in traces if _numbered(trace, times)}
    return {name: numbers for name, numbers in found.items() if len(numbers) == len(times[name])}


def _numbered(trace: Trace, times: Mapping[str, Sequence[float]]) -> bool:
    """True for imported traces with measured steps; not if ranks do not wait for each other, as then there is only a mean step."""
    return trace.origin == "imported" and bool(times.get(trace.origin)) and not served(trace)


def _worst(found: Mapping[str, Comparison]) -> int | None:
    """The rank with the largest sum of absolute errors of its ops; None if no ops were compared."""
    off: dict[int, float] = {}
    for one in found.values():
        for pair in one.pairs:
            off[pair.rank] = off.get(pair.rank, 0.0) + abs(pair.difference)
    return max(off, key=lambda rank: off[rank]) if off else None


def _ops(page: Page, name: str, one: Comparison) -> None:
    page.section(f"Every op against {name}", "One point an op; above the line it was predicted longer than it took.")
    page.figure(deviation.scatter(one))
    page.section("Ten ops that are furthest off")
    worst = sorted(one.pairs, key=lambda p: -abs(p.difference))[:10]
    rows = [(p.id, p.cls or p.kind, seconds(p.predicted), seconds(p.measured), _signed(p.difference)) for p in worst]
    page.table(("op", "class", "predicted", "measured", "difference"), rows)


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + seconds(value)
