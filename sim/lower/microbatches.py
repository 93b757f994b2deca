"""A step's micro-batches on one rank: forward and backward of one after the other, or as the pipeline's schedule says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sim.lower.job import Job
from sim.lower.ops import read_back
from sim.lower.stage import StageSegments
from sim.program import Op
from sim.turns import Turns

Microbatches = Callable[[int, list[StageSegments], int], Turns]
"""(pipeline rank, its stages, step) -> the turns of all micro-batches of the step."""


def microbatches_of(job: Job, segments: dict[str, tuple[Op, ...]]) -> Microbatches:
    """The function that makes these turns for each rank and step. `segments` collects the segments that they call.

    Raises `BadInput`, then or when called, for sizes that the schedule cannot run."""
    if job.size("pp") > 1:
        from sim.lower.pipeline import Pipeline

        return Pipeline(job, segments).turns
    behind = []
    if job.train and job.framework.optimizer.reads_losses and (read := read_back(job, READ, "output")):
        segments[READ], behind = tuple(read), [READ]
    return partial(_in_turn, job, behind)


READ = "loss/read"
"""Where the host waits for a micro-batch's loss."""


def _in_turn(job: Job, behind: list[str], rank: int, stages: list[StageSegments], step: int) -> Turns:
    """Forward and backward of one micro-batch after the other. `behind`: names of segments that run after each backward."""
    count = job.counts[step]
    sorts: dict[tuple[str, ...], int] = {}
    turns: list[tuple[int, int]] = []
    for microbatch in range(count):
        for kind in ("F", "B") if job.train else ("F",):
            names = (*stages[0].names(kind, step == 0, microbatch == 0, microbatch == count - 1), *(behind if kind == "B" else []))
            turns.append((sorts.setdefault(names, len(sorts)), microbatch))
    return Turns(step, job.before(step), list(sorts), turns)
