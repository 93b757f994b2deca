"""Context parallelism: three ways to attend to keys and values of the other ranks, and two of these ways combined.

`p2p`: ring attention (Liu et al. 2023): keys and values go round in cp steps, each beside the attention on the chunk
before; sequences are cut so that causal work is even (Megatron's and TransformerEngine's halves from both ends).
No ring takes a sliding window, or chunks: TransformerEngine (attn_forward_func_with_cp) and PyTorch (_templated_ring_attention) have none.
`all_gather`: whole keys and values are gathered first, their gradients reduce-scattered (Llama 3, section 3.3.2).
`all_to_all`: sequence is exchanged for heads and back (Ulysses, Jacobs et al. 2023).
`all_to_all+p2p`: neighbours exchange heads, and rings go round among ranks with the same heads (USP, Fang and Zhao 2024; TransformerEngine's
a2a+p2p): messages of a ring that crosses nodes are as large as ever, but there are fewer.
Latent attention, whose keys are wider than its values, goes all three ways: all_to_all since TransformerEngine's commit ee5dcec (its pull
request 2826), all_gather in torchtitan (pull request 4322).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import collective, compute, order, record, wait
from sim.model.parts import Part
from sim.program import COMPUTE, Op
from sim.work import BYTES, Attention, MemoryBound, Work
from topologies.errors import Refused

CLS = "comm.cp"
SEND, RECV = "comm.cp.send", "comm.cp.recv"


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Forward of attention to the other ranks' keys and values. `name`: the op id of the `kernels`."""
    p = job.plan.parallel
    if p.cp_kind == "all_gather":
        return [_now(job, f"{name}.all_gather", "all_gather", part.seam_bytes), *kernels]
    if p.ulysses < p.cp:
        kernels = _ring(job, name, part, part.forward, kernels, legs=1)
    if p.ulysses == 1:
        return kernels
    inputs, output = _exchanged(part)
    return [*_swap(job, f"{name}.to_heads", inputs), *kernels, *_swap(job, f"{name}.to_sequence", output)]


