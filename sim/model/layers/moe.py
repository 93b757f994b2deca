"""Routed experts: router, token exchange, grouped products, and the experts that all tokens share.

Routing is balanced: each rank sends and receives tokens x top-k rows (benchmarks force this; what real routing does
to a step is a matter of `noise.imbalance`). With a capacity factor the rows are padded to it, or dropped beyond it, before they travel
(Megatron-Core's drop-and-pad).
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from sim.model.check import divisible
from sim.model.layers.activation import activation, limited
from sim.model.layers.elementwise import elementwise
from sim.model.layers.grouped import grouped, sorts_again, weighs_inside
from sim.model.layers.linear import casts, linear, scaled_before
from sim.model.layers.mlp import mlp
from sim.model.layers.router import apart as frozen_correction
from sim.model.layers.router import correction, router, spelled_out
from sim.model.parts import Part, Seam, everywhere
from sim.model.share import Share
from sim.model.specs.decoder import Moe
from sim.model.specs.fields import GATED
from sim.routing import different
from sim.work import MemoryBound, Work
from topologies.errors import Refused


def moe(share: Share, hidden: int, spec: Moe, kind: str, *, fused: bool = True) -> list[Part]:
    """All parts between the second norm and the residual."""
    etp = min(share.shape.etp, share.tp)
    divisible("tp", share.tp, "etp", etp)
    if etp < share.tp and not share.shape.sequence_parallel:
        raise Refused(
            f"etp = {etp} of tp = {share.tp} ranks with sequence_parallel = false: all ranks of tp hold the same tokens, and each would send them to "
            f"experts of its own (Megatron-Core refuses it too). Set sequence_parallel = true or etp = {share.tp}"
        )
    once = share.gathers_once
    local = divisible("experts", spec.experts, "ep", share.shape.ep)
    inner = divisible("expert width", spec.ffn, "etp", etp)
    rows = share.rows if once else share.srows
    tokens = share.srows * (etp if share.shape.sequence_parallel else 1)
    routed = math.ceil(tokens * spec.top_k * (share.shape.capacity or 1.0))
    width = spec.latent or hidden
    late = etp > 1 and _gathers_rows(share)
    # Where the rows are gathered, permuting sees this rank's own tokens alone; else those of all ranks that split the experts.
    permuted = (rows, -(-routed // etp), width, 1) if late else (tokens, routed, width, 1 if once else etp)
    parts = [_over_tp("moe.input.gather", "tp.gather", rows * hidden * share.e)] if once else []
    parts.append(router(share, rows, hidden, spec))
    if spec.correction and frozen_correction(share):
        parts.append(correction(spec))
    if spec.latent:
        down = linear(share, "moe.latent_down", hidden, width, rows=rows)  # its input the router or the shared experts keep, too
        parts.append(everywhere(replace(down, saved=down.saved if casts(share) else 0)))
    parts.append(_permute(share, *permuted))
    exchanged = (
        round((rows if late else tokens) * _copies(share, spec) * (share.shape.capacity or 1.0) * width * share.e)
        if share.shape.ep > 1
        else 0
    )
    columns = inner * (2 if kind in GATED else 1)
    apart = kind in GATED and not fused and share.framework.experts.stacked
    up = grouped(share, "moe.up", local, routed, width, columns, spec.bias, "ep.dispatch", exchanged, spec.top_k, 1 + apart)
    parts += _dispatched(share, up, routed, width) if late else [up]
    act = activation(share, "moe.act", routed, inner, kind, halves=kind in GATED and not apart)
    parts.append(limited(share, act, routed * inner) if spec.limited else act)
    down = grouped(share, "moe.down", local, routed, inner, width, spec.bias, "ep.combine", exchanged, spec.top_k)
    parts += _combined(share, down, routed, width) if late else [down]
    parts.append(_unpermute(share, *permuted))
    if spec.latent:
        parts.append(everywhere(linear(share, "moe.latent_up", width, hidden, rows=rows)))
    if spec.shared:
        first, *others = mlp(share, hidden, spec.shared, kind, fused=fused, prefix="moe.shared", local=once)
        parts += [_read_twice(share, first, rows * hidden), *others]
        parts.append(_merge(share, rows, hidden, spec.shared_gate))
    return [*parts, _over_tp("moe.output.scatter", "tp.reduce", rows * hidden * share.e)] if once else parts


def _gathers_rows(share: Share) -> bool:
    """With `own_rows` only what comes in by ep is gathered over tp, `top_k` rows of a token; without sequence parallelism all ranks of tp have
    the same tokens already."""
    return share.shape.sequence_parallel and sorts_again(share)


def _dispatched(share: Share, up: Part, routed: int, width: int) -> list[Part]:
    """The first product after its exchange over ep, if there is one, and the gathering over tp of what came (and of its routing weights)."""
    weights = [_over_tp("moe.weights.gather", "tp.gather", 4 * routed)] if weighs_inside(share) else []
    return [*_exchange(up, "moe.dispatch"), _over_tp("moe.gather", "tp.gather", routed * width * share.e), *weights, _local(up)]


def _combined(share: Share, down: Part, routed: int, width: int) -> list[Part]:
    """The last product, its sum over tp, and the exchange that sends each rank its own rows."""
    return [_local(down), _over_tp("moe.scatter", "tp.reduce", routed * width * share.e), *_exchange(down, "moe.combine")]


def _over_tp(name: str, seam: Seam, size: int) -> Part:
    return Part(name=name, cls="moe", seam=seam, seam_bytes=size, modules=0)


_SEAM = ("seam", "seam_bytes", "seam_weights", "seam_counts", "copies")
"""What of a part is its exchange."""


def _exchange(part: Part, name: str) -> list[Part]:
    """The exchange before or after a part, without the part."""
    seam = {key: getattr(part, key) for key in _SEAM}
    return [Part(name=name, cls="moe", modules=0, **seam)] if part.seam else []


def _local(part: Part) -> Part:
    return replace(part, **{key: getattr(Part(name=""), key) for key in _SEAM})


def _read_twice(share: Share, first: Part, elements: int) -> Part:
    """The shared experts' first linear, with what the router keeps of its input (`router`): 16 bits where its own operand is narrower, beside
    this (delayed scales) or in its place (Megatron-Core, shared_experts.py: set_save_original_input)."""
    if not share.fp8:
        return first
    return replace(first, saved=elements * share.e + (first.saved if scaled_before(share) else 0))


def _copies(share: Share, spec: Moe) -> float:
    """Times that a token travels: once to each of its experts, or (fused_dispatch) once to each rank that holds one of them."""
    return different(share.shape.ep, spec.top_k) if share.framework.experts.fused_dispatch else spec.top_k


def _permute(share: Share, tokens: int, routed: int, width: int, etp: int) -> Part:
    """Copies each token into the rows of its experts, `routed` in all. With `etp` > 1 the tokens are gathered first."""
    e, back = share.e, _back(share, tokens)
    if _travels_once(share, etp):
        return Part(name="moe.permute", cls="moe", saved=8 * routed, reads=_reads(share))
    forward: tuple[Work, ...] = (MemoryBound("permute", tokens * width * e, routed * width * e, share.act),)
    backward: tuple[Work, ...] = (MemoryBound("permute", routed * width * e, back * width * e, share.act),)
    if spelled_out(share):
        forward, backward = (_gathered(share, routed, width),), _scattered(share, back, routed, width)
    seam: Seam = "tp.gather" if etp > 1 else ""
    size = share.rows * width * e if etp > 1 else 0
    return Part(
        name="moe.permute",
        forward=forward,
        backward=backward,
        cls="moe",
        saved=8 * routed,
        seam=seam,
        seam_bytes=size,
        reads=_reads(share),
    )


def _travels_once(share: Share, etp: int) -> bool:
    """The exchange itself copies tokens and sums results: nothing is left to do before and after it."""
    return share.framework.experts.fused_dispatch and share.shape.ep > 1 and etp == 1


def _back(share: Share, tokens: int) -> int:
    """Tokens that rows are put back into: all that a rank holds, of which it may have routed its own part alone (torchtitan,
    distributed/expert_parallel.py: ReordererSequenceParallel)."""
    return share.rows if share.gathers_once else tokens


def _gathered(share: Share, rows: int, width: int) -> Work:
    """index_select of `rows`: each is read and written, and its index read (int64)."""
    size = rows * width * share.e
    return MemoryBound("embedding", size + 8 * rows, size, share.act)


def _scattered(share: Share, tokens: int, rows: int, width: int) -> tuple[Work, ...]:
    """scatter_add of `rows` to zeros: the zeros, their copy, and each row read and added to what is there."""
    n, size = tokens * width, rows * width * share.e
    add = MemoryBound("scatter_add", size + 8 * rows, 2 * size, share.act)
    return (elementwise("zero", share, n, 0, share.e), elementwise("copy", share, n, share.e, share.e), add)


def _reads(share: Share) -> bool:
    """Dropless routing: the host must know each expert's rows to launch its kernels (Megatron-Core's tokens_per_expert.cpu());
    fixed capacities and captured iterations do without."""
    return share.framework.tensor_parallel.style == "megatron" and not share.shape.capacity and not share.framework.cuda_graphs


def _unpermute(share: Share, tokens: int, routed: int, width: int, etp: int) -> Part:
    """Weighted sum of each token's `routed` results. Where the weights are not applied inside the activation
    (as Megatron's fused one does) the results are kept for the weights' gradient."""
    e, back = share.e, _back(share, tokens)
    if _travels_once(share, etp):
        return Part(name="moe.unpermute", cls="moe")
    forward: tuple[Work, ...] = (MemoryBound("permute", routed * width * e, back * width * e, share.act, 2.0 * routed * width),)
    backward: tuple[Work, ...] = (MemoryBound("permute", tokens * width * e, routed * width * e, share.act),)
    kept = 0 if share.framework.elementwise.fused_activation else routed * width * e
    if spelled_out(share):
        scaled, back_scaled = _scaled(share, routed * width)
        forward = (*scaled, *_scattered(share, back, routed, width))
        backward = (_gathered(share, routed, width), *back_scaled)
        kept = routed * width * 4
    seam: Seam = "tp.reduce" if etp > 1 else ""
    size = share.rows * width * e if etp > 1 else 0
    return Part(name="moe.unpermute", forward=forward, backward=backward, cls="moe", saved=kept, seam=seam, seam_bytes=size)


def _scaled(share: Share, elements: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Results times weights in fp32, there and back (torchtitan, models/moe/moe.py). Backward: the gradient times each factor, and the sum over a row
    that is a weight's."""
    wide, narrow = (
        ((MemoryBound("cast", a * elements, b * elements, share.act),) if share.e < 4 else ()) for a, b in ((share.e, 4), (4, share.e))
    )
    scale, both, total = (
        MemoryBound(what, read * elements, written * elements, "fp32", float(elements))
        for what, read, written in (("scale", 4, 4), ("scale", 8, 4), ("reduce", 4, 0))
    )
    return (*wide, scale, *narrow), (*wide, both, total, scale, *narrow)


def _merge(share: Share, rows: int, hidden: int, gated: bool) -> Part:
    """Adds the shared experts' output to the routed one's; `gated` (Qwen2-MoE) scales it by a sigmoid of one column."""
    e, n = share.e, rows * hidden
    add: Work = elementwise("add", share, n, 2 * e, e)
    if not gated:
        return Part(name="moe.merge", forward=(add,), backward=(add,), cls="elementwise")
    scale: Work = elementwise("scale", share, n, e, e)
    back = (scale, scale, add)
    part = Part(name="moe.merge", forward=(scale, add), backward=back, cls="elementwise", tensors=(hidden,), whole=(hidden,), saved=n * e)
    return _with_gate(share, part, rows, hidden) if spelled_out(share) else part


def _with_gate(share: Share, part: Part, rows: int, hidden: int) -> Part:
    """The product of one column and its sigmoid too (transformers, Qwen2MoeSparseMoeBlock), and in backward the gate's sum over a row."""
    gate = linear(share, part.name, hidden, 1, rows=rows, low=False)
    e, n = share.e, rows * hidden
    sigmoid, back = elementwise("activation", share, rows, e, e, 5.0), elementwise("activation", share, rows, 2 * e, e, 10.0)
    both, scale = elementwise("scale", share, n, 2 * e, e), elementwise("scale", share, n, e, e)
    sums = (elementwise("reduce", share, n, e, 0), back, *gate.backward, elementwise("add", share, n, 2 * e, e))
    return replace(
        part,
        forward=(*gate.forward, sigmoid, *part.forward),
        backward=(both, scale, *sums, part.backward[-1]),
        wgrad=gate.wgrad,
        matrices=gate.matrices,
        modules=2,
    )
