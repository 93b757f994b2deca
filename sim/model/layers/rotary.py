"""Rotary positions of queries and keys (Su et al. 2021), as kernels."""

from __future__ import annotations

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import Work


def rope(share: Share, heads: int, width: int, scaled: bool = False, passed: int = 0) -> Part:
    """Rotation of `heads` (queries and keys together) by `width` columns: one kernel fused, else as Python writes it.

    Unfused (transformers): x cos + rotate_half(x) sin is neg, cat, mul, mul, add, for queries and for keys, all of heads that lie between tokens
    (`strided`). Backward fills each half's gradient into zeros, and sums three gradients of x. `passed` columns of each head are not turned: the
    fused kernel copies them (TransformerEngine, fused_rope.cu); in Python cat joins them to the rest, and backward fills each slice's gradient
    into zeros and sums both (transformers, modeling_gpt_neox.py). `scaled`: cos and sin carry a factor, which TransformerEngine's kernel has
    not: Megatron-Core's own (rope_utils.py, _apply_rotary_pos_emb_bshd) makes them anew for each call and joins the rest, also where it is empty.
    """
    n, e, fused = share.rows * heads * width, share.e, share.framework.attention.fused_rope
    whole = n + share.rows * heads * passed
    if (fused and not scaled) or share.framework.compile:
        turn = (elementwise("rope", share, whole, e, e, 3.0),)
        return Part(name="attn.rope", forward=turn, backward=turn, cls="elementwise", rope=True)
    # parts of a fused projection's rows; torchtitan's complex product is of whole ones
    apart = share.framework.linears.joins_gradients and not fused
    one, two = ("strided", "strided") if apart else ("scale", "add")
    neg, cat, mul = (elementwise(one, share, n // part, e, e) for part in (4, 2, 2))
    steps: tuple[Work, ...] = (neg, cat, mul, mul, elementwise(two, share, n // 2, 2 * e, e))
    half = elementwise(one, share, n // 4, e, e)  # two, each into zeros of its own (slice_backward), are what cat joins in forward
    undone: tuple[Work, ...] = (neg, half, half, mul, mul, elementwise(two, share, n // 2, 2 * e, e))
    back: tuple[Work, ...] = (elementwise("zero", share, n // 2, 0, e),) * 2 + (elementwise("add", share, n // 2, 2 * e, e),)
    join = elementwise("copy", share, whole // 2, e, e)
    if passed:
        back += (elementwise("zero", share, whole // 2, 0, e),) * 2 + (join, elementwise("add", share, whole // 2, 2 * e, e))
    if not fused:
        forward = (*steps, *([join] if passed else [])) * 2
        return Part(name="attn.rope", forward=forward, backward=undone * 2 + back * 2, cls="elementwise", rope=True)
    angles = (elementwise("scale", share, share.seq * width, 4, 4),) * 2 + (elementwise("cast", share, share.seq * width, 4, e),)
    forward = (*angles, *angles, *steps, join) * 2
    return Part(
        name="attn.rope",
        forward=forward,
        backward=undone * 2 + back * 2,
        cls="elementwise",
        rope=True,
        native=len(forward),
        nodes=2 * len(steps),
    )
