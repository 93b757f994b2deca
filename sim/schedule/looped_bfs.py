"""Breadth-first pipelines (Lamy-Poirier 2022, arXiv 2211.05953; torch's ScheduleLoopedBFS): GPipe with several stages a rank, all
micro-batches through one stage before the next, backward in reverse."""

from __future__ import annotations

from sim.schedule.action import Action, actions


def looped_bfs(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """Every activation is kept until its backward, as in GPipe; the pipeline fills in smaller pieces. Whole stages are worked on at a
    time, so that FSDP gathers each once for all micro-batches."""
    ahead = range(microbatches)
    stages = range(rank, pp * virtual_stages, pp)
    return actions(*((stage, "F", ahead) for stage in stages), *((stage, "B", ahead[::-1]) for stage in reversed(stages)))
