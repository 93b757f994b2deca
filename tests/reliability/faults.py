"""Runs that are hurt on purpose: a rank killed or stopped in a phase, the whole run interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from executor.ranks.beat import Beat
from executor.ranks.launch import partial_steps
from executor.stock import run_stock
from sim.files.planfile import load_plan
from topologies.errors import RunFailed

PLAN: dict[str, Any] = {
    "model": {"family": "mlp", "name": "m", "widths": [32, 32]},
    "parallel": {"dp_replicate": 2},
    "batch": {"global": 4, "micro": 2},
}
PHASES = ("importing torch", "joining the process group", "building the model", "warm-up step", "step ", "profiled step")
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Ended(NamedTuple):
    """How a hurt run ended."""

    message: str
    seconds: float
    """From the fault to the end of the last process."""
    kept: int
    left: int
    """Processes that outlived it."""


def hurt(folder: Path, phase: str, with_signal: signal.Signals = signal.SIGKILL, rank: int = 1, stall: float = 6.0) -> Ended:
    """Trains, and sends one rank a signal when it enters `phase`."""
    moment: list[float] = []
    threading.Thread(target=_strike, args=(folder / "stock", phase, with_signal, rank, moment), daemon=True).start()
    try:
        run_stock(load_plan(PLAN), folder, 2000, warmup=5, stall=stall)
        message = "no fault came through"
    except RunFailed as error:
        message = str(error)
    kept = min((len(times) for times in partial_steps(folder / "stock").values()), default=0)
    return Ended(message, time.monotonic() - moment[0] if moment else -1.0, kept, len(processes(folder)))


def _strike(folder: Path, phase: str, with_signal: signal.Signals, rank: int, moment: list[float]) -> None:
    path = folder / f"rank{rank}.beat"
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if path.exists() and Beat(path).read()[2].startswith(phase):
            victims = [pid for pid, line in processes(folder) if line.rstrip().endswith(f"task.json {rank}")]
            if victims:
                moment.append(time.monotonic())
                os.kill(victims[0], with_signal)
                return
        time.sleep(0.002)


def interrupted(folder: Path) -> tuple[int, str, float, int]:
    """`steptwin run` as its own process, interrupted (Ctrl-C) while it trains: (exit code, message, seconds, processes left)."""
    plan = folder / "plan.toml"
    plan.write_text(
        '[model]\nfamily = "mlp"\nname = "m"\nwidths = [32, 32]\n[parallel]\ndp_replicate = 2\n[batch]\nglobal = 4\nmicro = 2\n'
    )
    words = [sys.executable, "-m", "steptwin", "run", str(plan), "--out", str(folder / "out"), "--steps", "60000"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_hears)
    end = time.monotonic() + PATIENCE
    beat = folder / "out" / "stock" / "rank0.beat"
    while time.monotonic() < end and not (beat.exists() and Beat(beat).read()[1] > 3):
        time.sleep(0.02)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, said.strip(), time.monotonic() - begun, len(processes(folder))


def _hears() -> None:
    # A shell starts background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes(folder: Path) -> list[tuple[int, str]]:
    """(pid, command line) of processes that name `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and int(entry.parent.name) != os.getpid():
            found.append((int(entry.parent.name), line))
    return found
