"""Multi-head latent attention: queries and keys through low-rank bottlenecks, one rotary key for all heads (DeepSeek-V2)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.linear import casts, linear
from sim.model.layers.norm import before, norm
from sim.model.layers.rotary import rope
from sim.model.parts import Part, Seam, everywhere
from sim.model.share import Share
from sim.model.specs.decoder import Mla


def latent(
    share: Share, hidden: int, heads: int, mla: Mla, *, bias: bool = False, rotated: bool = True, reread: int | None = None
) -> list[Part]:
    """Down-projections, norms, up-projections split over tp, rope, core, proj.

    The bottlenecks are whole on every tp rank (they are narrow). Megatron's ranks send their own rows through them and gather what comes out.
    DTensor's gather the input and all do the same: only the gradients of what the up-projections read are summed (torchtitan,
    models/deepseek_v3/infra/parallelize.py: NoParallel). `rotated`: the rotary columns are turned (Kimi Linear's are not). `reread`: as in `core`.
    """
    local = split_heads(share, heads, heads, mla.nope + mla.rope, mla.value)
    keys = linear(
        share, "attn.kv_up", mla.kv_lora, local.q * (mla.nope + mla.value), seam=gathered_where(share),
        seam_bytes=share.over_tp(mla.kv_lora + mla.rope), saved_rows=narrow_rows(share), normed=True,
    )  # fmt: skip
    return [
        *queries(share, hidden, local, mla, bias),
        *latents(share, hidden, mla, keys, bias),
        keys,
        *([rope(share, local.q + 1, mla.rope)] if rotated else []),
        _join_heads(share, local, mla),
        core(share, local, causal=True, reread=reread),
        linear(share, "attn.proj", local.q * mla.value, hidden, bias=bias, seam="tp.reduce", seam_bytes=share.over_tp(hidden)),
    ]


def narrow_rows(share: Share) -> int:
    """Rows that a rank sends through a bottleneck."""
    return share.rows if share.gathers_once else share.srows


def gathered_where(share: Share) -> Seam:
    """What goes on from a bottleneck to the heads."""
    return "tp.copy" if share.gathers_once else "tp.gather"


def queries(share: Share, hidden: int, local: Heads, mla: Mla, bias: bool) -> list[Part]:
    """Down-projection, norm and up-projection, or one projection."""
    rows, wide = narrow_rows(share), mla.q_lora or hidden
    up = linear(
        share, "attn.q_up", wide, local.q * local.d, seam=gathered_where(share) if mla.q_lora else "tp.gather", seam_bytes=share.over_tp(wide),
        saved_rows=rows, stream=not mla.q_lora, normed=bool(mla.q_lora), modules=1 if mla.q_lora else 2,
    )  # fmt: skip
    if not mla.q_lora:
        return [up]
    down = linear(
        share, "attn.q_down", hidden, mla.q_lora, rows=rows, bias=bias, stream=True, seam="tp.spread",
        seam_bytes=share.over_tp(hidden) if share.gathers_once else 0, modules=2,
    )  # fmt: skip
    between = norm(share, "attn.q_norm", rows, mla.q_lora, "rmsnorm", after_residual=False, es=share.e)
    return [bottleneck(share, down), bottleneck(share, before(share, between, up)), up]


def latents(share: Share, hidden: int, mla: Mla, following: Part, bias: bool) -> list[Part]:
    """Down-projection of keys and values, and the norm before the part `following`."""
    rows = narrow_rows(share)
    down = linear(share, "attn.kv_down", hidden, mla.kv_lora + mla.rope, rows=rows, bias=bias, stream=True)
    join = elementwise("add", share, rows * hidden, 2 * share.e, share.e)  # two gradients of one input
    between = norm(share, "attn.kv_norm", rows, mla.kv_lora, "rmsnorm", after_residual=False, es=share.e)
    return [
        bottleneck(share, replace(down, saved=down.saved if casts(share) else 0, backward=(*down.backward, join))),
        bottleneck(share, before(share, between, following)),
    ]


def bottleneck(share: Share, part: Part) -> Part:
    """What is whole on each rank of tp, and sees its rows of the tokens, or all of them."""
    return replace(part, whole=()) if share.gathers_once else everywhere(part)


def _join_heads(share: Share, local: Heads, mla: Mla) -> Part:
    """[content | rotary] put side by side for queries and keys; the one rotary key is copied to every head."""
    e, n = share.e, share.rows * local.q
    if share.framework.attention.fused_rope:  # written in place by the rotary kernel
        work = elementwise("copy", share, n * local.d, e, e)
        return Part(name="attn.join", forward=(work,), backward=(work,), cls="elementwise")
    works = (elementwise("copy", share, n * local.d, e, e),) * 2
    spread = elementwise("reduce", share, n * mla.rope, e, 0)
    return Part(name="attn.join", forward=works, backward=(*works, spread), cls="elementwise")
