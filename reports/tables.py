"""Results on a terminal: short tables by rich, plain when the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from reports.palette import WORDS

_WIDE = 130
"""Columns of text where the output is no terminal."""


def show(value: Mapping[str, Any], kind: str) -> None:
    """Prints a result of the command line; `kind` chooses the layout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDE)
    layout = {"prediction": _prediction, "comparison": _comparison}.get(kind)
    if layout is None:
        _plain(console, value, kind)
    else:
        layout(console, value)


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column.removesuffix("_s"), justify="left" if index == 0 else "right", overflow="fold")
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms" if seconds < 1 else f"{seconds:,.3f} s"


def _prediction(console: Any, value: Mapping[str, Any]) -> None:
    table = _table(f"{value['model']['name']} on {value['topology']} ({value['gpus']} ranks)", "prediction", "")
    table.add_row("step time", _ms(value["step_time_s"]))
    if "interval_s" in value:
        low, high, level = (value["interval_s"][key] for key in ("low", "high", "level"))
        table.add_row(f"{level:.0%} interval, {value['mark']}", f"{_ms(low)} to {_ms(high)}")
    for unit in ("tokens", "samples"):
        if f"{unit}_per_s_per_gpu" in value:
            table.add_row(f"{unit} per second", f"{value[f'{unit}_per_s']:,.1f}")
            table.add_row(f"{unit} per second and GPU", f"{value[f'{unit}_per_s_per_gpu']:,.1f}")
    table.add_row("model FLOP rate per GPU", f"{value['model_flops_per_gpu_per_s'] / 1e12:,.2f} TFLOP/s")
    if value["mfu"] is not None:
        table.add_row("MFU", f"{value['mfu']:.1%}")
    table.add_row("peak memory", f"{value['peak_memory_bytes'] / 2**30:,.2f} GiB" + ("" if value["fits"] else "  DOES NOT FIT"))
    console.print(table)
    step = value["step_time_s"] or 1.0
    split = _table("where the step goes", "class", "time", "share")
    for name, seconds in sorted(value["breakdown"].items(), key=lambda pair: -pair[1]):
        if seconds > 0:
            split.add_row(WORDS.get(name, name), _ms(seconds), f"{seconds / step:.1%}")
    console.print(split)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in value["sources"].items() if share > 0)
    console.print(f"costs rest on: {shares}")
    if value["does_not_fit"]:
        console.print(f"does not fit: {value['does_not_fit']}")
    for reason in value.get("mark_reasons", ()):
        console.print(f"extrapolated: {reason}")
    for warning in value["warnings"]:
        console.print(f"warning: {warning}")


def _comparison(console: Any, value: Mapping[str, Any]) -> None:
    table = _table("predicted against measured", "run", "predicted", "measured", "p10 - p90", "steps", "error")
    for name, found in value["runs"].items():
        measured = found["measured_step"]
        table.add_row(
            name,
            _ms(found["predicted_step"]),
            _ms(measured["median"]),
            f"{_ms(measured['low'])} - {_ms(measured['high'])}",
            str(measured["count"]),
            f"{found['error']:+.1%}",
        )
    console.print(table)
    for name, found in value["runs"].items():
        split = _table(f"by class of op, {name} (per step and rank)", "class", "predicted", "measured", "error")
        for row in found["classes"]:
            error = f"{row['error']:+.0%}" if row["error"] is not None else "not measured"
            split.add_row(row["cls"], _ms(row["predicted"]), _ms(row["measured"]), error)
        console.print(split)
    for note in value.get("notes", []):
        console.print(note)


_SHARES = ("mfu", "cpu_busy", "gain", "error", "mape", "median_ape", "p90", "bias", "left_out", "target", "slowdown")
"""Columns that hold a share of one."""


def _cell(name: str, value: Any) -> str:
    """A value in the unit that its column's name tells: seconds, bytes, shares."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if name.endswith(("_s", "step_time")) or name in ("predicted", "measured", "low", "high"):
        return _ms(value)
    if name == "memory":
        return f"{value / 2**30:.1f} GiB"
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(console: Any, value: Mapping[str, Any], kind: str) -> None:
    rows = value.get("rows")
    if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], dict):
        table = _table(kind, *rows[0])
        for row in rows:
            table.add_row(*(_cell(name, cell) for name, cell in row.items()))
        console.print(table)
        value = {key: item for key, item in value.items() if key != "rows"}
    for key, item in value.items():
        if isinstance(item, list) and item and not isinstance(item[0], dict):
            console.print(f"{key}: " + "  ".join(map(str, item)))
        elif isinstance(item, dict):
            table = _table(key, "", "")
            for name, inner in item.items():
                table.add_row(str(name), f"{inner:.4g}" if isinstance(inner, float) else str(inner))
            console.print(table)
        else:
            console.print(f"{key}: {item:.4g}" if isinstance(item, float) else f"{key}: {item}")
