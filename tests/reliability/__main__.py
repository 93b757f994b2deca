"""`make reliability`: the table of fuzzed readers. `python -m tests.reliability [INPUTS PER READER] [SEED]`."""

from __future__ import annotations

import sys

from reports.tables import show
from tests.reliability.fuzz import HANG, fuzz
from tests.reliability.readers import READERS


def main(words: list[str]) -> int:
    each = int(words[0]) if words else 8000
    seed = int(words[1]) if len(words) > 1 else 0
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
    show({"rows": rows, "inputs": each * len(READERS), "seed": seed}, "reliability")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
