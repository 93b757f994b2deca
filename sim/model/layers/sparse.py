"""DeepSeek's sparse attention (DeepSeek-V3.2, section 2.1): an indexer chooses keys, and latent attention sees these alone.

As Megatron-Core runs it (absorbed_mla.py and dsa.py of megatron/core/transformer/experimental_attention_variant): queries go through the up-projection of keys,
so that all heads read one latent row for each key, and what comes out goes through that of values; every rank of tp has the whole indexer and all tokens.
What the indexer reads has no gradient, and its own loss compares its scores with what attention makes of the chosen keys, summed over heads.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.latent import bottleneck, gathered_where, latents, queries
from sim.model.layers.linear import casts, linear
from sim.model.layers.norm import norm
from sim.model.layers.rotary import rope
from sim.model.parts import Part, still
from sim.model.share import Share
from sim.model.specs.decoder import Indexer, Mla
from sim.work import Gemm, MemoryBound, Scores, Work
from topologies.errors import BadInput


def sparse(share: Share, hidden: int, heads: int, mla: Mla, *, chooses: bool, bias: bool = False) -> list[Part]:
    """Queries, latents, indexer, core, up-projection of values, proj. `chooses`: the layer has an indexer; else it takes the choice of one before.

    Raises `BadInput` for attention that is written out and for exchanged heads, of which no kernel is known.
    """
    assert mla.index is not None
    if share.math:
        raise BadInput('sparse attention ([mla.index]) is fused kernels. Use attention = "flash", or leave index out')
    if share.shape.ulysses > 1:
        raise BadInput('sparse attention ([mla.index]) gathers keys (Megatron-Core takes no other way). Use cp_kind = "all_gather"')
    local = split_heads(share, heads, heads, mla.nope + mla.rope, mla.value)
    wide = Heads(local.q, 1, mla.kv_lora + mla.rope, mla.kv_lora)
    absorb = _absorbed(share, local, mla)
    return [
        *queries(share, hidden, local, mla, bias),
        *latents(share, hidden, mla, absorb, bias),
        *(_indexer(share, hidden, mla, mla.index) if chooses else []),
        absorb,
        rope(share, local.q + 1, mla.rope),
        _join(share, wide),
        _core(share, wide, mla.index),
        *([_loss(share, wide, mla.index)] if chooses and mla.index.trained else []),
        _values(share, local, mla),
        linear(share, "attn.proj", local.q * mla.value, hidden, bias=bias, seam="tp.reduce", seam_bytes=share.over_tp(hidden)),
    ]


def choice(share: Share, index: Indexer) -> int:
    """Bytes of the keys' numbers that a rank's queries chose."""
    return 4 * share.rows * _picked(share, index)


def _inside(share: Share) -> int:
    """Tokens of a document."""
    return -(-share.seq * share.shape.cp // share.shape.documents)


def _picked(share: Share, index: Indexer) -> int:
    return min(index.top_k, _inside(share))


def _scores(share: Share, heads: int, d: int, chosen: int = 0) -> Scores:
    packed = share.shape.documents
    return Scores(share.micro * packed, heads, -(-share.seq // packed), _inside(share), d, chosen, share.core)


def _absorbed(share: Share, local: Heads, mla: Mla) -> Part:
    """Each head's queries through its up-projection of keys. The weights are those of values, too, whose gradient is here before this one."""
    sizes = (mla.nope + mla.value) * local.q
    part = _by_head(share, "attn.kv_up", local.q, mla.nope, mla.kv_lora)
    return replace(part, tensors=(sizes * mla.kv_lora,), matrices=((sizes, mla.kv_lora),))


def _values(share: Share, local: Heads, mla: Mla) -> Part:
    """What each head made of latents, through its up-projection of values."""
    return replace(_by_head(share, "attn.value_up", local.q, mla.kv_lora, mla.value), modules=0)


def _by_head(share: Share, name: str, heads: int, read: int, made: int) -> Part:
    """A product of each head's `read` columns with weights of its own, which gives `made`."""
    rows, dtype, habits = share.rows, share.core, share.framework
    return Part(
        name=name,
        forward=(Gemm(rows, made, read, dtype, heads),),
        backward=(Gemm(rows, read, made, dtype, heads, "dgrad"),),
        wgrad=(Gemm(made, read, rows, dtype, heads, "wgrad", habits.linears.accumulates, 1, habits.precision.grad_dtype),),
        cls="gemm",
        saved=rows * heads * read * share.e,
    )


