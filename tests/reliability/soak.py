"""Many different predictions and sweeps in one process: resident memory grows no more once the caches are full.

`python -m tests.reliability.soak [HOURS]` runs for so long (0.1 unsaid) and prints one line for each round; it ends with 1 when
memory grew by more than `ALLOWED` over its second half. `tests/null/test_soak.py` is the short form.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sim.files.planfile import load_plan
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict

ALLOWED = 0.05
"""Growth of resident memory in the second half, as a share."""
MACHINES = ("dgx-h100", "2x dgx-a100", "cpu-host", "4x aws-p5")
SPACE: dict[str, tuple[str, ...]] = {"parallel.dp_shard": ("1", "2"), "parallel.tp": ("1", "2")}
CUTS: Sequence[dict[str, Any]] = ({"dp_shard": 2, "zero": 3}, {"tp": 2}, {"pp": 2, "schedule": "1f1b"}, {"dp_replicate": 2})


def resident() -> int:
    """Bytes of this process that are in memory (Linux; elsewhere the most there ever was)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def one(number: int) -> float:
    """The `number`-th prediction, unlike all others: seconds of its step."""
    cut, machine = CUTS[number % len(CUTS)], MACHINES[number // len(CUTS) % len(MACHINES)]
    edits = (f"disk.read={100 + number} MB/s",) if number % 3 == 0 else ()
    tree: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 32 + number, "batch": {"micro": 1, "global": 4}, "parallel": cut}
    return predict(load_plan(tree), machine, edits=edits, steps=2).step_time_s


def swept(number: int, folder: Path) -> int:
    """A small sweep of a plan unlike all others: how many of its plans ran."""
    tree: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 40 + number, "batch": {"micro": 1, "global": 4}}
    base = load_plan(tree)
    path = folder / f"{number}.sqlite"
    found = sweep(base, SPACE, "dgx-h100", path, every="whole")
    path.unlink()
    return found.counts["done"]


def caches(rooms: tuple[str, ...] = ("sim", "topologies")) -> Iterator[tuple[str, int, int | None]]:
    """(name, entries, bound or None) of every cached function and every mapping that modules of these rooms hold."""
    for room in rooms:
        package = importlib.import_module(room)
        names = [room, *(found.name for found in pkgutil.walk_packages(package.__path__, f"{room}."))]
        for name in names:
            module = sys.modules.get(name)
            for key, value in vars(module).items() if module else ():
                if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == name:
                    yield f"{name}.{key}", value.cache_info().currsize, value.cache_info().maxsize
                elif isinstance(value, dict) and not key.startswith("__") and key != key.upper() and key.lower() == key:
                    yield f"{name}.{key}", _entries(value), None


def _entries(value: object) -> int:
    """Entries of a mapping, those of mappings inside it counted too."""
    if isinstance(value, dict):
        return len(value) + sum(_entries(inner) for inner in value.values())
    return sum(_entries(inner) for inner in value if isinstance(inner, dict)) if isinstance(value, tuple) else 0


def main(hours: float) -> int:
    """Rounds of twenty predictions and a sweep until the time is over."""
    begin, number, line = time.monotonic(), 0, [resident()]
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() - begin < hours * 3600:
            for _ in range(20):
                number += 1
                one(number)
            swept(number, Path(place))
            gc.collect()
            line.append(resident())
            print(f"{time.monotonic() - begin:8.0f} s  {number:7d} predictions  {line[-1] / 2**20:8.1f} MiB", flush=True)
    half = line[len(line) // 2]
    grown = line[-1] / half - 1
    print(f"second half: {grown:+.1%} (allowed {ALLOWED:.0%})")
    for name, entries, bound in sorted(caches(), key=lambda item: -item[1])[:12]:
        print(f"{entries:8d} of {bound or 'any':>6}  {name}")
    return 1 if grown > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1))
