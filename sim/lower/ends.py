"""The ends of a network in a pipeline: the gradients of a tied table's copies are summed, and the head's weight gradient may be
deferred.

Where the blocks that read one table are on different ranks each of these holds a copy, and the copies' gradients are summed before the
update (Megatron's _allreduce_word_embedding_grads): an all_reduce among a few ranks of the pipeline. No axis of the mesh names them, so it is
its ring's messages: between two, the network's ends, one each way; among three, with the stage on which a decoder begins (Megatron's
pipeline_model_parallel_split_rank), four turns of a third, each after the one before.

Where one rank has several of them, it sums their gradients (`with_sums`).

The weights' gradients of a head of its own may wait until the last stage has nothing else to do, in the pipeline's drain (Megatron-Core's
defer_embedding_wgrad_compute: LinearWithGradAccumulationAndAsyncCommunication.backward in megatron/core/tensor_parallel/layers.py,
drain_embedding_wgrad_compute in megatron/core/utils.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.lower.job import Job
from sim.lower.ops import compute, order, record, wait
from sim.model.parts import Block, Network, Part
from sim.model.stages import Blocks, reader
from sim.plan import Plan
from sim.program import COMPUTE, Op
from sim.schedule.reading import name_of
from sim.work import BYTES, Gemm, MemoryBound, Work

SEND, RECV = "comm.embedding.send", "comm.embedding.recv"
CLS = "comm.pp"


def table(job: Job) -> int:
    """Elements of the tied embedding table on this rank; 0 if there is none."""
    return _shared(job, job.network.tied[0]) if job.network.tied else 0


def _shared(job: Job, holder: str) -> int:
    """Elements of the weight of block `holder` that other blocks read too."""
    block = dict(job.network.blocks)[holder]
    return next(iter(block.parts[_place(block)].tensors), 0)


def readers(job: Job, chunks: Sequence[Blocks], ranks: Sequence[int]) -> dict[int, str]:
    """Pipeline rank -> its first block that reads the shared table, for every rank that holds a copy of it; {} where one rank holds all readers.
    `ranks`: the pipeline rank of each stage in `chunks`."""
    found: dict[int, str] = {}
    for rank, chunk in zip(ranks, chunks, strict=True):
        first = reader(job.network, (chunk,))
        if first:
            found.setdefault(rank, first)
    return found if len(found) > 1 else {}


def with_copy(job: Job, blocks: Blocks, at: str) -> Blocks:
    """The stage's blocks, of which `at` now holds a copy of the shared table (unchanged where it holds the table itself)."""
    if at == job.network.tied[0]:
        return blocks
    return tuple((name, _holding(block, table(job)) if name == at else block) for name, block in blocks)


def with_sums(job: Job, chunks: Sequence[Blocks], ranks: Sequence[int]) -> list[Blocks]:
    """The stages' blocks with the kernels that sum gradients of a weight which several blocks of one rank read (a table, or a head's weight). They run in
    the first such block: autograd adds each to those before it (torch/csrc/autograd/input_buffer.cpp, accumulate), a static graph calls AddN. Megatron's products add
    into the main gradient themselves."""
    if not job.train or job.flat_gradients:
        return list(chunks)
    where = {name: rank for rank, chunk in zip(ranks, chunks, strict=True) for name, _ in chunk}
    adds: dict[str, list[Work]] = {}
    for blocks in filter(None, (job.network.tied, job.network.heads)):
        elements = _shared(job, blocks[0])
        size = round(elements * job.param_bytes)
        add: Work = MemoryBound("add_", 2 * size, size, job.framework.precision.param_dtype, float(elements))
        for rank in dict.fromkeys(where[name] for name in blocks):
            first, *others = (name for name in blocks if where[name] == rank)
            adds[first] = [add] * len(others)
    return [tuple((name, _summing(block, adds.get(name, []))) for name, block in chunk) for chunk in chunks]


def _summing(block: Block, adds: list[Work]) -> Block:
    at = _place(block)
    return _changed(block, at, wgrad=(*block.parts[at].wgrad, *adds)) if adds and not block.parts[at].frozen else block


def _holding(block: Block, elements: int) -> Block:
    """The block with the table's `elements` added to the lookup, or to the linear that uses it."""
    at = _place(block)
    return _changed(block, at, tensors=(elements, *block.parts[at].tensors)) if at >= 0 and elements else block


def _place(block: Block) -> int:
    """Index of the part that looks up the table, or else of the first GEMM; -1 if there is neither."""
    return next((i for i, part in enumerate(block.parts) if part.cls == "embedding"), _product(block))


