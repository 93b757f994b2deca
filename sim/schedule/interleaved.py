"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): each rank holds several stages, so that the pipeline fills in
smaller pieces. Bubbles shrink by the number of stages per rank. Micro-batches run in rounds of about `pp`: a round passes all stages of a
rank before the next one starts. The last round may be shorter (Megatron-Core's microbatch_group_size_per_vp_stage, schedules.py: get_schedule_table)."""

from __future__ import annotations

from collections.abc import Iterator

from sim.schedule.action import Action, Kind
from topologies.errors import BadInput


def interleaved(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What rank `rank` computes, in order."""
    size = round_of(pp, microbatches)
    warmup = min(virtual_stages * microbatches, (virtual_stages - 1) * size + 2 * (pp - 1 - rank))
    forward = stage_order("F", pp, rank, virtual_stages, size, microbatches)
    backward = stage_order("B", pp, rank, virtual_stages, size, microbatches)
    made = [next(forward) for _ in range(warmup)]
    for action in forward:
        made += [action, next(backward)]
    return (*made, *backward)


def round_of(pp: int, microbatches: int) -> int:
    """Micro-batches of one round: the smallest number from `pp` on whose last round is not shorter than `pp` (ranks would wait in it).

    If there is no such number, all micro-batches are one round.
    """
    return next((size for size in range(pp, microbatches) if not 0 < microbatches % size < pp), microbatches)


def makes_rounds(pp: int, microbatches: int) -> bool:
    """True if the micro-batches divide into `microbatches // pp` (at least 1) equal rounds, as torch's schedules require."""
    return microbatches % max(1, microbatches // pp) == 0


def check_rounds(pp: int, microbatches: int) -> None:
    """Raises `BadInput` when the micro-batches do not make equal rounds."""
    if not makes_rounds(pp, microbatches):
        rounds, lower, upper = microbatches // pp, microbatches // pp * pp, -(-microbatches // pp) * pp
        raise BadInput(
            f"{microbatches} micro-batches do not make {rounds} equal rounds over {pp} pipeline ranks. Use {lower} or {upper}, "
            f'(batch.global / batch.micro / data-parallel ranks), or schedule = "1f1b"'
        )


def stage_order(kind: Kind, pp: int, rank: int, virtual_stages: int, size: int, microbatches: int) -> Iterator[Action]:
    """All actions of one kind on this rank, round by round: `size` micro-batches on one stage, then the same ones on the next stage.

    Forwards go through the rank's stages upwards, every other kind downwards. The last round may have fewer micro-batches.
    """
    for first in range(0, microbatches, size):
        for chunk in range(virtual_stages):
            stage = (chunk if kind == "F" else virtual_stages - 1 - chunk) * pp + rank
            yield from (Action(stage, kind, microbatch) for microbatch in range(first, min(first + size, microbatches)))
