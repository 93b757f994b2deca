"""How time and class (or text) steer a diffusion transformer's layers: shifts, scales and gates from one vector (Peebles & Xie 2022, adaLN-Zero).

Kernels as facebookresearch/DiT's models.py and black-forest-labs/flux's modules/layers.py run them, operator by operator.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.norm import norm
from sim.model.parts import Part, still
from sim.model.pictures.maps import swish
from sim.model.share import Share
from sim.work import Work


def condition(share: Share, name: str, width: int, count: int, *, learned: bool = True) -> list[Part]:
    """Swish and a linear from what conditions the picture to `count` shifts, scales and gates. Backward adds its gradient to those of other layers,
    and joins those of the `count`. `learned`: none of it is frozen, here as below; frozen, time and text need no gradient."""
    b, h, e = share.micro, width, share.e
    act = swish(share, f"{name}.act", b * h)
    fork = elementwise("add", share, b * h, 2 * e, e)
    out = linear(share, name, h, count * h, rows=b, bias=True, low=False, modules=2)
    join = elementwise("copy", share, b * count * h, e, e)
    parts = [replace(act, backward=(*act.backward, fork)), replace(out, backward=(join, *out.backward))]
    return parts if learned else [still(part) for part in parts]


def modulated(share: Share, name: str, width: int, *, learned: bool = True) -> list[Part]:
    """A norm without weights, x (1 + scale) + shift. Backward: the gradient summed over a picture's tokens (shift), times the norm's result and
    summed (scale), times 1 + scale, and that alone where shift and scale need none. A compiler has all of it in the norm's kernels, and the
    sums in one."""
    n, es, small = share.rows * width, share.es, share.micro * width
    plain = norm(share, f"{name}.norm", share.rows, width, "layernorm", bias=False, weight=False)
    few = elementwise("add", share, small, share.e, share.e)
    scale, add = elementwise("scale", share, n, es, es), elementwise("add", share, n, es, es)
    total, product = elementwise("reduce", share, n, es, 0), elementwise("scale", share, n, 2 * es, es)
    if share.framework.compile:
        both: Work = elementwise("reduce", share, n, 2 * es, 0)
        compiled = (both,) if learned else ()
        return [plain, Part(name=f"{name}.modulate", backward=compiled, cls="elementwise", saved=n * es * learned, modules=0)]
    works: tuple[Work, ...] = (total, product, total, scale) if learned else (scale,)
    one = Part(name=f"{name}.modulate", forward=(few, scale, add), backward=works, cls="elementwise", saved=n * es * learned, modules=0)
    return [plain, one]


def gated(share: Share, name: str, width: int, *, learned: bool = True) -> Part:
    """x + gate y. Backward: the gradient times the gate, and (`learned`) times y summed over a picture's tokens; the two gradients of x are
    added."""
    n, e, es = share.rows * width, share.e, share.es
    if share.framework.compile:  # the products and the add are the next norm's
        product: Work = elementwise("reduce", share, n, es + e, e) if learned else elementwise("scale", share, n, es, e)
        return Part(name=name, backward=(product,), cls="elementwise", saved=n * e * learned, modules=0)
    cast = [elementwise("cast", share, n, es, e)] if es != e else []
    scale, times, total = (
        elementwise("scale", share, n, e, e),
        elementwise("scale", share, n, 2 * e, e),
        elementwise("reduce", share, n, e, 0),
    )
    fork = elementwise("add", share, n, 2 * es, es)
    forward: tuple[Work, ...] = (scale, elementwise("add", share, n, e + es, es))
    backward = (*cast, scale, *(times, total) * learned, fork)
    return Part(name=name, forward=forward, backward=backward, cls="elementwise", saved=n * e * learned, modules=0)
