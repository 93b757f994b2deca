"""What both kinds of diffusion networks begin and end with: noise added to the latents, the time's embedding, the squared error.

The kernels are those of Ho et al. 2020 (algorithm 1): draw noise, mix it with the latents, predict it, compare.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import casts, elementwise
from sim.model.layers.linear import linear
from sim.model.parts import Part
from sim.model.pictures.maps import swish
from sim.model.share import Share
from sim.work import MemoryBound, Work


def noised(share: Share, n: int) -> Part:
    """`n` latents times one number of the schedule for each picture, and as much noise times another, added: without autograd, in fp32."""
    draw, scale, add = elementwise("zero", share, n, 0, 4), elementwise("scale", share, n, 4, 4), elementwise("add", share, n, 8, 4)
    few: Work = MemoryBound("gather", 12 * share.micro, 4 * share.micro, "fp32")
    works: tuple[Work, ...] = (draw, few, few, scale, scale, add)
    return Part(name="noise", forward=works, cls="elementwise", detached=True, modules=1)


def time_embedding(share: Share, waves: int, hidden: int, name: str = "time") -> list[Part]:
    """Sines and cosines of the time (or of another number of each picture), `waves` together, through two linears (the authors'
    timestep_embedding: exp, product, cos, sin, cat, cast)."""
    b = share.micro
    half: Work = MemoryBound("activation", 4 * b * waves // 2, 4 * b * waves // 2, "fp32")
    cat: Work = MemoryBound("copy", 4 * b * waves, 4 * b * waves, "fp32")
    sines = Part(name=f"{name}.sines", forward=(half, half, half, half, cat), cls="elementwise", detached=True)
    return [sines, *embedding_mlp(share, name, waves, hidden)]


def embedding_mlp(share: Share, name: str, k: int, hidden: int) -> list[Part]:
    """A vector for each picture, which needs no gradient, through linear, swish, linear."""
    b = share.micro
    return [
        replace(linear(share, f"{name}.up", k, hidden, rows=b, bias=True, low=False, modules=2), backward=()),
        swish(share, f"{name}.act", b * hidden),
        linear(share, f"{name}.down", hidden, hidden, rows=b, bias=True, low=False),
    ]


def squared_error(share: Share, n: int) -> Part:
    """The mean squared difference of `n` predicted and true values, in fp32."""
    cast, back = casts(share, n)
    loss, grad = elementwise("reduce", share, n, 8, 0, 3.0), elementwise("scale", share, n, 8, 4, 2.0)
    return Part(name="loss", forward=(*cast, loss), backward=(grad, *back), cls="loss", saved=8 * n)
