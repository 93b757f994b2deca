"""FLUX.1's rectified-flow transformer, operator by operator as black-forest-labs/flux (model.py, modules/layers.py) and torchtitan's copy run it."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.diffusion.modulation import condition, gated, modulated
from sim.model.diffusion.timestep import embedding_mlp, noised, squared_error, time_embedding
from sim.model.layers.activation import activation
from sim.model.layers.attention import core
from sim.model.layers.begun import Way
from sim.model.layers.elementwise import casts, elementwise
from sim.model.layers.heads import Heads
from sim.model.layers.linear import linear
from sim.model.layers.lora import beside_frozen, reread
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.vision import Blocks
from sim.model.share import Share, share_of
from sim.model.specs.diffusion import Flux
from sim.work import Work

_WAVES = 256
"""Numbers of the embedding of time and guidance (timestep_embedding, dim = 256)."""


_STREAMS = ("picture", "text")
_TARGETS = {
    **{
        f"{stream}.{part}": word
        for stream in _STREAMS
        for part, word in (("qkv", "qkv"), ("proj", "proj"), ("mlp.up", "up"), ("mlp.down", "down"))
    },
    "up": "qkv",
    "down": "down",
}
"""Part of a layer -> the word for it among `Lora.targets`."""


def ways(block: str, part: str) -> Way:
    """Picture and text have parts of their own; all else is of both."""
    stream, _, rest = part.partition(".")
    streams = (stream,) if rest and stream in _STREAMS else _STREAMS
    return Way(streams, streams)


def blocks_of(spec: Flux, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed, L0 ... of both kinds of layers, head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "flux", "a diffusion transformer", shape)
    picture, text, both = (
        share_of(replace(shape, seq=tokens), framework, attention) for tokens in (spec.tokens, spec.text, spec.tokens + spec.text)
    )
    stream = both.rows * spec.hidden * both.es + both.micro * spec.hidden * both.e  # and what conditions all layers
    double = Block(kind="layer", parts=tuple(_double(spec, picture, text, both)), saved_input=stream)
    single = Block(kind="layer", parts=tuple(_single(spec, both)), saved_input=stream)
    first = Block(kind="layer", parts=(_joined(spec, both), *single.parts), saved_input=stream)
    layers = [double] * spec.double + [first, *[single] * (spec.single - 1)] * (spec.single > 0)
    return (
        ("embed", Block(kind="embed", parts=tuple(_embed(spec, picture, text, both)))),
        *((f"L{i}", layer) for i, layer in enumerate(layers)),
        ("head", Block(kind="head", parts=tuple(_head(spec, picture, both)), saved_input=stream)),
    )


def _embed(spec: Flux, picture: Share, text: Share, both: Share) -> list[Part]:
    """Noise mixed in, latents packed into patches, and picture, text, time and the whole text embedded."""
    b, h = picture.micro, spec.hidden
    width = spec.channels * spec.patch**2
    n, angles = picture.rows * width, both.rows * (h // spec.heads) // 2
    pack = elementwise("permute", picture, n, 4, 4)
    add = elementwise("add", picture, b * h, 2 * picture.e, picture.e)
    steered = time_embedding(picture, _WAVES, h)
    steered += time_embedding(picture, _WAVES, h, "guidance") if spec.guidance else []
    steered += embedding_mlp(picture, "pooled", spec.pooled, h)
    turn = (elementwise("scale", both, angles, 4, 4), *(elementwise("activation", both, angles, 4, 4),) * 2)
    parts = [
        noised(picture, n),
        Part(name="pack", forward=(pack,), cls="elementwise", detached=True),
        _of_the_input(linear(picture, "picture", width, h, bias=True, low=False, modules=2)),
        *steered,
        Part(name="condition", forward=(add,) * (1 + spec.guidance), cls="elementwise", modules=0),
        _of_the_input(linear(text, "text", spec.context, h, bias=True, low=False)),
        Part(name="positions", forward=(*turn, elementwise("copy", both, 4 * angles, 4, 4)), cls="elementwise", detached=True, modules=4),
    ]
    return _tuned(spec, both, parts)


def _of_the_input(part: Part) -> Part:
    """Its input is data, which needs no gradient."""
    return replace(part, backward=())


def _normed_heads(spec: Flux, share: Share, name: str) -> list[Part]:
    """Queries, keys and values as views of one product's result; queries and keys normed, head by head, of copies where one kernel norms them.

    Backward stacks the gradients of the three, and turns them to the order of the product's columns.
    """
    n, d, e = share.rows * spec.hidden, spec.hidden // spec.heads, share.e
    eager = not share.framework.compile
    norms = [
        norm(share, f"{name}.{which}_norm", n // d, d, "rmsnorm", after_residual=False, es=e, frozen=spec.lora is not None)
        for which in ("q", "k")
    ]
    copies = (elementwise("copy", share, n, e, e),) * (2 * (eager and share.framework.elementwise.fused_norm))
    stack = (elementwise("copy", share, 3 * n, e, e),) * (2 * eager)
    return [Part(name=f"{name}.split", forward=copies, backward=stack, cls="elementwise", modules=0), *norms]


def _rotated(share: Share, width: int) -> Part:
    """apply_rope of queries and keys: pairs of columns in fp32, each turned by its position's two angles.

    A product for either column of a pair, both as wide as the result, and their sum. Backward sums each product's gradient over the pair and
    lays it into zeros, then adds the two.
    """
    n = share.rows * width
    if share.framework.compile or share.framework.attention.fused_rope:
        turn: tuple[Work, ...] = (elementwise("rope", share, 2 * n, share.e, share.e, 3.0),)
        return Part(name="attn.rope", forward=turn, backward=turn, cls="elementwise", rope=True)
    up, down = casts(share, n)
    half, add = elementwise("scale", share, n, 2, 4), elementwise("add", share, n, 8, 4)
    back = (
        elementwise("scale", share, n, 4, 4),
        elementwise("reduce", share, n, 4, 2),
        elementwise("zero", share, n, 0, 4),
        elementwise("copy", share, n, 2, 2),
    )
    one = (*up, half, half, add, *down)
    return Part(name="attn.rope", forward=one * 2, backward=(*up, *back, *back, add, *down) * 2, cls="elementwise", rope=True)


def _core(spec: Flux, share: Share, reread: int | None = None) -> Part:
    d = spec.hidden // spec.heads
    return core(share, Heads(spec.heads, spec.heads, d, d), causal=False, reread=reread)


def _tuned(spec: Flux, share: Share, parts: list[Part]) -> list[Part]:
    """The parts frozen and with adapters, where these are what is trained."""
    return parts if spec.lora is None else beside_frozen(parts, spec.lora, share, targets=_TARGETS)


def _double(spec: Flux, picture: Share, text: Share, both: Share) -> list[Part]:
    """Picture and text each with weights of its own; queries, keys and values of both in one attention."""
    h, e, compiled = spec.hidden, both.e, both.framework.compile
    n = both.rows * h
    streams = ((picture, "picture"), (text, "text"))
    learned, parts = spec.lora is None, list[Part]()
    for share, name in streams:
        parts += condition(share, f"{name}.condition", h, 6, learned=learned)
        parts += modulated(share, f"{name}.attn", h, learned=learned)
        parts.append(linear(share, f"{name}.qkv", h, 3 * h, bias=True, stream=True, modules=3))
        parts += _normed_heads(spec, share, name)
    # Values are copied, and live on beside the queries and keys that the norms keep: they are columns of one result.
    copy = elementwise("copy", both, n, e, e)
    parts.append(Part(name="attn.join", forward=(copy,) * (1 if compiled else 3), cls="elementwise", saved=n * e, modules=0))
    # The parts of the result are slices, copied for the products where there is more than one picture; their gradients are laid into zeros and added.
    zero = elementwise("zero", both, n, 0, e)
    whole = (copy,) if compiled else (zero, zero, copy, elementwise("add", both, n, 2 * e, e))
    many = both.micro > 1
    part = Part(name="attn.part", forward=(copy,) * many, backward=whole, cls="elementwise", saved=n * e * many, modules=0)
    parts += [_rotated(both, h), _core(spec, both, None if many else reread(spec.lora, both)), part]
    for share, name in streams:
        parts += [linear(share, f"{name}.proj", h, h, bias=True), gated(share, f"{name}.attn.residual", h, learned=learned)]
        parts += modulated(share, f"{name}.mlp", h, learned=learned)
        parts += mlp(share, h, spec.ffn or 4 * h, "gelu", bias=True, prefix=f"{name}.mlp")
        parts.append(gated(share, f"{name}.mlp.residual", h, learned=learned))
    return _tuned(spec, both, parts)


def _joined(spec: Flux, both: Share) -> Part:
    """Text and picture as one sequence."""
    return Part(name="join", forward=(elementwise("copy", both, both.rows * spec.hidden, both.es, both.es),), cls="elementwise", modules=0)


def _single(spec: Flux, share: Share) -> list[Part]:
    """Attention and MLP from one product, joined for another (Dehghani et al. 2023's parallel layers)."""
    h, ffn, e, rows = spec.hidden, spec.ffn or 4 * spec.hidden, share.e, share.rows
    split = (elementwise("copy", share, rows * (3 * h + ffn), e, e),)
    cat = (elementwise("copy", share, rows * (h + ffn), e, e),)
    learned = spec.lora is None
    parts = [
        *condition(share, "condition", h, 3, learned=learned),
        *modulated(share, "attn", h, learned=learned),
        linear(share, "up", h, 3 * h + ffn, bias=True, stream=True, modules=2),
        Part(name="split", backward=split, cls="elementwise", modules=0),
        *_normed_heads(spec, share, "attn"),
        _rotated(share, h),
        _core(spec, share),
        activation(share, "mlp.act", rows, ffn, "gelu"),
        Part(name="beside", forward=cat, cls="elementwise", saved=rows * h * e, modules=0),  # attention keeps its own result
        linear(share, "down", h + ffn, h, bias=True),
        gated(share, "residual", h, learned=learned),
    ]
    return _tuned(spec, share, parts)


def _head(spec: Flux, picture: Share, both: Share) -> list[Part]:
    """The picture's part of the sequence, the last norm, patches back to latents, and the squared error of the flow."""
    h, width = spec.hidden, spec.channels * spec.patch**2
    n, e, es = picture.rows * width, picture.e, picture.es
    lay = (elementwise("zero", both, both.rows * h, 0, es), elementwise("copy", picture, picture.rows * h, es, es))
    permute = elementwise("permute", picture, n, e, e)
    flow = elementwise("add", picture, n, 8, 4)
    learned = spec.lora is None
    parts = [
        Part(name="picture", backward=lay, cls="elementwise", modules=0),
        *condition(picture, "condition", h, 2, learned=learned),
        *modulated(picture, "last", h, learned=learned),
        linear(picture, "out", h, width, bias=True, low=False, stream=True),
        Part(name="unpack", forward=(permute,), backward=(permute,), cls="elementwise", modules=0),
        Part(name="flow", forward=(flow,), cls="elementwise", detached=True, modules=0),
        squared_error(picture, n),
    ]
    return _tuned(spec, picture, parts)
