"""The first and the last block of a language model: embedding, and head with its loss."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import capping, casts, elementwise
from sim.model.layers.linear import linear
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
    local = share.words(vocab)
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
        tables=tuple((rows, hidden) for rows in (local, *tables)),
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
) -> Part:
    """The vocabulary-parallel output linear; its weight belongs to the embedding where `tied`."""
    seam_bytes = (rows or share.rows) * hidden * share.e if share.tp > 1 else 0
    part = linear(
        share, "head.logits", hidden, share.words(vocab), rows=rows, bias=bias, low=share.framework.loss.low_head, stream=True, frozen=frozen,
        seam="tp.gather", seam_bytes=seam_bytes, saved_rows=0 if rows else share.srows,
    )  # fmt: skip
    return replace(part, tensors=part.tensors[1:], matrices=()) if tied else part


def capped_logits(share: Share, vocab: int) -> list[Part]:
    """A tanh bounds this rank's logits; a compiler puts it into the loss."""
    if share.framework.compile:
        return []
    n = share.rows * share.words(vocab)
    there, back = capping(share, n), capping(share, n, backward=True)
    return [Part(name="head.cap", forward=tuple(there), backward=tuple(back), cls="elementwise", saved=n * share.e, modules=0)]


def loss(share: Share, vocab: int, *, rows: int = 0, name: str = "head.loss") -> Part:
    """Cross-entropy over this rank's slice of the vocabulary; three fp32 numbers a row travel between the slices.

    PyTorch: logits to fp32, log_softmax (kept), nll; two kernels and a cast back. Backward peaks with log_softmax and
    the gradients before and after it, all fp32. Vocabulary-parallel (Megatron, also at tp = 1): to fp32, then max, subtract, exp, sum, divide in
    place, the fp32 softmax kept (4 s b v / t bytes, Korthikanti et al. 2022, section 4.3) beside the 16-bit logits. DTensor's loss_parallel
    keeps log_softmax, and has three more such tensors in backward.
    """
    tokens = rows or share.rows
    n, e = tokens * share.words(vocab), share.e
    habits = share.framework
    megatron = share.tp > 1 or habits.loss.in_place
    if habits.loss.fused or (habits.compile and habits.loss.compiled):
        kept = 4 if megatron else e
        forward: list[Work] = [MemoryBound("cross_entropy", n * e, n * kept, share.act, 5.0 * n, 1, tokens)]
        backward: list[Work] = [MemoryBound("cross_entropy", n * kept, n * e, share.act, 2.0 * n, 1, tokens)]
        if habits.loss.scripted:  # to fp32 with the maximum; minus it, exp and sum; over the sum
            again = elementwise("activation", share, n, 4, 4)
            forward, backward = [elementwise("cast", share, n, e, 4), again, again], [elementwise("cast", share, n, 4, e)]
        working = n * e  # Megatron: the logits; else their gradient
        if habits.loss.metrics:
            kept, working = 4, 4 * n
            forward, backward = _measured_loss(share, n, tokens)
    else:
        split = share.tp > 1 and habits.tensor_parallel.style == "dtensor"
        steps = _loss_parallel if split else _split_parallel_loss if megatron else _eager_loss
        forward, backward = steps(share, n, tokens)
        kept, each = (e, e) if habits.loss.narrow else (4, 12 if split else e if megatron else 8)
        working = n * each
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="loss",
        saved=kept * n + 8 * tokens,
        working=working,
        seam="tp.loss" if share.tp > 1 else "",
        seam_bytes=12 * tokens if share.tp > 1 else 0,
    )


def _measured_loss(share: Share, n: int, tokens: int) -> tuple[list[Work], list[Work]]:
    """A fused loss on fp32 logits, and InternEvo's metrics before it: once more the loss (LossWithTypeId), two maxima, argmax, the maximum
    subtracted, exp, sum (AccPerplex.update in internlm/model/metrics.py; NaiveAMPModel.convert_to_fp32)."""
    cast, uncast = casts(share, n)
    top, add, exp = elementwise("reduce", share, n, 4, 0), elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4, 4)
    once: Work = MemoryBound("cross_entropy", 4 * n, 4 * tokens, "fp32", 5.0 * n, 1, tokens)
    back: Work = MemoryBound("cross_entropy", 4 * n, 4 * n, "fp32", 2.0 * n, 1, tokens)
    return [*cast, once, top, top, top, add, exp, top, once], [back, *uncast]


def _split_parallel_loss(share: Share, n: int, tokens: int) -> tuple[list[Work], list[Work]]:
    cast, uncast = casts(share, n)
    row: Work = MemoryBound("reduce", 4 * tokens, 4 * tokens, "fp32", 1.0, 1, tokens)
    forward = [*cast, elementwise("reduce", share, n, 4, 0), elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4, 4)]
    forward += [elementwise("reduce", share, n, 4, 0), elementwise("scale", share, n, 4, 4), row]
    return forward, [elementwise("scale", share, n, 4, 4), *uncast]


def _loss_parallel(share: Share, n: int, tokens: int) -> tuple[list[Work], list[Work]]:
    """torch/distributed/tensor/parallel/loss.py: max, subtract, exp, sum, subtract; backward (zeros with a -1 in each row + exp(x)) x gradient."""
    cast, uncast = casts(share, n)
    row: Work = MemoryBound("reduce", 4 * tokens, 4 * tokens, "fp32", 1.0, 1, tokens)
    add, exp, top = elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4, 4), elementwise("reduce", share, n, 4, 0)
    zero: Work = MemoryBound("zero", 0, 4 * n, "fp32")
    forward: list[Work] = [*cast, top, add, exp, top, add, row]
    return forward, [zero, row, exp, elementwise("add", share, n, 8, 4), elementwise("scale", share, n, 4, 4), *uncast]


def _eager_loss(share: Share, n: int, tokens: int) -> tuple[list[Work], list[Work]]:
    cast, uncast = casts(share, n)
    row: Work = MemoryBound("reduce", 4 * tokens, 4 * tokens, "fp32", 1.0, 1, tokens)
    forward = [*cast, MemoryBound("softmax", 4 * n, 4 * n, "fp32", 5.0 * n, 1, tokens), row]
    zero: Work = MemoryBound("zero", 0, 4 * n, "fp32")  # nll_loss_backward fills a gradient of zeros, then one place of each row
    return forward, [zero, row, MemoryBound("softmax", 8 * n, 4 * n, "fp32", 2.0 * n, 1, tokens), *uncast]
