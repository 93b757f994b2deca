"""Kernels whose time is their bytes, as eager PyTorch runs them: one per variant of `sim.cost.cpu.variant`.

Each is built from the bytes that its `MemoryBound` reads and writes: elements follow from the written bytes (the read
ones for reductions), row width from `rows`. Where a work names rows 0, rows of 1,024 elements are taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from executor.players.arena import Arena
from sim.cost.cpu import variant
from sim.work import MemoryBound

Call = Callable[[], object]
aten = torch.ops.aten
_WIDTH = 1024


class _Site:
    """Sizes and buffers that the kernels below share."""

    def __init__(self, work: MemoryBound, arena: Arena, dtype: torch.dtype) -> None:
        self.work, self.arena, self.dtype = work, arena, dtype
        self.n = max(1, (work.written or work.read) // dtype.itemsize)
        self.rows = max(1, min(work.rows or self.n // _WIDTH, self.n))
        self.width = max(1, self.n // self.rows)
        self.inputs = max(1, round(work.read / max(1, work.written))) if work.written else 1

    def flat(self, far: bool = False) -> torch.Tensor:
        return (self.arena.distant if far else self.arena.recent)(self.n, dtype=self.dtype)

    def table(self, far: bool = False) -> torch.Tensor:
        return (self.arena.distant if far else self.arena.recent)(self.rows, self.width, dtype=self.dtype)


def memory_kernel(work: MemoryBound, arena: Arena, dtype: torch.dtype) -> Call:
    """The call for one work; kinds without a kernel of their own run as a copy or an add of the same bytes."""
    site, name = _Site(work, arena, dtype), variant(work)
    return _KERNELS.get(name, _adam if name in _OPTIMIZERS else _plain)(site)


def _plain(s: _Site) -> Call:
    """Adds two arrays, or copies one: whichever has the work's ratio of bytes."""
    if s.work.written == 0:
        return _reduce(s)
    a, b = s.flat(), s.flat(far=True)
    return (lambda: torch.add(a, b)) if s.inputs >= 2 else (lambda: a.clone())


def _scale(s: _Site) -> Call:
    a, b = s.flat(), s.flat(far=True)
    return (lambda: torch.mul(a, b)) if s.inputs >= 2 else (lambda: torch.mul(a, 0.5))


