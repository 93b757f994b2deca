"""Writes the executed notebook `example.ipynb`: `python -m reports.example`. It is plain JSON; Jupyter is not needed.

Cells run one after the other in one namespace; what a cell prints and the value of its last line are stored as Jupyter does.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

from sim.files.runs import write_atomic

NOTEBOOK = Path(__file__).with_suffix(".ipynb")
CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        "# StepTwin in a notebook\n\nHow long does a training step take, on a machine that is not here? Everything below runs on a laptop.",
    ),
    ("code", "import steptwin"),
    (
        "markdown",
        "## Predict\n\nA shipped plan (`steptwin plan list`), or a mapping in the form of a plan file; the second name is the machine.",
    ),
    ("code", 'found = steptwin.predict("llama3-8b-fsdp8", "dgx-h100")\nfound'),
    ("markdown", "`figure()` is the timeline; other figures go by name: `breakdown`, `memory`, `sources`."),
    ("code", 'found.figure("breakdown")'),
    ("markdown", "## What if\n\nEvery link, device and switch of the machine can be changed. Half and a quarter of the NVLink rate:"),
    (
        "code",
        'for rate in (450, 225, 112):\n    slower = steptwin.predict("llama3-8b-fsdp8", "dgx-h100", edits=(f"link.nvlink.rate={rate} GB/s",))\n'
        '    print(f"NVLink at {rate} GB/s: {slower.step_time_s * 1e3:.0f} ms a step")',
    ),
    ("markdown", "## The machine"),
    ("code", 'machine = steptwin.topology("dgx-h100")\nmachine'),
    ("code", "machine.figure()"),
    ("markdown", "## Sweep\n\nEvery plan of a space, memory first, then simulation."),
    (
        "code",
        "import tempfile\nfrom pathlib import Path\n\nfolder = Path(tempfile.mkdtemp())\n"
        'plans = steptwin.sweep("llama3-8b-fsdp8", "tp=1,2,4 micro=1,2 recompute=none,full gpus=8", "dgx-h100", folder / "sweep.sqlite")\nplans',
    ),
    ("code", 'plans.figure("pareto")'),
    (
        "markdown",
        "## Compare\n\n`steptwin.compare` lays a prediction beside a trace of your own run (torch.profiler's `.json` or `.json.gz`). "
        "There is no GPU here, so a prediction with slow NVLink plays the measured run.",
    ),
    (
        "code",
        "from sim.files.chrome import write_trace\n\n"
        'measured = write_trace(slower.trace, folder / "measured.json.gz")\ncompared = steptwin.compare(found, measured)\ncompared',
    ),
    ("code", "compared.figure()"),
)


def execute(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Runs one cell in the namespace `names`. Returns (what it printed, the value of its last line or None)."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return printed.getvalue(), value


def shown_as(value: Any) -> dict[str, Any]:
    """MIME type -> representation of a value, as Jupyter stores it."""
    if hasattr(value, "to_plotly_json"):
        return {"application/vnd.plotly.v1+json": json.loads(value.to_json()), "text/plain": ["a Plotly figure"]}
    if hasattr(value, "_repr_html_"):
        return {"text/html": [value._repr_html_()], "text/plain": [type(value).__name__]}
    return {"text/plain": [repr(value)]}


def notebook() -> dict[str, Any]:
    """The notebook as its JSON object, every code cell executed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for at, (kind, source) in enumerate(CELLS):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{at}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            number += 1
            printed, value = execute(source, names)
            outputs: list[dict[str, Any]] = []
            if printed:
                outputs.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
            if value is not None:
                outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown_as(value)})
            cell |= {"execution_count": number, "outputs": outputs}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    print(write_atomic(NOTEBOOK, json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n"))
