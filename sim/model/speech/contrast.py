"""What wav2vec 2.0 learns from: the quantised sound behind each frame, told from that of other frames (Baevski et al. 2020, sections 2 and 3.2).

Operator by operator as transformers' modeling_wav2vec2.py (Wav2Vec2GumbelVectorQuantizer, Wav2Vec2ForPreTraining) runs it: for all frames, the
loss leaves out those that are not masked. Its kernels are of one size each: scores of the codebooks' entries, these times their vectors,
pairs of frames, and elements of the pairs.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import casts, elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.speech import Wav2Vec
from sim.work import MemoryBound, Work

_CODES, _GROUPS, _OTHERS = 320, 2, 100
"""Entries of each codebook, codebooks, and others that each frame is told from (section 4.2)."""


def contrast(spec: Wav2Vec, share: Share, channels: int) -> list[Part]:
    """The parts after the last layer; `channels`: of the convolutions, whose result is quantised."""
    width, codes = spec.code, _CODES * _GROUPS
    return [
        linear(share, "head.frames", spec.hidden, width, bias=True, low=False, stream=True),
        linear(share, "head.codes", channels, codes, bias=True, low=False, stream=True),
        _choice(share, share.rows * codes, codes * width // _GROUPS),
        linear(share, "head.quantised", width, width, bias=True, low=False),
        _others(share, share.rows * (_OTHERS + 1), width),
        loss(share, _OTHERS + 1),
    ]


def _choice(share: Share, scores: int, table: int) -> Part:
    """gumbel_softmax with a hard result, the softmax whose evenness over the masked frames is rewarded, and the chosen vectors: the whole table
    times each frame's choice, summed."""
    rows, e = share.rows, share.e
    wide = 4 if e == 4 or share.autocast else e  # of the table, and so of its product
    widen, narrow = casts(share, scores)
    write, read, change, two = _kernels(share, scores, 4)
    into, out, times, _ = _kernels(share, rows * table, wide)
    softmax: Work = elementwise("softmax", share, scores, 4, 4, 5.0, rows * _GROUPS)
    noise: list[Work] = [write, change, change, two, change]  # exponential_, log, minus, added, over the temperature
    hard: list[Work] = [read, write, write, two, two]  # argmax, zeros, scatter, minus the soft choice, plus it
    evenness: list[Work] = [*widen, softmax, write, two, read, _few(share, 10)]
    soft: Work = elementwise("softmax", share, scores, 8, 4, 2.0, rows * _GROUPS)
    both: Work = elementwise("add", share, scores, 2 * e, e)
    # The gradient of the sum is copied: a broadcast cannot be seen as one table.
    back: list[Work] = [into, times, out, _few(share, 10), write, *widen, soft, soft, change, *narrow, *narrow, both]
    return Part(
        name="head.choice",
        forward=(*widen, *noise, softmax, *hard, *narrow, *evenness, into, out),
        backward=tuple(back),
        wgrad=(times, out),
        cls="elementwise",
        tensors=(table,),
        saved=scores * (8 + e),
    )


def _others(share: Share, pairs: int, width: int) -> Part:
    """Others' vectors by index, put behind the frame's own; torch.cosine_similarity in fp32, whose norms and quotients are kernels of their own;
    pairs that are equal are left out, which the host asks for."""
    rows, e = share.rows, share.e
    drawn, n = (pairs - rows) * width, pairs * width
    widen, narrow = casts(share, n)
    write, read, change, two = _kernels(share, n, 4)
    _, small, each, _ = _kernels(share, pairs, 4)
    join = elementwise("copy", share, n, e, e)
    compare: list[Work] = [elementwise("add", share, drawn, e, 1), elementwise("reduce", share, drawn, 1, 0)]
    # Both norms, each copied and held above zero; both quotients, their product, its sum. The frames' side is read from the cache.
    cosine: list[Work] = [small, read, *[each] * 6, write, change, two, read]
    frames: list[Work] = [change, write, change, change, two, change, read, write, change, change, two, read]
    others: list[Work] = [change, change, change, change, two, change, read, change, change, change, two]
    gather = MemoryBound("embedding", drawn * e + 8 * drawn // width, drawn * e, share.act)
    scatter = MemoryBound("embedding_backward", drawn * e + 8 * drawn // width, 2 * rows * width * e, share.act)
    return Part(
        name="head.others",
        forward=(gather, join, *widen, *cosine, each, *compare, *[each] * 4, _few(share, 8)),
        backward=(*[each] * 6, *frames, *others, *narrow, read, elementwise("copy", share, drawn, e, e), scatter, _few(share, 8)),
        cls="embedding",
        saved=12 * n + 20 * pairs + 8 * drawn // width,
        reads=True,
    )


def _kernels(share: Share, n: int, e: int) -> tuple[Work, Work, Work, Work]:
    """Over `n` values of `e` bytes: one that writes them, that sums them up, that changes them, that makes them of two."""
    return (
        elementwise("zero", share, n, 0, e),
        elementwise("reduce", share, n, e, 0),
        elementwise("scale", share, n, e, e),
        elementwise("add", share, n, 2 * e, e),
    )


def _few(share: Share, count: int) -> Work:
    """As many kernels over a few values."""
    return replace(elementwise("scale", share, 1, 8, 8), repeat=count)
