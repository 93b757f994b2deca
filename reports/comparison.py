"""The comparison page: predicted beside played and stock, and the prediction page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports import figures
from reports.page import Card, Page
from reports.timeline import timeline
from sim.align import Comparison
from sim.trace import Trace


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:,.3f} s"


def headline(summary: Mapping[str, Any]) -> list[Card]:
    """Cards of a prediction (the mapping of `Prediction.to_dict`)."""
    split, step = summary["breakdown"], summary["step_time_s"] or 1.0
    unit = "tokens" if "tokens_per_s" in summary else "samples"
    return [
        (_ms(summary["step_time_s"]), "step time", "predicted"),
        (f"{summary[f'{unit}_per_s_per_gpu']:,.0f}", f"{unit} / s / GPU", f"{summary[f'{unit}_per_s']:,.0f} in all"),
        (
            f"{summary['mfu']:.1%}" if summary["mfu"] is not None else "-",
            "MFU",
            f"{summary['model_flops_per_gpu_per_s'] / 1e12:,.1f} TFLOP/s per GPU",
        ),
        (f"{split['exposed_comm_s'] / step:.1%}", "exposed communication", _ms(split["exposed_comm_s"])),
        (f"{split['bubble_s'] / step:.1%}", "bubble", _ms(split["bubble_s"])),
        (f"{split['host_s'] / step:.1%}", "host gap", _ms(split["host_s"])),
        (f"{split['data_s'] / step:.1%}", "data stall", _ms(split["data_s"])),
        (f"{summary['peak_memory_bytes'] / 2**30:,.2f} GiB", "peak memory", "fits" if summary["fits"] else "does NOT fit"),
    ]


def prediction_page(title: str, summary: Mapping[str, Any], trace: Trace, capacity: int | None = None) -> str:
    """The prediction alone: headline, timeline, breakdown, memory, sources."""
    page = Page(title, f"{summary['model']['name']} on {summary['topology']}, {summary['gpus']} ranks. Predicted; nothing was run.")
    page.cards(headline(summary))
    page.warnings(summary["warnings"])
    _prediction_body(page, summary, [trace], capacity)
    return page.text("Made by StepTwin. Times are seconds of one optimizer step; FLOPs count a multiply-add as two; GiB = 2^30 bytes.")


def _prediction_body(page: Page, summary: Mapping[str, Any], traces: Sequence[Trace], capacity: int | None) -> None:
    page.section(
        "Timeline",
        "Each row is a lane of a rank. Drag to zoom, double-click to go back; hover an op for its bytes, FLOPs and the source of its cost.",
    )
    page.figure(timeline(traces))
    page.section("Where the step goes", "Each instant of the step belongs to one class; the classes sum to the step.")
    page.figure(figures.breakdown_bar(summary["breakdown"]))
    page.section("Critical path", "Seconds along the chain of what waited for what.")
    page.table(
        ("class", "time", "share of the step"),
        [(r["class"], _ms(r["seconds"]), f"{r['seconds'] / summary['step_time_s']:.1%}") for r in summary["critical_path"][:12]],
    )
    if any(line for line in traces[0].memory.values()):
        page.section("Device memory over time")
        page.figure(figures.memory_line(traces[0], capacity))
    page.section(
        "On what the costs rest", "measured: by `probe` on this machine. fitted: on published measurements. assumed: by a stated rule."
    )
    page.figure(figures.sources_bar(summary["sources"]))


def comparison_page(
    title: str,
    summary: Mapping[str, Any],
    traces: Sequence[Trace],
    found: Mapping[str, Comparison],
    times: Mapping[str, Sequence[float]],
    notes: Sequence[str] = (),
) -> str:
    """Predicted against played (op by op) and stock (class by class)."""
    page = Page(
        title, f"{summary['model']['name']} on {summary['topology']}, {summary['gpus']} ranks: the same plan predicted, played and trained."
    )
    cards: list[Card] = [(_ms(summary["step_time_s"]), "step time", "predicted")]
    for name, one in found.items():
        m = one.measured_step
        cards.append((_ms(m.median), f"step time, {name}", f"median of {m.count}, {_ms(m.low)} to {_ms(m.high)}"))
        cards.append((f"{one.error:+.1%}", f"error against {name}", "(predicted - measured) / measured"))
    page.cards(cards + headline(summary)[1:])
    page.warnings([*summary["warnings"], *notes])
    page.section("Timelines, one over the other", "The last predicted step above the same step as it was played, lane by lane.")
    page.figure(timeline(traces))
    for name, one in found.items():
        page.section(
            f"Error by class, against {name}", "Time per step and rank in each class of op; the figure beside a bar is the signed error."
        )
        page.figure(figures.class_errors(one))
        page.figure(figures.waterfall(one))
    page.section("Measured steps", "Machines are noisy: every step is shown, and the median is what counts.")
    page.figure(figures.step_times(times, summary["step_time_s"]))
    for name, one in found.items():
        if one.pairs:
            page.section(f"Every op against {name}")
            page.figure(figures.scatter(one))
            page.section("Ten ops that are furthest off")
            worst = sorted(one.pairs, key=lambda p: -abs(p.difference))[:10]
            page.table(
                ("op", "predicted", "measured", "difference"), [(p.id, _ms(p.predicted), _ms(p.measured), _ms(p.difference)) for p in worst]
            )
    page.section("The prediction")
    _prediction_body(page, summary, traces[:1], None)
    return page.text("Made by StepTwin. Times are seconds of one optimizer step; errors are signed, (predicted - measured) / measured.")
