"""Pipeline schedules: what each rank does in which order, and nothing else.

A schedule is a pure function of sizes. `schedule` gives the computation of one rank, `with_messages` that of all ranks
with their sends and receives. Time, memory and bytes are other files' business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sim.schedule.action import COMPUTES, KINDS, Action, Kind, parse_action
from sim.schedule.dualpipe import dualpipe
from sim.schedule.gpipe import gpipe
from sim.schedule.interleaved import interleaved
from sim.schedule.looped_bfs import looped_bfs
from sim.schedule.messages import Grid, add_messages, late
from sim.schedule.one_f_one_b import one_f_one_b
from sim.schedule.placement import chunks_of, goes_back, rank_of, style_of
from sim.schedule.shards import add_shards
from sim.schedule.written import Name, Written
from sim.schedule.zb_v import zb_v
from sim.schedule.zero_bubble import zb_h1
from topologies.errors import BadInput, UnknownName

__all__ = [
    "COMPUTES",
    "KINDS",
    "SCHEDULES",
    "Action",
    "Kind",
    "Name",
    "Written",
    "chunks_of",
    "goes_back",
    "late",
    "parse_action",
    "puts_off",
    "rank_of",
    "schedule",
    "splits",
    "with_messages",
]

SCHEDULES: dict[str, Callable[[int, int, int, int], tuple[Action, ...]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
}


_ONE_STAGE = {"1f1b": "interleaved", "gpipe": "looped-bfs"}
"""Schedules that hold one stage per rank, each with the similar schedule for several stages per rank."""


def schedule(name: Name, pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What pipeline rank `rank` of `pp` computes in one step, in order.

    Stages are numbered 0 to pp x virtual_stages - 1 (zb-v, dualpipe: 2 pp); `rank_of` says who holds which.
    Raises `UnknownName` for the name, `BadInput` for sizes that the schedule cannot run.
    """
    if isinstance(name, Written):
        if (pp, microbatches) != (len(name.rows), name.microbatches):
            raise BadInput(
                f"the schedule is written for {len(name.rows)} pipeline ranks and {name.microbatches} micro-batches, not {pp} and {microbatches}"
            )
        return name.rows[rank]
    if name not in SCHEDULES:
        raise UnknownName("pipeline schedule", name, SCHEDULES)
    if min(pp, microbatches, virtual_stages) < 1 or not 0 <= rank < pp:
        raise BadInput(f"no schedule for pp = {pp}, rank = {rank}, micro-batches = {microbatches}, virtual_stages = {virtual_stages}")
    if name in _ONE_STAGE and virtual_stages > 1:
        raise BadInput(f'{name} has one stage a rank, got virtual_stages = {virtual_stages}. Use schedule = "{_ONE_STAGE[name]}"')
    if name == "interleaved" and virtual_stages == 1:  # nothing to interleave (Megatron takes its 1F1B then)
        return one_f_one_b(pp, rank, microbatches)
    return SCHEDULES[name](pp, rank, microbatches, virtual_stages)


@lru_cache(maxsize=64)
def splits(name: Name) -> bool:
    """True if the schedule splits the backward: input gradients (I) and weight gradients (W) are separate actions."""
    rows = name.rows if isinstance(name, Written) else (schedule(name, 1, 0, 2),)
    return any(action.kind == "I" for row in rows for action in row)


def puts_off(name: Name) -> bool:
    """True if later ranks delay more weight gradients to the end than earlier ranks, as in ZB-H1. In a V schedule this is False."""
    return splits(name) and style_of(name) == "loop"


@lru_cache(maxsize=8)
def with_messages(name: Name, pp: int, microbatches: int, virtual_stages: int = 1, shards: bool = False) -> Grid:
    """The actions of all ranks with their sends and receives; receives come as early as possible.

    With `shards`, FSDP's actions on whole stages (UNSHARD, RESHARD, REDUCE_GRAD) are included. Raises as `schedule` does.
    """
    computes = [schedule(name, pp, rank, microbatches, virtual_stages) for rank in range(pp)]
    if shards:
        computes = [add_shards(line, microbatches) for line in computes]
    return add_messages(name, pp, pp * chunks_of(name, virtual_stages), computes)
