"""Bytes on a rank that do not depend on the micro-batches in flight: parameters, gradients, optimizer state, and what is gathered for use.

By dtype, master copy and ZeRO level (Rajbhandari et al. 2020, section 5); gathered parameters and unsharded gradients of FSDP.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.framework.chosen import keeps_among, sharding_of, zero_of
from sim.framework.framework import Framework
from sim.lower.data_parallel.buckets import asked_bucket
from sim.lower.optimizer import muon, outer
from sim.lower.optimizer.owned import copy_width, flat_bytes, moment_width, shard_width, states
from sim.memory.overhead import constants
from sim.model.layers.redo import whole_again
from sim.model.parts import Block, Network
from sim.model.stages import Blocks, reader
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan
from sim.rules import mesh_of
from sim.schedule.reading import name_of
from sim.schedule.shards import ACTIVE_STAGES, by_actions
from sim.work import BYTES


def static_bytes(plan: Plan, network: Network, framework: Framework, chunks: tuple[Blocks, ...]) -> dict[str, int]:
    """Bytes by kind on the rank that holds `chunks` (its pipeline stages): parameters, gradients, optimizer, gathered (FSDP's gathered parameters, DDP's
    buckets, 16-bit copies), and `step`, what lives only during the optimizer step."""
    mesh = mesh_of(plan)
    zero, _ = sharding_of(plan, framework)
    stored = 4.0 if framework.precision.autocast else BYTES[framework.precision.param_dtype]
    grad = BYTES[framework.precision.grad_dtype] + stored * framework.precision.sums_apart
    state = 4.0 if framework.precision.master or framework.precision.autocast else stored
    copy = copy_width(plan, framework, zero)
    copies = OPTIMIZERS[plan.optimizer.name].states
    totals = {"parameters": 0.0, "gradients": 0.0, "optimizer": 0.0, "gathered": 0.0, "step": 0.0}
    train, flat = plan.task != "forward", 0.0
    for (expert, frozen, packed), (count, kept) in counts(network, chunks, plan.optimizer.name).items():
        ways = max(1, mesh.size(mesh.shard_axis(expert)))
        sharded = count / ways
        own = sharded if zero >= 1 else count
        # FSDP keeps only the optimizer's copy; all others keep what forward reads beside it, and so does who keeps the optimizer elsewhere.
        alone = framework.data_parallel.one_copy(zero)
        width = state if alone and framework.precision.master and not plan.host_updates else stored
        if not plan.parameters_offloaded:
            totals["parameters"] += (sharded if zero == 3 else count) * (packed or width)
        if frozen or not train:
            continue
        if not plan.parameters_offloaded:
            totals["gradients"] += (count if zero < 2 else sharded) * grad
        totals["optimizer"] += outer.kept(plan, own, state)
        if plan.update.mode == "local" and mesh.size("grad") > 1:
            flat += own * (state if plan.update.outer == "nesterov" else stored)
        if not plan.host_updates:
            totals["optimizer"] += moment_width(plan, state) * kept * own / count + copy * own
            totals["step"] += (
                own * state * constants()["optimizer.foreach"] * (framework.optimizer.implementation == "foreach" and copies > 0)
            )
            totals["step"] += own * flat_bytes(plan, framework)
    if train:
        totals["optimizer"] += 4.0 * sum(part.own_state or 0 for chunk in chunks for _, block in chunk for part in block.parts)
    if train and framework.optimizer.flat_step and zero_of(plan, framework) == 1:
        totals["step"] += _joined(plan, framework, chunks, totals["gradients"])
    totals["step"] = max(totals["step"], flat)  # parameters, or what they have moved by, joined for their message
    if train and plan.optimizer.name == "muon":
        totals["step"] += muon.workspace(part for chunk in chunks for _, block in chunk for part in block.parts if not part.frozen)
    totals["gathered"] = _gathered(plan, framework, chunks, mesh.size("grad"), totals["gradients"] / grad, network.ends_tied)
    return {name: round(value) for name, value in totals.items()}


Sort = tuple[bool, bool, float]
"""(whether it belongs to an expert, whether it is frozen, bytes of an element as of `Part.stored`)."""


def counts(network: Network, chunks: tuple[Blocks, ...], optimizer: str) -> dict[Sort, tuple[int, int]]:
    """Sort -> (elements of parameters, elements of optimizer state) on the rank that holds `chunks`, with its copy of a tied embedding if the embedding
    itself is on another rank (in a V both ends are on one rank)."""
    found: dict[Sort, tuple[int, int]] = {}

    def add(sort: Sort, elements: int, kept: int) -> None:
        before = found.get(sort, (0, 0))
        found[sort] = before[0] + elements, before[1] + kept

    for block, times in alike(block for chunk in chunks for _, block in chunk):
        for part in block.parts:
            if part.tensors:
                state = times * states(optimizer, part.params, part.in_matrices, part.factored)
                add((part.expert, part.frozen, part.stored), times * part.params, state)
    if reader(network, chunks) not in ("", *network.tied[:1]):
        # Not the first part of its block where pictures come before the text.
        embedding = next(part for part in dict(network.blocks)[network.tied[0]].parts if part.cls == "embedding")
        add((False, embedding.frozen, 0.0), embedding.tensors[0], states(optimizer, embedding.tensors[0], 0))
    return found


def alike(blocks: Iterable[Block]) -> list[tuple[Block, int]]:
    """(block, how often it occurs) for each different block; equal layers are one object."""
    found: dict[int, tuple[Block, int]] = {}
    for block in blocks:
        found[id(block)] = (block, found[id(block)][1] + 1 if id(block) in found else 1)
    return list(found.values())


def _gathered(plan: Plan, framework: Framework, chunks: tuple[Blocks, ...], ranks: int, trained: float, tied: bool) -> float:
    """Bytes of what is gathered or copied for use, by kind of data parallelism.

    DDP without gradient views: buckets as large as the gradients, in the dtype of the messages. Where the size of a bucket is set
    (Horovod's fusion buffer, apex's and DeepSpeed's flat copies), one bucket of that size, which is filled again and again; none where
    gradients are not packed. A hook casts a bucket into another one, and DDP's first bucket holds all gradients; sums that lie apart in
    a flat buffer are cast whole. autocast: 16-bit copies (`_copied`). FSDP: `_unsharded`. `ranks`: data-parallel ranks. `trained`:
    elements of the gradients."""
    train, (zero, _) = plan.task != "forward", sharding_of(plan, framework)
    if zero == 3:
        return _unsharded(plan, framework, chunks, tied) + _packed(plan, framework, zero) * train
    blocks = [block for chunk in chunks for _, block in chunk]
    found = 0.0
    if framework.precision.autocast or framework.precision.wide_adapters:
        found += 2.0 * _copied(plan, chunks)
    summed, sent = train and ranks > 1 and plan.update.summed, BYTES[framework.precision.reduce_dtype]
    habits = framework.data_parallel
    if habits.sums_as_ddp(zero) and summed and habits.packs_gradients and not framework.linears.accumulates:
        buckets = trained * (BYTES[framework.precision.grad_dtype] + sent if framework.precision.casts else sent)
        found += min(buckets, asked_bucket(plan, framework) or 0) if habits.bucket else buckets
    if zero == 1 and summed and framework.precision.sums_apart and framework.precision.casts:
        found += trained * sent
    if framework.linears.accumulates and train:
        found += 2.0 * sum(_weights(blocks))
    if plan.precision in framework.linears.kept_casts:
        found += 2.0 * BYTES[plan.precision] * sum(part.narrow for block in blocks for part in block.parts)
    return found + _packed(plan, framework, zero) * train


def _copied(plan: Plan, chunks: tuple[Blocks, ...]) -> int:
    """Elements of the 16-bit copies that autocast makes of fp32 weights and that live until backward. Its cache holds those of trained
    weights (torch's cached_cast asks for requires_grad). Autograd holds those of frozen weights through which a gradient goes, unless
    their layer is recomputed in backward. Of all others one copy lives at a time: the largest counts. Packed weights are 16 bits only
    inside one GEMM and do not count."""
    kept, largest = 0, 0
    for chunk in chunks:
        for (_, block), again in zip(chunk, whole_again(plan.memory, chunk), strict=True):
            for part in block.parts:
                if part.cls not in ("gemm", "conv", "moe", "rnn") or part.stored:
                    continue
                if part.frozen and (again or part.detached or plan.task == "forward"):
                    largest = max(largest, part.params)
                else:
                    kept += part.params
    return kept + largest


def _packed(plan: Plan, framework: Framework, zero: int) -> int:
    """Bytes of DeepSpeed's bucket buffers (runtime/zero/stage_1_and_2.py and stage3.py: ipg_buffer); 0 for other frameworks. ZeRO-2
    makes a buffer of a bucket's size, full or not, and with overlap a second one, which is filled while the first is sent. ZeRO-3,
    whose messages are layers here, makes one of its own size."""
    habits = framework.data_parallel
    if zero < 2 or not (habits.bucket and habits.packs_gradients) or framework.linears.accumulates:
        return 0
    if zero == 3:
        return habits.bucket << 20
    return (asked_bucket(plan, framework) or 0) * (2 if habits.overlap_grad and plan.comm.overlap else 1)


def _joined(plan: Plan, framework: Framework, chunks: tuple[Blocks, ...], gradients: float) -> float:
    """Bytes into which DeepSpeed's ZeRO-1 copies gradients for their message: a bucket, or a tensor that is larger than one
    (stage_1_and_2.py: allreduce_bucket; in this stage it turns contiguous gradients off: runtime/engine.py). `gradients`: bytes of all
    gradients; if these are fewer than a bucket's, they count."""
    largest = max((max(part.tensors) for chunk in chunks for _, block in chunk for part in block.parts if part.tensors), default=0)
    copied = framework.data_parallel.packs_gradients and plan.update.summed
    return max(min(asked_bucket(plan, framework) or 0, gradients), BYTES[framework.precision.grad_dtype] * largest) if copied else 0.0


def _unsharded(plan: Plan, framework: Framework, chunks: tuple[Blocks, ...], tied: bool) -> float:
    """Bytes of unsharded parameters and gradients with zero = 3: the block in use, those fetched ahead, and whole gradients
    (`_whole_gradients`). If parameters are not freed after forward, all blocks count; but where the pipeline's runtime frees stages that
    it does not need next, only a few stages of a rank. Ends that are the root of torch's FSDP are not freed after forward (fully_shard:
    reshard_after_forward = None; FSDP1: _post_forward_reshard)."""
    blocks = [block for chunk in chunks for _, block in chunk]
    train, (_, reshard) = plan.task != "forward", sharding_of(plan, framework)
    width, p = BYTES["fp32" if plan.precision in ("fp32", "tf32") else "bf16"], plan.parallel
    ends = ("embed", "head") if framework.data_parallel.zero2 == "layers" and (tied or not framework.data_parallel.wraps_ends) else ()
    late = {kind: width for kind in ends if kind == "head" or tied}  # a shared table's gradient is complete only with the head's
    found = _whole_gradients(plan, framework, blocks, dict.fromkeys(ends, 0.0) | late) if train else 0.0
    if not train or reshard:
        line = [block.params for block in blocks if block.kind not in ends]
        freed = max((sum(line[at : at + 1 + p.prefetch]) for at in range(len(line))), default=0)  # of consecutive blocks
        if keeps_among(plan, framework):  # the head, where it is no part of the root, stays whole
            kept_apart = (block.params for block in blocks if block.kind not in (*ends, "head") and not block.detached)
            found += sum(kept_apart) * width / p.kept_among
        passing = _passing(plan, framework, max(line, default=0)) if plan.parameters_offloaded else 0.0
        return found + (sum(block.params for block in blocks if block.kind in ends) + freed) * width + passing
    kept = sorted(sum(block.params for _, block in chunk) for chunk in chunks)
    if p.pp > 1 and framework.pipeline.actions and by_actions(name_of(p), p.virtual_stages):
        kept = kept[-ACTIVE_STAGES:]
    return found + sum(kept) * width


def _passing(plan: Plan, framework: Framework, largest: int) -> float:
    """Bytes on their way where parameters are in host memory: a rank's shard of the `largest` block (elements) coming up, or of its
    gradients going down."""
    width = max(shard_width(framework, 3), BYTES[framework.precision.grad_dtype])
    return largest / max(1, mesh_of(plan).size("fsdp")) * width


def _whole_gradients(plan: Plan, framework: Framework, blocks: list[Block], root: dict[str, float]) -> float:
    """Bytes of gradients that are not sharded yet. Without a pipeline: the largest block's, in the dtype of the messages; and beside
    it, if the head belongs to the root, the head's in the dtype of backward, since the root's post_backward comes last
    (`_root_post_backward_final_callback`). `root`: kind of block in the root -> bytes for each element so held. In a pipeline: those of
    all blocks, in the dtype of the messages, until the last micro-batch is done (`set_requires_gradient_sync(False)` in torch's
    pipelining/stage.py), and the largest block's: in 1F1B and schedules derived from it, all stages of a rank have some gradients
    before the first are reduced."""
    sums = BYTES[framework.precision.reduce_dtype]
    sizes = [(block.kind, sum(part.params for part in block.parts if not part.frozen), times) for block, times in alike(blocks)]
    if plan.parallel.pp > 1:
        return (max((trained for _, trained, _ in sizes), default=0) + sum(trained * times for _, trained, times in sizes)) * sums
    late = sum(trained * root.get(kind, 0.0) for kind, trained, _ in sizes)
    return late + max((trained for kind, trained, _ in sizes if kind not in root), default=0) * sums


def _weights(blocks: list[Block]) -> set[int]:
    """Sizes of the linears' weights. Where the GEMM adds into the main gradient, autograd still wants a gradient:
    TransformerEngine keeps one dummy for each shape (module/base.py, get_dummy_wgrad)."""
    return {
        max(part.tensors)
        for block, _ in alike(blocks)
        if block.kind == "layer"
        for part in block.parts
        if part.cls in ("gemm", "moe") and part.tensors and not part.frozen
    }
