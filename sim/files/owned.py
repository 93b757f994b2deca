"""Text files of a run's folder that people also write by hand: StepTwin marks its own, and overwrites no other."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from sim.files.planfile import dump_plan, load_plan
from sim.files.runs import write_atomic
from topologies.errors import BadInput, SteptwinError

PLAN = "plan.toml"
"""The plan's name in a run's folder."""
CALIBRATION = "calibration.toml"
"""That of the calibration that a prediction rests on."""
_MARK = "# written by steptwin"
_LARGEST = 64 << 20
"""Bytes of a file that may be ours: a calibration has some hundred kilobytes."""


def marked(text: str) -> str:
    """`text` below a line that says whose it is, and by a digest that it is as it was written."""
    return f"{_MARK}, {_digest(text)}; what is changed here is not overwritten\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_own(path: Path) -> bool:
    """Whether the file is not there, or is as StepTwin wrote it: by its mark, or (a run's, which has none) as a plan in StepTwin's own words
    beside the environment that it ran in."""
    if not os.path.lexists(path):
        return True
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    first, _, rest = text.partition("\n")
    if first.startswith(_MARK):
        return marked(rest) == text
    return path.name == PLAN and (path.parent / "environment.json").is_file() and _plain_words(text)


def _plain_words(text: str) -> bool:
    """A plan exactly as `dump_plan` writes it, without a comment."""
    try:
        return dump_plan(load_plan(tomllib.loads(text))) == text
    except (SteptwinError, ValueError, RecursionError):
        return False


def check_folder(folder: Path, source: str, names: Iterable[str] = ()) -> None:
    """Raises `BadInput` where the files of a run (its plan, and `names`) would overwrite what somebody wrote by hand: the plan `source` that is
    read, or a file that is not as StepTwin wrote it."""
    for name in (PLAN, *names):
        path = folder / name
        advice = f"Name another folder, e.g. --out {Path('runs') / (Path(source).stem or 'mine')}"
        if path.exists() and os.path.exists(source) and path.samefile(source):
            raise BadInput(f"--out {folder}: the plan {source} lies there itself, and the run's {name} would overwrite it. {advice}")
        if not is_own(path):
            raise BadInput(f"--out {folder}: {path} was not written by StepTwin, or was changed since, and would be overwritten. {advice}")


def calibration_beside(file: Path, folder: Path) -> dict[str, str]:
    """The calibration's text by its name in a run's folder; nothing where it lies there already, or is no text (who reads it says so)."""
    there = folder / CALIBRATION
    try:
        text = file.read_text("utf-8")
        return {} if there.exists() and there.samefile(file) else {CALIBRATION: text}
    except (OSError, UnicodeDecodeError):
        return {}


def write_own(path: Path, text: str) -> Path:
    """Writes a marked file; what is there and not ours is left alone, and ours goes beside it (`plan.steptwin.toml`). Returns the path."""
    place = path if is_own(path) else path.with_name(f"{path.stem}.steptwin{path.suffix}")
    return write_atomic(place, marked(text))
