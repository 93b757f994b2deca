"""Results on a terminal as short tables: by rich, or as plain text if the output is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from reports.figures.palette import WORDS
from reports.words import gib, ranks, rate, seconds
from sim.result.prediction import clock_words
from sim.tables import aligned, wordy
from topologies.units import show_count, show_energy, show_flops


class Listing:
    """A table: a title, a head, and rows of text."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title, self.head, self.rows = title, tuple(_name(column) for column in columns), list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        """Adds a row, a cell for each column."""
        self.rows.append(cells)

    def __str__(self) -> str:
        return f"{self.title}\n{aligned(self.head, self.rows)}\n"


class Pipe:
    """Output that is not a terminal: plain text, without rich, which takes 50 ms to load."""

    def print(self, item: object) -> None:
        """Writes a table or a line."""
        print(item)


class Screen:
    """A terminal: rich fits tables to its width; same interface as `Pipe`."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False)

    def print(self, item: object) -> None:
        """Writes a table or a line."""
        self._console.print(_drawn(item) if isinstance(item, Listing) else item)


def _drawn(listing: Listing) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=listing.title, box=box.SIMPLE_HEAD, title_justify="left")
    for index, column in enumerate(listing.head):
        table.add_column(column, justify="left" if index == 0 or wordy(row[index] for row in listing.rows) else "right", overflow="fold")
    for row in listing.rows:
        table.add_row(*row)
    return table


def show(value: Mapping[str, Any], kind: str) -> None:
    """Prints a result of the command line; `kind` chooses the layout."""
    console = Screen() if sys.stdout is not None and sys.stdout.isatty() else Pipe()  # None: closed by the shell
    layout = {"prediction": _prediction, "comparison": _comparison}.get(kind)
    if layout is None:
        _plain(console, value, kind)
    else:
        layout(console, value)


def _ms(value: float) -> str:
    """Seconds as text with three decimals: microseconds below 1 ms, milliseconds below 1 s."""
    if 0 < abs(value) < 1e-3:
        return f"{value * 1e6:,.3f} us"
    return f"{value * 1e3:,.3f} ms" if value < 1 else f"{value:,.3f} s"


def _prediction(console: Screen | Pipe, value: Mapping[str, Any]) -> None:
    table = Listing(f"{value['model']['name']} on {value['topology']} ({ranks(value['gpus'])})", "prediction", "")
    device = "GPU" if value["device"] == "cuda" else "rank"
    table.add_row("step time", _ms(value["step_time_s"]))
    if "interval_s" in value:
        low, high, level = (value["interval_s"][key] for key in ("low", "high", "level"))
        table.add_row(f"{level:.0%} interval, {value['mark']}", f"{_ms(low)} to {_ms(high)}")
    unit, kind = value["unit"], "tokens" if "tokens_per_s" in value else "samples"
    table.add_row(f"{unit} per second", rate(value[f"{kind}_per_s"]))
    table.add_row(f"{unit} per second and {device}", rate(value[f"{kind}_per_s_per_gpu"]))
    table.add_row(f"model FLOP rate per {device}", show_flops(value["model_flops_per_gpu_per_s"]))
    if value["mfu"] is not None:
        table.add_row("MFU", f"{value['mfu']:.1%}")
    every, active = value["model"]["parameters"], value["model"].get("active_parameters") or value["model"]["parameters"]
    table.add_row("model parameters", show_count(every) + f", {show_count(active)} active" * (active < every))
    table.add_row("peak memory", gib(value["peak_memory_bytes"]) + ("" if value["fits"] else "  DOES NOT FIT"))
    console.print(table)
    step = value["step_time_s"] or 1.0
    split = Listing("where the step goes", "class", "time", "share")
    for name, time in sorted(value["breakdown"].items(), key=lambda pair: -pair[1]):
        if time > 0:
            split.add_row(WORDS.get(name, name), _ms(time), f"{time / step:.1%}")
    console.print(split)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in value["sources"].items() if share > 0)
    console.print(f"costs rest on: {shares}")
    console.print(f"numbers: {value['numbers']}")
    if value["does_not_fit"]:
        missing = value["does_not_fit"]
        console.print(f"does not fit: needs {gib(missing['needed'])}, has {gib(missing['available'])}")
        for way in missing["remedies"] or ["nothing that was tried: spread it over more ranks (tp, pp), or take a smaller model"]:
            console.print(f"would fit: {way}")
    if "clock" in value:
        console.print(f"clock: {clock_words(value['clock'])}")
    for reason in value.get("mark_reasons", ()):
        console.print(f"extrapolated: {reason}")
    for warning in value["warnings"]:
        console.print(f"warning: {warning}")


