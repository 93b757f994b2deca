"""What a `Work` runs on a device: a torch kernel of the same shape, dtype and bytes, without autograd.

`body(work, arena)` returns a callable without arguments. Its buffers exist before it is timed; its results are new tensors, as eager
PyTorch makes them. The probe times these calls, the player plays them; `held` keeps a call's result, as a training step does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from executor.arena import Arena, too_large
from executor.kernels.backward import backward
from executor.kernels.memory_bound import memory_kernel
from executor.kernels.site import Body
from sim.cost.sparse import in_parts, of_choice
from sim.work import Attention, Conv, Gemm, GroupedGemm, HostWork, MemoryBound, Work
from topologies.errors import Refused
from topologies.units import show_size

Take = Callable[..., torch.Tensor]
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "int8": torch.int8,
}


_APART = 512 << 20
"""Bytes over which the repetitions of a kernel are spread. In a training step each repetition has its own tensors, as those of an
optimizer's lists of 40 MB; over the same tensors again and again, they would find them in a GPU's L2."""


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype. Raises `Refused` for formats whose GEMMs need their own scales (fp8, fp4)."""
    if name not in DTYPES:
        raise Refused(
            f'{name} kernels cannot be played: they need per-tensor scales and kernels of their own. Play the plan with precision = "bf16"'
        )
    return DTYPES[name]


def body(work: Work, arena: Arena) -> Body:
    """All repetitions of `work` as one call. Raises `BadInput` where one kernel's data do not fit into the arena's limit."""
    if work.bytes / work.repeat > arena.limit:
        raise too_large(f"a kernel of {show_size(work.bytes / work.repeat)} ({work})", arena.limit)
    if work.repeat == 1:
        return _once(work, arena)
    each = [_once(work, arena) for _ in range(min(work.repeat, math.ceil(_APART * work.repeat / max(1.0, work.bytes))))]

    def repeated() -> None:
        for at in range(work.repeat):
            each[at % len(each)]()

    return repeated


def in_turn(works: tuple[Work, ...], arena: Arena) -> Body:
    """What a compute op runs: its works one after the other, as one call. Raises as `body` does."""
    calls = [body(work, arena) for work in works]
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


def held(call: Body) -> Body:
    """The same call, which keeps its result until it is called again. Memory that is freed at once is reused by the next call, and a kernel
    would write to lines that are in the cache. In a training step, which keeps activations for backward, it writes to memory (measured on
    one core of a server: results of 0.4 MB, add 28 us against 59, gelu 48 against 73).

    The result is freed just before the next call, which then gets the same memory again, unless that has been divided.
    """
    result: list[object] = [None]

    def run() -> None:
        result[0] = None
        result[0] = call()

    return run


def _once(work: Work, arena: Arena) -> Body:
    if isinstance(work, Gemm):
        return _gemm(work, arena)
    if isinstance(work, GroupedGemm):
        return _grouped(work, arena)
    if of_choice(work):  # torch has no kernel for it
        return in_turn(in_parts(work), arena)
    if isinstance(work, Attention):
        return _attention(work, arena)
    if isinstance(work, Conv):
        return _conv(work, arena)
    if isinstance(work, MemoryBound):
        return memory_kernel(work, arena, dtype_of(work.dtype))
    assert isinstance(work, HostWork)
    seconds = work.seconds * work.count
    return lambda: spin(seconds)


