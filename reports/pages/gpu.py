"""The page of `steptwin here --gpu`: what was predicted, played and trained on a GPU, plan by plan and class by class.

It is made from the mapping in `summary.json`, so it can be drawn again from a committed file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.page import Card, Page
from reports.words import gib, seconds
from sim.files.runs import write_atomic

TARGETS = {"uncalibrated": 0.08, "calibrated": 0.04, "ops_within": 0.9}
"""The project's targets: mean error of the step, and the share of the time in ops within 10 %."""
_FILES = (("predicted", "predicted.json.gz"), ("played", "played.json.gz"), ("stock", "stock.json.gz"))


def gpu_page(found: Mapping[str, Any], linked: bool = True) -> str:
    """The file's text. `found`: the mapping of `summary.json` (`executor.validation.gpu_twin`); `linked`: the traces are beside the
    page."""
    device, total = found["device"], found["summary"]
    name = device.get("name", "GPU")
    page = Page(
        f"Predicted and measured on {name}",
        f"{total['plans']} plans, {total['measured']} of them measured. Errors are (predicted - measured) / measured of the step time. "
        f"Driver {device.get('driver', 'unknown')}, torch {found['environment']['packages'].get('torch', 'unknown')}, "
        f"Python {found['environment']['python']}, {found['gpus']} GPU(s).",
    )
    page.cards(_headline(total))
    page.warnings([f"{plan}: {why}" for plan, why in sorted(total["failed"].items())])
    page.section(
        "Plan by plan",
        "uncalibrated: from the catalog alone. calibrated: kernels measured on this GPU by the probe. played: the predicted program, op by "
        "op. stock: PyTorch's own training. Medians, with the 10th and 90th percentile of the stock steps.",
    )
    head = ("plan", "kind", "model", "ranks", "uncalibrated", "calibrated", "played", "stock", "p10 to p90", "uncal. / stock", "cal. / stock", "cal. / played", "ops within 10 %", "memory, predicted / stock", "SM clock", "made with")  # fmt: skip
    page.table(head, [_row(row) for row in found["rows"]])
    if found["probed"]:
        page.section("What the probe found", "The best rate of each kind; all points stand in the calibration file.")
        page.table(
            ("calibration", "what", "rate"),
            [(file, what, f"{rate:.3g}") for file, of in found["probed"].items() for what, rate in of.items()],
        )
    page.section("By class of op", "Calibrated predictions against the played programs, summed over all plans.")
    page.table(
        ("class", "played", "calibrated off by"),
        [(cls, seconds(played), f"{error:+.1%}") for cls, played, error in total["classes"]],
    )
    page.section("By class of op, plan by plan", "Milliseconds of a step in ops of each class; the classes with most time.")
    page.table(("plan", "class", "uncalibrated", "calibrated", "played", "stock"), _classes(found["rows"]))
    notes = [(row["plan"], note) for row in found["rows"] for note in row["notes"]]
    if notes:
        page.section("To be read with the figures")
        page.table(("plan", "note"), notes)
    refused = [(row["plan"], what, why) for row in found["rows"] for what, why in row["refused"].items()]
    if refused:
        page.section("What cannot be run", "Plans of which one of the two runs does not exist, and why.")
        page.table(("plan", "run", "reason"), refused)
    for row in found["rows"] if linked else ():
        for word, file in _FILES:
            if row.get("played") if word == "played" else row.get("stock") if word == "stock" else row.get("uncalibrated"):
                page.link(f"{row['plan']}, {word}:", f"{row['plan']}/{file}", "opens in Perfetto.")
    return page.text("Made by StepTwin. Times are of one optimizer step; GiB = 2^30 bytes.")


def _headline(total: Mapping[str, Any]) -> list[Card]:
    def share(value: float | None) -> str:
        return f"{value:.1%}" if value is not None else "-"

    return [
        (share(total["uncalibrated"]), "mean error, uncalibrated", f"target {TARGETS['uncalibrated']:.0%}"),
        (share(total["calibrated"]), "mean error, calibrated", f"target {TARGETS['calibrated']:.0%}"),
        (share(total["against_played"]), "calibrated against played", "the cost model alone: the program is the same"),
        (share(total["ops_within"]), "of the time in ops within 10 %", f"target {TARGETS['ops_within']:.0%}"),
        (f"{total['measured']} of {total['plans']}", "plans measured", f"{len(total['failed'])} with something missing"),
    ]


def _row(row: Mapping[str, Any]) -> Sequence[str]:
    stock, played = row["stock"], row["played"]
    spread = f"{seconds(stock['low'])} to {seconds(stock['high'])}" if stock else "-"
    clock = row["clocks"].get("sm_mhz")
    return (
        row["plan"],
        row["kind"],
        row["model"],
        str(row["ranks"]),
        _time(row["uncalibrated"]),
        _time(row["calibrated"]),
        _time(played and played["median"]),
        _time(stock and stock["median"]),
        spread,
        _off(row["uncalibrated"], stock),
        _off(row["calibrated"], stock),
        _off(row["played_predicted"] if row["calibrated"] else None, played),
        f"{row['ops_within']:.0%}" if row["ops_within"] is not None else "-",
        f"{gib(row['predicted_memory'])} / {gib(row['stock_memory']) if row['stock_memory'] else '-'}",
        f"{clock:.0f} MHz" if clock else "-",
        ", ".join(f"{what} {version}" for what, version in row.get("made_with", {}).items() if version) or "-",
    )


def _time(value: float | None) -> str:
    return seconds(value) if value is not None else "-"


def _off(predicted: float | None, measured: Mapping[str, float] | None) -> str:
    return f"{predicted / measured['median'] - 1.0:+.1%}" if predicted is not None and measured else "-"


def _classes(rows: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    def show(value: float | None) -> str:
        return f"{value * 1e3:.3f}" if value is not None else "-"

    return [
        (row["plan"], one["cls"], *(show(one[key]) for key in ("uncalibrated", "calibrated", "played", "stock")))
        for row in rows
        for one in row["classes"]
    ]


def main(words: Sequence[str]) -> int:
    """`python -m reports.pages.gpu SUMMARY.json`: draws the page beside the file. A committed one has no traces beside it."""
    source = Path(words[0])
    linked = any(source.parent.glob("*/*.json.gz"))
    print(write_atomic(source.with_name("report.html"), gpu_page(json.loads(source.read_text("utf-8")), linked)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
