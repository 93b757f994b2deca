"""Delayed scales of 8-bit GEMMs that ranks share: the largest absolute values of a pass are all-reduced over all ranks of a pipeline
stage.

TransformerEngine from 1.2 on reduces them when the outermost fp8_autocast ends, and in backward with its first module, by one all_reduce for
which the compute stream waits (FP8GlobalStateManager.reduce_and_update_fp8_tensors, async_op=False). Megatron-Core's TransformerBlock holds
one such context for each chunk of layers, over tp x dp x cp (get_amax_reduction_group(with_context_parallel=True)).
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.lower.job import Job
from sim.lower.ops import collective
from sim.model.parts import Block
from sim.program import COMPUTE, Op
from sim.work import BYTES, Gemm

GROUP = "stage"
CLS = "comm.scales"
_EACH = {"fwd": 3, "bwd": 2}
"""Scales that one linear keeps: in forward of its input, weight and result, in backward two of gradients (TransformerEngine,
module/base.py: fp8_meta)."""


def shared(job: Job) -> bool:
    """Whether the ranks of a stage share scales. They need to be several."""
    return job.train and job.framework.linears.fp8_scaling == "shared" and job.plan.precision == "fp8" and job.size(GROUP) > 1


def with_scales(job: Job, which: str, ops: Iterable[Op], blocks: Iterable[Block]) -> tuple[Op, ...]:
    """A stage's pass with the all_reduce of its largest values: after forward, but before backward, which costs the same as after it.
    `which`: fwd, bwd or wgrad (which has none)."""
    linears = _linears(blocks) if which in _EACH and shared(job) else 0
    if not linears:
        return tuple(ops)
    op = collective(job, f"scales/{which}.all_reduce", COMPUTE, "all_reduce", 4 * _EACH[which] * linears, GROUP, CLS)
    return (*ops, op) if which == "fwd" else (op, *ops)


def _linears(blocks: Iterable[Block]) -> int:
    works = (work for block in blocks for part in block.parts for work in part.forward)
    return sum(isinstance(work, Gemm) and BYTES[work.dtype] < 2 for work in works)
