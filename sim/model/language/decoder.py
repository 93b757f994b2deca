"""Causal transformers: the layer in its variants, and the whole stack."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.layers.elementwise import multiplied, residual
from sim.model.layers.ends import capped_logits, embedding, logits, loss
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.linear import casts
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import before, beside, norm
from sim.model.parts import Block, Part, Shape, still
from sim.model.share import Share, share_of
from sim.model.specs.decoder import Decoder
from topologies.errors import BadInput

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: Decoder, shape: Shape, framework: Framework, attention: str, seen: Share | None = None) -> Blocks:
    """embed, L0 ... L(n-1), (mtp0, mtp0.head ...), head. Layers of one kind are one `Block`. A table of learned positions holds the
    sequence, whatever the model was published with (Megatron-LM: --max-position-embeddings is no less than --seq-length). `seen`: pictures'
    tokens, for layers that read them.

    Raises `BadInput` for such layers without pictures.
    """
    if "X" in spec.mixers and seen is None:
        raise BadInput(f"{spec.name or 'model'}: mixers has 'X' layers, which read pictures. Make it the decoder of a model of family vlm")
    share = share_of(shape, framework, attention)
    stream = share.srows * spec.hidden * share.es
    made: dict[tuple[str, bool], Block] = {}
    layers = []
    for index in range(spec.layers):
        key = kind_of(spec, index)
        if key not in made:
            parts = tuple(_layer(spec, share, *key, seen))
            made[key] = Block(kind="layer", parts=parts, saved_input=stream, chosen=_choice(spec, share) if key[0].endswith("I") else 0)
        layers.append((f"L{index}", made[key]))
    first = Block(kind="embed", parts=tuple(_embed(spec, share)))
    last = Block(kind="head", parts=tuple(_head(spec, share)), saved_input=stream)
    return (("embed", first), *layers, *_further(spec, share), ("head", last))


def _choice(spec: Decoder, share: Share) -> int:
    """Bytes of the keys that a layer before chose for each query, which a pipeline hands on."""
    from sim.model.layers.sparse import choice

    assert spec.mla is not None and spec.mla.index is not None
    return choice(share, spec.mla.index)


def _further(spec: Decoder, share: Share) -> Blocks:
    """The modules of multi-token prediction."""
    if not spec.mtp:
        return ()
    from sim.model.layers.mtp import modules

    holds, windowed = kind_of(spec, spec.layers - 1)
    kinds = [(letter, False) for letter in spec.mtp_pattern] or [(holds.removesuffix("I"), windowed)]
    return modules(spec, share, [_layer(spec, share, *kind, None) for kind in kinds], partial(_norm, spec, share))


def kind_of(spec: Decoder, index: int) -> tuple[str, bool]:
    """(what the layer holds, is windowed): what makes layers differ. `dense` or `moe` and the letter of a mixer that is no attention (I: attention to
    keys that a layer before chose), or a hybrid's letter alone."""
    windowed = spec.window > 0 and index % spec.window_every == 0
    if spec.full_every and index % spec.full_every == spec.full_every - 1:
        windowed = False
    if spec.pattern:
        return spec.pattern[index], windowed
    routed = spec.moe is not None and index >= spec.first_dense and (index + 1) % spec.moe_every == 0
    letter = spec.mixers[index] if spec.mixers else "*"
    chosen = letter == "*" and spec.mla is not None and spec.mla.index is not None and not spec.mla.index.chooses(index)
    return ("moe" if routed else "dense") + ("I" if chosen else letter.replace("*", "")), windowed and letter == "*"


def _drops(spec: Decoder, share: Share) -> bool:
    return share.framework.elementwise.dropout if spec.dropout is None else spec.dropout > 0


def _attention_drops(spec: Decoder, share: Share) -> bool:
    return _drops(spec, share) if spec.attention_dropout is None else spec.attention_dropout > 0


def _embed(spec: Decoder, share: Share) -> list[Part]:
    tables = (max(spec.positions, share.shape.seq),) if spec.position == "learned" else ()
    parts = [
        embedding(
            share, spec.hidden, spec.vocab + spec.further_rows, tables=tables, dropout=_drops(spec, share), frozen=spec.lora is not None
        )
    ]
    if "embedding" in spec.scaled:
        factor = multiplied(share, "embed.scale", share.srows * spec.hidden, share.es)
        parts += [still(part) for part in factor] if spec.lora is not None else factor
    if spec.embed_norm:
        parts.append(_norm(spec, share, "embed.norm", after_residual=False))
    return parts