def _cast(s: _Site) -> Call:
    wide, narrow = torch.float32, torch.bfloat16 if s.dtype is torch.float32 else s.dtype
    down = s.work.read > s.work.written
    count = max(1, s.work.read // (4 if down else 2))
    source = s.arena.recent(count, dtype=wide if down else narrow)
    return lambda: source.to(narrow if down else wide)


def _reduce(s: _Site) -> Call:
    count = max(1, s.work.read // s.dtype.itemsize)
    width = max(1, min(count, s.work.written // s.dtype.itemsize)) if s.work.written else count
    a = s.arena.recent(max(1, count // width), width, dtype=s.dtype)
    return (lambda: a.sum(0)) if s.work.written else (lambda: a.sum())


def _norm_of_vector(s: _Site) -> Call:
    a = s.arena.distant(max(1, s.work.read // s.dtype.itemsize), dtype=s.dtype)
    return lambda: torch.linalg.vector_norm(a)


def _zero(s: _Site) -> Call:
    a = s.flat(far=True)
    return lambda: a.zero_()


def _permute(s: _Site) -> Call:
    a = s.table()
    return lambda: a.t().contiguous()


def _relu(s: _Site) -> Call:
    a = s.flat()
    return lambda: F.relu(a)


def _relu_backward(s: _Site) -> Call:
    g, a = s.flat(), s.flat(far=True)
    return lambda: aten.threshold_backward(g, a, 0)


def _gelu(s: _Site) -> Call:
    a = s.flat()
    return lambda: F.gelu(a)


def _gelu_backward(s: _Site) -> Call:
    g, a = s.flat(), s.flat(far=True)
    return lambda: aten.gelu_backward(g, a)


def _silu(s: _Site) -> Call:
    a = s.flat()
    return lambda: F.silu(a)


def _silu_backward(s: _Site) -> Call:
    g, a = s.flat(), s.flat(far=True)
    return lambda: aten.silu_backward(g, a)


def _glu(s: _Site) -> Call:
    a, b = s.flat(), s.flat()
    return lambda: F.silu(a) * b


def _glu_backward(s: _Site) -> Call:
    half = max(1, s.n // 2)
    g, a, b = (s.arena.recent(half, dtype=s.dtype) for _ in range(3))
    return lambda: (aten.silu_backward(g * b, a), g * F.silu(a))


def _dropout(s: _Site) -> Call:
    a = s.flat()
    return lambda: torch.native_dropout(a, 0.1, True)


def _dropout_backward(s: _Site) -> Call:
    g, keep = s.flat(), torch.ones(s.n, dtype=torch.bool, device=s.arena.device)
    return lambda: aten.native_dropout_backward(g, keep, 1 / 0.9)


def _layernorm(s: _Site) -> Call:
    a, w, b = s.table(), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    return lambda: aten.native_layer_norm(a, [s.width], w, b, 1e-5)


def _layernorm_backward(s: _Site) -> Call:
    a, w, b = s.table(far=True), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    _, mean, rstd = aten.native_layer_norm(a, [s.width], w, b, 1e-5)
    g = s.table()
    return lambda: aten.native_layer_norm_backward(g, a, [s.width], mean, rstd, w, b, [True, False, False])


def _rmsnorm(s: _Site) -> Call:
    a, w = s.table(), s.arena.recent(s.width, dtype=s.dtype)
    return lambda: F.rms_norm(a, (s.width,), w)


def _rmsnorm_backward(s: _Site) -> Call:
    a = s.table(far=True).detach().requires_grad_()
    w = s.arena.recent(s.width, dtype=s.dtype)
    with torch.enable_grad():
        out = F.rms_norm(a, (s.width,), w)
    g = s.table()
    return lambda: torch.autograd.grad(out, a, g, retain_graph=True)


def _softmax(s: _Site) -> Call:
    a = s.table()
    return lambda: torch.softmax(a, -1)


def _softmax_backward(s: _Site) -> Call:
    g, y = s.table(), s.table(far=True)
    return lambda: aten._softmax_backward_data(g, y, -1, s.dtype)


def _cross_entropy(s: _Site) -> Call:
    """log_softmax and the loss read logits and write as many; backward writes them again."""
    logits = s.table()
    target = s.arena.indices(s.rows, s.width)
    return lambda: F.cross_entropy(logits, target)


def _embedding(s: _Site) -> Call:
    table = s.arena.distant(4096, s.width, dtype=s.dtype)
    rows = s.arena.indices(s.rows, 4096)
    return lambda: F.embedding(rows, table)


def _embedding_backward(s: _Site) -> Call:
    """The dense gradient of the table: zeroed, then rows are added."""
    count = max(1, s.work.written // s.dtype.itemsize // s.width)
    taken = max(1, min(s.rows, s.work.read // s.dtype.itemsize // s.width))
    g, rows = s.arena.recent(taken, s.width, dtype=s.dtype), s.arena.indices(taken, count)
    return lambda: aten.embedding_dense_backward(g, rows, count, -1, False)


def _rope(s: _Site) -> Call:
    half = max(1, s.width // 2)
    a = s.arena.recent(s.rows, 2 * half, dtype=s.dtype)
    cos, sin = s.arena.recent(s.rows, 2 * half, dtype=s.dtype), s.arena.recent(s.rows, 2 * half, dtype=s.dtype)
    return lambda: a * cos + torch.cat((-a[:, half:], a[:, :half]), -1) * sin


def _pool(s: _Site) -> Call:
    side = max(2, int((s.work.read // s.dtype.itemsize // 16) ** 0.5))
    a = s.arena.recent(1, 16, side, side, dtype=s.dtype)
    return lambda: F.max_pool2d(a, 2)


def _batchnorm(s: _Site) -> Call:
    a, w, b = s.table(), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    return lambda: aten.native_batch_norm(a, w, b, None, None, True, 0.1, 1e-5)


def _batchnorm_backward(s: _Site) -> Call:
    a, w, b = s.table(far=True), s.arena.recent(s.width, dtype=s.dtype), s.arena.recent(s.width, dtype=s.dtype)
    _, mean, inverse = aten.native_batch_norm(a, w, b, None, None, True, 0.1, 1e-5)
    g = s.table()
    return lambda: aten.native_batch_norm_backward(g, a, w, None, None, mean, inverse, True, 1e-5, [True, True, True])


_OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lamb", "optimizer")
OPTIMIZER_BYTES = {"sgd": 12, "momentum": 20, "adam": 28, "adamw": 28, "lamb": 28, "optimizer": 28}
"""fp32 bytes that one fused update moves per parameter: reads parameter, gradient and states, writes all but the gradient."""


def _adam(s: _Site) -> Call:
    """A fused update of one flat parameter with the work's bytes (SGD and momentum as their fused kernels)."""
    count = max(1, int((s.work.read + s.work.written) // OPTIMIZER_BYTES[s.work.what]))
    p, g, m, v = ([s.arena.distant(count)] for _ in range(4))
    if s.work.what in ("sgd", "momentum"):
        beta, state = (0.9, m) if s.work.what == "momentum" else (0.0, [])
        return lambda: torch._fused_sgd_(
            p, g, state, weight_decay=0.0, momentum=beta, lr=1e-6, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        )
    v[0].abs_()
    steps, none = [torch.ones((), device=s.arena.device)], list[torch.Tensor]()
    update = torch._fused_adamw_ if s.work.what == "adamw" else torch._fused_adam_
    return lambda: update(
        p, g, m, v, none, steps, lr=1e-6, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )


_KERNELS: dict[str, Callable[[_Site], Call]] = {
    "scale": _scale,
    "cast": _cast,
    "reduce": _reduce,
    "norm": _norm_of_vector,
    "zero": _zero,
    "permute": _permute,
    "relu": _relu,
    "relu_backward": _relu_backward,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu": _silu,
    "silu_backward": _silu_backward,
    "glu": _glu,
    "glu_backward": _glu_backward,
    "dropout": _dropout,
    "dropout_backward": _dropout_backward,
    "layernorm": _layernorm,
    "layernorm_backward": _layernorm_backward,
    "rmsnorm": _rmsnorm,
    "rmsnorm_backward": _rmsnorm_backward,
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "rope": _rope,
    "pool": _pool,
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
}
