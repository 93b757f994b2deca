"""`make twin-gpu` with a Python that is none: which torch runs the table, and what is installed beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STAND_IN = """#!/bin/sh
echo "PYTHONPATH=$PYTHONPATH" "$@" >> {log}
case "$*" in
*cuda.is_available*) exit {blind} ;;
*"import msgspec"*) exit {bare} ;;
*"pip install"*) exit {offline} ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("blind", "bare", "offline", "added", "runs"), [
    (0, 0, 0, False, "own"),
    (0, 1, 0, True, "own"),
    (0, 1, 1, True, "fresh"),
    (1, 0, 0, False, "fresh"),
])  # fmt: skip
def test_the_machines_own_torch_is_used_where_it_sees_the_gpus(
    blind: int, bare: int, offline: int, added: bool, runs: str, tmp_path: Path
) -> None:
    log, python, tool = tmp_path / "log", tmp_path / "python", tmp_path / "venv" / "bin" / "steptwin"
    tool.parent.mkdir(parents=True)
    python.write_text(STAND_IN.format(log=log, blind=blind, bare=bare, offline=offline))
    tool.write_text(f"#!/bin/sh\necho fresh $* >> {log}\n")
    (tmp_path / "venv" / ".run").touch()  # it is installed
    for file in (python, tool):
        file.chmod(0o755)
    command = ["make", "--silent", "twin-gpu", f"PYTHON={python}", f"RUNS={tmp_path}/runs", f"VENV={tmp_path}/venv"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    installed = [line.partition("--target ")[2] for line in lines if "pip install" in line]
    assert installed == ([f"{tmp_path}/runs/packages msgspec networkx simpy nvidia-ml-py"] if added else []), "torch stays the machine's"
    if runs == "own":
        assert f"PYTHONPATH={tmp_path}/runs/packages" in lines[-1] and f"gpu_run --out {tmp_path}/runs/gpu" in lines[-1]
    else:
        assert lines[-1] == f"fresh here --gpu --out {tmp_path}/runs/gpu"
