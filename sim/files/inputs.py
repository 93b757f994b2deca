"""What a run or a prediction was made from, in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim.files.kept import kept
from sim.files.owned import PLAN, write_own
from sim.files.planfile import dump_plan
from sim.files.runs import environment, write_atomic, write_json
from sim.files.text import show_program
from sim.plan import Plan
from sim.program import Program


def write_inputs(folder: Path, plan: Plan, program: Program | None, beside: Mapping[str, str] | None = None) -> None:
    """The plan, what a rerun needs beside it (the machine, a calibration: texts by name) and the program, as text that can be diffed."""
    for name, text in {PLAN: dump_plan(kept(plan)), **(beside or {})}.items():
        write_own(folder / name, text)
    if program is not None:
        write_atomic(folder / "program.txt", show_program(program))
    write_json(folder / "environment.json", environment())
