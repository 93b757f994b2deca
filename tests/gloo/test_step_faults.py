"""Bad input while a run is under way: it says so, stops, keeps what it measured, and leaves no half file and no process."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.ranks.launch import partial_steps
from executor.stock import run_stock
from executor.usage import Usage, watched
from sim.files.planfile import load_plan
from tests.reliability.faults import processes
from topologies.errors import RunFailed

pytestmark = pytest.mark.timeout(100)
TREE: dict[str, Any] = {
    "model": {"family": "mlp", "name": "m", "widths": [32, 32]},
    "precision": "fp32",
    "batch": {"micro": 4},
    "data": {"source": "disk", "workers": 1, "sample": "4 KiB", "preprocess": "1 ms"},
}


def _when_training(folder: Path, act: Any) -> threading.Thread:
    """Runs `act` once two timed steps have been kept."""

    def watch() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            kept = partial_steps(folder / "stock") if (folder / "stock").is_dir() else {}
            if kept and all(len(steps) >= 2 for steps in kept.values()):
                act()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def _fails(tree: dict[str, Any], folder: Path, act: Any, warmup: int = 1) -> str:
    _when_training(folder, act)
    with pytest.raises(RunFailed) as raised:
        run_stock(load_plan(tree), folder, 3000, warmup=warmup, profile=0, stall=30)
    assert processes(folder) == []
    assert min(len(steps) for steps in partial_steps(folder / "stock").values()) >= 2
    return str(raised.value)


def test_a_file_that_goes_missing(tmp_path: Path) -> None:
    def lose() -> None:
        for path in (tmp_path / "data").glob("*.bin"):
            path.unlink()

    said = _fails(TREE, tmp_path, lose)
    assert "cannot be read" in said and "Step times kept" in said


def test_a_database_that_goes_away(tmp_path: Path) -> None:
    data = TREE["data"] | {"source": "database"}

    def drop() -> None:
        (tmp_path / "data" / "samples.sqlite").write_bytes(b"")

    said = _fails(TREE | {"data": data}, tmp_path, drop)
    assert "samples.sqlite" in said


def test_a_loader_worker_that_dies(tmp_path: Path) -> None:
    def kill() -> None:
        children = [pid for pid, _ in processes(tmp_path)]
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]) for pid in children}
        worker = next(pid for pid, parent in parents.items() if parent in children)
        os.kill(worker, signal.SIGKILL)

    said = _fails(TREE, tmp_path, kill)
    assert "DataLoader worker" in said


def test_a_disk_that_is_full_at_a_checkpoint(tmp_path: Path) -> None:
    """The kernel refuses to let any file grow past 2 MiB (RLIMIT_FSIZE), as a full disk does; the state has 7 MiB."""
    tree = TREE | {"model": {"family": "mlp", "name": "m", "widths": [800, 800]}, "output": {"checkpoint_every": 4}}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"checkpoint-0\.pt cannot be written: "):
            run_stock(load_plan(tree), tmp_path, 50, warmup=0, profile=0, stall=30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "stock").glob("checkpoint*")) == []
    assert min(len(steps) for steps in partial_steps(tmp_path / "stock").values()) == 3
    assert processes(tmp_path) == []


def test_the_monitor_sees_the_run(tmp_path: Path) -> None:
    with watched(tmp_path) as usage:
        end = time.thread_time() + 0.6
        while time.thread_time() < end:
            pass
    found = msgspec.json.decode((tmp_path / "usage.json").read_bytes(), type=Usage)
    assert found == usage and len(found.samples) >= 3
    shares = [share for sample in found.samples for share in sample.cores]
    assert all(0 <= share <= 1 for share in shares) and sum(shares) > 0


def test_of_ranks_that_a_launcher_started_one_monitors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All wrote the same file, one over the other, and each sampled beside its own steps."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with watched(tmp_path, period=0.01) as usage:
        time.sleep(0.1)
    assert not usage.samples and not list(tmp_path.iterdir())
