"""Breadth-first pipelines (Lamy-Poirier 2022, arXiv 2211.05953; torch's ScheduleLoopedBFS): GPipe with several stages per rank.
All micro-batches run on one stage of a rank before the next stage starts; backward runs in reverse order."""

from __future__ import annotations

from sim.schedule.action import Action, actions


def looped_bfs(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What rank `rank` computes, in order. Activations are kept until their backward, as in GPipe; the pipeline fills in smaller pieces.

    A rank finishes one stage before it starts the next, so FSDP gathers each stage once for all micro-batches of a pass.
    """
    ahead = range(microbatches)
    stages = range(rank, pp * virtual_stages, pp)
    return actions(*((stage, "F", ahead) for stage in stages), *((stage, "B", ahead[::-1]) for stage in reversed(stages)))
