"""Vision-language models: a tower's pictures, projected, take places among a decoder's words."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.language import decoder
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import casts, linear
from sim.model.layers.lora import freeze
from sim.model.layers.norm import norm
from sim.model.multimodal import tiles
from sim.model.multimodal import tower as towers
from sim.model.multimodal.tower import reordered
from sim.model.parts import Block, Part, Shape, still
from sim.model.share import Share, share_of
from sim.model.specs.vlm import Projector, VisionLanguage
from sim.work import Gemm, MemoryBound
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: VisionLanguage, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """patches, V0 ... (tower), embed (its end, the projector, words), L0 ... (decoder), head; after each layer of the tower that the decoder reads
    too, its own projector (`merger8`), and after each layer of the decoder that takes one such, its sum (`deepstack0`);
    before the second stage of a tower its norm (`middle`).

    Under context parallelism each rank sees all pictures and joins them with all words before it takes its share of the sequence (Megatron-Bridge,
    Qwen3VLModel with vision_dp_when_cp = False, its default).

    Raises `BadInput` for sequences that do not hold their pictures, `Refused` for context parallelism where layers read pictures.
    """
    name = spec.name or "vlm"
    if shape.cp > 1 and spec.crossed:
        raise Refused(f"{name}: context parallelism of layers that read pictures is not supported; set cp = 1")
    if not spec.crossed and spec.images * spec.tokens > shape.seq:
        raise BadInput(
            f"{name}: {spec.images} pictures of {spec.tokens} tokens do not fit seq_len = {shape.seq}. Set seq_len to at least "
            f"{spec.images * spec.tokens}, or fewer images"
        )
    all_words = replace(shape, cp=1, ulysses=1)
    seen = share_of(replace(all_words, micro=shape.micro * spec.images, seq=spec.tower.tokens), framework, attention)
    share, whole = share_of(shape, framework, attention), share_of(all_words, framework, attention)
    read = share_of(replace(shape, seq=spec.images * spec.tokens), framework, attention) if spec.crossed else None
    _, *rest = decoder.blocks_of(spec.decoder, shape, framework, attention, read)
    words = list(decoder.blocks_of(spec.decoder, all_words, framework, attention, read)[0][1].parts)
    if "decoder" in spec.frozen:
        rest = [(block, replace(one, parts=tuple(freeze(list(one.parts))))) for block, one in rest]
        words = freeze(words)
    ending = tiles.columns(spec.tower, seen, len(spec.projector.beside)) if spec.crossed else towers.ending(spec.tower, seen)
    projector = _projector(spec, seen, "projector", spec.projector)
    if read is not None and not casts(read):  # all layers that read pictures keep the one result
        projector[-1] = replace(projector[-1], saved=projector[-1].saved + read.rows * spec.decoder.hidden * read.es)
    bridge = [*_sight(spec, ending), *projector, *words, *([] if spec.crossed else _joined(spec, whole, share))]
    stream = seen.srows * spec.tower.hidden * seen.es
    blocks = (
        ("patches", Block(kind="embed", parts=tuple(_sight(spec, towers.stem(spec.tower, seen))))),
        *_tower(spec, seen, stream),
        ("embed", Block(kind="embed", parts=tuple(bridge), saved_input=stream)),
        *_deepened(spec, share, rest),
    )
    return _handed_on(blocks, _later(spec, [name for name, _ in blocks], stream, (whole, share), read))


def _tower(spec: VisionLanguage, share: Share, stream: int) -> Blocks:
    """Layers of one kind are one `Block`. Those that nobody reads run without a backward. Between the stages are blocks that are no layers."""
    made: dict[tuple[bool, bool, bool], Block] = {}
    found = []
    for at in range(spec.tower.layers):
        kind = spec.tower.windowed(at), at >= spec.tower.layers - spec.tower.unread, at >= spec.tower.layers - spec.tower.gated_layers
        if kind not in made:
            parts = _sight(spec, towers.layer(spec.tower, share, kind[0], kind[2]), kind[1])
            made[kind] = Block(kind="layer", parts=tuple(parts), saved_input=stream)
        found.append((f"V{at}", made[kind]))
        if at in spec.projector.deepstack:
            found.append((f"merger{at}", Block(kind="embed", parts=tuple(_merger(spec, share, f"merger{at}")), saved_input=stream)))
        if spec.tower.gated_layers and at == spec.tower.layers - spec.tower.gated_layers - 1:
            between = _sight(spec, tiles.second(spec.tower, share))
            found.append(("middle", Block(kind="embed", parts=tuple(between), saved_input=stream)))
    return tuple(found)


def _later(
    spec: VisionLanguage, names: Sequence[str], stream: int, shares: tuple[Share, Share], read: Share | None
) -> list[tuple[int, int, int]]:
    """Results that are not only read by the block after: the first and the last block that others than this one must hand them to, by place, and
    their bytes. `shares`: of the whole sequence, as far as the embedding, and of the rank's."""
    at = {name: place for place, name in enumerate(names)}
    before, after = (_deep_rows(spec, share) * spec.decoder.hidden * share.es for share in shares)
    found = [(at[f"merger{layer}"] + 1, at["embed"], before) for layer in spec.projector.deepstack]
    found += [(at["embed"] + 1, at[f"deepstack{to}"], after) for to in range(len(spec.projector.deepstack))]
    found += [(at[f"V{layer}"] + 2, at["embed"], stream) for layer in spec.projector.beside]
    if read is not None:
        found.append((at["embed"] + 1, at[f"L{spec.decoder.mixers.rindex('X')}"], read.rows * spec.decoder.hidden * read.es))
    return found


