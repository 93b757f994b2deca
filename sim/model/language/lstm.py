"""LSTM sequence to sequence: GNMT v2 as in NVIDIA's DeepLearningExamples (4 + 4 layers, additive attention, residuals).

A layer's input product runs once over all time steps; the recurrent product and the gates run step after step
(cuDNN), so `repeat` counts the steps. Backward runs the steps again, with one product for the hidden state each.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.layers.elementwise import elementwise, residual
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.linear import linear, weight_casts
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import Seq2Seq
from sim.work import Gemm, MemoryBound, Work

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: Seq2Seq, shape: Shape, framework: Framework) -> Blocks:
    """embed, L0 ... (encoder), D0 ... (decoder, D0 with the attention), head. Target sequences are as long as source ones."""
    data_parallel_only(spec.name or "seq2seq", "a recurrent network", shape)
    share, h = share_of(replace(shape, seq=min(shape.seq, spec.longest)), framework), spec.hidden
    stream = share.rows * h * share.e
    encoder = [[lstm(share, h, h, directions=2)], [lstm(share, 2 * h, h)], [lstm(share, h, h), _skip(spec, share)]]
    decoder = [
        [lstm(share, h, h), *_attention(spec, share)],
        [lstm(share, 2 * h, h)],
        [lstm(share, 2 * h, h), _skip(spec, share)],
    ]
    made = [[Block(kind="layer", parts=tuple(parts), saved_input=stream) for parts in encoder]]
    # The first reads the encoder's result, the others the sum that attention made of it.
    made.append([Block(kind="layer", parts=tuple(parts), saved_input=stream, beside=stream) for parts in decoder])
    words = embedding(share, h, spec.vocab, dropout=spec.dropout > 0)
    second = embedding(share, h, spec.vocab, dropout=spec.dropout > 0, name="target.tokens")
    head = (logits(share, h, spec.vocab, bias=True), loss(share, spec.vocab))
    first = Block(kind="embed", parts=(words, replace(second, tensors=())))
    return (
        ("embed", first),
        *((f"L{i}", made[0][min(i, 2)]) for i in range(spec.layers)),
        *((f"D{i}", made[1][min(i, 2)]) for i in range(spec.layers)),
        ("head", Block(kind="head", parts=head, saved_input=stream)),
    )


def _skip(spec: Seq2Seq, share: Share) -> Part:
    return residual(share, "residual", share.rows, spec.hidden, dropout=spec.dropout > 0)


Works = tuple[Work, ...]


KEPT = {4: 5, 3: 4, 1: 0}
"""Gates -> tensors of (batch, steps, h) that a recurrent layer keeps beside its input and output: LSTM four gates and the cell; GRU its three
and the recurrent half of the third (cuDNN's reserve space); a plain RNN's output is all that its backward needs."""
_STEP = {4: (6, 6), 3: (7, 5), 1: (2, 1)}
"""Gates -> tensors of (batch, h) that one time step's kernel reads and writes: gates (a GRU's in two halves), biases' sum or state; what is
kept, and the state."""


def layer_works(batch: int, steps: int, k: int, h: int, dtype: str, size: int, gates: int = 4) -> tuple[Works, Works, Works]:
    """(forward, backward, gradients of weights) of one layer in one direction; `size`: bytes of an element; `gates`: 4 LSTM, 3 GRU, 1 plain.

    All of a time step's gates are one kernel (cuDNN).
    """
    act, wide = "fp32" if dtype == "tf32" else dtype, gates * h
    read, written = (count * batch * h * size for count in _STEP[gates])
    ops = 7.5 * gates * batch * h
    ahead, back = (MemoryBound("activation", one, other, act, ops, steps) for one, other in ((read, written), (written, read)))
    forward = (Gemm(batch * steps, wide, k, dtype), Gemm(batch, wide, h, dtype, repeat=steps), ahead)
    backward = (back, Gemm(batch, h, wide, dtype, 1, "dgrad", repeat=steps), Gemm(batch * steps, k, wide, dtype, 1, "dgrad"))
    wgrad = (Gemm(wide, k, batch * steps, dtype, 1, "wgrad"), Gemm(wide, h, batch * steps, dtype, 1, "wgrad"))
    return forward, backward, wgrad


def lstm(share: Share, k: int, h: int, *, directions: int = 1) -> Part:
    """Weights 4h x k and 4h x h with two biases, for each direction. Keeps input, gates and states."""
    b, s, e = share.micro, share.seq, share.e
    tensors = (4 * h * k, 4 * h * h, 4 * h, 4 * h) * directions
    down, up = weight_casts(share, tensors)
    forward, backward, wgrad = layer_works(b, s, k, h, share.core, e)
    return Part(
        name="lstm",
        forward=(*down, *forward * directions),
        backward=backward * directions,
        wgrad=(*wgrad * directions, *up),
        cls="rnn",
        tensors=tensors,
        matrices=((4 * h, k), (4 * h, h)) * directions,
        saved=b * s * (k + 6 * h * directions) * e,
        modules=2,
    )


def _attention(spec: Seq2Seq, share: Share) -> list[Part]:
    """score = v . tanh(W q + U k) for all pairs (Bahdanau et al. 2014), normalised; then the weighted sum of the encoder's output."""
    b, s, h, e = share.micro, share.seq, spec.hidden, share.e
    pairs, wide = b * s * s, b * s * s * h
    forward: list[Work] = [elementwise("add", share, wide, e, e), elementwise("activation", share, wide, e, e, 8.0)]
    forward += [Gemm(pairs, 1, h, share.core), elementwise("softmax", share, pairs, e, e, 5.0, b * s), Gemm(s, h, s, share.core, b)]
    backward: list[Work] = [Gemm(s, s, h, share.core, b, "dgrad"), Gemm(s, h, s, share.core, b, "dgrad")]
    backward += [elementwise("softmax", share, pairs, 2 * e, e, 4.0, b * s), elementwise("scale", share, wide, e, e)]
    backward += [
        elementwise("activation", share, wide, 2 * e, e, 10.0),
        elementwise("reduce", share, wide, e, 0),
        elementwise("reduce", share, wide, e, 0),
    ]
    score = Part(
        name="attn.score",
        forward=tuple(forward),
        backward=tuple(backward),
        cls="attention",
        tensors=(h, 1, h),
        saved=wide * e + pairs * e,
        modules=2,
    )
    join = elementwise("copy", share, share.rows * 2 * h, e, e)
    cat = Part(name="attn.join", forward=(join,) * spec.layers, backward=(join,) * spec.layers, cls="elementwise")
    return [linear(share, "attn.q", h, h, modules=2), linear(share, "attn.k", h, h), score, cat]
