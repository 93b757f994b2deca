"""The page of `validate`: predictions against published steps, with the baseline and the misses in sight.

Made from the mapping that `steptwin validate --json` prints, so it can be drawn again from a saved file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from reports.page import Page
from sim.files.runs import write_atomic

TARGETS = {"mape": 0.12, "median_ape": 0.08, "bias": 0.04, "coverage": 0.97, "group": 0.18, "rank": 0.9}
"""What the project sets out to reach (errors as fractions); groups count from 8 rows on."""
INSIDE = (0.75, 0.85)
"""Share of the measurements that the 80 % interval should hold."""
_FEWEST = 8
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F8C9B", "#A6761D")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")
_LINE = "#8a97a6"


def validation_page(summary: Mapping[str, Any], title: str = "Predicted against published training steps") -> str:
    """The file's text. `summary`: `ValidationResult.to_dict()`."""
    page = Page(
        title,
        f"{summary['scored']} published steps predicted from plan and machine alone; {len(summary['refused'])} refused. "
        "Errors are (predicted - measured) / measured of the step time.",
    )
    page.cards(_headline(summary))
    page.warnings(_missed(summary))
    page.section(
        "Predicted against measured",
        "One point a published step; on the line both agree. Hover for the row and its plan, click a source to hide it.",
    )
    page.figure(scatter(summary["predictions"]))
    page.section(
        "Errors, with the baseline beside them",
        "The baseline takes the one utilisation (MFU) for every model, plan and GPU that fits these rows best, chosen with hindsight.",
    )
    page.figure(distribution(summary))
    for name in ("source", "gpu", "family"):
        page.section(f"By {'GPU' if name == 'gpu' else name}")
        page.table(("", "rows", "mean", "median", "bias", "baseline mean", "in 80 % interval"), _group_rows(summary, name))
    _intervals(page, summary)
    _ranks(page, summary)
    _misses(page, summary)
    _refusals(page, summary)
    return page.text("Made by StepTwin. Mean and median are of the absolute error; bias is the mean of the signed error.")


def write_validation(path: Path, summary: Mapping[str, Any]) -> Path:
    """Writes the page; returns its path."""
    return write_atomic(path, validation_page(summary))