def _norm(spec: Decoder, share: Share, name: str, *, after_residual: bool = True, modules: int = 1) -> Part:
    return norm(
        share, name, share.srows, spec.hidden, spec.norm, bias=spec.norm_bias, weight=spec.norm_weight, modules=modules,
        after_residual=after_residual, frozen=spec.lora is not None,
    )  # fmt: skip


def _fused(spec: Decoder, share: Share) -> bool:
    return share.framework.linears.fused_projections if spec.fused_qkv is None else spec.fused_qkv


def attention_of(spec: Decoder, share: Share, windowed: bool) -> list[Part]:
    """Attention of one layer: latent (MLA) where the model has it, else grouped queries; `windowed`: over the sliding window or chunk.

    Chunks that context parallelism spreads over ranks are a window of half their length: as many keys in the mean.
    """
    if share.framework.attention.of(spec.biased_scores) == "math":  # of a decoder behind a tower that has no such scores
        share = replace(share, math=True)
    window = spec.window if windowed else 0
    chunk = window if spec.chunked and share.shape.cp == 1 else 0
    if chunk:
        window = 0
    elif spec.chunked:
        window //= 2
    parts = _whole_attention(spec, share, window, rotated=windowed or not spec.full_unrotated)
    if chunk:
        from sim.model.layers.pieces import inside

        return inside(parts, chunk)
    return parts


def _whole_attention(spec: Decoder, share: Share, window: int, *, rotated: bool) -> list[Part]:
    """... over the whole sequence, or the last `window` keys of it."""
    reread = None
    if spec.lora is not None:
        from sim.model.layers.lora import reread as read_by_adapters

        reread = read_by_adapters(spec.lora, share)
    if spec.mla is not None:
        from sim.model.layers.latent import latent

        return latent(share, spec.hidden, spec.heads, spec.mla, bias=spec.bias, rotated=spec.position == "rope", reread=reread)
    return grouped_query(
        share,
        spec.hidden,
        spec.heads,
        spec.kv,
        spec.head,
        qkv_bias=spec.bias if spec.qkv_bias is None else spec.qkv_bias,
        proj_bias=spec.bias if spec.proj_bias is None else spec.proj_bias,
        fused=_fused(spec, share),
        rotary=spec.rotary if spec.position == "rope" and rotated else 0.0,
        rope_scaled=spec.rope_scaled,
        qk_norm=spec.qk_norm,
        qk_whole=spec.qk_norm_whole,
        qk_weight=spec.qk_norm_weight,
        gated=spec.gated_attention,
        window=window,
        sinks=spec.sinks,
        capped=spec.capped_scores,
        dropout=_attention_drops(spec, share),
        frozen=spec.lora is not None,
        reread=reread,
    )


def _token_mixer(spec: Decoder, share: Share, letter: str, windowed: bool) -> list[Part]:
    """What mixes tokens in one layer: M Mamba-2, D the gated delta rule, L lightning attention, else attention (I: to keys that a layer before chose)."""
    if letter == "M":
        from sim.model.layers.mamba import mixer

        assert spec.mamba is not None
        return mixer(share, spec.hidden, spec.mamba)
    if letter == "D":
        from sim.model.layers.delta import delta_rule

        assert spec.delta is not None
        return delta_rule(share, spec.hidden, spec.delta)
    if letter == "L":
        from sim.model.layers.lightning import lightning

        assert spec.lightning is not None
        return lightning(share, spec.hidden, spec.lightning, fused=_fused(spec, share))
    if spec.mla is not None and spec.mla.index is not None:
        from sim.model.layers.sparse import sparse

        return sparse(share, spec.hidden, spec.heads, spec.mla, chooses=letter != "I", bias=spec.bias)
    return attention_of(spec, share, windowed)


