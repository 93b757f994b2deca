"""Lowers a block's parts to ops: forward, backward, weight gradients, the host's work for them, and recomputation.

Eager PyTorch spends host time in each module call and autograd node beside the launches; a compiled block is one
call. Ids: `fwd/L5.attn.qkv`, `bwd/...`, `wgrad/...`, `recompute/...`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from sim.lower import recomputed
from sim.lower.data_parallel import features
from sim.lower.job import Job
from sim.lower.model_parallel import context, expert, tensor
from sim.lower.model_parallel.exchanges import covered
from sim.lower.ops import compute, host, read_back
from sim.lower.template import BlockOps, Ops, PartOps, name_of
from sim.model.layers.redo import redone
from sim.model.parts import Block, Part
from sim.program import COMPUTE, Op
from sim.work import Conv, Gemm, HostWork, Work


def lower_block(job: Job, name: str, block: Block, *, first: bool = False, again: bool = False) -> BlockOps:
    """Lowers one block. `first`: it is the network's first block, whose input needs no gradient. `again`: it is recomputed as a whole."""
    made = _lowered(job, name, block, first, again)
    return covered(made) if _covers(job) else made


def _covers(job: Job) -> bool:
    """Whether exchanges of experts run beside another micro-batch's kernels."""
    habits, plan = job.framework.experts, job.plan
    paired = habits.paired_overlap and plan.parallel.schedule == "dualpipe" and plan.memory.recompute == "none"
    return (habits.exchange_overlap or paired) and plan.microbatches > 1


def _lowered(job: Job, name: str, block: Block, first: bool, again: bool) -> BlockOps:
    some = redone(block, () if again else job.plan.memory.modules, job.framework.compile)
    sizes = [part.saved for part in block.parts]
    saved, left = (_placed(block.parts, first, of) for of in (sizes, [size - away for size, away in zip(sizes, some.dropped, strict=True)]))
    parts = []
    for index, part in enumerate(block.parts):
        kept = 0 if again else left[index]
        ops = _part(job, name, part, kept, saved[index], index == 0, leaf=first and index == 0)
        if index in some.runs:
            redo = tuple(_again_some(job, name, some.runs[index], some.back.get(index, 0)))
            ops = ops._replace(backward=redo + ops.backward, joint=redo + ops.joint)
        parts.append(ops)
    if not again:
        return BlockOps(name, block, tuple(parts))
    redo, end = _again(job, name, block, saved)
    held = recomputed.packed(job, name, block, recomputed.keep_input(parts, block.saved_input))
    if end < len(parts):
        return BlockOps(name, block, recomputed.on_demand(held, end, redo), again=True)
    return BlockOps(name, block, held, redo, again=True)


def _again_some(job: Job, name: str, parts: tuple[Part, ...], back: int) -> Iterator[Op]:
    """The forward ops of some parts that backward runs again. The last op allocates `back` bytes: the tensors that were not kept."""
    for at, part in enumerate(parts):
        yield from _forward(job, "recompute", name, part, back if at == len(parts) - 1 else 0, False)


def _again(job: Job, name: str, block: Block, saved: list[int]) -> tuple[Ops, int]:
    """The block's forward as backward runs it again, to its end or only as far as backward needs (`early_stop`); and the index of the
    first part that is left out."""
    end = recomputed.early_stop(block) if job.framework.early_stop else len(block.parts)
    redo = [op for index, part in enumerate(block.parts[:end]) for op in _forward(job, "recompute", name, part, saved[index], index == 0)]
    inputs = sum(saved[end:])
    if inputs and not redo:
        redo = [Op(f"recompute/{name}.input", "record", COMPUTE, event=f"recompute/{name}.input")]
    if inputs:
        redo[-1] = replace(redo[-1], alloc=redo[-1].alloc + inputs)
    return (*recomputed.unpacked(job, name, block), *redo), end


def _placed(parts: tuple[Part, ...], first: bool, sizes: list[int]) -> list[int]:
    """Bytes that each part's forward kernels allocate and its backward kernels free. `sizes`: bytes that each part keeps for backward.
    A part may have no kernels of its own in one direction (a compiler has joined them to its neighbours', or backward has nothing to
    do). Its bytes then count for the nearest part before it that has kernels in both directions, or else for the first such part."""
    leaf = [first and index == 0 for index in range(len(parts))]
    whole = [at for at, part in enumerate(parts) if part.forward and (part.wgrad or _dgrad(part, leaf[at]))]
    found = [0] * len(parts)
    for index, size in enumerate(sizes):
        if whole:
            found[max((at for at in whole if at <= index), default=whole[0])] += size
    return found


def _dgrad(part: Part, leaf: bool) -> tuple[Work, ...]:
    return tuple(work for work in part.backward if not (leaf and _of_input(work)))


