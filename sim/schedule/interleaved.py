"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): each rank holds several stages, so that the pipeline fills in
smaller pieces; bubbles shrink by the number of stages a rank. Micro-batches go in rounds of about `pp`, depth first; the last may be shorter
(Megatron-Core's microbatch_group_size_per_vp_stage, schedules.py: get_schedule_table)."""

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
    """Micro-batches of one round: `pp`, or the least more that leave no last round of fewer, which all ranks would wait in."""
    return next((size for size in range(pp, microbatches) if not 0 < microbatches % size < pp), microbatches)


def makes_rounds(pp: int, microbatches: int) -> bool:
    """Do they make as many equal rounds as there can be, of `pp` micro-batches or a little more (torch's flexible rounds)?"""
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
    """All actions of one kind on this rank: `size` micro-batches on one stage, then as many on the next (backward: the one
    before), and round again."""
    for first in range(0, microbatches, size):
        for chunk in range(virtual_stages):
            stage = (chunk if kind == "F" else virtual_stages - 1 - chunk) * pp + rank
            yield from (Action(stage, kind, microbatch) for microbatch in range(first, min(first + size, microbatches)))
