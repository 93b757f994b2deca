"""What README says of training runs that are not among the rows is what their shipped plans predict now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.predict import predict

ROOT = Path(__file__).parents[3]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("plan", "at"),
    [
        ("mt-nlg-530b-2k", 0),
        ("nemotron4-340b-6k", 2),
        ("deepseek-v3-2k", 0),
        ("gpt3-175b-12k", 4),
        ("llama2-70b-fsdp128", 3),
        ("bloom-176b-384", 0),
        ("glm-130b-768", 0),
        ("pythia-6.9b-128", 3),
    ],
)
def test_the_seconds_that_readme_shows(plan: str, at: int) -> None:
    """`at`: which of a row's sizes of machine the shipped plan is for."""
    row = next(line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("| ") and f"`{plan}`" in line)
    shown = re.findall(r"[\d.]+", row.rstrip("| ").rpartition("|")[2])[at]
    machine = re.search(r"^# Machine: (.+)$", (ROOT / "sim" / "presets" / f"{plan}.toml").read_text("utf-8"), re.MULTILINE)
    assert machine is not None
    assert predict(plan, machine[1], detail=False).step_time_s == pytest.approx(float(shown), abs=0.051)
