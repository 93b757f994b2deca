"""Kernels over rows: reductions, norms, softmax and the loss, embeddings, pooling, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from executor.kernels.backward import backward
from executor.kernels.site import Body, Site

aten = torch.ops.aten


def reduce(s: Site) -> Body:
    """Sums all elements if the work writes nothing; else sums over rows, so that the result has as many bytes as the work writes."""
    count = max(1, s.work.read // s.dtype.itemsize)
    width = max(1, min(count, s.work.written // s.dtype.itemsize)) if s.work.written else count
    a = s.arena.recent(max(1, count // width), width, dtype=s.dtype)
    return (lambda: a.sum(0)) if s.work.written else (lambda: a.sum())


def _norm_of_vector(s: Site) -> Body:
    a = s.arena.distant(max(1, s.work.read // s.dtype.itemsize), dtype=s.dtype)
    return lambda: torch.linalg.vector_norm(a)


def _layernorm(s: Site) -> Body:
    a, w, b = s.table(), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    return lambda: aten.native_layer_norm(a, [s.width], w, b, 1e-5)


def _layernorm_backward(s: Site) -> Body:
    a, w, b = s.table(far=True), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    _, mean, rstd = aten.native_layer_norm(a, [s.width], w, b, 1e-5)
    g, weights = s.table(), s.arena.device.type == "cpu"
    return lambda: aten.native_layer_norm_backward(g, a, [s.width], mean, rstd, w, b, [True, weights, weights])


def _layernorm_weights(s: Site) -> Body:
    """The gradients of a LayerNorm's weight and bias. On a GPU they are a separate kernel, with a thread block for each 32 columns. On a
    CPU the pass that computes the input's gradient computes them too, so nothing is left to do."""
    if s.arena.device.type == "cpu":
        return lambda: None
    width = max(1, s.width // 2)  # input and gradient are read
    a, g = (take(s.rows, width, dtype=s.dtype) for take in (s.arena.distant, s.arena.recent))
    w, b = s.arena.recent(width, dtype=s.dtype), s.arena.recent(width, dtype=s.dtype)
    _, mean, rstd = aten.native_layer_norm(a, [width], w, b, 1e-5)
    return lambda: aten.native_layer_norm_backward(g, a, [width], mean, rstd, w, b, [False, True, True])


def _rmsnorm(s: Site) -> Body:
    a, w = s.table().requires_grad_(), s.arena.recent(s.width, dtype=s.dtype).requires_grad_()

    def run() -> torch.Tensor:
        with torch.enable_grad():  # on a CPU it is several operators, each of which makes an autograd node
            return F.rms_norm(a, (s.width,), w)

    return run


def _rmsnorm_backward(s: Site) -> Body:
    a = s.table(far=True).detach().requires_grad_()
    w = s.arena.recent(s.width, dtype=s.dtype)
    with torch.enable_grad():
        out = F.rms_norm(a, (s.width,), w)
    g = s.table()
    if s.arena.device.type == "cuda":
        return backward(out, (a,), g)
    normed = s.table(far=True)

    def run() -> tuple[torch.Tensor, ...]:
        torch.mul(g, normed)  # without fusion, the weight's gradient begins with this product; its sum over rows is another work
        return torch.autograd.grad(out, a, g, retain_graph=True)

    return run


def _map(s: Site, far: bool = False) -> torch.Tensor:
    """A feature map with `rows` channels: channels last on a GPU, as tensor cores need it (`executor.kernels.bodies`), channels first on a
    CPU."""
    take = s.arena.distant if far else s.arena.recent
    shape = (s.width, s.rows) if s.arena.device.type == "cuda" else (1, s.rows, s.width)
    return take(*shape, dtype=s.dtype)


def _batchnorm(s: Site) -> Body:
    a, w, b = _map(s), s.arena.recent(s.rows, dtype=s.dtype), s.arena.recent(s.rows, dtype=s.dtype)
    return lambda: aten.native_batch_norm(a, w, b, None, None, True, 0.1, 1e-5)


def _batchnorm_backward(s: Site) -> Body:
    a, w, b = _map(s, far=True), s.arena.recent(s.rows, dtype=s.dtype), s.arena.recent(s.rows, dtype=s.dtype)
    _, mean, inverse = aten.native_batch_norm(a, w, b, None, None, True, 0.1, 1e-5)
    g = _map(s)
    return lambda: aten.native_batch_norm_backward(g, a, w, None, None, mean, inverse, True, 1e-5, [True, True, True])


def _over_rows(kernel: Callable[..., torch.Tensor]) -> Callable[[Site], Body]:
    """Builds softmax, or the log_softmax of a loss, which has its own kernels, for rows that are read more than once."""

    def made(s: Site) -> Body:
        a = s.table()
        return lambda: kernel(a, -1)

    return made


def _over_rows_backward(kernel: Callable[..., torch.Tensor]) -> Callable[[Site], Body]:
    def made(s: Site) -> Body:
        g, y = s.table(), s.table(far=True)
        return lambda: kernel(g, y, -1, s.dtype)

    return made


def _cross_entropy(s: Site) -> Body:
    """log_softmax and the loss: forward reads the logits and writes as many values. (Backward, which writes as many again, is not run
    here.)"""
    logits = s.table()
    target = s.arena.indices(s.rows, s.width)
    return lambda: F.cross_entropy(logits, target)


def _embedding(s: Site) -> Body:
    table = s.arena.distant(4096, s.width, dtype=s.dtype)
    rows = s.arena.indices(s.rows, 4096)
    return lambda: F.embedding(rows, table)


def _embedding_backward(s: Site) -> Body:
    """The dense gradient of the table: it is zeroed, then rows are added."""
    count = max(1, s.work.written // s.dtype.itemsize // s.width)
    taken = max(1, min(s.rows, s.work.read // s.dtype.itemsize // s.width))
    g, rows = s.arena.recent(taken, s.width, dtype=s.dtype), s.arena.indices(taken, count)
    return lambda: aten.embedding_dense_backward(g, rows, count, -1, False)


def _scatter_add(s: Site) -> Body:
    """Adds rows to as many other rows, in random order: by atomic operations on a GPU, row by row on a CPU."""
    count = max(1, s.work.read // s.dtype.itemsize // s.width)
    added, sums = s.arena.recent(count, s.width, dtype=s.dtype), s.arena.recent(count, s.width, dtype=s.dtype)
    places = s.arena.indices(count, count)[:, None].expand_as(added)
    return lambda: sums.scatter_add_(0, places, added)


def _side(elements: int) -> int:
    """Side length of a square map of 16 channels with so many elements, at least 2."""
    return max(2, int((elements // 16) ** 0.5))


def _pool(s: Site) -> Body:
    side = _side(s.work.read // s.dtype.itemsize)
    a = s.arena.recent(1, 16, side, side, dtype=s.dtype)
    return lambda: aten.max_pool2d_with_indices(a, [2, 2])


def _pool_backward(s: Site) -> Body:
    side = _side(s.n)
    a = s.arena.recent(1, 16, side, side, dtype=s.dtype)
    out, at = aten.max_pool2d_with_indices(a, [2, 2])
    return lambda: aten.max_pool2d_with_indices_backward(out, a, [2, 2], [2, 2], [0, 0], [1, 1], False, at)


KERNELS: dict[str, Callable[[Site], Body]] = {
    "reduce": reduce,
    "norm": _norm_of_vector,
    "layernorm": _layernorm,
    "layernorm_backward": _layernorm_backward,
    "layernorm_weights": _layernorm_weights,
    "rmsnorm": _rmsnorm,
    "rmsnorm_backward": _rmsnorm_backward,
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
    "softmax": _over_rows(torch.softmax),
    "softmax_backward": _over_rows_backward(aten._softmax_backward_data),
    "softmax_wide": _over_rows(torch.log_softmax),
    "softmax_wide_backward": _over_rows_backward(aten._log_softmax_backward_data),
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "scatter_add": _scatter_add,
    "pool": _pool,
    "pool_backward": _pool_backward,
}
"""Variant (`sim.cost.variant`) -> function that builds its kernel."""
