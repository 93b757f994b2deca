"""Vision-language models: a tower's pictures, projected, take places among a decoder's words."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.language import decoder
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.lora import freeze
from sim.model.layers.norm import norm
from sim.model.multimodal import tower as towers
from sim.model.multimodal.tower import reordered
from sim.model.parts import Block, Part, Shape, still
from sim.model.share import Share, share_of
from sim.model.specs.vlm import VisionLanguage
from sim.work import Gemm, MemoryBound
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: VisionLanguage, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """patches, V0 ... (tower), embed (its end, the projector, words), L0 ... (decoder), head.

    Raises `BadInput` for sequences that do not hold their pictures, `Refused` for context parallelism.
    """
    name = spec.name or "vlm"
    if shape.cp > 1:
        raise Refused(f"{name}: how context parallelism would split pictures is not described; set cp = 1")
    if spec.images * spec.tokens > shape.seq:
        raise BadInput(
            f"{name}: {spec.images} pictures of {spec.tokens} tokens do not fit seq_len = {shape.seq}. Set seq_len to at least "
            f"{spec.images * spec.tokens}, or fewer images"
        )
    seen = share_of(replace(shape, micro=shape.micro * spec.images, seq=spec.tower.tokens), framework, attention)
    share = share_of(shape, framework, attention)
    embed, *rest = decoder.blocks_of(spec.decoder, shape, framework, attention)
    words = list(embed[1].parts)
    if "decoder" in spec.frozen:
        rest = [(block, replace(one, parts=tuple(freeze(list(one.parts))))) for block, one in rest]
        words = freeze(words)
    bridge = [*_sight(spec, towers.ending(spec.tower, seen)), *_projector(spec, seen), *words, _joined(spec, share)]
    stream = seen.srows * spec.tower.hidden * seen.es
    return (
        ("patches", Block(kind="embed", parts=tuple(_sight(spec, towers.stem(spec.tower, seen))))),
        *_tower(spec, seen, stream),
        ("embed", Block(kind="embed", parts=tuple(bridge), saved_input=stream)),
        *rest,
    )


def _tower(spec: VisionLanguage, share: Share, stream: int) -> Blocks:
    """Layers of one kind are one `Block`. Those that nobody reads run without a backward."""
    made: dict[tuple[bool, bool], Block] = {}
    found = []
    for at in range(spec.tower.layers):
        windowed = spec.tower.windowed(at)
        unread = at >= spec.tower.layers - spec.tower.unread
        if (windowed, unread) not in made:
            parts = _sight(spec, towers.layer(spec.tower, share, windowed), unread)
            made[windowed, unread] = Block(kind="layer", parts=tuple(parts), saved_input=stream)
        found.append((f"V{at}", made[windowed, unread]))
    return tuple(found)


def _sight(spec: VisionLanguage, parts: Sequence[Part], unread: bool = False) -> list[Part]:
    """Parts of the tower: a frozen one needs no backward, for nothing before it is trained."""
    return [still(part) if unread or "tower" in spec.frozen else part for part in parts]


def _projector(spec: VisionLanguage, seen: Share) -> list[Part]:
    """Fewer patches, then one linear or two. These are whole on each rank of tensor parallelism, as norms are."""
    p, rows = spec.projector, seen.micro * spec.tokens
    parts, width = _fewer(spec, seen, rows), spec.tower.hidden * p.merge**2
    if p.layers == 2:
        inner = p.inner or spec.decoder.hidden
        parts.append(linear(seen, "projector.up", width, inner, rows=rows, bias=p.bias, low=False, stream=True, modules=2))
        parts.append(activation(seen, "projector.act", rows, inner, "gelu"))
        width = inner
    parts.append(linear(seen, "projector.down", width, spec.decoder.hidden, rows=rows, bias=p.bias, low=False, stream=p.layers == 1))
    if spec.tower.window:
        parts.append(reordered(seen, "projector.windows", rows, spec.decoder.hidden))
    if "projector" in spec.frozen:
        return [still(part) for part in parts]
    return _opened(parts) if "tower" in spec.frozen else parts


def _fewer(spec: VisionLanguage, seen: Share, rows: int) -> list[Part]:
    """Patches averaged (Gemma 3) or joined to `rows`, and the norm: over what they became, or (Qwen) over each before, whose joining is a view."""
    p, patches, width, e = spec.projector, seen.micro * spec.tower.patches, spec.tower.hidden, seen.es
    n, became = patches * width, width * p.merge**2

    def over(many: int, wide: int) -> list[Part]:
        return [norm(seen, "projector.norm", many, wide, p.norm)] if p.norm else []

    turn = elementwise("permute", seen, n, e, e)
    if p.pool > 1:
        pool, back = MemoryBound("pool", n * e, rows * width * e, seen.act), MemoryBound("pool_backward", n * e, n * e, seen.act)
        mean = Part(name="projector.pool", forward=(turn, pool), backward=(back, turn), cls="elementwise", saved=n * e)
        return [mean, *over(rows, became)]
    if p.joined_norm:  # a square's patches lie apart until they are joined, one side after the other
        join = Part(name="projector.merge", forward=(turn, turn), backward=(turn, turn), cls="elementwise", modules=0)
        return [join, *over(rows, became)]
    return over(patches, width)


def _opened(parts: list[Part]) -> list[Part]:
    """Behind a frozen tower: nothing needs the gradient of what the first trained part reads. A product does without; a norm, whose weights'
    gradients come of the same kernels, does not."""
    at = next(i for i, part in enumerate(parts) if part.tensors)
    kept = tuple(work for work in parts[at].backward if not (isinstance(work, Gemm) and work.role == "dgrad"))
    return [*(still(part) for part in parts[:at]), replace(parts[at], backward=kept), *parts[at + 1 :]]


def _joined(spec: VisionLanguage, share: Share) -> Part:
    """Pictures' tokens in place of the words' that held their places (masked_scatter): all are copied, then those written; in backward words
    lose these rows' gradients, which the pictures take."""
    h, es, tokens = spec.decoder.hidden, share.es, share.micro * spec.images * spec.tokens
    whole, some = elementwise("copy", share, share.rows * h, es, es), elementwise("copy", share, tokens * h, es, es)
    return Part(name="join", forward=(whole, some), backward=(whole, some), cls="elementwise", modules=0)
