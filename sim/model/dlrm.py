"""DLRM (Naumov et al. 2019) and MLPerf's DLRM-DCNv2: tables on one rank each, all else on every rank, as facebookresearch/dlrm and TorchRec run it.

The ranks that share the tables are the group `ep`. Each looks up the rows of its tables for the samples of all of them and sends the sums
where the samples are (all_to_all of pooled embeddings); in backward their gradients return the same way. How tables are laid out is not
described: ranks hold and look up equal shares, as planners try to reach. Tables are updated inside their backward (FBGEMM's table-batched
embeddings; MLPerf's references train with SGD, and Adagrad since v3.0): no gradient of theirs is summed, kept or seen by the optimizer.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.recommender import Dlrm
from sim.work import Gemm, MemoryBound, Work
from topologies.errors import Refused

Blocks = tuple[tuple[str, Block], ...]
_SORT = 4
"""Passes of a radix sort over 32-bit keys with their values, a byte each (cub::DeviceRadixSort, which FBGEMM's backward calls)."""


def blocks_of(spec: Dlrm, shape: Shape, framework: Framework) -> Blocks:
    """embed (tables), bottom, head (pairs, the MLP on top, the loss). Raises `Refused` for tp and cp."""
    if shape.tp * shape.cp > 1:
        raise Refused(f"{spec.name or 'dlrm'}: a recommender's tables are split by ep, all else by data parallelism; set tp = cp = 1")
    share = share_of(replace(shape, seq=1), framework)
    share = replace(share, es=share.e)
    stream = share.micro * spec.dim * share.e
    bottom = _mlp(share, "mlp", (spec.dense, *spec.bottom), ends=True)
    bottom[0] = replace(bottom[0], backward=())  # numbers need no gradient
    joined, width = (_crossed(spec, share), spec.vectors * spec.dim) if spec.cross else (_pairs(spec, share), spec.pairs + spec.dim)
    top = _mlp(_carrying(share) if spec.cross else share, "mlp", (width, *spec.top), ends=False, stream=True)
    return (
        ("embed", Block(kind="embed", parts=tuple(_tables(spec, share)))),
        ("bottom", Block(kind="layer", parts=tuple(bottom), saved_input=share.micro * spec.dense * share.e)),
        ("head", Block(kind="head", parts=(*joined, *top, _loss(share)), saved_input=stream * spec.vectors)),
    )


def _tables(spec: Dlrm, share: Share) -> list[Part]:
    """Ids to the tables' ranks, rows summed there, sums to the samples' ranks. A row of a small table is read from memory, and written, once.

    Backward sorts the ids, so that each row is updated by one group of threads: it reads the gradients of what looked it up, the row, and its state
    (FBGEMM's EXACT_ADAGRAD, which torch.optim.Adagrad becomes in TorchRec's apply_optimizer_in_backward, and EXACT_ROWWISE_ADAGRAD).
    """
    b, ways, row = share.micro, share.shape.ep, spec.dim * (4 if share.autocast else share.e)
    asked, sums = b * sum(spec.lookups), b * len(spec.tables) * spec.dim
    rows = sum(min(rows, b * ways * hot) for rows, hot in zip(spec.tables, spec.lookups, strict=True)) // ways
    size = sums * row // spec.dim
    state = {"sgd": 0, "adagrad": spec.dim, "rowwise-adagrad": 1}[spec.table_optimizer]  # numbers of a row
    both = rows * (row + 4 * state)
    split = ways > 1
    look: Work = MemoryBound("embedding", rows * row + 8 * asked, size, share.act, 1.0 * asked * spec.dim)
    sort: Work = MemoryBound("sort", _SORT * 8 * asked, _SORT * 8 * asked, "fp32")
    update: Work = MemoryBound("embedding_backward", both + asked * row + 8 * asked, both, share.act, 2.0 * asked * spec.dim)
    ids: Work = MemoryBound("permute", 8 * asked, 8 * asked, "fp32")
    return [
        Part(
            name="ids",
            forward=(ids,),
            cls="embedding",
            detached=True,
            seam="ep.dispatch" if split else "",
            seam_bytes=8 * asked if split else 0,
        ),
        Part(
            name="tables",
            forward=(look,),
            wgrad=(sort, update),
            cls="embedding",
            tensors=(-(-sum(spec.tables) * spec.dim // ways),),
            expert=True,
            frozen=True,
            own_state=-(-sum(spec.tables) * state // ways),
            saved=8 * asked,
            seam="ep.combine" if split else "",
            seam_bytes=size if split else 0,
            modules=2,
        ),
    ]


def _mlp(share: Share, name: str, widths: tuple[int, ...], *, ends: bool, stream: bool = False) -> list[Part]:
    """Linears with ReLU after each of them; `ends`: after the last too. `stream`: the first reads what `share` carries, in its width."""
    parts: list[Part] = []
    for at, (k, n) in enumerate(pairwise(widths)):
        parts.append(linear(share, f"{name}{at}", k, n, rows=share.micro, bias=True, low=False, stream=stream and not at))
        last = at == len(widths) - 2
        if ends or not last:
            parts.append(activation(share, f"{name}{at}.relu", share.micro, n, "relu", reread=not last))
    return parts


def _pairs(spec: Dlrm, share: Share) -> list[Part]:
    """All vectors of a sample in one tensor, its product with its own transpose, what lies below the diagonal beside the first MLP's vector.

    Backward fills zeros, scatters the gradient below the diagonal, and adds both gradients of the tensor, and both of the first MLP's vector.
    """
    b, e, v, d = share.micro, share.e, len(spec.tables) + 1, spec.dim
    n, low = b * v * d, b * spec.pairs
    cast = [elementwise("cast", share, b * (v - 1) * d, 4, e)] * share.autocast
    back = [elementwise("cast", share, b * (v - 1) * d, e, 4)] * share.autocast
    cat, add = elementwise("copy", share, n, e, e), elementwise("add", share, n, 2 * e, e)
    product: Work = Gemm(v, v, d, share.core, b)
    grads: tuple[Work, ...] = (Gemm(v, d, v, share.core, b, "dgrad"), Gemm(d, v, v, share.core, b, "dgrad"), add)
    pick, zero = elementwise("gather", share, low, e, e), elementwise("zero", share, b * v * v, 0, e)
    put = elementwise("scatter", share, low, e, 2 * e)
    end, fork = elementwise("copy", share, low + b * d, e, e), elementwise("add", share, b * d, 2 * e, e)
    return [
        Part(name="pairs.cat", forward=(*cast, cat), backward=(fork, *back), cls="elementwise", modules=0),
        Part(name="pairs.products", forward=(product,), backward=grads, cls="gemm", saved=n * e),
        Part(name="pairs.below", forward=(pick, end), backward=(zero, put), cls="elementwise", modules=0),
    ]


def _carrying(share: Share) -> Share:
    """Under autocast all vectors of a sample are fp32, as tables are: torch.cat takes the widest (torch.amp, ops that promote to the widest type)."""
    return replace(share, es=4 if share.autocast else share.e)


def _crossed(spec: Dlrm, share: Share) -> list[Part]:
    """All vectors of a sample side by side, x0; in each layer x = x0 (W V x + b) + x (torchrec/modules/crossnet.py, LowRankCrossNet).

    A compiler makes one kernel each way of what follows W. Backward adds the gradients that come together in x, and in x0.
    """
    b, width, carried = share.micro, spec.vectors * spec.dim, _carrying(share)
    n, e, w = b * width, share.e, carried.es
    wide, narrow = ([elementwise("cast", share, b * spec.dim, *sizes)] * share.autocast for sizes in ((e, w), (w, e)))
    one, two, add = elementwise("add", share, n, e, w), elementwise("scale", share, n, 2 * w, w), elementwise("add", share, n, 2 * w, w)
    forward: tuple[Work, ...] = (one, two, add)
    down = [elementwise("cast", share, n, w, e)] * (w != e)
    backward: tuple[Work, ...] = (two, two, *down, add, add)
    if share.framework.compile:
        forward, backward = (elementwise("add", share, n, e + 2 * w, w, 3.0),), (elementwise("scale", share, n, e + 3 * w, e + w, 4.0), add)
    total: Work = MemoryBound("reduce", n * w, 4 * width, share.act)
    copy, apart = elementwise("copy", share, n, w, w), elementwise("copy", share, n - b * spec.dim, w, w)
    parts = [Part(name="cross.cat", forward=(*wide, copy), backward=(apart, *narrow), cls="elementwise", modules=0)]
    for at in range(spec.cross):
        kept = n * (e if share.framework.compile else w) + (n * w if share.autocast and not at else 0)  # and x0, of which V has a copy
        parts += [
            linear(carried, f"cross{at}.v", width, spec.rank, rows=b, low=False, stream=True, modules=0),
            linear(carried, f"cross{at}.w", spec.rank, width, rows=b, low=False, modules=0),
            Part(
                name=f"cross{at}",
                forward=forward,
                backward=backward,
                wgrad=(total,),
                cls="elementwise",
                tensors=(width,),
                saved=kept,
                modules=0,
            ),
        ]
    return parts


def _loss(share: Share) -> Part:
    """Sigmoid and binary cross-entropy of one number a sample, in fp32."""
    b = share.micro
    one: Work = MemoryBound("activation", 4 * b, 4 * b, "fp32", 5.0 * b)
    total: Work = MemoryBound("reduce", 8 * b, 4, "fp32", 8.0 * b)
    back: Work = MemoryBound("activation", 8 * b, 4 * b, "fp32", 10.0 * b)
    return Part(name="loss", forward=(one, total), backward=(back, back), cls="loss", saved=8 * b, modules=2)
