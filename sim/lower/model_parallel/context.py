"""Context parallelism: keys and values of the other ranks, three ways.

`p2p`: ring attention (Liu et al. 2023): keys and values go round in cp steps, each beside the attention on the chunk
before; sequences are cut so that causal work is even (Megatron's and TransformerEngine's halves from both ends).
No ring takes a sliding window, or chunks: TransformerEngine (attn_forward_func_with_cp) and PyTorch (_templated_ring_attention) have none.
`all_gather`: whole keys and values are gathered first, their gradients reduce-scattered (Llama 3, section 3.3.2).
`all_to_all`: sequence is exchanged for heads and back (Ulysses, Jacobs et al. 2023).
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
    """Attention with the others' keys and values. `name` is the op id of the kernels."""
    kind = job.plan.parallel.cp_kind
    if kind == "p2p":
        return _ring(job, name, part, part.forward, kernels, legs=1)
    if kind == "all_gather":
        return [_now(job, f"{name}.all_gather", "all_gather", part.seam_bytes), *kernels]
    swap = _now(job, f"{name}.to_heads", "all_to_all", part.seam_bytes)
    return [swap, *kernels, _now(job, f"{name}.to_sequence", "all_to_all", _output_bytes(part))]


def backward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """The same in backward; keys and values travel again, and so do their gradients."""
    kind, name = job.plan.parallel.cp_kind, f"bwd/{name}"
    if kind == "p2p":
        return _ring(job, name, part, part.backward, kernels, legs=2)
    if kind == "all_gather":
        gather = _now(job, f"{name}.all_gather", "all_gather", part.seam_bytes)
        return [gather, *kernels, _now(job, f"{name}.reduce_scatter", "reduce_scatter", part.seam_bytes)]
    swap = _now(job, f"{name}.to_heads", "all_to_all", _output_bytes(part))
    return [swap, *kernels, _now(job, f"{name}.to_sequence", "all_to_all", part.seam_bytes)]


def _now(job: Job, id: str, name: str, size: float) -> Op:
    return collective(job, id, COMPUTE, name, size, "cp", CLS)


def _attention(part: Part, works: tuple[Work, ...]) -> Attention:
    for work in works:
        if isinstance(work, Attention):
            return work
    raise Refused(
        f'{part.name}: context parallelism by ring attention (cp_kind = "p2p") or all_to_all needs fused attention. Use attention = "flash"'
    )


def _output_bytes(part: Part) -> int:
    work = _attention(part, part.forward)
    return int(work.batch * work.heads * work.q * (work.dv or work.d) * BYTES[work.dtype])


def _ring(job: Job, name: str, part: Part, works: tuple[Work, ...], kernels: list[Op], legs: int) -> list[Op]:
    """cp steps: attention on one chunk of keys while the next arrives.

    Forward: keys and values make cp - 1 hops. Backward (`legs` = 2): so do they again, and their gradients make cp:
    each follows the step that added to it, the last one home.
    """
    ways = job.size("cp")
    whole = _attention(part, works)
    if whole.window:
        raise Refused(
            f'{part.name}: no ring attention (cp_kind = "p2p") of TransformerEngine or PyTorch takes sliding windows or chunks of keys. '
            'Use cp_kind = "all_gather" or "all_to_all"'
        )
    chunks = _chunks(whole, ways)
    message, first = part.seam_bytes // ways, kernels[0]
    ops: list[Op] = []
    hops = ways + (legs - 1)
    for step in range(hops):
        carried = (step + 1 < ways) + (legs == 2 and step > 0)
        if carried:
            ops += _hop(job, f"{name}.hop{step}", carried * message, f"{name}.hop{step - 1}" if step else "", made=legs == 2 or step == 0)
        if step < ways:
            alloc, free = first.alloc if step == 0 else 0, first.free if step + 1 == ways else 0
            ops.append(
                compute(job, f"{name}.{step}", _visit(chunks[step > 0], message, chunks[0].kv, first=step == 0), part.cls, alloc, free)
            )
        if carried:
            ops.append(wait(job, f"{name}.hop{step}.done", COMPUTE))
    return ops


def _hop(job: Job, id: str, size: int, after: str, made: bool) -> list[Op]:
    """Sends to the next rank, receives from the one before. `made`: what travels comes from the compute lane; otherwise the
    hop passes on what hop `after` brought."""
    ready = [*order(job, f"{id}.out", COMPUTE, SEND), Op(f"{id}.in.wait", "wait", RECV, event=f"{id}.out")] if made else []
    passed = [Op(f"{id}.pass.wait", "wait", SEND, event=f"{after}.done")] if after else []
    send = Op(f"{id}.send", "send", SEND, bytes=size, group="cp", peer=1, cls=CLS)
    recv = Op(f"{id}.recv", "recv", RECV, bytes=size, group="cp", peer=-1, cls=CLS)
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