def _handed_on(blocks: Blocks, results: Sequence[tuple[int, int, int]]) -> Blocks:
    """The blocks with what each reads or hands on beside its input."""
    made: dict[tuple[int, int], Block] = {}
    found = []
    for at, (name, block) in enumerate(blocks):
        key = id(block), sum(size for first, last, size in results if first <= at <= last)
        found.append((name, made.setdefault(key, replace(block, beside=key[1]))))
    return tuple(found)


def _merger(spec: VisionLanguage, seen: Share, name: str) -> list[Part]:
    """The projector of a layer that the next one reads too: their gradients of it are summed."""
    first, *rest = _projector(spec, seen, name, replace(spec.projector, joined_norm=True))
    if "tower" not in spec.frozen:
        fork = elementwise("add", seen, seen.srows * spec.tower.hidden, 2 * seen.es, seen.es)
        first = replace(first, backward=(*first.backward, fork))
    return [first, *rest]


def _deepened(spec: VisionLanguage, share: Share, rest: Sequence[tuple[str, Block]]) -> Blocks:
    """The decoder's blocks, with what its first layers make summed with what the mergers made."""
    found = list[tuple[str, Block]]()
    for at, (name, block) in enumerate(rest):
        found.append((name, block))
        if at < len(spec.projector.deepstack):
            add = _added(spec, share, f"deepstack{at}.add")
            found.append((f"deepstack{at}", Block(kind="embed", parts=(add,), saved_input=block.saved_input)))
    return tuple(found)


def _deep_rows(spec: VisionLanguage, share: Share) -> int:
    """Of the pictures' tokens those on this rank, in the mean."""
    return share.micro * spec.images * spec.tokens * share.srows // (share.rows * share.shape.cp)


def _added(spec: VisionLanguage, share: Share, name: str) -> Part:
    """A copy, and in it the rows of pictures taken, summed and put back by a mask, whose count of rows the host reads (transformers'
    Qwen3VLTextModel, Megatron-Bridge's Qwen3VLTransformerBlock). Backward: rows are taken for the sum's two sides, zeroed, and put into zeros."""
    h, es, rows = spec.decoder.hidden, share.es, _deep_rows(spec, share)
    n, ids = rows * h, 8 * rows
    copy, zero, both = (
        elementwise(what, share, share.srows * h, *e) for what, e in (("copy", (es, es)), ("zero", (0, es)), ("add", (2 * es, es)))
    )
    take, put = MemoryBound("embedding", n * es + ids, n * es, share.act), MemoryBound("embedding", n * es + ids, n * es, share.act)
    clear, sums = elementwise("zero", share, n, 0, es), MemoryBound("embedding_backward", n * es + ids, 2 * n * es, share.act)
    return Part(
        name=name,
        forward=(copy, take, elementwise("add", share, n, 2 * es, es), put),
        backward=(take, copy, clear, zero, sums, both),
        cls="elementwise",
        saved=ids,
        reads=True,
        shapeless=True,
    )


