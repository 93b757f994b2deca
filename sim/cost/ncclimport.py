"""Reads what nccl-tests print (`all_reduce_perf` and its kin) into rows of measured times."""

from __future__ import annotations

import re
from typing import NamedTuple

from topologies.errors import BadInput

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
_NAME = re.compile(r"\b(" + "|".join(NAMES) + r")_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s")
# size (B), count (elements), type, then redop and root where the tool prints them, then the out-of-place time (us).
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+[a-z]\w*\s+(?:[a-z]\w*\s+)?(?:-?\d+\s+)?(\d+(?:\.\d+)?)\s+\d+\.\d+\s+\d+\.\d+(?:\s|$)")


class Timing(NamedTuple):
    """One out-of-place timing; `size` in bytes as nccl-tests count it, `seconds` per call."""

    name: str
    ranks: int
    size: int
    seconds: float


def read_nccl_tests(text: str, name: str | None = None) -> list[Timing]:
    """The rows of one run; `name` tells the collective where the text does not. Raises BadInput where it is no such output."""
    found = {str(word) for word in _NAME.findall(text)} | ({name} if name else set())
    if len(found) != 1 or not found <= set(NAMES):
        raise BadInput(f"nccl-tests output: collective {sorted(found) or 'not named'}; give one run, named as one of {', '.join(NAMES)}")
    ranks = {int(hit[1]) for line in text.splitlines() if (hit := _RANK.match(line))}
    if not ranks or ranks != set(range(len(ranks))):
        raise BadInput("nccl-tests output: the '# Rank' lines are missing or incomplete; keep the header of the run")
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"^\s*\d+\s+\d+\s", line):
            continue
        hit = _ROW.match(line)
        if hit is None:
            raise BadInput(f"nccl-tests output, line {number}: not a row of size, count, type, time, algbw, busbw: {line.strip()[:80]}")
        if float(hit[3]) > 0:  # sizes too small to give every rank one element are printed with count and time 0
            rows.append(Timing(next(iter(found)).replace("alltoall", "all_to_all"), len(ranks), int(hit[1]), float(hit[3]) * 1e-6))
    if not rows:
        raise BadInput("nccl-tests output: no row with a time")
    return rows
