"""The prediction page, and the comparison page: predicted beside played and stock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from reports import figures
from reports.links import link_map
from reports.machine import machine
from reports.page import Card, Page
from reports.scene import Scene
from reports.timeline import representative, timeline, told
from reports.utilisation import monitor
from reports.words import gib, ranks, seconds, volume
from sim.align import Comparison
from sim.timeline.metrics import breakdown, step_times, window
from sim.timeline.utilisation import utilisation
from sim.trace import Trace
from topologies.units import show_flops

_FOOT = (
    "Made by StepTwin. Times are of one optimizer step; FLOPs count a multiply-add as two; GiB = 2^30 bytes, GB/s = 1e9 bytes per second."
)
_MARKS = {
    "calibrated": "rests on this machine's own measurements",
    "interpolated": "inside the data that the costs are fitted on",
    "extrapolated": "beyond the data that the costs are fitted on",
}
_BUSIEST = 8
MEANINGS = (
    ("step time", "seconds from one optimizer step to the next, in the steady state; with the stated probability it lies in the interval"),
    (
        "calibrated",
        "the prediction rests on measurements of this very machine; interpolated: on data for this kind of device; extrapolated: beyond them",
    ),
    ("tokens / s / GPU", "tokens (samples for images) of the global batch over the step time and the number of devices"),
    (
        "MFU",
        "model FLOPs utilisation: FLOPs of one forward and backward pass, without recomputation, over what the devices could do at their dense peak",
    ),
    ("exposed communication", "time in which a rank only communicates; transfers beside its own computing cost no time and do not count"),
    ("bubble", "time in which a pipeline stage has nothing to do, since it waits for another stage or rank"),
    ("host gap", "time in which the device waits for Python, kernel launches or autograd"),
    ("data stall", "time in which the device waits for its next batch"),
    (
        "peak memory",
        "of the fullest rank: parameters, gradients, optimizer state, activations, buffers, the allocator's and the driver's own",
    ),
    ("lane", "where ops queue in order: a CUDA stream (compute, comm.GROUP, copy) or a CPU thread (host, loader)"),
    ("mb0, s2, r3", "in the name of an op: its micro-batch, step and rank"),
)
"""Figures of a prediction, in words."""


def headline(summary: Mapping[str, Any]) -> list[Card]:
    """Cards of a prediction (the mapping of `Prediction.to_dict`)."""
    split, step = summary["breakdown"], summary["step_time_s"] or 1.0
    unit = "tokens" if "tokens_per_s" in summary else "samples"
    mfu = summary["mfu"]
    device = "GPU" if mfu is not None else "rank"  # CPU hosts have no peak to compare with

    def part(name: str, key: str) -> Card:
        return f"{split[key] / step:.1%}", name, f"{seconds(split[key])} of the step"

    return [
        (seconds(summary["step_time_s"]), "step time, predicted", _interval(summary)),
        (f"{summary[f'{unit}_per_s_per_gpu']:,.0f}", f"{unit} / s / {device}", f"{summary[f'{unit}_per_s']:,.0f} {unit} / s in all"),
        (
            f"{mfu:.1%}" if mfu is not None else "-",
            "MFU",
            f"{show_flops(summary['model_flops_per_gpu_per_s'])} of model FLOPs per {device}",
        ),
        (gib(summary["peak_memory_bytes"]), f"peak memory per {device}", "fits" if summary["fits"] else "does NOT fit"),
        part("exposed communication", "exposed_comm_s"),
        part("bubble", "bubble_s"),
        part("host gap", "host_s"),
        part("data stall", "data_s"),
    ]


def _interval(summary: Mapping[str, Any]) -> str:
    found = summary.get("interval_s")
    if not found or not found["high"]:
        return "no interval"
    mark = f", {summary['mark']}" if summary.get("mark") else ""
    return f"{found['level']:.0%} interval {seconds(found['low'])} to {seconds(found['high'])}{mark}"


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """Warnings, what does not fit, and why a prediction reaches beyond its data."""
    notes = list(summary["warnings"])
    reasons = summary.get("mark_reasons") or []
    if reasons:
        notes.append(f"{summary['mark']}, {_MARKS.get(summary['mark'], '')}: {'; '.join(reasons)}")
    missing = summary.get("does_not_fit")
    if missing:
        notes.append(f"Does not fit: {gib(missing['needed'])} needed, {gib(missing['available'])} there. " + _remedies(missing))
    return notes


def _remedies(missing: Mapping[str, Any]) -> str:
    ways = missing.get("remedies") or []
    return f"What would make it fit: {'; '.join(map(str, ways))}." if ways else ""


def prediction_page(title: str, summary: Mapping[str, Any], trace: Trace, scene: Scene | None = None) -> str:
    """The prediction alone: headline, timeline, breakdown, memory, links, machine, sources. `summary`: `Prediction.to_dict()`."""
    page = Page(title, f"{summary['model']['name']} on {summary['topology']}, {ranks(summary['gpus'])}. Predicted; nothing was run.")
    page.cards(headline(summary))
    page.warnings(_notes(summary))
    scene = scene or Scene(memory={rank: tuple(line) for rank, line in trace.memory.items()})
    _timelines(page, [trace], None, [scene.trace_file])
    _prediction_body(page, summary, trace, scene)
    return page.text(_FOOT)


def _timelines(page: Page, traces: Sequence[Trace], worst: int | None, files: Sequence[str]) -> None:
    if not any(trace.spans for trace in traces):
        page.warnings(["The trace holds no op: there is no timeline to draw."])
        return
    chosen = representative(traces[0], worst)
    how = "Each row is a lane of a rank" + (", each trace under the one before" if len(traces) > 1 else "")
    page.section(
        "Timeline",
        f"{how} (a CUDA stream or a CPU thread). Drag to zoom, double-click to go back; hover an op for its bytes, FLOPs and the source of its cost.",
    )
    page.note(told(chosen, traces[0]))
    page.figure(timeline(traces, [rank for rank, _ in chosen]))
    for file in files:
        if file:
            page.link("Every op of every simulated rank:", file, "opens in Perfetto (ui.perfetto.dev), chrome://tracing and Meta's HTA.")


def _prediction_body(page: Page, summary: Mapping[str, Any], trace: Trace, scene: Scene) -> None:
    step = summary["step_time_s"] or 1.0
    page.section("Where the step goes", "Each instant of the step belongs to one class; the classes sum to the step.")
    page.figure(figures.breakdown_bar(summary["breakdown"]))
    page.section("Critical path", "Time along the chain of what waited for what.")
    rows = [(r["class"], seconds(r["seconds"]), f"{r['seconds'] / step:.1%}") for r in summary["critical_path"][:12]]
    page.table(("class of op", "time", "share of the step"), rows)
    if any(line for line in scene.memory.values()):
        page.section("Device memory over time", f"Peak {gib(summary['peak_memory_bytes'])} on the fullest rank. " + _parts(summary))
        page.figure(figures.memory_line(scene.memory, scene.capacity, window(trace)))
    if summary.get("syncs"):
        page.section("Where host and device wait for each other", "Each kind of sync point: how often in a step, and what it costs.")
        page.table(
            ("what", "where", "per step", "stands still", "longer by"),
            [(p["op"], p["where"], f"{p['per_step']:g}", seconds(p["seconds"]), seconds(p["adds"])) for p in summary["syncs"]],
        )
    if scene.topology is not None and trace.spans:
        page.section("How busy everything is", "Cores, CPU threads and device lanes over the step, busiest of each kind first.")
        page.figure(monitor(utilisation(trace, scene.topology), scene.measured))
    _links(page, scene, step)
    page.section(
        "On what the costs rest", "measured: by `probe` on this machine. fitted: on published measurements. assumed: by a stated rule."
    )
    page.figure(figures.sources_bar(summary["sources"]))
    page.words(MEANINGS)


def _parts(summary: Mapping[str, Any]) -> str:
    """What the memory is, largest first."""
    found = summary.get("memory") or {}
    sizes = {name: value for name, value in found.items() if name not in ("stage", "remedies") and isinstance(value, int) and value > 0}
    return ", ".join(f"{name} {gib(value)}" for name, value in sorted(sizes.items(), key=lambda pair: -pair[1])) + "." if sizes else ""


def _links(page: Page, scene: Scene, step: float) -> None:
    if scene.uses:
        page.section(
            "Link use over time",
            "Links by what they join, busiest first: use in % of one link's rate, of the rank that moves most. "
            "n0 is the first node; sw: PCIe switch, leaf and spine: network switches.",
        )
        page.figure(link_map(scene.uses, step))
        rows = [(use.name, f"{use.rate / 1e9:,.1f} GB/s", volume(use.moved), f"{use.share:.1%}") for use in scene.uses[:_BUSIEST]]
        page.table(("busiest links", "rate", "moved per step", "mean use"), rows)
    if scene.topology is not None:
        if scene.uses:
            page.section(
                "The machine and its busiest links", "The first node; the thicker a link, the busier. Hover for rates and latency."
            )
        else:
            page.section("The machine", "The first node, with the rate of each link in one direction. Hover for latency.")
        page.figure(machine(scene.topology, 1, {use.name: use.share for use in scene.uses} if scene.uses else None))


def comparison_page(
    title: str,
    summary: Mapping[str, Any],
    traces: Sequence[Trace],
    found: Mapping[str, Comparison],
    times: Mapping[str, Sequence[float]],
    notes: Sequence[str] = (),
    scene: Scene | None = None,
) -> str:
    """Predicted against played (op by op) and stock (class by class). `traces`: the predicted one first; stock is not drawn, its ops have no ids."""
    page = Page(
        title,
        f"{summary['model']['name']} on {summary['topology']}, {ranks(summary['gpus'])}: the same plan predicted, played and trained.",
    )
    cards = headline(summary)
    page.cards([cards[0], *_measured(found), *cards[1:]])
    page.warnings([*_notes(summary), *notes])
    scene = scene or Scene(memory={rank: tuple(line) for rank, line in traces[0].memory.items()})
    files = [f"{trace.origin}.json.gz" for trace in traces] if scene.trace_file else []
    _timelines(page, [trace for trace in traces if trace.origin != "stock"], _worst(found), files)
    for name, one in found.items():
        page.section(
            f"Error by class, against {name}", "Time per step and rank in each class of op; the figure beside a bar is the signed error."
        )
        page.figure(figures.class_errors(one))
        _waterfall(page, name, one, traces)
    page.section("Measured steps", "Machines are noisy: every step is shown, and the median is what counts.")
    page.figure(figures.step_times(times, summary["step_time_s"]))
    for name, one in found.items():
        if one.pairs:
            _ops(page, name, one)
    _prediction_body(page, summary, traces[0], scene)
    return page.text(_FOOT + " Errors are signed, (predicted - measured) / measured.")


def _waterfall(page: Page, name: str, one: Comparison, traces: Sequence[Trace]) -> None:
    """Classes that sum to the step where the measured trace is there; else the ops' own time."""
    ours, theirs = traces[0], next((trace for trace in traces if trace.origin == name), None)
    how = "What each class takes more (up) or less (down) than predicted; 'rest' is "
    if theirs is None:
        page.section(f"From the predicted step to the measured one ({name})", how + "what overlaps or belongs to no op.")
        page.figure(figures.waterfall(one))
        return
    page.section(f"From the predicted step to the measured one ({name})", how + "how far the traced step nearest the median is from it.")
    page.figure(figures.waterfall(one, asdict(breakdown(ours)), asdict(breakdown(_nearest(theirs, one.measured_step.median)))))


