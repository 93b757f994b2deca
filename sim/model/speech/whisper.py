"""Whisper (Radford et al. 2022), operator by operator as transformers' modeling_whisper.py runs it with fused attention.

Each recording has the same number of frames: it is padded, and no mask leaves the padding out.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import check_length, data_parallel_only
from sim.model.layers.activation import activation
from sim.model.layers.attention import core
from sim.model.layers.begun import Way
from sim.model.layers.elementwise import elementwise, residual, transpose
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import casts, linear
from sim.model.layers.lora import beside_frozen, copies, freeze, reread
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import ADAPTER, Block, Part, Shape
from sim.model.pictures.maps import line_convolution
from sim.model.share import Share, share_of
from sim.model.specs.speech import Whisper
from sim.work import MemoryBound

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: Whisper, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed (convolutions), L0 ... (encoder), target (its norm, the text's embedding), D0 ... (decoder), head.

    Raises `Refused` for tp, cp or ep, `BadInput` for texts longer than the position table.
    """
    name = spec.name or "whisper"
    data_parallel_only(name, "a model of speech", shape, chain=False)
    check_length(name, shape.seq, spec.positions)
    sound, text = (share_of(replace(shape, seq=seq), framework, attention) for seq in (spec.frames // 2, shape.seq))
    heard, said = (share.rows * spec.hidden * share.es for share in (sound, text))
    layer = Block(kind="layer", parts=tuple(_encoder(spec, sound)), saved_input=heard)
    reader = Block(kind="layer", parts=tuple(_decoder(spec, sound, text)), saved_input=said)
    ending = _norm(spec, sound, "encoder.norm")
    if _heard_once(spec, sound):
        ending = replace(ending, saved=ending.saved + heard)
    middle = (ending, embedding(text, spec.hidden, spec.vocab, tables=(spec.positions,), name="target.tokens"))
    last = logits(text, spec.hidden, spec.vocab, tied=True, frozen=spec.lora is not None)
    head = (_norm(spec, text, "head.norm"), last, loss(text, spec.vocab))
    found = (
        ("embed", Block(kind="embed", parts=tuple(_stem(spec, sound)))),
        *((f"L{i}", layer) for i in range(spec.layers)),
        ("target", Block(kind="embed", parts=middle, saved_input=heard)),
        *((f"D{i}", reader) for i in range(spec.decoder_layers or spec.layers)),
        ("head", Block(kind="head", parts=head, saved_input=said)),
    )
    if spec.lora is None:
        return found
    return tuple(
        (name, one if one is layer or one is reader else replace(one, parts=tuple(freeze(list(one.parts))))) for name, one in found
    )


def _heard_once(spec: Whisper, sound: Share) -> bool:
    """Do all layers of the decoder keep the encoder's one result? Not frozen ones, nor adapters with copies of their own."""
    if spec.lora is None:
        return not casts(sound)
    return not spec.lora.adapted.isdisjoint("kv") and not copies(spec.lora, sound, sound.e if sound.framework.compile else sound.es)


def _norm(spec: Whisper, share: Share, name: str) -> Part:
    return norm(share, name, share.rows, spec.hidden, "layernorm", modules=2, frozen=spec.lora is not None)


def _stem(spec: Whisper, share: Share) -> list[Part]:
    """Two convolutions with GELU, and positions that are not trained."""
    h, rows = spec.hidden, share.rows
    positions = elementwise("add", share, rows * h, share.e + share.es / share.micro, share.es)
    turned = elementwise("permute", share, rows * h, share.e, share.e)
    back = (elementwise("cast", share, rows * h, share.es, share.e),) if share.es != share.e else ()
    return [
        line_convolution(share, "conv1", spec.frames, spec.mels, h, 3, 1, padding=-1, bias=True, first=True),
        activation(share, "act1", share.micro * spec.frames, h, "gelu"),
        line_convolution(share, "conv2", spec.frames, h, h, 3, 2, padding=-1, bias=True),
        activation(share, "act2", rows, h, "gelu"),
        Part(
            name="positions",
            forward=(positions,),
            backward=(*back, turned),
            cls="elementwise",
            tensors=(spec.frames // 2 * h,),
            frozen=True,
        ),
    ]


def _around(spec: Whisper, share: Share, name: str, parts: list[Part]) -> list[Part]:
    """The mixer after its norm, and added."""
    parts = parts if spec.lora is None else beside_frozen(parts, spec.lora, share)
    return [_norm(spec, share, f"{name}.norm"), *parts, residual(share, f"{name}.residual", share.rows, spec.hidden, dropout=False)]


def _mlp(spec: Whisper, share: Share) -> list[Part]:
    return mlp(share, spec.hidden, spec.ffn or 4 * spec.hidden, "gelu", bias=True)


def _encoder(spec: Whisper, share: Share) -> list[Part]:
    return [
        *_around(spec, share, "attn", _attention(spec, share, share, "attn", causal=False)),
        *_around(spec, share, "mlp", _mlp(spec, share)),
    ]


def _decoder(spec: Whisper, sound: Share, text: Share) -> list[Part]:
    return [
        *_around(spec, text, "attn", _attention(spec, text, text, "attn", causal=True)),
        *_read(spec, sound, _around(spec, text, "cross", _attention(spec, text, sound, "cross", causal=False))),
        *_around(spec, text, "mlp", _mlp(spec, text)),
    ]


def _read(spec: Whisper, sound: Share, parts: list[Part]) -> list[Part]:
    """Adapters that read the encoder's result, where that is kept once for all layers."""
    if spec.lora is None or not _heard_once(spec, sound):
        return parts
    heard = sound.rows * spec.hidden * sound.e
    first = next(part for part in parts if part.name.startswith("cross.kv.") and part.name.endswith(ADAPTER))
    return [replace(part, saved=part.saved - heard) if part is first else part for part in parts]


def ways(block: str, part: str) -> Way:
    """Of sound and of text, whose keys and values across are made of the sound."""
    if block == "target" and part != "encoder.norm":
        return Way((), ("text",), opens=True)
    if part == "cross.kv":
        return Way(("sound",), ("text",))
    stream = ("text",) if block == "head" or block[0] == "D" else ("sound",)
    return Way(stream, stream)


def _attention(spec: Whisper, share: Share, keys: Share, name: str, *, causal: bool) -> list[Part]:
    """Queries of `share` on `keys`: three linears (the keys' without biases), queries scaled, all three copied with heads before tokens (their
    gradients come with tokens before heads), the core, whose result in that order is kept and copied back, a linear. Across: what all layers'
    keys and values give to the encoder's result is summed."""
    h, d, own = spec.hidden, spec.hidden // spec.heads, share is keys
    n, m = share.rows * h, keys.rows * h
    eager = not share.framework.compile
    scale = [elementwise("scale", share, n, share.e, share.e)] * eager
    copies = [transpose(share, size) for size in (n, m, m)] * eager
    fork = [] if own else [elementwise("add", keys, m, 2 * keys.es, keys.es)] * eager
    heads = split_heads(share, spec.heads, spec.heads, d)
    across, kept = 0 if own else keys.shape.seq, share.e if eager else reread(spec.lora, share)
    middle = core(share, heads, causal=causal, scale=False, kv_seq=across, reread=kept, name=f"{name}.core")
    both = [] if own else [linear(share, f"{name}.q", h, h, bias=True, stream=True, modules=2)]
    widths = (h, h, h) if own else (h, h)
    rest = linear(keys, f"{name}.{'qkv' if own else 'kv'}", h, widths, bias=True, stream=True, modules=2 if own else 1)
    rest = _unbiased(rest, len(widths) - 2, keys.rows * h * keys.e)
    turned = Part(name=f"{name}.heads", forward=(*scale, *copies), backward=tuple(scale), cls="elementwise", modules=0)
    rest = replace(rest, backward=(*rest.backward, *fork), saved=rest.saved if own or casts(keys) else 0)
    joined = Part(name=f"{name}.joined", forward=(transpose(share, n),), cls="elementwise", saved=n * share.e, modules=0)
    return [*both, rest, turned, middle, *[joined] * eager, linear(share, f"{name}.proj", h, h, bias=True)]


def _unbiased(part: Part, at: int, size: int) -> Part:
    """Several linears of which that at `at` has no biases: one tensor less, and one sum of a gradient of `size` bytes less."""
    sums = [i for i, work in enumerate(part.wgrad) if isinstance(work, MemoryBound) and work.what == "reduce" and work.read == size]
    tensors = part.tensors[: 2 * at + 1] + part.tensors[2 * at + 2 :]
    return replace(part, tensors=tensors, wgrad=tuple(work for i, work in enumerate(part.wgrad) if i != sums[0]))
