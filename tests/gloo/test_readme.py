"""README's commands that start processes: each runs as shown (shortened to few steps)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gloo.conftest import Probed
from tests.null.test_readme import commands, environment


@pytest.mark.parametrize("line", [line for line in commands(devices=True) if line.split()[1] == "run"])
def test_command_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "steptwin", *words, "--steps", "3"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_probing_writes_the_file_that_it_names(probed: Probed) -> None:
    assert probed.done.returncode == 0, probed.done.stderr[-2000:]
    assert probed.file.name in probed.done.stdout
    assert probed.file.is_file()


def test_the_others_are_commands() -> None:
    """`twin` and `here` probe at full length: CI runs them elsewhere (test_twin, test_here); here their options are checked."""
    for line in commands(devices=True):
        words = shlex.split(line)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "steptwin", words[0], "--help"], env=environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert all(word in done.stdout for word in words if word.startswith("--"))
