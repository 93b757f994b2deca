"""Pictures of several tiles, operator by operator as transformers' MllamaVisionModel: their places, the second stage, and all that a decoder's layers read
of them."""

from __future__ import annotations

from sim.model.layers.elementwise import elementwise
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.vlm import Tower
from sim.work import MemoryBound, Work


def places(tower: Tower, share: Share) -> list[Part]:
    """Before and after the class tokens come in, tables of what a tile's place and a patch's in it add; a norm; and tokens that fill each tile up.

    The mask that hides those is made once, of all pairs, and kept.
    """
    patches, made, filled = (share.micro * count for count in (tower.tiles * tower.patches, tower.made, tower.tokens))
    grid, es = tower.made // tower.tiles * tower.hidden, share.es
    n, pairs = made * tower.hidden, share.micro * tower.tokens**2
    fill = (elementwise("zero", share, filled * tower.hidden, 0, es), elementwise("copy", share, n, es, es))
    hide = (elementwise("scale", share, pairs, 0, share.e), elementwise("scale", share, pairs, share.e, share.e))
    own, back = _looked_up(share, n, (tower.ratios + 1) * tower.tiles * grid)
    common, shrink = (
        elementwise("scale", share, grid, es, es),
        (elementwise("scale", share, grid, 2 * es, es), MemoryBound("reduce", grid * es, es, share.act)),
    )
    add, total = elementwise("add", share, n, 2 * es, es), MemoryBound("reduce", n * es, grid * es, share.act)
    return [
        tile(tower, share, "first_tiles", patches // tower.tiles),
        Part(name="class_token", forward=(elementwise("copy", share, n, es, es),), cls="elementwise", tensors=(tower.hidden,), modules=0),
        Part(
            name="positions",
            forward=(common, elementwise("add", share, n, es, es), *own, add),
            wgrad=(*back, total, *shrink, common),
            cls="elementwise",
            tensors=(1, grid, (tower.ratios + 1) * tower.tiles * grid),
            tables=((tower.made // tower.tiles, tower.hidden), (tower.ratios + 1, tower.tiles * grid)),
            saved=n * es,
        ),
        norm(share, "first_norm", made, tower.hidden, tower.norm, after_residual=False),
        Part(name="fill", forward=(*fill, *hide), backward=fill[1:], cls="elementwise", saved=pairs * share.e, modules=0),
    ]


def second(tower: Tower, share: Share) -> list[Part]:
    """Between the stages: a norm, and the tiles' places."""
    return [norm(share, "middle_norm", share.srows, tower.hidden, tower.norm), tile(tower, share, "last_tiles", share.srows // tower.tiles)]


def tile(tower: Tower, share: Share, name: str, rows: int) -> Part:
    """What the place of a tile adds to each of its rows, of which there are `rows` in each: a row of a table, scaled by one learned number."""
    n, es, width = rows * tower.tiles * tower.hidden, share.es, tower.tiles * tower.hidden
    small, table = share.micro * width, (tower.ratios + 1) * width
    look, back = _looked_up(share, small, table)
    return Part(
        name=name,
        forward=(*look, elementwise("add", share, n, es, es)),
        wgrad=(MemoryBound("reduce", n * es, small * es, share.act), *back),
        cls="elementwise",
        tensors=(1, table),
        tables=((tower.ratios + 1, width),),
        saved=small * es,
    )


def columns(tower: Tower, share: Share, beside: int) -> list[Part]:
    """The results of `beside` layers, column beside column, behind the last one's; without the tokens that filled tiles up. Backward fills these with
    zeros, and adds each layer's share to the gradient that comes to it from the next."""
    n, es = share.rows * tower.hidden, share.es
    left, all_ = share.micro * tower.made * tower.hidden, 1 + beside
    stack, cut = elementwise("copy", share, beside * n, es, es), elementwise("copy", share, all_ * left, es, es)
    zero, add = elementwise("zero", share, all_ * n, 0, es), elementwise("add", share, n, 2 * es, es)
    return [Part(name="columns", forward=(stack, cut), backward=(zero, cut, *(add,) * beside), cls="elementwise", modules=0)]


def _looked_up(share: Share, n: int, table: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """`n` values of a table, scaled by a learned number; and their gradients, of table and number."""
    es = share.es
    look, scale = MemoryBound("embedding", n * es, n * es, share.act), elementwise("scale", share, n, es, es)
    number: tuple[Work, ...] = (elementwise("scale", share, n, 2 * es, es), MemoryBound("reduce", n * es, es, share.act))
    rows: tuple[Work, ...] = (
        MemoryBound("zero", 0, table * es, share.act),
        MemoryBound("embedding_backward", n * es, 2 * n * es, share.act),
    )
    return (look, scale), (*number, scale, *rows)
