"""What a run or a prediction was made from, in its folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from sim.files.kept import kept
from sim.files.owned import PLAN, is_own, write_own
from sim.files.planfile import dump_plan, load_plan
from sim.files.runs import environment, write_atomic, write_json
from sim.files.text import show_program
from sim.plan import Plan
from sim.program import Program
from topologies.errors import SteptwinError

BEFORE = "before"
"""Folder in a run's folder, of what runs of another plan left there."""
_ORIGINS = ("predicted", "played", "stock", "imported")
_RESULTS = (
    *("summary.json", "summary-stock.json", "summary-play.json", "report.html", "program.txt"),
    *(f"{origin}.json.gz" for origin in _ORIGINS),
    *(f"hta/{origin}/rank*.json.gz" for origin in _ORIGINS),
)
"""Files of a run's folder that are of its plan."""


def forget_other_plan(folder: Path, plan: Plan) -> None:
    """Moves what runs or a prediction of another plan left in the folder that now holds one of `plan` into `before` there, with that plan: who
    compares would take that one's trace for this one's. What lies beside a plan that StepTwin did not write is nobody's to move."""
    path = folder / PLAN
    if not path.exists() or not is_own(path) or _same(path, plan):
        return
    for name in (PLAN, *_RESULTS):
        for old in folder.glob(name):
            there = folder / BEFORE / old.relative_to(folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            old.replace(there)


def _same(path: Path, plan: Plan) -> bool:
    """Whether a run's plan is this one, whatever it is called."""
    try:
        return replace(load_plan(path), name="") == replace(load_plan(tomllib.loads(dump_plan(kept(plan)))), name="")
    except SteptwinError:  # of another version
        return False


def write_inputs(folder: Path, plan: Plan, program: Program | None, beside: Mapping[str, str] | None = None) -> None:
    """The plan, what a rerun needs beside it (the machine, a calibration: texts by name) and the program, as text that can be diffed."""
    for name, text in {PLAN: dump_plan(kept(plan)), **(beside or {})}.items():
        write_own(folder / name, text)
    if program is not None:
        write_atomic(folder / "program.txt", show_program(program))
    write_json(folder / "environment.json", environment())
