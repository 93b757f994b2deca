"""The first and the last block of a language model: embedding, and head with its loss."""

from __future__ import annotations

from sim.model.layers import elementwise, linear
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import MemoryBound, Work


def embedding(
    share: Share,
    hidden: int,
    vocab: int,
    *,
    tables: tuple[int, ...] = (),
    dropout: bool = False,
    frozen: bool = False,
    name: str = "embed.tokens",
) -> Part:
    """Rows of a vocabulary-parallel table, and of further `tables` (positions, segments) that are added.

    Backward fills a dense gradient with zeros and scatters into it. Under autocast the lookup stays fp32.
    """
    local = -(-vocab // share.tp)
    n, es = share.rows * hidden, share.es
    ids = 8 * share.rows
    lookup: Work = MemoryBound("embedding", n * es + ids, n * es, share.act)
    forward: list[Work] = [lookup]
    wgrad: list[Work] = []
    for rows in (*tables, local):
        wgrad += [
            MemoryBound("zero", 0, rows * hidden * es, share.act),
            MemoryBound("embedding_backward", n * es + ids, 2 * n * es, share.act),
        ]
    for _ in tables:
        forward += [lookup, elementwise("add", share, n, 2 * es, es)]
    backward: list[Work] = []
    if dropout:
        forward.append(elementwise("dropout", share, n, es, es + 1))
        backward.append(elementwise("dropout", share, n, es + 1, es))
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        wgrad=() if frozen else tuple(wgrad),
        cls="embedding",
        tensors=(local * hidden, *(rows * hidden for rows in tables)),
        frozen=frozen,
        saved=ids + (n if dropout else 0),
        seam="tp.embedding" if share.tp > 1 else "",
        seam_bytes=n * es if share.tp > 1 else 0,
        modules=2 + len(tables),
    )


def logits(
    share: Share,
    hidden: int,
    vocab: int,
    *,
    tied: bool = False,
    bias: bool = False,
    rows: int = 0,
    frozen: bool = False,
    name: str = "head.logits",
) -> Part:
    """The vocabulary-parallel output linear; its weight belongs to the embedding where `tied`."""
    from msgspec.structs import replace

    seam_bytes = (rows or share.rows) * hidden * share.e if share.tp > 1 else 0
    part = linear(
        share, name, hidden, -(-vocab // share.tp), rows=rows, bias=bias, low=False, stream=True, frozen=frozen,
        seam="tp.gather" if seam_bytes else "", seam_bytes=seam_bytes, saved_rows=0 if rows else share.srows,
    )  # fmt: skip
    return replace(part, tensors=part.tensors[1:]) if tied else part


def loss(share: Share, vocab: int, *, rows: int = 0, name: str = "head.loss") -> Part:
    """Cross-entropy over this rank's slice of the vocabulary.

    PyTorch: logits to fp32, log_softmax (kept), nll; two kernels and a cast back. Vocabulary-parallel without fusion
    (Megatron): max, subtract, exp, sum, divide, each a kernel, the fp32 softmax kept (4 s b v / t bytes,
    Korthikanti et al. 2022, section 4.3). Fused: one kernel each way on 16-bit logits. Three fp32 numbers a row
    travel between the slices.
    """
    tokens = rows or share.rows
    local = -(-vocab // share.tp)
    n, e = tokens * local, share.e
    habits = share.framework
    row: Work = MemoryBound("reduce", 4 * tokens, 4 * tokens, "fp32", 1.0, 1, tokens)
    if habits.fused_cross_entropy or habits.compile:
        forward: list[Work] = [MemoryBound("cross_entropy", n * e, n * e, share.act, 5.0 * n, 1, tokens)]
        backward: list[Work] = [MemoryBound("cross_entropy", n * e, n * e, share.act, 2.0 * n, 1, tokens)]
        kept = n * e
    else:
        cast: list[Work] = [elementwise("cast", share, n, e, 4)] if e != 4 else []
        uncast: list[Work] = [elementwise("cast", share, n, 4, e)] if e != 4 else []
        if share.tp > 1:
            forward = [
                *cast,
                elementwise("reduce", share, n, 4, 0),
                elementwise("add", share, n, 4, 4),
                elementwise("activation", share, n, 4, 4),
            ]
            forward += [elementwise("reduce", share, n, 4, 0), elementwise("scale", share, n, 4, 4), row]
            backward = [elementwise("scale", share, n, 4, 4), *uncast]
        else:
            forward = [*cast, MemoryBound("softmax", 4 * n, 4 * n, "fp32", 5.0 * n, 1, tokens), row]
            backward = [row, MemoryBound("softmax", 8 * n, 4 * n, "fp32", 2.0 * n, 1, tokens), *uncast]
        kept = 4 * n
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="loss",
        saved=kept + 8 * tokens,
        seam="tp.loss" if share.tp > 1 else "",
        seam_bytes=12 * tokens if share.tp > 1 else 0,
    )
