"""What the head of a network is to a pipeline: a copy of a tied table, or the largest product of the last stage.

Where the ends of tied embeddings are on different ranks each holds a copy, and the copies' gradients are summed before the update: an
all_reduce between two ranks, which is one message each way (Megatron's _allreduce_word_embedding_grads). The weights' gradient of a head of
its own may wait until the last stage has nothing else to do, in the pipeline's drain (Megatron-Core's defer_embedding_wgrad_compute:
LinearWithGradAccumulationAndAsyncCommunication.backward in megatron/core/tensor_parallel/layers.py, drain_embedding_wgrad_compute in
megatron/core/utils.py).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import compute, order, record, wait
from sim.model.parts import Block, Part
from sim.program import COMPUTE, Op
from sim.work import Gemm, Work

SEND, RECV = "comm.embedding.send", "comm.embedding.recv"
CLS = "comm.pp"


def table(job: Job) -> int:
    """Elements of the shared table on this rank; 0 where nothing is tied."""
    if job.network.tied is None:
        return 0
    first = dict(job.network.blocks)[job.network.tied[0]]
    return next((part.tensors[0] for part in first.parts if part.tensors), 0)


def with_copy(job: Job, name: str, block: Block) -> Block:
    """A block of the last stage: with its own copy of the table, at what uses it; the last one with what is left to its backward passes."""
    elements = table(job) if job.network.tied and name == job.network.tied[1] else 0
    late = deferred(job, block) if name == job.network.blocks[-1][0] else 0
    parts = list(block.parts)
    at = 0 if block.kind == "mtp" else _product(block)
    if at < 0 or not (elements or late):
        return block
    if late:
        parts[at] = replace(parts[at], wgrad=_rows(parts[at].wgrad, 1.0 - late / job.plan.microbatches))
    else:
        parts[at] = replace(parts[at], tensors=(elements, *parts[at].tensors))
    return replace(block, parts=tuple(parts))


def deferred(job: Job, block: Block) -> int:
    """Micro-batches whose weights' gradient of the head waits for the end of the step. NVIDIA's recipes let it wait in dense models."""
    most = min(job.framework.defers_head, job.plan.microbatches)
    if not most or not job.train or job.size("ep") > 1 or job.plan.parallel.schedule not in ("1f1b", "interleaved") or table(job):
        return 0
    at = _product(block)
    experts = any(part.expert for other in {id(block): block for _, block in job.network.blocks}.values() for part in other.parts)
    return 0 if at < 0 or experts or not block.parts[at].wgrad else most


def _rows(wgrad: tuple[Work, ...], share: float) -> tuple[Work, ...]:
    """Weights' gradients over a share of a micro-batch's rows: what the mean micro-batch has."""
    return tuple(replace(work, k=round(work.k * share)) if isinstance(work, Gemm) else work for work in wgrad) if share > 0 else ()


def _product(block: Block) -> int:
    return next((i for i, part in enumerate(block.parts) if _multiplies(part)), -1)


def _multiplies(part: Part) -> bool:
    return part.cls == "gemm" and any(isinstance(work, Gemm) for work in part.forward)


def exchange(job: Job, peer: int) -> list[Op]:
    """Both ends send their gradient of the table to the other, the pipeline's rank `peer` further on (0: nobody; before the first end for
    the last one). A head of its own makes what is left of its gradient."""
    elements = table(job)
    if not elements and peer < 0:
        return _late(job)
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


def _late(job: Job) -> list[Op]:
    """The weights' gradients of the head that waited, on the last stage after its last backward."""
    name, block = job.network.blocks[-1]
    late = deferred(job, block)
    if not late:
        return []
    works = tuple(replace(work, repeat=late) for work in block.parts[_product(block)].wgrad)
    return [compute(job, f"wgrad/{name}.late", works, "gemm")]
