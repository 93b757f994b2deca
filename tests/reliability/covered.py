"""What the last run with coverage reached, room by room. `python -m tests.reliability.covered [PERCENT]`: 1 where a room is below it.

The share counts lines and branches together, as coverage.py does; branches stand apart too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coverage import Coverage

WHOLE = ("sim", "topologies")
"""Rooms that must be covered, each by itself."""


def shares(files: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Counts by room (`sim`) and by room within it (`sim/lower`) from the files of coverage's JSON report."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path, told in files.items():
        parts = Path(path).parts
        for room in {parts[0], "/".join(parts[:2]) if len(parts) > 2 else parts[0]}:
            found[room].update({key: value for key, value in told["summary"].items() if isinstance(value, int)})
    return dict(found)


def percent(counts: Counter[str], branches: bool = False) -> float:
    """Of lines and branches together, or of branches alone; 100 where there is nothing to reach."""
    reached, all_ = counts["covered_branches"], counts["num_branches"]
    if not branches:
        reached, all_ = reached + counts["covered_lines"], all_ + counts["num_statements"]
    return 100.0 * reached / all_ if all_ else 100.0


def main(words: Sequence[str]) -> int:
    """Prints the table."""
    least = float(words[0]) if words else 0.0
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "coverage.json"
        measured.json_report(outfile=str(report))
        rooms = shares(json.loads(report.read_text("utf-8"))["files"])
    print(f"{'room':<20}{'lines':>8}{'branches':>10}{'covered':>10}{'branches':>10}")
    for room, counts in sorted(rooms.items()):
        shown = f"{percent(counts):>8.1f} %{percent(counts, branches=True):>8.1f} %"
        print(f"{room:<20}{counts['num_statements']:>8}{counts['num_branches']:>10}{shown}")
    low = [room for room in WHOLE if room not in rooms or percent(rooms[room]) < least]
    if low:
        print(f"below {least:.0f} %: {', '.join(low)}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