def spin(seconds: float) -> None:
    """Keeps this thread busy, as Python code does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _gemm(work: Gemm, arena: Arena) -> Body:
    dtype = dtype_of(work.dtype)
    lead = (work.batch,) if work.batch > 1 else ()
    multiply = torch.bmm if lead else torch.mm
    # fwd y = x W^T (TN), dgrad dx = dy W (NN), wgrad dW = dy^T x (NT): the operand stored the other way is a view.
    if work.role == "wgrad":
        first = arena.recent(*lead, work.k, work.m, dtype=dtype).transpose(-1, -2)
        second = arena.distant(*lead, work.k, work.n, dtype=dtype)
    elif work.role == "dgrad":
        first = arena.recent(*lead, work.m, work.k, dtype=dtype)
        second = arena.distant(*lead, work.k, work.n, dtype=dtype)
    else:
        first = arena.recent(*lead, work.m, work.k, dtype=dtype)
        second = arena.distant(*lead, work.n, work.k, dtype=dtype).transpose(-1, -2)
    if not work.accumulate:
        return lambda: multiply(first, second)
    main = arena.distant(*lead, work.m, work.n, dtype=dtype_of(work.into))
    if main.dtype is dtype:  # otherwise torch has no GEMM that accumulates
        add = main.baddbmm_ if lead else main.addmm_
        return lambda: add(first, second)
    return lambda: main.add_(multiply(first, second))


def _grouped(work: GroupedGemm, arena: Arena) -> Body:
    dtype, rows = dtype_of(work.dtype), max(1, work.m // work.groups)
    if work.fused and arena.device.type == "cuda" and dtype is torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        return _fused_groups(work, arena, rows)
    shape = (work.n, work.k, rows) if work.role == "wgrad" else (rows, work.n, work.k)
    each = [_gemm(Gemm(*shape, work.dtype, 1, work.role, work.accumulate, 1, work.into), arena) for _ in range(work.groups)]

    def loop() -> None:
        for one in each:
            one()

    return loop


def _fused_groups(work: GroupedGemm, arena: Arena, rows: int) -> Body:
    ends = torch.arange(1, work.groups + 1, device=arena.device, dtype=torch.int32) * rows
    if work.role == "wgrad":
        a = arena.recent(work.groups * rows, work.n, dtype=torch.bfloat16).t()
        b = arena.distant(work.groups * rows, work.k, dtype=torch.bfloat16)
    else:
        a = arena.recent(work.groups * rows, work.k, dtype=torch.bfloat16)
        b = arena.distant(work.groups, work.n, work.k, dtype=torch.bfloat16).transpose(-1, -2)
    return lambda: torch._grouped_mm(a, b, offs=ends)


def _attention(work: Attention, arena: Arena) -> Body:
    dtype = dtype_of(work.dtype)
    # A sliding window runs with the same number of query-key pairs: as many keys as a query sees on average, without a mask.
    kv = max(1, round(work.pairs / work.q)) if work.window else work.kv
    causal = work.causal and not work.window
    take = arena.distant if work.backward else arena.recent
    q = take(work.batch, work.heads, work.q, work.d, dtype=dtype)
    k = take(work.batch, work.kv_heads, kv, work.d, dtype=dtype)
    v = take(work.batch, work.kv_heads, kv, work.dv or work.d, dtype=dtype)
    shared = work.kv_heads != work.heads

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared)

    if not work.backward:
        return forward
    # Copies: autograd's graph keeps them, and other kernels write into the arena's buffers.
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in (q, k, v))
    with torch.enable_grad():
        out = forward()
    grad = arena.recent(work.batch, work.heads, work.q, work.dv or work.d, dtype=dtype)
    return backward(out, (q, k, v), grad)


def _conv(work: Conv, arena: Arena) -> Body:
    dtype = dtype_of(work.dtype)
    pad = (work.kh // 2, work.kw // 2) if work.padding < 0 else (work.padding, work.padding)
    stride = (work.stride, work.stride)
    # Tensor cores need channels last (`sim.work.Conv`); cuDNN would convert other layouts in every call.
    beside = arena.device.type == "cuda" and (work.dtype != "fp32" or work.channels_last)

    def maps(take: Take, n: int, c: int, h: int, w: int) -> torch.Tensor:
        return take(n, h, w, c, dtype=dtype).permute(0, 3, 1, 2) if beside else take(n, c, h, w, dtype=dtype)

    x = maps(arena.recent if work.role == "fwd" else arena.distant, work.batch, work.c_in, work.h, work.w)
    weight = maps(arena.distant, work.c_out, work.c_in // work.groups, work.kh, work.kw)
    if work.role == "fwd":
        return lambda: F.conv2d(x, weight, None, stride, pad, 1, work.groups)
    grad = maps(arena.recent, work.batch, work.c_out, *work.out)
    mask = [work.role == "dgrad", work.role == "wgrad", False]

    def gradient() -> object:
        return torch.ops.aten.convolution_backward(grad, x, weight, None, stride, pad, (1, 1), False, (0, 0), work.groups, mask)

    return gradient
