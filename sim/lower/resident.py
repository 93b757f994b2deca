"""Bytes that live through the step on the fullest rank: parameters, gradients, optimizer state, by ZeRO's stage.

Rajbhandari et al. 2020, section 5 (ZeRO): each stage divides one more of them by the sharding group.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.optimizer import STATES, state_width
from sim.lower.stage import StageSegments


def resident_bytes(job: Job, stages: list[StageSegments]) -> dict[str, int]:
    """By what they are, for the pipeline rank that holds most."""
    worst: dict[str, int] = {}
    for rank in range(job.size("pp")):
        parts = [part.part for stage in stages if stage.stage.rank == rank for block in stage.blocks for part in block.parts]
        held = {"parameters": 0.0, "gradients": 0.0, "optimizer": 0.0}
        for part in parts:
            ways = job.shards(part)
            params = part.params
            # FSDP keeps its shards in the optimizer's dtype: they are the master copy.
            kept = state_width(job) if job.zero == 3 else job.param_bytes
            held["parameters"] += params * kept / (ways if job.zero == 3 else 1)
            if part.frozen or not job.train:
                continue
            held["gradients"] += params * job.grad_bytes / (ways if job.zero >= 2 else 1)
            held["optimizer"] += _state(job) * params / (ways if job.zero else 1)
        if sum(held.values()) > sum(worst.values()):
            worst = {name: round(size) for name, size in held.items()}
    return worst


def _state(job: Job) -> float:
    """Bytes of optimizer state per parameter on the device."""
    if job.plan.optimizer.on == "cpu" or job.plan.memory.offload == "optimizer":
        return 0.0
    master = 4.0 if job.framework.master and job.zero != 3 else 0.0
    return STATES[job.plan.optimizer.name] * state_width(job) + master
