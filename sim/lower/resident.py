"""Bytes that live through the step on the fullest rank: parameters, gradients, optimizer state, by ZeRO's stage.

Rajbhandari et al. 2020, section 5 (ZeRO): each stage divides one more of them by the sharding group.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.optimizer.outer import kept
from sim.lower.optimizer.owned import copy_width, moment_width, state_width, states
from sim.lower.stage import StageSegments
from sim.model.parts import Block, Part


def resident_bytes(job: Job, stages: list[StageSegments]) -> dict[str, int]:
    """By what they are, for the pipeline rank that holds most."""
    worst: dict[str, int] = {}
    known: dict[int, tuple[float, float, float]] = {}
    for rank in range(job.size("pp")):
        held = [0.0, 0.0, 0.0]
        for block in (block.block for stage in stages if stage.stage.rank == rank for block in stage.chunk.blocks):
            if id(block) not in known:
                known[id(block)] = _block(job, block)
            held = [a + b for a, b in zip(held, known[id(block)], strict=True)]
        if sum(held) > sum(worst.values()):
            worst = {name: round(size) for name, size in zip(("parameters", "gradients", "optimizer"), held, strict=True)}
    return worst


def _block(job: Job, block: Block) -> tuple[float, float, float]:
    """Parameters, gradients and optimizer state of one block on this rank."""
    parameters = gradients = optimizer = 0.0
    # FSDP keeps its shards in the optimizer's dtype, where it has the optimizer: they are the master copy.
    width = state_width(job) if job.framework.data_parallel.one_copy(job.zero) and not job.plan.host_updates else job.param_bytes
    for part in block.parts:
        ways, params = job.shards(part), part.params
        parameters += params * width / (ways if job.zero == 3 else 1)
        optimizer += 4.0 * (part.own_state or 0) * job.train
        if part.frozen or not job.train:
            continue
        gradients += params * (job.grad_bytes + job.param_bytes * job.framework.precision.sums_apart) / (ways if job.zero >= 2 else 1)
        optimizer += _state(job, part) / (ways if job.zero else 1)
    return parameters, gradients, optimizer


def _state(job: Job, part: Part) -> float:
    """Bytes of the part's optimizer state on the device."""
    outer = kept(job.plan, part.params, state_width(job))
    if job.plan.host_updates:
        return outer
    moments = states(job.plan.optimizer.name, part.params, part.in_matrices, part.factored) * moment_width(job.plan, state_width(job))
    return moments + copy_width(job.plan, job.framework, job.zero) * part.params + outer
