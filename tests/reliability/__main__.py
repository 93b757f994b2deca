"""`make reliability`: fuzzed readers, and runs that are hurt. `python -m tests.reliability [INPUTS PER READER] [SEED]`."""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from pathlib import Path

from reports.tables import show
from tests.reliability.fuzz import HANG, fuzz
from tests.reliability.readers import READERS

LIMIT = 15.0
"""Seconds within which everything has ended after a fault."""


def main(words: list[str]) -> int:
    each = int(words[0]) if words else 8000
    seed = int(words[1]) if len(words) > 1 else 0
    bad = readers(each, seed)
    return 1 if bad + faults() else 0


def readers(each: int, seed: int) -> int:
    """The table of readers; how many misbehave."""
    rows = []
    bad = 0
    for reader in READERS:
        print(f"{reader.name} ...", file=sys.stderr, flush=True)
        found = fuzz(reader, each, seed)
        bad += len(found.crashes) + (found.slowest > HANG)
        rows.append(
            {
                "reader": found.name,
                "inputs": found.inputs,
                "taken": found.taken,
                "refused": found.refused,
                "tracebacks": len(found.crashes),
                "slowest s": round(found.slowest, 3),
                "memory MB": round(found.grown, 1),
            }
        )
        for crash in found.crashes:
            print(f"  {crash}", file=sys.stderr)
    show({"rows": rows, "inputs": each * len(READERS), "seed": seed}, "reliability: readers")
    return bad


def faults() -> int:
    """The table of faults; how many ended badly."""
    from tests.reliability.faults import PHASES, hurt, interrupted

    rows = []
    for rank, phase in product((0, 1), PHASES):
        print(f"rank {rank} killed at {phase.strip()} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as place:
            found = hurt(Path(place), phase, rank=rank)
        clear = f"rank {rank} of 2 was killed by SIGKILL" in found.message
        rows.append((f"rank {rank} killed: {phase.strip()}", clear, found.seconds, found.kept, found.left))
    with tempfile.TemporaryDirectory() as place:
        code, said, seconds, left = interrupted(Path(place))
    rows.append(("Ctrl-C while training", code == 4 and "interrupted" in said and "Traceback" not in said, seconds, -1, left))
    names = ("fault", "named clearly", "ended after s", "steps kept", "processes left")
    shown = [dict(zip(names, (row[0], row[1], round(row[2], 2), row[3] if row[3] >= 0 else "", row[4]), strict=True)) for row in rows]
    show({"rows": shown}, "reliability: faults")
    return sum(not clear or seconds > LIMIT or left > 0 for _, clear, seconds, _, left in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
