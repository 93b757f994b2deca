"""The page of a prediction: headline, timeline, where the step goes, memory, links, machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.links import link_map
from reports.figures.machine import machine
from reports.figures.memory import memory_line
from reports.figures.shares import breakdown_bar, sources_bar
from reports.figures.timeline import MERGED, representative, timeline, told
from reports.figures.utilisation import monitor
from reports.page import Card, Page
from reports.scene import Scene
from reports.words import gib, ranks, rate, seconds, volume
from sim.result.prediction import clock_words
from sim.timeline.asynchrony import step_shown
from sim.timeline.utilisation import utilisation
from sim.trace import Trace
from topologies.units import show_flops

FOOT = (
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
    ("tokens / s / GPU", "tokens (or images, videos, pairs ...) of the global batch over the step time and the number of devices"),
    (
        "MFU",
        "model FLOPs utilisation: FLOPs of one forward and backward pass, without recomputation, over the dense peak of the "
        "devices, that of 16-bit for narrower formats",
    ),
    ("exposed communication", "time in which a rank only communicates; transfers beside its own computing cost no time and do not count"),
    (
        "bubble",
        "time in which a pipeline stage has nothing to do, since it waits for another stage or rank, whatever makes that one late (its host, too)",
    ),
    ("host gap", "time in which the device waits for Python, kernel launches or autograd"),
    ("data stall", "time in which the device waits for its next batch"),
    (
        "peak memory",
        "of the fullest rank: parameters, gradients, optimizer state, activations, buffers, the allocator's and the driver's own",
    ),
    (
        "parts of memory",
        "activations: kept for backward; working: made and freed inside the fullest moment (the loss, a block that runs again); gathered: whole "
        "parameters and gradients of FSDP, buckets, 16-bit copies; slack: held by the caching allocator for no tensor, and all but a few percent of it "
        "given back before memory runs out, so that a plan may fill its device and fit; context: CUDA's, NCCL's and the libraries' own",
    ),
    ("lane", "where ops queue in order: a CUDA stream (compute, comm.GROUP, copy) or a CPU thread (host, loader, pinner)"),
    ("mb0, s2, r3", "in the name of an op: its micro-batch, step and rank"),
)
"""(name, meaning) of the figures of a prediction."""


def headline(summary: Mapping[str, Any]) -> list[Card]:
    """Cards of a prediction (the mapping of `Prediction.to_dict`)."""
    split, step = summary["breakdown"], summary["step_time_s"] or 1.0
    mfu, device = summary["mfu"], _device(summary)
    unit, each, whole = per_device(summary)

    def part(name: str, key: str) -> Card:
        return f"{split[key] / step:.1%}", name, f"{seconds(split[key])} of the step"

    return [
        (seconds(summary["step_time_s"]), "step time, predicted", _interval(summary)),
        (rate(each), unit, f"{rate(whole)} {unit.removesuffix(f' / {device}')} in all"),
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


def per_device(summary: Mapping[str, Any]) -> tuple[str, float, float]:
    """(unit, rate of one device, rate of all devices). The unit is `tokens / s / GPU`; with `images` for pictures, and `rank` for CPU
    hosts."""
    what = "tokens" if "tokens_per_s" in summary else "samples"
    return f"{summary['unit']} / s / {_device(summary)}", summary[f"{what}_per_s_per_gpu"], summary[f"{what}_per_s"]


def _device(summary: Mapping[str, Any]) -> str:
    return "GPU" if summary["device"] == "cuda" else "rank"


def _interval(summary: Mapping[str, Any]) -> str:
    found = summary.get("interval_s")
    if not found or not found["high"]:
        return "no interval"
    mark = f", {summary['mark']}" if summary.get("mark") else ""
    return f"{found['level']:.0%} interval {seconds(found['low'])} to {seconds(found['high'])}{mark}"


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    """Sentences: warnings, the clock, why a prediction goes beyond its data, and what does not fit."""
    found = list(summary["warnings"])
    if "clock" in summary:
        found.append(f"Clock: {clock_words(summary['clock'])}")
    reasons = summary.get("mark_reasons") or []
    if reasons:
        found.append(f"{summary['mark']}, {_MARKS.get(summary['mark'], '')}: {'; '.join(reasons)}")
    missing = summary.get("does_not_fit")
    if missing:
        found.append(f"Does not fit: {gib(missing['needed'])} needed, {gib(missing['available'])} there. " + _remedies(missing))
    return found


def _remedies(missing: Mapping[str, Any]) -> str:
    ways = missing.get("remedies") or []
    return f"What would make it fit: {'; '.join(map(str, ways))}." if ways else ""


def prediction_page(title: str, summary: Mapping[str, Any], trace: Trace, scene: Scene) -> str:
    """The text of a prediction's page: headline, timeline, breakdown, memory, links, machine, sources. `summary`:
    `Prediction.to_dict()`."""
    page = Page(title, f"{summary['model']['name']} on {summary['topology']}, {ranks(summary['gpus'])}. Predicted; nothing was run.")
    page.cards(headline(summary))
    page.warnings(notes_of(summary))
    timelines(page, [trace], None, [scene.trace_file], summary)
    prediction_body(page, summary, trace, scene)
    return page.text(FOOT)


def timelines(page: Page, traces: Sequence[Trace], worst: int | None, files: Sequence[str], summary: Mapping[str, Any]) -> None:
    """Adds the timeline of the traces on one axis, with links to `files`, the full traces. `worst`: the rank with the largest error in a
    comparison; None without one; `summary`: of the first trace's prediction."""
    if not any(trace.spans for trace in traces):
        page.warnings(["The trace holds no op: there is no timeline to draw."])
        return
    chosen = representative(traces[0], worst)
    how = "Each row is a lane of a rank" + (", each trace under the one before" if len(traces) > 1 else "")
    page.section(
        "Timeline",
        f"{how} (a CUDA stream or a CPU thread). Drag to zoom, double-click to go back; hover an op for its bytes, FLOPs and the source of its cost.",
    )
    page.note(f"{MERGED} {told(chosen, traces[0])} {_mean(summary, traces[0])}".strip())
    page.figure(timeline(traces, [rank for rank, _ in chosen]))
    for file in files:
        if file:
            hta = f"Meta's HTA takes the folder hta/{file.removesuffix('.json.gz')} beside it, with a file for each of these ranks."
            page.link("Every op of every traced rank:", file, f"opens in Perfetto (ui.perfetto.dev) and chrome://tracing. {hta}")