def _comparison(console: Screen | Pipe, value: Mapping[str, Any]) -> None:
    for note in value.get("notes", []):  # first: they may say that what follows compares two different things
        console.print(f"note: {note}")
    table = Listing("predicted against measured", "run", "predicted", "measured", "p10 - p90", "steps", "error")
    for name, found in value["runs"].items():
        measured = found["measured_step_s"]
        table.add_row(
            name,
            _ms(found["predicted_step_s"]),
            _ms(measured["median"]),
            f"{_ms(measured['low'])} - {_ms(measured['high'])}",
            str(measured["count"]),
            f"{found['error']:+z.1%}",
        )
    console.print(table)
    for name, found in value["runs"].items():
        split = Listing(f"by class of op, {name} (per step and rank)", "class", "predicted", "measured", "error")
        for row in found["classes"]:
            error = f"{row['error']:+z.0%}" if row["error"] is not None else "not measured"
            split.add_row(row["cls"], _ms(row["predicted_s"]), _ms(row["measured_s"]), error)
        console.print(split)


_SHARES = ("mfu", "cpu_busy", "gain", "error", "mape", "median_ape", "p90", "bias", "left_out", "target", "goodput", "coverage", "ten_percent",
           "path_ten_percent", "mean_error", "worst_ape", "roofline", "baseline", "in_interval", "left_out_target", "source_out", "share")  # fmt: skip
"""Names of values that are shares of 1, shown in %."""
_SECONDS = (
    "predicted",
    "measured",
    "low",
    "high",
    "infinitely_fast",
    "p50",
    "p95",
    "p99",
    "mean",
    "median",
    "steps",
    "without",
    "step_time",
)
"""Names of values in seconds that do not end in `_s`. A whole number of such a name is a count."""


def _cell(name: str, value: Any) -> str:
    """A value as text, in the unit that follows from its name: seconds, bytes, shares, joules."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, (int, float)):
        return str(value)
    if (name.endswith("_s") and not name.endswith("_per_s")) or (name in _SECONDS and isinstance(value, float)):
        return _time(value)
    if name.endswith("memory"):
        return f"{value / 2**30:.1f} GiB"
    if name.endswith("energy_j"):
        return show_energy(value)
    if name == "slowdown":
        return f"{value:.3f} x"
    if name in _SHARES:
        return f"{value:z.1%}"
    if isinstance(value, int) or (abs(value) >= 1000 and value < 1e15):
        return f"{value:,.0f}"
    return f"{value:z.4g}"


def _time(value: float) -> str:
    """Seconds as text: as `_ms` for steps; minutes, hours and days for whole runs."""
    return _ms(value) if abs(value) < 1000 else seconds(value)


_HEADS = {"infinitely_fast": "step if infinitely fast", "ten_percent": "step if 10 % faster", "path_ten_percent": "by the path"}
"""Headings of columns whose names alone would not be clear."""


def _name(key: str) -> str:
    """The heading for a key: `gpu_hours` -> `gpu hours`. The unit is left out, as it is beside the value."""
    if key in _HEADS or key in WORDS:
        return _HEADS.get(key) or WORDS[key]
    return (key if key.endswith("_per_s") else key.removesuffix("_s").removesuffix("_j")).replace("_", " ")


def _plain(console: Screen | Pipe, value: Mapping[str, Any], kind: str) -> None:
    """Prints rows as a table and every other entry as a line; unknown values (None, "") are left out."""
    rows = value.get("rows")
    if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], dict):
        table = Listing(kind, *rows[0])
        for row in rows:
            table.add_row(*(_cell(name, cell) for name, cell in row.items()))
        console.print(table)
        value = {key: item for key, item in value.items() if key != "rows"}
    for key, item in value.items():
        if isinstance(item, dict):
            unit = "" if key == "counts" else None  # a count may have the name of a quantity: plans over memory
            words = (f"{_name(str(name))} {_cell(str(name) if unit is None else unit, inner)}" for name, inner in item.items())
            console.print(f"{_name(key)}: " + ", ".join(words))
        elif isinstance(item, (list, tuple)) and not (item and isinstance(item[0], dict)):
            console.print(f"{_name(key)}: " + "  ".join(_cell(key, one) for one in item))
        elif item is not None and item != "":
            console.print(f"{_name(key)}: {_cell(key, item)}")
