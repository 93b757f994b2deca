"""Every command and script that README shows runs as shown. Those that need PyTorch run in `tests/gloo/test_readme.py`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_cover
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
DEVICES = ("twin", "run", "probe", "here", "capture")
"""Verbs that start processes with PyTorch."""


def blocks(language: str) -> list[str]:
    """The text of README's fenced blocks in one language."""
    return [text for kind, text in BLOCK.findall((ROOT / "README.md").read_text("utf-8")) if kind == language]


def commands(devices: bool) -> list[str]:
    """Lines that begin with `steptwin`, without their comments."""
    lines = [line.partition("  #")[0].strip() for text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    chosen = [line for line in lines if line.startswith("steptwin ")]
    return [line for line in chosen if any(word in DEVICES for word in line.split()[1:3]) == devices]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small files that README's commands name."""
    folder = tmp_path_factory.mktemp("readme")
    for text in blocks("toml"):
        name = text.splitlines()[0].removeprefix("#").strip()
        assert name.endswith(".toml"), "a TOML block begins with a comment that holds its file name"
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("line", commands(devices=False))
def test_command_runs(line: str, place: Path) -> None:
    words = shlex.split(line)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "steptwin", *words], cwd=place, env=environment(), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() or "report:" in done.stderr or "wrote" in done.stderr, "it says what it did"


@pytest.mark.parametrize("text", blocks("python"))
def test_script_runs(text: str, place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", text], cwd=place, env=environment(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]


def environment() -> dict[str, str]:
    """With the project on the path of other processes."""
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_links_to_sections_lead_to_headings() -> None:
    """As GitHub names them: small letters, hyphens for spaces, no commas."""
    text = BLOCK.sub("", (ROOT / "README.md").read_text("utf-8"))
    headings = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)}
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(links) >= 12 and set(links) <= headings
