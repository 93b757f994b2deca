"""Writes a run's folder: plan, program, traces, summary, environment and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.pages.capacity import capacity_page
from reports.pages.collective import collective_page
from reports.pages.comparison import comparison_page
from reports.pages.gpu import gpu_page
from reports.pages.prediction import prediction_page
from reports.pages.studies import explain_page, faults_page, jobs_page, spread_page
from reports.pages.sweep import sweep_page
from reports.pages.topology import topology_page
from reports.pages.validation import validation_page
from reports.scene import scene
from sim.align import Comparison
from sim.files.chrome import write_run
from sim.files.inputs import forget_other_plan, write_inputs
from sim.files.nccl import wires_of
from sim.files.runs import write_atomic, write_json
from sim.plan import Plan
from sim.program import Program
from sim.trace import Trace
from topologies.graph import Topology

PREDICTED = "predicted.json.gz"
"""The full predicted trace's name in a run's folder."""


def write_prediction(
    folder: Path,
    plan: Plan,
    program: Program | None,
    summary: Mapping[str, Any],
    trace: Trace,
    topology: Topology | None = None,
    beside: Mapping[str, str] | None = None,
) -> Path:
    """Writes a prediction's folder; returns the report's path. `topology`: the machine of the prediction, to show it and its link use;
    None: they are left out. `beside`: see `write_inputs`."""
    forget_other_plan(folder, plan)
    write_inputs(folder, plan, program, beside)
    write_json(folder / "summary.json", dict(summary))
    write_run(trace, folder, wires_of(plan))
    seen = scene(plan, program, trace, topology, PREDICTED)
    return write_atomic(folder / "report.html", prediction_page(plan.name or plan.model_name, summary, trace, seen))


def write_comparison(
    folder: Path,
    plan: Plan,
    program: Program | None,
    result: Mapping[str, Any],
    traces: Sequence[Trace],
    found: Mapping[str, Comparison],
    times: Mapping[str, Sequence[float]],
    beside: Mapping[str, str] | None = None,
    topology: Topology | None = None,
) -> Path:
    """Writes a twin's folder: all traces, the comparison and the report, whose path is returned. `result`: what `--json` prints: the
    figures of the prediction and of the runs, and the notes; `beside` and `topology`: as in `write_prediction`."""
    if all(trace.origin != "imported" for trace in traces):  # an imported trace may be in this folder, and must not be deleted
        forget_other_plan(folder, plan)
    write_inputs(folder, plan, program, beside)
    write_json(folder / "summary.json", dict(result))
    for trace in traces:
        write_run(trace, folder, None if trace.origin == "imported" else wires_of(plan))
    seen = scene(plan, program, traces[0], topology, PREDICTED)
    page = comparison_page(plan.name or plan.model_name, result["prediction"], traces, found, times, result["notes"], seen)
    return write_atomic(folder / "report.html", page)


def _single(page: Callable[..., str]) -> Callable[..., Path]:
    """A function that writes a page as one file and returns its path."""

    return lambda path, *parts: write_atomic(path, page(*parts))


WRITERS: dict[str, Callable[..., Path]] = {
    "prediction": write_prediction,
    "comparison": write_comparison,
    "sweep": _single(sweep_page),
    "validation": _single(validation_page),
    "capacity": _single(capacity_page),
    "topology": _single(topology_page),
    "collective": _single(collective_page),
    "explain": _single(explain_page),
    "faults": _single(faults_page),
    "jobs": _single(jobs_page),
    "spread": _single(spread_page),
    "gpu": _single(gpu_page),
}
"""Kind of page -> its writer for the command line. A writer takes the path (a folder for runs, else a file) and then what to draw, and
returns the page's path."""
