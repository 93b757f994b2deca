"""Schedules that a user writes as a CSV file: what each rank computes, as torch writes and reads it (`_PipelineScheduleRuntime._load_csv` and `_dump_csv`
with format "compute_only", torch 2.13; torchtitan's `pipeline_parallel_schedule_csv`).

The file has a row for each rank. Its cells hold, in order, actions like `2F0`: stage, kind and micro-batch. An empty cell is ignored, and
`(0F3;2B0)OVERLAP_F_B` means its parts one after the other, as the runtime runs them. Messages and FSDP's actions follow from the order; a
file that holds them is refused.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from sim.schedule import SCHEDULES, schedule
from sim.schedule.action import COMPUTES, Action, parse_action
from sim.schedule.messages import add_messages
from sim.schedule.placement import placed
from sim.schedule.written import Name, Style, Written
from sim.sections import Parallel
from topologies.errors import BadInput, Refused

Placed = list[list[tuple[int, Action]]]
"""The actions of each rank, with their columns."""
LARGEST = 1 << 19
"""The largest file that is read, in bytes; it holds about a hundred thousand actions. A plan file may be twice as large."""
_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B\Z")
_STYLES: tuple[Style, ...] = ("loop", "v")


def name_of(parallel: Parallel) -> Name:
    """The schedule that a plan asks for; "interleaved" with one stage per rank is "1f1b". Raises `BadInput` and `Refused` as `written_of`."""
    if parallel.schedule == "csv":
        return written_of(parallel.actions)
    return "1f1b" if parallel.schedule == "interleaved" and parallel.virtual_stages == 1 else parallel.schedule


def read_rows(path: Path) -> tuple[str, ...]:
    """The file's rows, without blanks around cells and without empty rows at the end. `written_of` reads the cells.

    Raises `BadInput` for a file that cannot be read, is too large or is not CSV.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise BadInput(
            f"schedule file {path} cannot be read ({why}). Give a CSV file with a row of actions for each pipeline rank"
        ) from None
    if len(data) > LARGEST:
        raise BadInput(f"schedule file {path} is over {LARGEST >> 10} KiB, more than any schedule has")
    try:
        rows = [",".join(cell.strip() for cell in row).rstrip(",") for row in csv.reader(text.splitlines(), strict=True)]
    except csv.Error as error:
        raise BadInput(f"schedule file {path} is no CSV: {error}") from None
    while rows and not rows[-1]:
        rows.pop()
    return tuple(rows)