def _part(job: Job, block: str, part: Part, kept: int, saved: int, opens: bool, leaf: bool) -> PartOps:
    forward = tuple(_forward(job, "fwd", block, part, kept if job.train else 0, opens))
    if not job.train:
        return PartOps(block, part, forward, (), (), ())
    dgrad = _dgrad(part, leaf)
    name = name_of(block, part)
    kernels, weights = [], []
    if dgrad:
        kernels.append(compute(job, f"bwd/{name}", dgrad, part.cls, free=0 if part.wgrad else saved))
    if part.wgrad:
        weights.append(compute(job, f"wgrad/{name}", part.wgrad, part.cls, free=saved))
    back, split, joint = _communicate_backward(job, name, part, kernels, weights)
    spent = _autograd(job, name, part, opens)
    return PartOps(block, part, forward, (*spent, *back), tuple(split), (*spent, *joint))


def _of_input(work: Work) -> bool:
    """Whether the work is a GEMM or convolution that only makes the gradient of the input."""
    return isinstance(work, (Gemm, Conv)) and work.role == "dgrad"


def _forward(job: Job, phase: str, block: str, part: Part, saved: int, opens: bool) -> list[Op]:
    """The part's forward: its module call on the host, then its kernels, with the communication of its seam around them."""
    name = f"{phase}/{name_of(block, part)}"
    ops = [compute(job, name, part.forward, part.cls, alloc=saved)] if part.forward else []
    if part.reads:
        ops = [*read_back(job, f"{name}.counts", part.cls, part.read_bytes), *ops]
    if part.seam.startswith("tp."):
        ops = tensor.forward(job, name, part, ops)
    elif part.seam.startswith("cp."):
        ops = context.forward(job, name, part, ops)
    elif part.seam.startswith("ep."):
        ops = expert.forward(job, name, part, ops)
    elif part.seam.startswith("dp."):
        ops = features.forward(job, name, part, ops)
    calls = (1 if opens else 0) if job.compiled and not part.shapeless else part.modules
    if job.eager and calls:
        ops.insert(0, host(f"{name}.module", HostWork("module", calls), *_viewed(job, part), *_dispatched(job, part)))
    return ops


def _viewed(job: Job, part: Part) -> tuple[Work, ...]:
    return (HostWork("view", part.views),) if part.views and not job.compiled else ()


def _dispatched(job: Job, part: Part) -> tuple[Work, ...]:
    """The host's work for DTensor's dispatch in one pass of the part: for each linear, whether split or whole on each rank (a table and
    the loss count as one each), and for each norm whose sequence is split. Routed experts take their weights out of DTensor first, so
    they count none."""
    if not job.dtensor:
        return ()
    without = int(part.seam.startswith("tp.") and part.modules > 0)  # weights of its own: the loss, a head that reads the table
    linears = 0 if part.expert else max(without, len(part.matrices) + len(part.tables))
    norms = int(part.cls == "norm" and job.plan.parallel.sequence_parallel)
    return tuple(HostWork(what, count) for what, count in (("dtensor_linear", linears), ("dtensor_norm", norms)) if count)


def _communicate_backward(job: Job, name: str, part: Part, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """(backward, weight gradients, both in one pass)."""
    if part.detached:  # what has no gradient (ids, a frozen tower) sends none back
        return [], [], []
    if part.seam.startswith("tp."):
        return tensor.backward(job, name, part, dgrad, wgrad)
    if part.seam.startswith("cp."):
        dgrad = context.backward(job, name, part, dgrad)
    elif part.seam.startswith("ep."):
        dgrad, wgrad = expert.backward(job, name, part, dgrad, wgrad)
    elif part.seam.startswith("dp."):
        dgrad = features.backward(job, name, part, dgrad)
    return dgrad, wgrad, dgrad + wgrad


def _autograd(job: Job, name: str, part: Part, opens: bool) -> Ops:
    """The host's work for autograd in backward: one node for each forward kernel, and the hand-over of each parameter's gradient.
    TransformerEngine's nodes are Python functions, torch's own are not."""
    if not job.eager or part.detached:
        return ()
    native = part.native if job.framework.host.startswith("te") and not job.compiled else 0
    nodes = len(part.forward) - part.untracked - native + expert.nodes(part) if not job.compiled else int(opens)
    works: list[Work] = [HostWork("autograd", nodes), *_viewed(job, part), *_dispatched(job, part)] if nodes else []
    if native:
        works.append(HostWork("node", part.nodes or native))
    if part.tensors and not part.frozen:
        works.append(HostWork("accumulate", len(part.tensors)))
    return (host(f"bwd/{name}.autograd", *works),) if works else ()
