"""Vision towers, operator by operator as transformers runs CLIP, SigLIP, InternViT, Pixtral's and Qwen's: patches, layers, the last norm."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise, residual, scaled
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.linear import linear, weight_casts
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import before, norm
from sim.model.layers.pieces import inside
from sim.model.multimodal import tiles
from sim.model.parts import Part, still
from sim.model.share import Share
from sim.model.specs.vlm import Tower
from sim.work import Conv, MemoryBound, Work


def stem(tower: Tower, share: Share) -> list[Part]:
    """Patches of the pictures, which need no gradient, with positions where they are a table; windows are put together."""
    parts = [_flat(tower, share) if tower.frames > 1 else _convolved(tower, share)]
    if tower.tiles > 1:
        return [*parts, *tiles.places(tower, share)]
    if tower.position == "learned" or tower.grid:
        parts.append((_interpolated if tower.grid else _positions)(tower, share))
    if tower.window:
        parts.append(reordered(share, "windows", share.rows, tower.hidden))
    if tower.first_norm:
        parts.append(norm(share, "first_norm", share.srows, tower.hidden, tower.norm, after_residual=False))
    return parts


def layer(tower: Tower, share: Share, windowed: bool, gated: bool) -> list[Part]:
    """Norm, attention, residual, norm, MLP, residual; each mixer scaled where the tower does so, or (`gated`) by one number."""
    h, heads, biased = tower.hidden, tower.heads, tower.bias if tower.attention_bias is None else tower.attention_bias
    attn = grouped_query(
        share, h, heads, heads, h // heads, qkv_bias=biased, proj_bias=biased, causal=False, mask=tower.tiles > 1, rotary=float(tower.position == "rope"),
        fused=share.framework.linears.fused_projections if tower.fused_qkv is None else tower.fused_qkv,
    )  # fmt: skip
    if windowed:
        attn = inside(attn, tower.window)
    gate_apart = share.framework.linears.gate_apart or not share.framework.linears.fused_projections
    rest = mlp(share, h, tower.ffn, tower.activation, bias=tower.bias, fused=not gate_apart)
    found = []
    for at, (name, mixer) in enumerate((("attn", attn), ("mlp", rest)), 1):
        first = norm(share, f"norm{at}", share.srows, h, tower.norm, modules=3 - at)
        found += [before(share, first, mixer[0]), *mixer]
        found += [scaled(share, f"{name}.scale", h, 1 if gated else h)] * (tower.layer_scale or gated)
        found.append(residual(share, f"{name}.residual", share.srows, h, dropout=False))
    return found


def ending(tower: Tower, share: Share) -> list[Part]:
    """The last norm, and the patches in their order again."""
    rows = share.srows if tower.last_norm == "patches" else share.micro
    parts = [norm(share, "last_norm", rows, tower.hidden, tower.norm)] if tower.last_norm else []
    if tower.last_norm == "class":  # nobody reads it
        parts = [still(parts[0])]
    if tower.class_token:
        n = share.micro * tower.patches * tower.hidden
        cut, zero = elementwise("copy", share, n, share.es, share.es), elementwise("zero", share, share.rows * tower.hidden, 0, share.es)
        parts.append(Part(name="without_class", forward=(cut,), backward=(zero, cut), cls="elementwise", modules=0))
    return parts


def reordered(share: Share, name: str, rows: int, width: int) -> Part:
    """Rows in another order, by their indices: read so, and in backward added so to zeros."""
    n, es, ids = rows * width, share.es, 8 * rows
    take: Work = MemoryBound("embedding", n * es + ids, n * es, share.act)
    back: tuple[Work, ...] = (elementwise("zero", share, n, 0, es), MemoryBound("embedding_backward", n * es + ids, 2 * n * es, share.act))
    return Part(name=name, forward=(take,), backward=back, cls="elementwise", modules=0, saved=ids)


def _flat(tower: Tower, share: Share) -> Part:
    """Pixels that come patch by patch: a convolution whose kernel is all of its input, as the product that it is."""
    part = linear(share, "patches", 3 * tower.frames * tower.patch**2, tower.hidden, bias=tower.patch_bias, low=False)
    return replace(part, backward=tuple(work for work in part.backward if getattr(work, "role", "") != "dgrad"), matrices=())


def _convolved(tower: Tower, share: Share) -> Part:
    """A convolution of stride = kernel = patch over the picture, its map turned to tokens, and the class token put before them."""
    b, patches, marked = share.micro * tower.tiles, tower.patches, tower.class_token and tower.tiles == 1
    shape = (b, 3, tower.image, tower.image, tower.hidden, tower.patch, tower.patch, tower.patch, 0, 1, share.core)
    weight = 3 * tower.patch**2 * tower.hidden
    tensors = (weight, *(tower.hidden,) * (tower.patch_bias + marked))
    down, up = weight_casts(share, tensors[:1])
    n = b * patches * tower.hidden * share.e
    turn = elementwise("copy", share, b * patches * tower.hidden, share.e, share.es)
    add: list[Work] = [MemoryBound("add", n, n, share.act)] * tower.patch_bias
    total: list[Work] = [MemoryBound("reduce", n, tower.hidden * share.e, share.act)] * tower.patch_bias
    return Part(
        name="patches",
        forward=(*down, Conv(*shape), *add, *(turn,) * marked),
        backward=(turn,),
        wgrad=(Conv(*shape, "wgrad"), *total, *up),
        cls="conv",
        tensors=tensors,
        saved=b * 3 * tower.image**2 * share.e,
        modules=3,
    )


def _positions(tower: Tower, share: Share) -> Part:
    """A table added to each picture's tokens."""
    n, table = share.rows * tower.hidden, tower.tokens * tower.hidden
    add = elementwise("add", share, n, share.es * (1 + 1 / share.micro), share.es)
    total = MemoryBound("reduce", n * share.es, table * share.es, share.act)
    return Part(
        name="positions", forward=(add,), wgrad=(total,), cls="elementwise", tensors=(table,), tables=((tower.tokens, tower.hidden),)
    )


def _interpolated(tower: Tower, share: Share) -> Part:
    """Four rows of a table for each patch, their mean by weights in fp32, added to the patches (transformers' Qwen3VLVisionModel)."""
    n, es, table = share.rows * tower.hidden, share.es, tower.grid**2 * tower.hidden
    ids, weights = 4 * 8 * share.rows, 4 * 4 * share.rows
    wide, narrow = ((elementwise("cast", share, n, *pair),) if es < 4 else () for pair in ((es, 4), (4, es)))
    lookup, weigh = MemoryBound("embedding", 4 * n * es + ids, 4 * n * es, share.act), elementwise("scale", share, 4 * n, es, 4)
    total, add = MemoryBound("reduce", 4 * n * 4, n * 4, "fp32"), elementwise("add", share, n, 2 * es, es)
    back: tuple[Work, ...] = (
        *wide,
        elementwise("scale", share, 4 * n, 1, 4),
        *((elementwise("cast", share, 4 * n, 4, es),) if es < 4 else ()),
    )
    rows: tuple[Work, ...] = (
        MemoryBound("zero", 0, table * es, share.act), MemoryBound("embedding_backward", 4 * n * es + ids, 2 * 4 * n * es, share.act),
    )  # fmt: skip
    return Part(
        name="positions",
        forward=(lookup, weigh, total, *narrow, add),
        wgrad=(*back, *rows),
        cls="elementwise",
        tensors=(table,),
        tables=((tower.grid**2, tower.hidden),),
        saved=ids + weights,
    )
