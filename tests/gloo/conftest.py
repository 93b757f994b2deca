"""What several files need once: this machine, probed quickly by README's own command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.gloo.forked import Mother, forked_ranks
from tests.null.test_readme import commands, environment


class Probed(NamedTuple):
    """A probe of this machine: how the command ended, and the calibration file that it wrote."""

    done: subprocess.CompletedProcess[str]
    file: Path


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    """README's `steptwin probe` as shown, but quick: with two ranks, as it does unless told otherwise."""
    (line,) = (line for line in commands(devices=True) if line.split()[1] == "probe")
    folder = tmp_path_factory.mktemp("probe")
    words = [*shlex.split(line)[1:], "--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "steptwin", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=250
    )
    return Probed(done, folder / words[words.index("--out") + 1])


@pytest.fixture(scope="session")
def mother() -> Iterator[Mother]:
    """Forks ranks for all files that want them forked."""
    found = Mother()
    yield found
    found.close()


@pytest.fixture(scope="module")
def forked(mother: Mother) -> Iterator[None]:
    """The file's ranks are forked from a process that has imported torch: for tests that time nothing and look at no process."""
    with forked_ranks(mother):
        yield