def _headline(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    base, held = summary["baseline_constant_mfu"], summary["interval"]
    ranks = sorted(summary["rank_correlation"].values())
    middle = f"{ranks[len(ranks) // 2]:.3f}" if ranks else "-"
    return [
        (f"{summary['mape']:.1%}", "mean error", f"baseline {base['mape']:.1%}; target {TARGETS['mape']:.0%}"),
        (f"{summary['median_ape']:.1%}", "median error", f"baseline {base['median_ape']:.1%}; target {TARGETS['median_ape']:.0%}"),
        (f"{summary['bias']:+.1%}", "bias", f"baseline {base['bias']:+.1%}; target within {TARGETS['bias']:.0%}"),
        (f"{held['coverage']:.1%}", "inside the 80 % interval", f"mean width {held['mean_width']:.0%} of the step"),
        (
            f"{summary['coverage']:.1%}",
            "of the rows predicted",
            f"{summary['scored']} of {summary['eligible']}; target {TARGETS['coverage']:.0%}",
        ),
        (
            middle,
            "rank correlation",
            f"median of {len(ranks)} model and GPU pairs; least {ranks[0]:.3f}" if ranks else "no pair has enough plans",
        ),
    ]


def _missed(summary: Mapping[str, Any]) -> list[str]:
    """Targets that were not reached, in words."""
    found = [
        f"{words} is {summary[key]:.1%}; the target is {TARGETS[key]:.0%}"
        for key, words in (("mape", "Mean error"), ("median_ape", "Median error"))
        if summary[key] > TARGETS[key]
    ]
    if abs(summary["bias"]) > TARGETS["bias"]:
        found.append(f"Bias is {summary['bias']:+.1%}; the target is within {TARGETS['bias']:.0%}")
    if summary["coverage"] < TARGETS["coverage"]:
        found.append(f"{summary['coverage']:.1%} of the rows are predicted; the target is {TARGETS['coverage']:.0%}")
    low, high = INSIDE
    if not low <= summary["interval"]["coverage"] <= high:
        found.append(
            f"The 80 % interval holds {summary['interval']['coverage']:.1%} of the measurements; the target is {low:.0%} to {high:.0%}"
        )
    for kind in ("family", "gpu"):
        off = [
            f"{name} {one['mape']:.1%}"
            for name, one in summary[f"by_{kind}"].items()
            if one["rows"] >= _FEWEST and one["mape"] > TARGETS["group"]
        ]
        if off:
            found.append(f"Mean error above {TARGETS['group']:.0%} by {'GPU' if kind == 'gpu' else kind}: {', '.join(off)}")
    ranks = [f"{name} {value:.2f}" for name, value in summary["rank_correlation"].items() if value < TARGETS["rank"]]
    if ranks:
        found.append(f"Rank correlation below {TARGETS['rank']}: {', '.join(ranks)}")
    return found


def scatter(predictions: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Predicted over measured seconds, both logarithmic, a colour and symbol for each source."""
    figure = go.Figure()
    times = [row[key] for row in predictions.values() for key in ("measured_s", "predicted_s")] or [1.0]
    ends = [min(times) / 1.3, max(times) * 1.3]
    for factor, dash, name in ((1.0, "solid", "equal"), (1.2, "dot", "20 % off"), (1 / 1.2, "dot", "")):
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[end * factor for end in ends],
                mode="lines",
                line={"color": _LINE, "width": 1, "dash": dash},
                name=name,
                showlegend=bool(name),
                hoverinfo="skip",
            )
        )
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row_id, row in predictions.items():
        groups.setdefault(row["source"], []).append((row_id, row))
    for index, (source, rows) in enumerate(sorted(groups.items(), key=lambda item: -len(item[1]))):
        figure.add_trace(
            go.Scatter(
                x=[row["measured_s"] for _, row in rows],
                y=[row["predicted_s"] for _, row in rows],
                mode="markers",
                name=f"{source} ({len(rows)})",
                marker={"size": 6, "opacity": 0.75, "color": _COLOURS[index % len(_COLOURS)], "symbol": _SYMBOLS[index % len(_SYMBOLS)]},
                text=[_hover(row_id, row) for row_id, row in rows],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    axis = {"type": "log", "dtick": 1, "exponentformat": "none"}
    figure.update_layout(
        height=620, xaxis={**axis, "title": "measured, s"}, yaxis={**axis, "title": "predicted, s"}, legend={"itemsizing": "constant"}
    )
    return figure


def _hover(row_id: str, row: Mapping[str, Any]) -> str:
    error = row["predicted_s"] / row["measured_s"] - 1.0
    return (
        f"<b>{row_id}</b><br>{row['model']} on {row['gpu']}<br>{row['what']}<br>"
        f"measured {row['measured_s']:.4g} s, predicted {row['predicted_s']:.4g} s ({error:+.1%})<br>"
        f"80 %: {row['low_s']:.4g} to {row['high_s']:.4g} s, {row['mark']}"
    )


def distribution(summary: Mapping[str, Any]) -> go.Figure:
    """Histograms of the signed errors, ours over the baseline's; what lies beyond -100 .. +100 % counts at the edge."""
    rows, mfu = summary["predictions"].values(), summary["baseline_constant_mfu"]["mfu"]
    ours = [row["predicted_s"] / row["measured_s"] - 1.0 for row in rows]
    base = [row["ideal_s"] / mfu / row["measured_s"] - 1.0 for row in rows if row["ideal_s"] > 0 and mfu > 0]
    figure = go.Figure()
    for name, errors, colour in (("one MFU for everything", base, "#C9A25F"), ("StepTwin", ours, "#0072B2")):
        figure.add_trace(
            go.Histogram(
                x=[max(-99.0, min(99.0, 100 * error)) for error in errors],
                xbins={"start": -100, "end": 100, "size": 4},
                name=name,
                marker_color=colour,
                opacity=0.65,
                hovertemplate="%{x} %: %{y} rows<extra>" + name + "</extra>",
            )
        )
    figure.update_layout(
        barmode="overlay", height=320, xaxis_title="error, %", yaxis_title="rows", legend={"orientation": "h", "y": 1.1}, bargap=0.04
    )
    return figure


def _group_rows(summary: Mapping[str, Any], name: str) -> list[tuple[str, ...]]:
    base, held = summary["baseline_constant_mfu"].get(f"by_{name}", {}), summary["interval"][f"by_{name}"]
    rows: list[tuple[str, ...]] = []
    for key, one in summary[f"by_{name}"].items():
        beside = f"{base[key]['mape']:.1%}" if key in base else "-"
        rows.append(
            (key, str(one["rows"]), f"{one['mape']:.1%}", f"{one['median_ape']:.1%}", f"{one['bias']:+.1%}", beside, f"{held[key]:.0%}")
        )
    return rows


def _intervals(page: Page, summary: Mapping[str, Any]) -> None:
    page.section(
        "How sure a prediction is",
        "interpolated: device, sizes and kernels lie within the data that costs were fitted on. extrapolated: they do not, or more rests on "
        "assumed costs. The 80 % interval should hold 75 to 85 % of the measurements.",
    )
    marks = [row["mark"] for row in summary["predictions"].values()]
    page.table(
        ("mark", "rows", "in 80 % interval"),
        [(name, str(marks.count(name)), f"{share:.0%}") for name, share in summary["interval"]["by_mark"].items()],
    )


def _ranks(page: Page, summary: Mapping[str, Any]) -> None:
    page.section(
        "Does it choose the right plan?",
        "Spearman's rank correlation of predicted and measured, for each model and GPU with at least six different plans: by step time, and "
        "by throughput of a GPU, which takes the batch size out.",
    )
    rate = summary["rank_correlation_throughput"]
    ranked = sorted(summary["rank_correlation"].items(), key=lambda item: item[1])
    page.table(
        ("model and GPU", "step time", "throughput"),
        [(name, f"{value:.3f}", f"{rate[name]:.3f}" if name in rate else "-") for name, value in ranked],
    )


def _misses(page: Page, summary: Mapping[str, Any]) -> None:
    page.section(
        "Rows that stay off",
        "The largest errors, with where the predicted time goes, what the row leaves open, and how far measurements of the same plan differ.",
    )
    page.table(
        ("row, and what its prediction rests on", "model", "GPU", "measured", "predicted", "error"),
        [
            (
                f"{one['row_id']}: {_why(one)}",
                one["model"],
                one["gpu"],
                f"{one['measured_s']:.4g} s",
                f"{one['predicted_s']:.4g} s",
                f"{one['error']:+.0%}",
            )
            for one in summary["worst"]
        ],
    )


def _why(one: Mapping[str, Any]) -> str:
    parts = [", ".join(one.get("spent_on", ()))]
    again = one.get("measured_again")
    if again:
        parts.append(f"the same plan was measured {again:.0%} apart")
    return "; ".join(part for part in (*parts, *one["assumed"]) if part)


def _refusals(page: Page, summary: Mapping[str, Any]) -> None:
    page.section("Refused", "Rows that have no prediction, by reason; they count against coverage.")
    reasons: dict[str, list[str]] = {}
    for one in summary["refused"]:
        reasons.setdefault(one["reason"], []).append(one["row_id"])
    page.table(
        ("reason", "rows", "which"),
        [(reason, str(len(ids)), _few(ids)) for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))],
    )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")