def _mean(summary: Mapping[str, Any], trace: Trace) -> str:
    """A sentence if the drawn step differs from the stated step time, which includes output or is the mean of different steps; else ""."""
    (begin, end), step, output = step_shown(trace), summary["step_time_s"], summary["breakdown"]["output_s"]
    if abs(step - (end - begin)) <= 0.01 * step:
        return ""
    beside = f", {seconds(output)} of it output (checkpoints, logs), which is not drawn" if output > 0.01 * step else ""
    return f"One step of {seconds(end - begin)} is drawn; a mean one takes {seconds(step)}{beside}."


def prediction_body(page: Page, summary: Mapping[str, Any], trace: Trace, scene: Scene) -> None:
    """Adds the sections of a predicted step that follow its timeline."""
    step = summary["step_time_s"] or 1.0
    page.section("Where the step goes", "Each instant of the step belongs to one class; the classes sum to the step.")
    page.figure(breakdown_bar(summary["breakdown"]))
    page.section("Critical path", "Time along the chain of what waited for what.")
    rows = [(r["class"], seconds(r["seconds"]), f"{r['seconds'] / step:.1%}") for r in summary["critical_path"][:12]]
    page.table(("class of op", "time", "share of the step"), rows)
    if any(line for line in scene.memory.values()):
        page.section("Device memory over time", f"Peak {gib(summary['peak_memory_bytes'])} on the fullest rank. " + _parts(summary))
        page.figure(memory_line(scene.memory, scene.rooms, step_shown(trace)))
    if summary.get("syncs"):
        page.section("Where host and device wait for each other", "Each kind of sync point: how often in a step, and what it costs.")
        page.table(
            ("what", "where", "per step", "stands still", "longer by"),
            [(p["op"], p["where"], f"{p['per_step']:g}", seconds(p["seconds"]), _longer(p["adds"])) for p in summary["syncs"]],
        )
    if scene.topology is not None and trace.spans:
        page.section("How busy everything is", "Cores, CPU threads and device lanes over the step, busiest of each kind first.")
        page.figure(monitor(utilisation(trace, scene.topology)))
    begin, end = step_shown(trace)
    _links(page, scene, end - begin)
    page.section(
        "On what the costs rest", "measured: by `probe` on this machine. fitted: on published measurements. assumed: by a stated rule."
    )
    page.figure(sources_bar(summary["sources"]))
    page.words(MEANINGS)


def _longer(adds: float | None) -> str:
    """Seconds that the sync point adds, from a simulation without it; None: the plan has no key that removes it."""
    return "the plan cannot avoid it" if adds is None else seconds(adds)


def _parts(summary: Mapping[str, Any]) -> str:
    """The parts of the memory as a sentence, largest first, and how the figures were found."""
    found = summary.get("memory") or {}
    sizes = {name: value for name, value in found.items() if name not in ("stage", "remedies") and isinstance(value, int) and value > 0}
    parts = ", ".join(f"{name} {gib(value)}" for name, value in sorted(sizes.items(), key=lambda pair: -pair[1])) + "." if sizes else ""
    said = summary.get("numbers") or ""
    return f"{parts} {said[:1].upper()}{said[1:]}." if said else parts


def _links(page: Page, scene: Scene, step: float) -> None:
    """Adds link use and the machine. `step`: seconds of the drawn step, without output between steps."""
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