def mixer_of(spec: Decoder, share: Share, mixer: str) -> list[Part]:
    """What follows the second norm: the dense MLP, or experts."""
    if mixer.startswith("moe") or mixer == "E":
        from sim.model.layers.moe import moe

        assert spec.moe is not None
        return moe(share, spec.hidden, spec.moe, spec.activation, fused=_fused(spec, share))
    fused = _fused(spec, share) and not share.framework.linears.gate_apart
    return mlp(share, spec.hidden, spec.inner, spec.activation, bias=spec.bias, fused=fused, frozen=spec.lora is not None)


def _layer(spec: Decoder, share: Share, mixer: str, windowed: bool, seen: Share | None) -> list[Part]:
    """Norm, attention, residual, norm, MLP, residual; norms before, after or both; or the parallel form, or one mixer of a hybrid."""
    drops, rows, h = _drops(spec, share), share.srows, spec.hidden
    if spec.pattern:
        return _hybrid(spec, share, mixer, windowed)
    letter = mixer.removeprefix("moe").removeprefix("dense")
    rest = mixer_of(spec, share, mixer)
    if letter == "X":
        from sim.model.layers.crossed import crossed, gated

        assert seen is not None
        attn, rest = crossed(share, seen, h, spec.heads, spec.kv, spec.head, fused=_fused(spec, share)), gated(share, "mlp", h, rest)
    else:
        attn = _token_mixer(spec, share, letter, windowed)
    if spec.lora is not None:
        from sim.model.layers.lora import beside_frozen

        one = spec.parallel_block and not spec.two_norms
        attn, rest = (beside_frozen(made, spec.lora, share, name=spec.name, read=one) for made in (attn, rest))
    norms = [_norm(spec, share, "norm1", modules=2), _norm(spec, share, "norm2")] if spec.pre_norms else []
    joins = [residual(share, f"{name}.residual", rows, h, dropout=drops) for name in ("attn", "mlp")]
    if "mixers" in spec.scaled:
        attn, rest = ([*made, *multiplied(share, f"{name}.scale", rows * h, share.es)] for name, made in (("attn", attn), ("mlp", rest)))
    if spec.parallel_block:  # one norm feeds both, or each has its own; their sum is one more add before the residual's
        if not spec.two_norms and rest[0].cls == "gemm" and not casts(share):
            rest[0] = replace(rest[0], saved=0)  # the norm's result is kept once
        second = [beside(share, norms[1], spec.norm)] if spec.two_norms else []
        return [norms[0], *attn, joins[0], *second, *rest, joins[1]]
    norms = [before(share, one, then[0]) for one, then in zip(norms, (attn, rest), strict=False)]
    after = [_norm(spec, share, f"{name}.post_norm", after_residual=False) for name in ("attn", "mlp")] if spec.post_norms else []
    return [*norms[:1], *attn, *after[:1], joins[0], *norms[1:], *rest, *after[1:], joins[1]]


def _hybrid(spec: Decoder, share: Share, letter: str, windowed: bool) -> list[Part]:
    """One norm, one mixer, one residual (Nemotron-H)."""
    inner = _token_mixer(spec, share, letter, windowed) if letter in "M*" else mixer_of(spec, share, letter)
    if spec.lora is not None:
        from sim.model.layers.lora import beside_frozen

        inner = beside_frozen(inner, spec.lora, share, name=spec.name)
    if "mixers" in spec.scaled:
        inner = [*inner, *multiplied(share, "mixer.scale", share.srows * spec.hidden, share.es)]
    first = before(share, _norm(spec, share, "norm1", modules=2), inner[0])
    return [first, *inner, residual(share, "residual", share.srows, spec.hidden, dropout=_drops(spec, share))]


def _head(spec: Decoder, share: Share) -> list[Part]:
    return [
        _norm(spec, share, "head.norm"),
        *(multiplied(share, "head.norm.scale", share.srows * spec.hidden, share.e) if "head" in spec.scaled else []),
        logits(share, spec.hidden, spec.vocab, tied=spec.tied, bias=spec.head_bias, frozen=spec.lora is not None),
        *(multiplied(share, "head.scale", share.rows * share.words(spec.vocab), share.e) if "logits" in spec.scaled else []),
        *(capped_logits(share, spec.vocab) if spec.capped_logits else []),
        loss(share, spec.vocab),
    ]
