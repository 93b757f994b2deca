"""A step's micro-batches on one rank: forward and backward of one after the other, or as the pipeline's schedule says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sim.lower.job import Job
from sim.lower.stage import StageSegments
from sim.program import Call, Op

Microbatches = Callable[[int, list[StageSegments], int], list[Call]]
"""(pipeline rank, its stages, step) -> the calls of all micro-batches of the step."""


def microbatches_of(job: Job, segments: dict[str, tuple[Op, ...]]) -> Microbatches:
    """What makes these calls for each rank and step; `segments` collects what they run.

    Raises `BadInput`, then or when called, for sizes that the schedule cannot run."""
    if job.size("pp") > 1:
        from sim.lower.pipeline import Pipeline

        return Pipeline(job, segments).calls
    return partial(_in_turn, job)


def _in_turn(job: Job, rank: int, stages: list[StageSegments], step: int) -> list[Call]:
    """Forward and backward of one micro-batch after the other."""
    calls: list[Call] = []
    count, before = job.counts[step], job.before(step)
    for microbatch in range(count):
        at, index = f"s{step}/mb{microbatch}", before + microbatch
        for kind in ("F", "B") if job.train else ("F",):
            names = stages[0].names(kind, step == 0, microbatch == 0, microbatch == count - 1)
            calls += [Call(name, at, index, step) for name in names]
    return calls
