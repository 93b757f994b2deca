"""Multi-token prediction: modules after the last layer, each of which guesses one token further on (DeepSeek-V3, arXiv 2412.19437, section 2.2).

As Megatron-Core builds them (multi_token_prediction.py): the embedding of the next tokens and the stream, each normed, are joined and
projected to the model's width; one more layer of the last one's kind (of a hybrid: some that it names) and a norm follow. The head makes
logits and a loss of every module's result, as of the model's own. Embedding and head are the model's: on another pipeline stage than the
embedding, the first module has a copy of the table.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part
from sim.model.share import Share
from sim.model.specs.decoder import Decoder


def modules(spec: Decoder, share: Share, layers: list[list[Part]], norm: Callable[[str], Part]) -> tuple[tuple[str, Block], ...]:
    """mtp0, (mtp0.1 ...), mtp0.head, mtp1, mtp1.head ...: `spec.mtp` modules around `layers`, each with its own weights; `norm` makes one of a
    name."""
    stream = share.srows * spec.hidden * share.es
    parts = [_joined(spec, share, norm) + layers[0], *layers[1:]]
    parts[-1] = [*parts[-1], norm("norm")]
    module = [(f".{at}" if at else "", Block(kind="mtp", parts=tuple(its), saved_input=stream)) for at, its in enumerate(parts)]
    module.append((".head", Block(kind="head", parts=_head(spec, share), saved_input=stream)))
    return tuple((f"mtp{at}{end}", block) for at in range(spec.mtp) for end, block in module)


def _joined(spec: Decoder, share: Share, norm: Callable[[str], Part]) -> list[Part]:
    """What goes into the module's layer. Under tensor parallelism the projection is cut by columns, and its result gathered."""
    rows, h, frozen = share.srows, spec.hidden, spec.lora is not None
    table = replace(embedding(share, h, spec.vocab, name="tokens", frozen=frozen), tensors=())
    join = Part(name="join", forward=(elementwise("copy", share, 2 * rows * h, share.es, share.es),), cls="other", modules=0)
    split = share.tp > 1
    wide = linear(
        share, "eh_proj", 2 * h, -(-h // share.tp), stream=True, seam="tp.gather" if split else "",
        seam_bytes=2 * share.rows * h * share.e if split else 0, saved_rows=rows, frozen=frozen,
    )  # fmt: skip
    found = [table, norm("enorm"), norm("hnorm"), join, wide]
    if split:
        whole = elementwise("copy", share, share.rows * h, share.e, share.e)
        found.append(
            Part(name="eh_proj.whole", forward=(whole,), cls="other", seam="tp.columns", seam_bytes=share.rows * h * share.e, modules=0)
        )
    return found


def _head(spec: Decoder, share: Share) -> tuple[Part, ...]:
    """Logits by the model's own head, and the loss."""
    product = logits(share, spec.hidden, spec.vocab, bias=spec.head_bias, frozen=spec.lora is not None)
    return replace(product, name="logits", tensors=()), loss(share, spec.vocab, name="loss")