@lru_cache(maxsize=8)
def written_of(rows: tuple[str, ...]) -> Written:
    """The schedule that is written in `rows`.

    Raises `Refused` for actions that communicate and for a placement of stages that torch does not have. Raises `BadInput`, with the row
    and mostly the column, for cells that are not actions, for actions that are missing or there twice, and for an order that cannot run.
    """
    made = [[*_cells(row, number)] for number, row in enumerate(rows, 1)]
    ranks = _ranks(made)
    style = _style(ranks, len(rows))
    microbatches = 1 + max(action.microbatch for line in made for _, action in line)
    _check_whole(made, ranks, microbatches)
    orders = tuple(tuple(action for _, action in line) for line in made)
    written = Written(
        orders,
        tuple(tuple(column for column, _ in line) for line in made),
        len(ranks) // len(rows),
        style,
        microbatches,
        _known(orders, len(ranks) // len(rows), microbatches),
    )
    add_messages(written, len(rows), len(ranks), written.rows)
    return written


def _known(orders: tuple[tuple[Action, ...], ...], chunks: int, microbatches: int) -> str:
    """The name of the schedule in `SCHEDULES` with exactly these orders, or "". If several match (one micro-batch), the most usual one."""
    for name in dict.fromkeys(("1f1b", "interleaved", *SCHEDULES)):
        with suppress(BadInput):
            if all(line == schedule(name, len(orders), rank, microbatches, chunks) for rank, line in enumerate(orders)):
                return name
    return ""


def _cells(row: str, number: int) -> Iterator[tuple[int, Action]]:
    for column, cell in enumerate(row.split(","), 1):
        cell = cell.strip()
        pair = _PAIR.match(cell)
        for text in pair[1].split(";") if pair else [cell] if cell else []:
            try:
                action = parse_action(text.strip())
            except BadInput as error:
                raise BadInput(f"row {number}, column {column}: {error}") from None
            if action.kind not in COMPUTES:
                raise Refused(
                    f"row {number}, column {column}: {action} is no computation. Leave messages and FSDP's actions out, they follow from the "
                    f'order of {", ".join(COMPUTES)} (torch writes such files by _dump_csv(..., format="compute_only"))'
                )
            yield column, action


def _ranks(made: Placed) -> list[int]:
    """The rank of each stage. Raises `BadInput` for a row without actions, a stage on two rows, and a stage that is missing."""
    found: dict[int, int] = {}
    for rank, line in enumerate(made):
        if not line:
            raise BadInput(f"row {rank + 1} has no action: each pipeline rank has a row, and computes something")
        for column, action in line:
            if found.setdefault(action.stage, rank) != rank:
                other = found[action.stage] + 1
                raise BadInput(f"row {rank + 1}, column {column}: {action} is of stage {action.stage}, which row {other} has too")
    if not found:
        raise BadInput("a schedule has a row of actions for each pipeline rank, e.g. 0F0,0F1,0B0,0B1; this one has none")
    missing = min(set(range(len(found) + 1)) - set(found))
    if missing < len(found):
        raise BadInput(f"no row has an action of stage {missing}; stages count from 0, and the highest is {max(found)}")
    return [found[stage] for stage in range(len(found))]


def _style(ranks: list[int], pp: int) -> Style:
    """How the stages are placed on the `pp` ranks: `ranks` has each stage's. Raises `Refused` for a placement that torch does not have."""
    for style in _STYLES:
        if len(ranks) % pp == 0 and ranks == [placed(style, pp, stage) for stage in range(len(ranks))]:
            return style
    lies = ", ".join(f"{stage} on row {rank + 1}" for stage, rank in enumerate(ranks[: 2 * pp + 2]))
    raise Refused(
        f"every rank must hold as many stages as the others, placed as torch.distributed.pipelining places them: in a loop (stages 0 and {pp} on "
        f"row 1) or in a V (stages {pp - 1} and {pp} on row {pp}). In this file: stage {lies}"
    )


def _check_whole(made: Placed, ranks: list[int], microbatches: int) -> None:
    """Checks that each micro-batch passes each stage once: forward, then backward (B, or I and later W). Raises `BadInput` if not."""
    for number, line in enumerate(made, 1):
        seen: dict[Action, int] = {}
        for column, action in line:
            before = _before(action, seen)
            if before:
                raise BadInput(f"row {number}, column {column}: {action} {before}")
            seen[action] = column
        for stage in (stage for stage, rank in enumerate(ranks) if rank == number - 1):
            for microbatch in range(microbatches):
                kind = _missing(stage, microbatch, seen)
                if kind:
                    raise BadInput(
                        f"row {number} has no {stage}{kind}{microbatch}: each of {microbatches} micro-batches passes each stage forward (F) "
                        "and backward (B, or I and later W)"
                    )


def _before(action: Action, seen: dict[Action, int]) -> str:
    """What is wrong with an action after those that were `seen`; "" if nothing is."""
    stage, microbatch = action.stage, action.microbatch
    if action in seen:
        return f"is there already, in column {seen[action]}"
    if action.kind != "F" and Action(stage, "F", microbatch) not in seen:
        return f"comes before its forward {stage}F{microbatch}"
    if action.kind == "W" and Action(stage, "I", microbatch) not in seen:
        return f"comes before the gradient of its input {stage}I{microbatch}"
    halves = {"B": "I", "I": "B"}
    if action.kind in halves and (other := Action(stage, halves[action.kind], microbatch)) in seen:  # type: ignore[arg-type]
        return f"runs backward what {other} in column {seen[other]} has run"
    return ""


def _missing(stage: int, microbatch: int, seen: Container[Action]) -> str:
    """The kind of the first action that a micro-batch lacks on a stage; "" if none is missing."""
    if Action(stage, "F", microbatch) not in seen:
        return "F"
    if Action(stage, "B", microbatch) in seen:
        return ""
    return "B" if Action(stage, "I", microbatch) not in seen else "" if Action(stage, "W", microbatch) in seen else "W"