def _join(share: Share, wide: Heads) -> Part:
    """[latent | rotary] of queries and of keys; of these all rows are gathered."""
    copies: tuple[Work, ...] = tuple(elementwise("copy", share, share.rows * heads * wide.d, share.e, share.e) for heads in (wide.q, 1))
    gathered = share.over_tp(wide.d)
    return Part(
        name="attn.join",
        forward=copies,
        backward=copies,
        cls="elementwise",
        seam=gathered_where(share) if gathered else "",
        seam_bytes=gathered,
    )


def _core(share: Share, wide: Heads, index: Indexer) -> Part:
    """In 16 bits. Values are no tensor of their own, and the part after keeps the result. Keys of the indexer travel with those of attention."""
    part = core(replace(share, fused=share.core), wide, causal=True, chosen=index.top_k, reread=share.e)
    travels = share.rows * share.shape.cp * (wide.d + index.dim) * share.e if share.shape.cp > 1 else 0
    return replace(part, saved=part.saved - share.rows * wide.dv * share.e, seam_bytes=travels)


def _indexer(share: Share, hidden: int, mla: Mla, index: Indexer) -> list[Part]:
    """Queries from attention's compressed ones, keys and weights of heads from the layer's input; LayerNorm of keys, rope, Hadamard rotation, scores, choice."""
    rows, wide, split = share.rows, mla.q_lora or hidden, share.tp > 1 and not share.gathers_once
    asked = linear(
        share, "attn.index_q", wide, index.heads * index.dim, seam="tp.spread", seam_bytes=share.over_tp(wide) if split else 0, modules=2
    )
    read = linear(
        share, "attn.index_k", hidden, (index.dim, index.heads), seam="tp.spread", seam_bytes=share.over_tp(hidden) if split else 0, stream=True,
    )  # fmt: skip
    apart = casts(share) or (split and share.shape.sequence_parallel)  # inputs of their own, which no other part keeps
    turned = replace(rope(share, index.heads + 1, mla.rope, passed=index.dim - mla.rope), name="attn.index_rope")
    spun = elementwise("scale", share, rows * (index.heads + 1) * index.dim, share.e, share.e, 7.0)
    parts = [
        *(bottleneck(share, replace(part, backward=(), saved=part.saved if apart else 0)) for part in (asked, read)),
        bottleneck(share, norm(share, "attn.index_norm", rows, index.dim, "layernorm", after_residual=False, es=share.e)),
        turned,
        Part(name="attn.index_rotate", forward=(spun,), backward=(spun,), cls="elementwise", modules=0),
        _choosing(share, index),
    ]
    return parts if index.trained else [replace(still(part), saved=choice(share, index) * (part is parts[-1])) for part in parts]


def _choosing(share: Share, index: Indexer) -> Part:
    """Scores of all keys before a query, written in fp32; a radix selection reads them twice. Backward knows the chosen ones alone."""
    scores, picked = _scores(share, index.heads, index.dim), _picked(share, index)
    pairs = round(scores.batch * scores.pairs)
    select = MemoryBound("topk", 8 * pairs, 4 * share.rows * picked, "fp32", rows=share.rows)
    kept = share.rows * ((index.heads + 1) * index.dim + index.heads) * share.e
    return Part(
        name="attn.index_scores",
        forward=(scores, select),
        backward=(replace(_scores(share, index.heads, index.dim, picked), backward=True),),
        cls="attention",
        saved=kept + choice(share, index),
    )


def _loss(share: Share, wide: Heads, index: Indexer) -> Part:
    """KL divergence between the indexer's softmax over the chosen keys and attention's probabilities there, which are made again, summed over heads
    and over the ranks that have them."""
    size = choice(share, index)
    numbers = MemoryBound("softmax", 2 * size, size, "fp32", rows=share.rows)
    return Part(
        name="attn.index_loss",
        forward=(_scores(share, wide.q, wide.d, _picked(share, index)), numbers, MemoryBound("reduce", 2 * size, 4, "fp32")),
        backward=(MemoryBound("add", 2 * size, size, "fp32"),),
        cls="attention",
        saved=2 * size,
        seam="tp.sum" if share.tp > 1 else "",
        seam_bytes=size if share.tp > 1 else 0,
    )