def without_late(job: Job, block: Block) -> Block:
    """The last block without the share of its weight gradients that `late` runs at the end of the step."""
    count, at = deferred(job, block), _product(block)
    return _changed(block, at, wgrad=_rows(block.parts[at].wgrad, 1.0 - count / job.plan.microbatches)) if count else block


def _changed(block: Block, at: int, **fields: tuple[object, ...]) -> Block:
    return replace(block, parts=(*block.parts[:at], replace(block.parts[at], **fields), *block.parts[at + 1 :]))


def deferred(job: Job, block: Block) -> int:
    """Number of micro-batches whose weight gradient of the head is computed at the end of the step."""
    return _put_off(job.plan, job.network, job.framework, block) if job.schedule in _PUTTING_OFF else 0


_PUTTING_OFF = ("1f1b", "interleaved")


def _put_off(plan: Plan, network: Network, framework: Framework, block: Block) -> int:
    """Number of micro-batches whose head weight gradient may be deferred, whatever the schedule. NVIDIA's recipes defer it in dense
    models."""
    most = min(framework.pipeline.defers_head, plan.microbatches)
    if not most or plan.task == "forward" or plan.parallel.ep > 1 or network.ends_tied:
        return 0
    at = _product(block)
    return 0 if at < 0 or network.has_experts or not block.parts[at].wgrad else most


def held_back(plan: Plan, network: Network, framework: Framework, rank: int) -> int:
    """Most bytes that pipeline rank `rank` keeps for deferred weight gradients of the head: the gradients of the logits, and the head's inputs, of which
    under sequence parallelism each rank keeps a slice (embedding_activation_buffer and grad_output_buffer in layers.py)."""
    p, (_, block) = plan.parallel, network.blocks[-1]
    if p.pp == 1 or rank != p.pp - 1 or name_of(p) not in _PUTTING_OFF:
        return 0
    count = _put_off(plan, network, framework, block)
    products = [work for work in block.parts[_product(block)].wgrad if isinstance(work, Gemm)] if count else []
    slices = p.tp if p.sequence_parallel else 1
    return sum(round(count * work.k * (work.m + work.n / slices) * BYTES[work.dtype]) for work in products)


def _rows(wgrad: tuple[Work, ...], share: float) -> tuple[Work, ...]:
    """The weight gradient over a `share` of a micro-batch's rows, which is what the mean micro-batch still computes at once; () for
    share 0."""
    return tuple(replace(work, k=round(work.k * share)) if isinstance(work, Gemm) else work for work in wgrad) if share > 0 else ()


def _product(block: Block) -> int:
    return next((i for i, part in enumerate(block.parts) if _multiplies(part)), -1)


def _multiplies(part: Part) -> bool:
    return part.cls == "gemm" and any(isinstance(work, Gemm) for work in part.forward)


def exchange(job: Job, rank: int, ring: Sequence[int]) -> list[Op]:
    """All_reduce of the shared table's gradients over the pipeline ranks in `ring`, as sends and receives of pipeline rank `rank`; [] where it has none."""
    elements = table(job)
    if not ring or not elements or not job.train:
        return []
    count, at = len(ring), ring.index(rank)
    ahead, behind = ring[(at + 1) % count] - rank, ring[at - 1] - rank
    name, size, here = "grad/embedding", elements * job.grad_bytes, ""
    # Two ranks send each other all that they have. More ranks sum one part each, and pass it on around the ring.
    turns, size = ([name], size) if count == 2 else ([f"{name}.{turn}" for turn in range(2 * (count - 1))], size / count)
    # One all_reduce in each of them, which takes nothing in before it is launched: no end receives while its own backward still runs.
    ops = [*order(job, f"{name}.made", COMPUTE, SEND), wait(job, f"{name}.made", RECV)]
    for each in turns:
        ops += [wait(job, here, SEND)] if here else []  # what it got is what it sends on
        here = f"{each}.here"
        ops += [
            Op(f"{each}.send", "send", SEND, bytes=round(size), group="pp", peer=ahead, cls=CLS),
            Op(f"{each}.recv", "recv", RECV, bytes=round(size), group="pp", peer=behind, cls=CLS),
            record(here, RECV),
        ]
    return [*ops, wait(job, here, COMPUTE)]


def late(job: Job) -> list[Op]:
    """The deferred weight gradients of an untied head, on the last stage after its last backward."""
    name, block = job.network.blocks[-1]
    count = deferred(job, block)
    if not count:
        return []
    works = tuple(replace(work, repeat=count) for work in block.parts[_product(block)].wgrad)
    return [compute(job, f"wgrad/{name}.late", works, "gemm")]
