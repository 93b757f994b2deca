"""The page of `steptwin validate`: predictions against published steps, beside a baseline, and with the missed targets.

It is made from the mapping that `steptwin validate --json` prints, so it can be drawn again from a saved file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.published import distribution, scatter
from reports.page import Page
from reports.targets import TARGETS, missed


def validation_page(summary: Mapping[str, Any]) -> str:
    """The file's text. `summary`: `ValidationResult.to_dict()`."""
    page = Page(
        "Predicted against published training steps",
        f"{summary['scored']} published steps predicted from plan and machine alone; {len(summary['refused'])} refused. "
        "Errors are (predicted - measured) / measured of the step time.",
    )
    page.cards(_headline(summary))
    page.warnings(missed(summary))
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
        "by throughput of a GPU, which takes the batch size out. Measured again: what the same plans would reach if they were measured once "
        "more, with the scatter of those that were: no prediction is expected to rank better.",
    )
    again = summary["rank_correlation_measured_again"]
    rate = summary["rank_correlation_throughput"]
    ranked = sorted(summary["rank_correlation"].items(), key=lambda item: item[1])
    page.table(
        ("model and GPU", "step time", "measured again", "throughput"),
        [(name, f"{value:.3f}", f"{again[name]:.3f}" if name in again else "-", f"{rate[name]:.3f}") for name, value in ranked],
        "None of these rows' models was measured with six different plans on one GPU.",
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
        "None: every row has a prediction.",
    )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")
