"""Multi-head latent attention: queries and keys through low-rank bottlenecks, one rotary key for all heads (DeepSeek-V2)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.attention import core, rope
from sim.model.layers.elementwise import elementwise
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.linear import casts, linear
from sim.model.layers.norm import before, norm
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.decoder import Mla


def latent(share: Share, hidden: int, heads: int, mla: Mla, *, bias: bool = False, reread: int | None = None) -> list[Part]:
    """Down-projections on each rank's rows, norms, up-projections split over tp, rope, core, proj.

    The bottlenecks are whole on every tp rank (they are narrow); what is gathered for tp is their output. `reread`: as in `core`.
    """
    local = split_heads(share, heads, heads, mla.nope + mla.rope, mla.value)
    split, rows = share.tp > 1, share.srows
    wide = mla.q_lora or hidden
    gather = share.rows * wide * share.e if split else 0
    queries = linear(
        share, "attn.q_up", wide, local.q * local.d, seam="tp.gather" if split else "", seam_bytes=gather, saved_rows=rows,
        stream=not mla.q_lora, normed=bool(mla.q_lora), modules=1 if mla.q_lora else 2,
    )  # fmt: skip
    parts = [queries]
    if mla.q_lora:
        down = linear(share, "attn.q_down", hidden, mla.q_lora, rows=rows, bias=bias, stream=True, modules=2)
        between = norm(share, "attn.q_norm", rows, mla.q_lora, "rmsnorm", after_residual=False, es=share.e)
        parts = [down, before(share, between, queries), queries]
    narrow = mla.kv_lora + mla.rope
    down = linear(share, "attn.kv_down", hidden, narrow, rows=rows, bias=bias, stream=True)
    join = elementwise("add", share, rows * hidden, 2 * share.e, share.e)  # two gradients of one input
    parts.append(replace(down, saved=down.saved if casts(share) else 0, backward=(*down.backward, join)))
    between = norm(share, "attn.kv_norm", rows, mla.kv_lora, "rmsnorm", after_residual=False, es=share.e)
    gather = share.rows * narrow * share.e if split else 0
    keys = linear(
        share, "attn.kv_up", mla.kv_lora, local.q * (mla.nope + mla.value), seam="tp.gather" if split else "", seam_bytes=gather,
        saved_rows=rows, normed=True,
    )  # fmt: skip
    parts += [before(share, between, keys), keys]
    parts += [rope(share, local.q + 1, mla.rope), _join_heads(share, local, mla)]
    parts.append(core(share, local, causal=True, reread=reread))
    reduce = share.rows * hidden * share.e if split else 0
    parts.append(linear(share, "attn.proj", local.q * mla.value, hidden, bias=bias, seam="tp.reduce" if split else "", seam_bytes=reduce))
    return parts


def _join_heads(share: Share, local: Heads, mla: Mla) -> Part:
    """[content | rotary] put side by side for queries and keys; the one rotary key is copied to every head."""
    e, n = share.e, share.rows * local.q
    if share.framework.attention.fused_rope:  # written in place by the rotary kernel
        work = elementwise("copy", share, n * local.d, e, e)
        return Part(name="attn.join", forward=(work,), backward=(work,), cls="elementwise")
    works = (elementwise("copy", share, n * local.d, e, e),) * 2
    spread = elementwise("reduce", share, n * mla.rope, e, 0)
    return Part(name="attn.join", forward=works, backward=(*works, spread), cls="elementwise")
