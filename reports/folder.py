"""Writes a run's folder: plan, program, traces, summary, environment and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.comparison import comparison_page, prediction_page
from reports.validation import write_validation
from sim.align import Comparison
from sim.chrome import write_trace
from sim.plan import Plan
from sim.planfile import dump_plan
from sim.program import Program
from sim.runs import environment, write_atomic, write_json
from sim.text import show_program
from sim.trace import Trace


def write_inputs(folder: Path, plan: Plan, program: Program | None) -> None:
    """The plan and the program, as text that can be diffed."""
    write_atomic(folder / "plan.toml", dump_plan(plan))
    if program is not None:
        write_atomic(folder / "program.txt", show_program(program))
    write_json(folder / "environment.json", environment())


def write_prediction(folder: Path, plan: Plan, program: Program | None, summary: Mapping[str, Any], trace: Trace) -> Path:
    """A prediction's folder; returns the report's path."""
    write_inputs(folder, plan, program)
    write_json(folder / "summary.json", dict(summary))
    write_trace(trace, folder / "predicted.json.gz")
    return write_atomic(folder / "report.html", prediction_page(plan.name or plan.model_name, summary, trace))


def write_comparison(
    folder: Path,
    plan: Plan,
    program: Program | None,
    summary: Mapping[str, Any],
    traces: Sequence[Trace],
    found: Mapping[str, Comparison],
    times: Mapping[str, Sequence[float]],
    result: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Path:
    """A twin's folder: all traces, the comparison and the report, whose path is returned."""
    write_inputs(folder, plan, program)
    write_json(folder / "summary.json", {"prediction": dict(summary), "comparison": dict(result)})
    for trace in traces:
        write_trace(trace, folder / f"{trace.origin}.json.gz")
    text = comparison_page(plan.name or plan.model_name, summary, [t for t in traces if t.origin != "stock"], found, times, notes)
    return write_atomic(folder / "report.html", text)


WRITERS: dict[str, Callable[..., Path]] = {"prediction": write_prediction, "comparison": write_comparison, "validation": write_validation}
"""What the command line writes, by kind: each takes where to write, then what to draw, and returns the page's path."""
