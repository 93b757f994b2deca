"""All-gathers of whole pipeline stages ahead of use, as torch 2.13's runtime of schedules does them (`_PipelineScheduleRuntime`).

UNSHARD asks for all units of a stage, the root first: asynchronous, so that copy-in stands on the compute stream, and the gather begins
after what was launched before it. The first computation on the stage waits for all of them and copies them out (`_assert_unsharded`).
RESHARD frees them.
"""

from __future__ import annotations

from sim.lower.data_parallel.gathered import copy_in, copy_out, gathered, holding, hooks, reshard, travelling
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.scattered import reduce_stage
from sim.lower.data_parallel.sharded import CLS
from sim.lower.data_parallel.units import Unit, root_first
from sim.lower.job import Job
from sim.lower.ops import collective, order, record
from sim.lower.stage import StageSegments
from sim.program import COMPUTE, Op

PASSES = {"F": "fwd", "B": "bwd", "I": "bwd", "W": "wgrad"}
"""Kind of a stage's computation -> name of the pass. It is part of the ids of the gathers made for that computation."""


def whole_stage(stage: StageSegments, kind: str, use: str) -> list[Op]:
    """What FSDP does to a whole stage. `kind`: UNSHARD, TAKE (compute takes what UNSHARD asked for), RESHARD or REDUCE_GRAD. `use`: the
    kind of the computation that it serves."""
    job, blocks = stage.job, stage.chunk.blocks
    if kind == "REDUCE_GRAD":
        return reduce_stage(job, blocks, stage.units, stage.tag)
    return {"UNSHARD": ask, "TAKE": take, "RESHARD": free}[kind](job, root_first(stage.units, blocks), use)


def _phase(kind: str) -> str:
    return f"unshard.{PASSES[kind]}"


def ask(job: Job, line: list[Unit], kind: str) -> list[Op]:
    """UNSHARD: the all-gathers of a stage's units, none of which waits for another's buffer."""
    ops: list[Op] = []
    for unit in line:
        for suffix, axis, elements in travelling(job, unit):
            name, lane, size = f"{_phase(kind)}/{unit.name}{suffix}", lane_of(axis), gathered(job, unit, suffix, elements)
            ops += [copy_in(job, name, elements, size, axis, COMPUTE), *order(job, f"{name}.in", COMPUTE, lane)]
            ops += [holding(collective(job, f"{name}.all_gather", lane, "all_gather", size, axis, CLS), alloc=size)]
            ops.append(record(f"{name}.gathered", lane))
    return ops


def take(job: Job, line: list[Unit], kind: str) -> list[Op]:
    """TAKE: compute waits for all units and copies them out."""
    return [op for unit in line for op in (*hooks(job, _phase(kind), unit), *copy_out(job, _phase(kind), unit))]


def free(job: Job, line: list[Unit], kind: str) -> list[Op]:
    """RESHARD: frees the stage's parameters. `kind`: of the last computation before."""
    return [reshard(job, _phase(kind), unit) for unit in line]