def backward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Backward of the same attention. Keys and values are sent again, and so are their gradients."""
    p, name = job.plan.parallel, f"bwd/{name}"
    if p.cp_kind == "all_gather":
        gather = _now(job, f"{name}.all_gather", "all_gather", part.seam_bytes)
        return [gather, *kernels, _now(job, f"{name}.reduce_scatter", "reduce_scatter", part.seam_bytes)]
    if p.ulysses < p.cp:
        kernels = _ring(job, name, part, part.backward, kernels, legs=2)
    if p.ulysses == 1:
        return kernels
    inputs, output = _exchanged(part)
    # Between rings TransformerEngine brings the result back beside its gradient (AttnFuncWithCPAndKVP2P.backward); elsewhere it was kept as it was.
    results = output * 2 if p.ulysses < p.cp and job.framework.te_attention else output
    return [*_swap(job, f"{name}.to_heads", results), *kernels, *_swap(job, f"{name}.to_sequence", inputs)]


def _swap(job: Job, id: str, sizes: tuple[int, ...]) -> list[Op]:
    """Exchanges tensors of `sizes` bytes. Each is copied before, so that what goes to one rank lies together, and after, in the order of the
    sequence or the heads (TransformerEngine's flash_attn_a2a_communicate; DeepSpeed's single_all_to_all). TransformerEngine copies one while
    another travels: only the first before and the last after are waited for."""
    p = job.plan.parallel
    whole = collective(job, id, COMPUTE, "all_to_all", sum(sizes), "cp" if p.ulysses == p.cp else "cp_ulysses", CLS)
    first, last = (sizes[:1], sizes[-1:]) if job.framework.te_attention else (sizes, sizes)
    before, after = (tuple(MemoryBound("copy", size, size) for size in some) for some in (first, last))
    return [compute(job, f"{id}.before", before, "elementwise"), whole, compute(job, f"{id}.after", after, "elementwise")]


def _now(job: Job, id: str, name: str, size: float) -> Op:
    return collective(job, id, COMPUTE, name, size, "cp", CLS)


def _attention(part: Part, works: tuple[Work, ...]) -> Attention:
    for work in works:
        if isinstance(work, Attention):
            return work
    raise Refused(
        f'{part.name}: context parallelism by ring attention (cp_kind = "p2p") or all_to_all needs fused attention. Use attention = "flash"'
    )


def _exchanged(part: Part) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that all_to_all exchanges before attention (queries, keys, values) and after it (the result)."""
    work = _attention(part, part.forward)
    return part.seam_heads, (part.seam_heads[0] * (work.dv or work.d) // work.d,)


def _ring(job: Job, name: str, part: Part, works: tuple[Work, ...], kernels: list[Op], legs: int) -> list[Op]:
    """Attention on one chunk of keys while the next one arrives, in as many steps as the ring has ranks.

    Forward: keys and values make one hop less than there are ranks. Backward (`legs` = 2): they do so again, and their gradients make one
    hop for each rank: each hop follows the step that added to them, and the last one brings them home. torch sums these in fp32
    (_context_parallel/_attention.py, _templated_ring_attention_backward: accum_dtype), TransformerEngine in the dtype of the keys.
    """
    axis = "cp" if job.plan.parallel.ulysses == 1 else "cp_ring"
    ways = job.size(axis)
    whole = _attention(part, works)
    if whole.window or whole.chosen:
        raise Refused(
            f'{part.name}: no ring attention (cp_kind = "{job.plan.parallel.cp_kind}") of TransformerEngine or PyTorch takes sliding windows, chunks or choices of keys. '
            'Use cp_kind = "all_gather" or "all_to_all"'
        )
    chunks = _chunks(whole, ways)
    message, first = part.seam_bytes // ways, kernels[0]
    sums = message if job.framework.te_attention else round(message * 4 / BYTES[whole.dtype])
    ops: list[Op] = []
    hops = ways + (legs - 1)
    for step in range(hops):
        carried = message * (step + 1 < ways) + sums * (legs == 2 and step > 0)
        if carried:
            after = f"{name}.hop{step - 1}" if step else ""
            ops += _hop(job, f"{name}.hop{step}", axis, carried, after, made=legs == 2 or step == 0)
        if step < ways:
            alloc, free = first.alloc if step == 0 else 0, first.free if step + 1 == ways else 0
            ops.append(
                compute(job, f"{name}.{step}", _visit(chunks[step > 0], message, chunks[0].kv, first=step == 0), part.cls, alloc, free)
            )
        if carried:
            ops.append(wait(job, f"{name}.hop{step}.done", COMPUTE))
    return ops


def _hop(job: Job, id: str, axis: str, size: int, after: str, made: bool) -> list[Op]:
    """Sends to the next rank, receives from the one before. `made`: what travels comes from the compute lane; otherwise the
    hop passes on what hop `after` brought."""
    ready = [*order(job, f"{id}.out", COMPUTE, SEND), Op(f"{id}.in.wait", "wait", RECV, event=f"{id}.out")] if made else []
    passed = [Op(f"{id}.pass.wait", "wait", SEND, event=f"{after}.done")] if after else []
    send = Op(f"{id}.send", "send", SEND, bytes=size, group=axis, peer=1, cls=CLS)
    recv = Op(f"{id}.recv", "recv", RECV, bytes=size, group=axis, peer=-1, cls=CLS)
    return [*ready, *passed, send, recv, record(f"{id}.done", RECV)]


def _chunks(whole: Attention, ways: int) -> tuple[Attention, Attention]:
    """Attention on the rank's own keys, and on a chunk that arrives.

    Of causal sequences cut at both ends, all queries meet the earlier half of the chunks from the ranks before, without a
    mask, and the later half of the queries meets whole chunks from the ranks behind: as many pairs.
    """
    own = replace(whole, kv=max(1, whole.kv // ways))
    return own, replace(own, kv=max(1, own.kv // 2), causal=False) if whole.causal else own


def _visit(chunk: Attention, message: int, keys: int, first: bool) -> tuple[Work, ...]:
    """One step of the ring on the compute lane: attention, and what makes one result of the steps' results.

    As TransformerEngine's `AttnFuncWithCPAndKVP2P` does on the last rank, whose queries meet every chunk whole. Forward:
    the first output is rescaled, others are rescaled and added. Backward: the gradients of queries and of the keys and values
    (`message` bytes for `keys` keys) are copied, then added; every step's kernel forms rowsum(dO * O) again and converts its own dQ from fp32
    (FlashAttention-2, Dao 2023, algorithm 2; the attention table holds that once). Half chunks are copied into one piece.
    """
    e, dtype = BYTES[chunk.dtype], chunk.dtype
    out = int(chunk.batch * chunk.heads * chunk.q * (chunk.dv or chunk.d) * e)
    queries = int(chunk.batch * chunk.heads * chunk.q * chunk.d)
    half = message * chunk.kv // keys
    piece = () if half == message else (MemoryBound("copy", half, half, dtype),)
    if not chunk.backward:
        return (chunk, MemoryBound("scale", out, out, dtype)) if first else (*piece, chunk, MemoryBound("add", 2 * out, out, dtype))
    dq = int(queries * e)
    if first:
        return (chunk, MemoryBound("copy", dq, dq, dtype), MemoryBound("copy", message, message, dtype))
    again = MemoryBound("add", 2 * out + 4 * queries, 4 * queries + dq, dtype)
    return (*piece, chunk, again, MemoryBound("add", 2 * dq, dq, dtype), MemoryBound("add", 2 * half, half, dtype))
