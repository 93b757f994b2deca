"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): each rank holds several stages, so that the pipeline fills in
smaller pieces; bubbles shrink by the number of stages a rank. Micro-batches go in rounds of about `pp`, depth first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sim.schedule.action import Action, Kind
from topologies.errors import BadInput


def interleaved(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """Raises `BadInput` when the micro-batches do not make whole rounds."""
    size = round_of(pp, microbatches)
    total = virtual_stages * microbatches
    warmup = min(total, (virtual_stages - 1) * size + 2 * (pp - 1 - rank))
    forward = stage_order("F", pp, rank, virtual_stages, size, total)
    backward = stage_order("B", pp, rank, virtual_stages, size, total)
    made = [next(forward) for _ in range(warmup)]
    for action in forward:
        made += [action, next(backward)]
    return (*made, *backward)


def round_of(pp: int, microbatches: int) -> int:
    """Micro-batches of one round: `pp`, or a little more where they do not divide (torch's flexible rounds)."""
    rounds = max(1, microbatches // pp)
    if not makes_rounds(pp, microbatches):
        lower, upper = microbatches // pp * pp, -(-microbatches // pp) * pp
        raise BadInput(
            f"{microbatches} micro-batches do not make {rounds} equal rounds over {pp} pipeline ranks. Use {lower} or {upper}, "
            f'(batch.global / batch.micro / data-parallel ranks), or schedule = "1f1b"'
        )
    return microbatches // rounds


def makes_rounds(pp: int, microbatches: int) -> bool:
    """Do they make equal rounds of `pp` micro-batches or a little more?"""
    return microbatches % max(1, microbatches // pp) == 0


def stage_order(kind: Kind, pp: int, rank: int, virtual_stages: int, size: int, total: int) -> Iterator[Action]:
    """All actions of one kind on this rank: `size` micro-batches on one stage, then as many on the next (backward: the one
    before), and round again."""
    done: dict[int, int] = defaultdict(int)
    for step in range(total):
        chunk = step // size % virtual_stages
        stage = (chunk if kind == "F" else virtual_stages - 1 - chunk) * pp + rank
        yield Action(stage, kind, done[stage])
        done[stage] += 1
