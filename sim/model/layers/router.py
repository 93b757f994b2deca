"""The router of experts: scores, top-k, and the order of rows that comes of them."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.parts import Part, everywhere
from sim.model.share import Share
from sim.model.specs.decoder import Moe
from sim.work import MemoryBound, Work


def router(share: Share, rows: int, hidden: int, spec: Moe) -> Part:
    """Scores, softmax or sigmoid, top-k, and the map and balance loss that come of them (fp32, small).

    The input is kept once, by the shared experts where there are any.
    """
    scores = rows * spec.experts
    top: Work = MemoryBound("topk", 4 * scores, 12 * rows * spec.top_k, "fp32", 2.0 * scores, 1, rows)
    soft: Work = MemoryBound("softmax", share.e * scores, 4 * scores, "fp32", 5.0 * scores, 1, rows)
    soft_grad: Work = soft
    small: list[Work] = [MemoryBound("scale", 4 * scores, 4 * scores, "fp32", scores)] * (1 if share.framework.compile else 3)
    small_grad = small[1:]
    if spelled_out(share):
        small, small_grad = _sorted(rows, spec)
        soft_grad = MemoryBound("softmax", 8 * scores, 4 * scores, "fp32", 2.0 * scores, 1, rows)
    part = linear(share, "moe.router", hidden, spec.experts, rows=rows, bias=spec.router_bias, low=False, stream=True, modules=3)
    join = elementwise("add", share, rows * hidden, 2 * share.e, share.e)  # gradients of router and experts meet
    return replace(
        everywhere(part),
        tensors=part.tensors + (spec.experts,) * (spec.correction and not apart(share)),
        forward=(*part.forward, soft, top, *small),
        backward=(*small_grad, soft_grad, *part.backward, join),
        cls="moe",
        saved=(0 if spec.shared else part.saved) + 4 * scores + 8 * rows * spec.top_k,
    )


def apart(share: Share) -> bool:
    """Is the correction a frozen parameter (DeepSeek-V3's modeling_deepseek.py has one that nothing trains), and no buffer that is counted with
    the router's weights?"""
    return share.framework.tensor_parallel.style == "dtensor"


def correction(spec: Moe) -> Part:
    """The correction where it is frozen: FSDP gathers it, and nobody sums its gradient."""
    return Part(name="moe.correction", cls="moe", tensors=(spec.experts,), frozen=True, modules=0)


def spelled_out(share: Share) -> bool:
    """Rows move by torch's index operators, where no framework brings a kernel that copies, weighs and sums at once."""
    return not (share.framework.elementwise.fused_activation or share.framework.compile)


def _sorted(rows: int, spec: Moe) -> tuple[list[Work], list[Work]]:
    """What torchtitan's TokenChoiceTopKRouter and TokenReorderer (models/moe/moe.py) run after top-k, an operator each: weights gathered, summed and
    divided by their sum; rows counted by expert (histc), their order (argsort) and tokens (// top-k), weights in that order. Backward: the
    weights back in place, the quotient's rule, and their place among the scores. fp32, indices of 64 bits.
    """
    n, scores = rows * spec.top_k, rows * spec.experts
    taken, placed = MemoryBound("embedding", 12 * n, 4 * n, "fp32"), MemoryBound("scatter_add", 12 * n, 8 * n, "fp32")
    total: Work = MemoryBound("reduce", 4 * n, 4 * rows, "fp32", float(n), 1, rows)
    quotient: Work = MemoryBound("scale", 4 * n + 4 * rows, 4 * n, "fp32", float(n))
    product: Work = MemoryBound("scale", 8 * n, 4 * n, "fp32", float(n))
    negated: Work = MemoryBound("scale", 4 * n, 4 * n, "fp32", float(n))
    count: Work = MemoryBound("reduce", 4 * n, 4 * spec.experts, "fp32", float(n))
    order: Work = MemoryBound("topk", 8 * n, 16 * n, "fp32", float(n))
    tokens: Work = MemoryBound("scale", 8 * n, 8 * n, "fp32", float(n))
    add: Work = MemoryBound("add", 4 * n + 4 * rows, 4 * n, "fp32", float(n))
    normed: list[Work] = [total, quotient] if spec.top_k > 1 else []
    rule: list[Work] = [quotient, quotient, quotient, negated, product, total, add] if spec.top_k > 1 else []
    corrected: list[Work] = [MemoryBound("add", 4 * scores, 4 * scores, "fp32", float(scores))] if spec.correction else []
    forward: list[Work] = [*corrected, taken, *normed, count, order, tokens, taken]
    return forward, [*_placed(n), placed, *rule, *_placed(scores), placed]


def _placed(elements: int) -> tuple[Work, Work]:
    """Zeros, and their copy that values are put into."""
    return MemoryBound("zero", 0, 4 * elements, "fp32"), MemoryBound("copy", 4 * elements, 4 * elements, "fp32")