def _nearest(trace: Trace, median: float) -> Trace:
    """The trace with its step nearest `median` seconds as the reported one; its first step begins with the recording and never counts."""
    times = step_times(trace)
    if len(times) < 2:
        return trace
    at = min(range(1, len(times)), key=lambda number: abs(times[number] - median))
    return msgspec.structs.replace(trace, reported=at - len(times))


def _measured(found: Mapping[str, Comparison]) -> list[Card]:
    cards: list[Card] = []
    for name, one in found.items():
        m = one.measured_step
        cards.append((seconds(m.median), f"step time, {name}", f"median of {m.count}; {seconds(m.low)} to {seconds(m.high)} (p10 to p90)"))
        cards.append((f"{one.error:+z.1%}", f"error against {name}", "(predicted - measured) / measured"))
    return cards


def _worst(found: Mapping[str, Comparison]) -> int | None:
    """The rank whose ops are furthest off in sum."""
    off: dict[int, float] = {}
    for one in found.values():
        for pair in one.pairs:
            off[pair.rank] = off.get(pair.rank, 0.0) + abs(pair.difference)
    return max(off, key=lambda rank: off[rank]) if off else None


def _ops(page: Page, name: str, one: Comparison) -> None:
    page.section(f"Every op against {name}", "One point an op; above the line it was predicted longer than it took.")
    page.figure(figures.scatter(one))
    page.section("Ten ops that are furthest off")
    worst = sorted(one.pairs, key=lambda p: -abs(p.difference))[:10]
    rows = [(p.id, p.cls or p.kind, seconds(p.predicted), seconds(p.measured), _signed(p.difference)) for p in worst]
    page.table(("op", "class", "predicted", "measured", "difference"), rows)


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + seconds(value)
