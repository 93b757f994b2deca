"""Non-linearities between an MLP's linears, for one rank: plain and gated, fused or not."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.fields import GATED
from sim.work import MemoryBound, Work

_ACTIVATION_FLOPS = {"relu": (1.0, 2.0), "relu2": (1.0, 2.0), "silu": (5.0, 10.0)}
"""FLOPs per element forward and backward; gelu and tanh, which need an error function or exponentials, take 8 and 12. They tell kernels apart on CPUs."""


def activation(share: Share, name: str, rows: int, width: int, kind: str, *, halves: bool = False, reread: bool = False) -> Part:
    """The non-linearity between an MLP's linears, on `width` columns of its output.

    Gated kinds read two inputs of `width`. Unfused, silu keeps its input and the product keeps both factors; relu keeps its result, and so
    nothing of its own where what comes after it keeps that (`reread`). `halves`: the inputs are halves of one result, which unfused kernels read
    where they lie, and whose gradients a copy joins.
    """
    e, n = share.e, rows * width
    fused = share.framework.elementwise.fused_activation or share.framework.compile
    if kind in GATED:
        if fused:
            forward: tuple[Work, ...] = (elementwise("glu", share, n, 2 * e, e, 6.0),)
            backward: tuple[Work, ...] = (elementwise("glu", share, n, 3 * e, 2 * e, 12.0),)
        else:
            product, gate = elementwise("scale", share, n, 2 * e, e), elementwise("activation", share, n, e, e, 5.0)
            gated, other = elementwise("activation", share, n, 2 * e, e, 10.0), product
            if halves:  # the gradient of the second half is multiplied by what the gate made of the first
                gate, gated, other = (replace(work, rows=rows, halves=True) for work in (gate, gated, other))
            forward, backward = (gate, other), (product, other, gated, *(elementwise("copy", share, 2 * n, e, e),) * halves)
        kept = (2 if fused else 3) * n * e
    elif (kind == "gelu_new" or (kind == "gelu" and share.framework.elementwise.graph_operators)) and not fused:
        forward, backward = _gelu_in_python(share, n, 4 if share.framework.elementwise.graph_operators else e)
        kept = 4 * n * e  # x, its half, tanh and 1 + tanh
    elif kind == "quick_gelu" and not fused:
        forward, backward = _quick_gelu_in_python(share, n, e)
        kept = 2 * n * e
    else:
        twice = kind == "relu2" and (not fused or (share.framework.elementwise.eager_relu2 and not share.framework.compile))
        flops, back = _ACTIVATION_FLOPS.get(kind, (8.0, 12.0))
        forward = (elementwise("activation", share, n, e, e, flops),) * (2 if twice else 1)
        backward = (elementwise("activation", share, n, 2 * e, e, back),) * (2 if twice else 1)
        if twice:  # pow's backward: gradient x (2 x x^1)
            backward = (elementwise("copy", share, n, e, e), elementwise("scale", share, n, e, e), *backward)
        kept = 0 if reread and kind == "relu" else n * e
    return Part(name=name, forward=forward, backward=backward, cls="activation", saved=kept)


def sigmoid_gate(share: Share, name: str, columns: int) -> Part:
    """What attention gives, of so many `columns`, x sigmoid(gate): both inputs are kept (Qwen3-Next, Qwen3NextAttention)."""
    e, n = share.e, share.rows * columns
    forward, backward = elementwise("glu", share, n, 2 * e, e, 6.0), elementwise("glu", share, n, 3 * e, 2 * e, 12.0)
    return Part(name=name, forward=(forward,), backward=(backward,), cls="activation", saved=2 * n * e)


def limited(share: Share, part: Part, n: int) -> Part:
    """A gated activation of `n` results whose two inputs are clamped first (GPT-OSS, config.json: swiglu_limit).

    One kernel each, and their mask in backward, which reads the inputs again. `limits_apart`: a fused activation takes both in one tensor, so
    the halves are joined again, and in backward their gradients; a number made on the device meanwhile is waited for.
    """
    habits, e = share.framework, share.e
    if habits.compile or (habits.elementwise.fused_activation and not habits.experts.limits_apart):
        return part
    join = (elementwise("copy", share, 2 * n, e, e),) * habits.experts.limits_apart
    clamp, mask = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    forward, backward = (tuple(_together(work) for work in works) for works in (part.forward, part.backward))
    return replace(
        part,
        forward=(clamp, clamp, *join, *forward),
        backward=(*backward, mask, mask, *join),
        saved=part.saved + 2 * n * e,
        reads=habits.experts.limits_apart and not habits.cuda_graphs,
        native=2 + len(join),
    )


def _together(work: Work) -> Work:
    """Over what a clamp, or a copy, has made of the halves."""
    return replace(work, halves=False) if isinstance(work, MemoryBound) else work


def _gelu_in_python(share: Share, n: int, e: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """transformers' NewGELUActivation, 0.5 x (1 + tanh(c (x + 0.044715 x^3))), as eager PyTorch runs it: one kernel an operator.

    Backward: the product rule twice, tanh's, the cube's (its square again, times 3, times the gradient), and x's three gradients added.
    `e`: bytes of a value; TensorFlow's mixed precision keeps tf.pow and what is around it in fp32.
    """
    one, two = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    tanh, add = elementwise("activation", share, n, e, e, 8.0), elementwise("add", share, n, 2 * e, e)
    back = elementwise("activation", share, n, 2 * e, e, 2.0)
    return (one, one, add, one, tanh, one, one, two), (two, two, one, back, one, one, one, one, two, add, add)


def _quick_gelu_in_python(share: Share, n: int, e: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """transformers' QuickGELUActivation, x sigmoid(1.702 x), as eager PyTorch runs it: one kernel an operator. Backward: the product rule, the
    sigmoid's, the factor, and x's two gradients added."""
    one, two = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    sigmoid, back = elementwise("activation", share, n, e, e, 5.0), elementwise("activation", share, n, 2 * e, e, 3.0)
    return (one, sigmoid, two), (two, two, back, one, elementwise("add", share, n, 2 * e, e))
