"""Tied embeddings: one table used on both ends of a pipeline.

Where the ends are on different ranks each holds a copy, and the copies' gradients are summed before the update: an all_reduce
between two ranks, which is one message each way (Megatron's _allreduce_word_embedding_grads).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import order, record, wait
from sim.model.parts import Block, Part
from sim.program import COMPUTE, Op
from sim.work import Gemm

SEND, RECV = "comm.embedding.send", "comm.embedding.recv"
CLS = "comm.pp"


def table(job: Job) -> int:
    """Elements of the shared table on this rank; 0 where nothing is tied."""
    if job.network.tied is None:
        return 0
    first = dict(job.network.blocks)[job.network.tied[0]]
    return next((part.tensors[0] for part in first.parts if part.tensors), 0)


def with_copy(job: Job, block: Block) -> Block:
    """The last block with its own copy of the table, at the linear that uses it."""
    elements = table(job)
    parts = list(block.parts)
    at = next((i for i, part in enumerate(parts) if _multiplies(part)), -1)
    if not elements or at < 0:
        return block
    parts[at] = replace(parts[at], tensors=(elements, *parts[at].tensors))
    return replace(block, parts=tuple(parts))


def _multiplies(part: Part) -> bool:
    return part.cls == "gemm" and any(isinstance(work, Gemm) for work in part.forward)


def exchange(job: Job, peer: int) -> list[Op]:
    """Both ends send their gradient of the table to the other, the pipeline's rank `peer` further on (0: nobody)."""
    elements = table(job)
    if not elements or not peer or not job.train:
        return []
    name, size = "grad/embedding", round(elements * job.grad_bytes)
    return [
        *order(job, f"{name}.made", COMPUTE, SEND),
        Op(f"{name}.send", "send", SEND, bytes=size, group="pp", peer=peer, cls=CLS),
        Op(f"{name}.recv", "recv", RECV, bytes=size, group="pp", peer=peer, cls=CLS),
        record(f"{name}.here", RECV),
        wait(job, f"{name}.here", COMPUTE),
    ]
