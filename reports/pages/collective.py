"""The page of a collective: predicted bandwidth over size, as nccl-tests prints it, with the chosen algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.collective import bandwidth, times
from reports.page import Card, Page
from reports.words import ranks, seconds


def collective_page(found: Mapping[str, Any]) -> str:
    """The file's text. `found`: what `sim.cost.collective.table.collective_table` returns."""
    rows: Sequence[Mapping[str, Any]] = found["rows"]
    page = Page(
        f"{found['collective']} on {ranks(found['ranks'])} of {found['topology']}",
        "Predicted, in the words of nccl-tests: algbw is size over time; busbw counts what each rank's link carries, so that it compares to the hardware.",
    )
    page.cards(_cards(rows))
    page.section(
        "Bandwidth over size",
        "Colours name the algorithm, signs the protocol (circle Simple, square LL128, diamond LL: NCCL's ways to send, the later ones for ever smaller messages). "
        "Hover for times.",
    )
    page.figure(bandwidth(rows))
    page.section("Time over size", "Flat where latency counts, straight where bandwidth does. Both axes are logarithmic.")
    page.figure(times(rows))
    page.section("Table")
    page.table(
        ("size", "time", "algbw", "busbw", "algorithm", "protocol"),
        [
            (
                r["size"],
                seconds(r["time_us"] * 1e-6),
                _rate(r["algbw_GBps"]),
                _rate(r["busbw_GBps"]),
                r["algorithm"],
                r["protocol"],
            )
            for r in rows
        ],
    )
    return page.text("Made by StepTwin. GB/s = 1e9 bytes per second; sizes count the whole array, as nccl-tests does; KiB = 2^10 bytes.")


def _rate(value: float) -> str:
    """A rate in GB/s with two decimals; MB/s below 1 GB/s."""
    return f"{value:,.2f} GB/s" if value >= 1 else f"{value * 1e3:,.2f} MB/s"


def _cards(rows: Sequence[Mapping[str, Any]]) -> list[Card]:
    first, last = rows[0], rows[-1]
    best = max(rows, key=lambda r: r["busbw_GBps"])
    half = next(r for r in rows if r["busbw_GBps"] >= best["busbw_GBps"] / 2)
    return [
        (_rate(best["busbw_GBps"]), "best busbw", f"at {best['size']}, {best['algorithm']} {best['protocol']}"),
        (seconds(first["time_us"] * 1e-6), f"time of {first['size']}", f"latency; {first['algorithm']} {first['protocol']}"),
        (seconds(last["time_us"] * 1e-6), f"time of {last['size']}", f"{_rate(last['algbw_GBps'])} algbw"),
        (str(half["size"]), "half of the best busbw from here on", _rate(half["busbw_GBps"])),
    ]