def _sight(spec: VisionLanguage, parts: Sequence[Part], unread: bool = False) -> list[Part]:
    """Parts of the tower: a frozen one needs no backward, for nothing before it is trained."""
    return [still(part) if unread or "tower" in spec.frozen else part for part in parts]


def _projector(spec: VisionLanguage, seen: Share, name: str, p: Projector) -> list[Part]:
    """Fewer patches, then one linear or two. These are whole on each rank of tensor parallelism, as norms are."""
    rows = seen.micro * spec.tokens
    parts, width = _fewer(spec, seen, rows, name, p), spec.tower.hidden * p.merge**2 * (1 + len(p.beside))
    if p.layers == 2:
        inner = p.inner or spec.decoder.hidden
        parts.append(linear(seen, f"{name}.up", width, inner, rows=rows, bias=p.bias, low=False, stream=True, modules=2))
        parts.append(activation(seen, f"{name}.act", rows, inner, "gelu"))
        width = inner
    parts.append(linear(seen, f"{name}.down", width, spec.decoder.hidden, rows=rows, bias=p.bias, low=False, stream=p.layers == 1))
    if spec.tower.window:
        parts.append(reordered(seen, f"{name}.windows", rows, spec.decoder.hidden))
    if "projector" in spec.frozen:
        return [still(part) for part in parts]
    return _opened(parts) if "tower" in spec.frozen else parts


def _fewer(spec: VisionLanguage, seen: Share, rows: int, name: str, p: Projector) -> list[Part]:
    """Patches averaged (Gemma 3) or joined to `rows`, and the norm: over what they became, or (Qwen) over each before. Qwen's patches come
    square by square: joining them is a view."""
    patches, width, e = seen.micro * spec.tower.patches, spec.tower.hidden, seen.es
    n, became = patches * width, width * p.merge**2

    def over(many: int, wide: int) -> list[Part]:
        return [norm(seen, f"{name}.norm", many, wide, p.norm)] if p.norm else []

    turn = elementwise("permute", seen, n, e, e)
    if p.pool > 1:
        pool, back = MemoryBound("pool", n * e, rows * width * e, seen.act), MemoryBound("pool_backward", n * e, n * e, seen.act)
        mean = Part(name=f"{name}.pool", forward=(turn, pool), backward=(back, turn), cls="elementwise", saved=n * e)
        return [mean, *over(rows, became)]
    if p.joined_norm and spec.tower.frames > 1:
        return over(rows, became)
    if p.joined_norm:  # a square's patches lie apart until they are joined, one side after the other
        join = Part(name=f"{name}.merge", forward=(turn, turn), backward=(turn, turn), cls="elementwise", modules=0)
        return [join, *over(rows, became)]
    return over(patches, width)


def _opened(parts: list[Part]) -> list[Part]:
    """Behind a frozen tower: nothing needs the gradient of what the first trained part reads. A product does without; a norm, whose weights'
    gradients come of the same kernels, does not."""
    at = next(i for i, part in enumerate(parts) if part.tensors)
    kept = tuple(work for work in parts[at].backward if not (isinstance(work, Gemm) and work.role == "dgrad"))
    return [*(still(part) for part in parts[:at]), replace(parts[at], backward=kept), *parts[at + 1 :]]


def _joined(spec: VisionLanguage, whole: Share, share: Share) -> list[Part]:
    """Pictures' tokens in place of the words' that held their places (masked_scatter): all are copied, then those written; in backward words
    lose these rows' gradients, which the pictures take. And the rank's share of the `whole` sequence, where it has one, by its rows' numbers."""
    h, es, tokens = spec.decoder.hidden, whole.es, whole.micro * spec.images * spec.tokens
    every, some = elementwise("copy", whole, whole.rows * h, es, es), elementwise("copy", whole, tokens * h, es, es)
    join = Part(name="join", forward=(every, some), backward=(every, some), cls="elementwise", modules=0)
    if share.rows == whole.rows:
        return [join]
    mine = elementwise("copy", share, share.rows * h, es, es)
    back = (elementwise("zero", whole, whole.rows * h, 0, es), elementwise("add", share, share.rows * h, 2 * es, es))
    return [join, Part(name="split", forward=(mine,), backward=back, cls="elementwise", modules=0)]
