"""An aten call as `Work`s: GEMMs, convolutions and fused attention by their shapes, all others by the bytes that they move."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from sim.model.language.lstm import KEPT, layer_works
from sim.work import Attention, Conv, Gemm, GroupedGemm, MemoryBound, Work

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8", torch.int8: "int8",
}  # fmt: skip

_SKIPPED = {
    "detach", "_unsafe_view", "lift_fresh", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "device", "is_same_size", "alias",
}  # fmt: skip
_KINDS = {
    "add": "add sub rsub addcmul addcdiv add_ sub_ where masked_fill maximum minimum lt le gt ge eq ne logical_and logical_not",
    "scale": "mul mul_ div div_ neg rsqrt sqrt pow reciprocal exp log cos sin clamp",
    "activation": "gelu relu relu_ silu tanh sigmoid hardtanh leaky_relu threshold_backward gelu_backward silu_backward tanh_backward "
    "sigmoid_backward leaky_relu_backward hardtanh_backward hardswish hardswish_backward",
    "layernorm_apart": "native_layer_norm native_layer_norm_backward",
    "groupnorm": "native_group_norm native_group_norm_backward",
    "rmsnorm": "_fused_rms_norm _fused_rms_norm_backward",
    "batchnorm": "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward",
    "softmax": "_softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "dropout": "native_dropout native_dropout_backward bernoulli_ bernoulli",
    "cast": "_to_copy",
    "copy": "clone copy_ cat stack constant_pad_nd repeat index_fill",
    "reduce": "sum mean var var_mean amax amin max argmax prod norm histc bincount cumsum",
    "topk": "topk sort argsort",
    "pool": "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d",
    "pool_backward": "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward",
    "zero": "zeros zeros_like zero_ fill_ full ones ones_like new_zeros full_like arange",
}
_WHAT = {name: what for what, names in _KINDS.items() for name in names.split()}
_LOOKUPS = {"embedding", "gather", "index", "index_select"}
_SCATTERS = {
    "embedding_dense_backward": "embedding_backward",
    "index_put": "embedding_backward",
    "scatter_add": "scatter_add",
    "index_add": "scatter_add",
}
"""Ops that add rows into a table -> their kind of kernel: the first two sort their indices, the others add by atomic operations."""


def tensors_of(values: Any) -> list[torch.Tensor]:
    """All tensors in arguments or results, depth first."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        return [t for value in values.values() for t in tensors_of(value)]
    return [t for value in values for t in tensors_of(value)] if isinstance(values, (tuple, list)) else []


def moved(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements in memory: broadcast dimensions (stride 0) count once."""
    total = 0
    for tensor in tensors:
        sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0]
        total += math.prod(sizes) * tensor.element_size()
    return total


_UNSEEN = ("linalg_", "_linalg", "cholesky", "_fft_", "_cdist", "_ctc_loss", "_cudnn_ctc", "grid_sampler")
"""Beginnings of the names of ops whose time is not that of the bytes they move."""


def arithmetic_unseen(func: Any) -> str:
    """The op's name if its arithmetic is unknown here: a custom kernel, a factorisation, a transform. Else ""."""
    space, _, name = str(func._schema.name).partition("::")
    return f"{space}::{name}" if space != "aten" or name.startswith(_UNSEEN) else ""


def is_loss(func: Any) -> bool:
    """True for a loss, and for the log_softmax that is part of one."""
    name = str(func._schema.name).partition("::")[2]
    return "loss" in name or name in ("_log_softmax", "binary_cross_entropy")


def is_free(func: Any) -> bool:
    """True for calls without a kernel: views and allocations."""
    space, _, name = str(func._schema.name).partition("::")
    if name in _SKIPPED or space in ("profiler", "prim"):
        return True
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def works_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, role: str) -> list[Work]:
    """The kernels of one call. `role`: fwd, dgrad or wgrad, for GEMMs (a convolution's backward is both of the latter)."""
    name = func._schema.name.split("::")[1]
    if name == "_trilinear":
        return [_trilinear(*args)]
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        return [_product(args[1:] if name in ("addmm", "baddbmm") else args, role)]
    if name == "convolution":
        shaped = _transposed if args[6] else _convolution
        return [shaped(args[0], args[1], args[3], args[4], args[8], out, "fwd")]
    if name == "convolution_backward":
        mask = args[10]
        roles = [part for part, wanted in zip(("dgrad", "wgrad"), mask, strict=False) if wanted]
        shaped = _transposed if args[7] else _convolution
        found: list[Work] = [shaped(args[1], args[2], args[4], args[5], args[9], args[0], part) for part in roles]
        bias: list[Work] = [MemoryBound("reduce", moved([args[0]]), moved([out[2]]), _dtype(args[0]))] if mask[2] else []
        return found + bias
    if name.startswith(("_scaled_dot_product", "_flash_attention", "_efficient_attention")):
        return [_attention(name, args, kwargs)]
    if name.startswith("mkldnn_rnn_layer"):
        return _recurrent(args, "backward" in name)
    if name == "_grouped_mm":
        return [_grouped(args, role) if len(args) > 2 and args[2] is not None else _product(args, role)]
    if name == "native_layer_norm_backward":
        return _norm_backward(args, out, _rows(name, args))
    return _by_bytes(name, tensors_of((args, kwargs)), tensors_of(out), _rows(name, args))


def _rows(name: str, args: tuple[Any, ...]) -> int:
    """Number of rows of a softmax, or of a norm over the last dimensions; 0 for all other ops."""
    what, at = _WHAT.get(name), 2 if "backward" in name else 1
    if what == "softmax":
        return int(args[0].numel()) // max(1, int(args[0].shape[args[at]])) if args[0].dim() else 1
    return int(args[0].numel()) // max(1, math.prod(args[at])) if what in ("layernorm_apart", "rmsnorm") else 0


def _norm_backward(args: tuple[Any, ...], out: Any, rows: int) -> list[Work]:
    """The kernel of the input's gradient, then that of the weights' gradients, whose column sums read the gradient and the input again
    (GammaBetaBackwardCUDAKernel)."""
    dtype, ops = _dtype(args[1]), float(args[1].numel())
    found: list[Work] = []
    if out[0] is not None:
        found.append(MemoryBound("layernorm_apart", moved(tensors_of(args)), moved(out[:1]), dtype, ops, 1, rows))
    return [*found, MemoryBound("layernorm_apart", moved(args[:2]), 0, dtype, ops, 1, rows)] if tensors_of(out[1:]) else found


def _by_bytes(name: str, inputs: list[torch.Tensor], written: list[torch.Tensor], rows: int) -> list[Work]:
    """Memory-bound kernels. Most read all of their inputs; the exceptions below read and write what torch's CUDA kernels do. `rows`: see
    `_rows`."""
    if not written and not inputs:
        return []
    dtype, plain = _dtype(written[0] if written else inputs[0]), name.rstrip("_")
    made, read = moved(written), moved(inputs)
    ops = float(sum(t.numel() for t in written[:1]))
    if plain in _LOOKUPS:  # reads the rows that are looked up, not the table
        return [MemoryBound("embedding", made + _indices(inputs), made, dtype, ops)]
    if plain in _SCATTERS:  # adds rows into a table: into zeros, into a copy, or in place
        added = moved(inputs[-1:]) if plain != "embedding_dense_backward" else moved(inputs[:1])
        table: list[Work] = [MemoryBound("zero", 0, made, dtype)] if plain == "embedding_dense_backward" else []
        table = table or ([] if name.endswith("_") else [MemoryBound("copy", made, made, dtype)])
        return [*table, MemoryBound(_SCATTERS[plain], added + _indices(inputs), 2 * added, dtype, ops)]
    if plain in ("slice_backward", "select_backward"):
        return [MemoryBound("zero", 0, made, dtype), MemoryBound("copy", read, read, dtype)]
    if plain == "nll_loss_forward":  # reads one score of each row
        each = _indices(inputs)
        return [MemoryBound("reduce", 2 * each, made, dtype, ops)]
    if plain == "nll_loss_backward":
        each = _indices(inputs)
        return [MemoryBound("zero", 0, made, dtype), MemoryBound("reduce", each, each, dtype)]
    if _WHAT.get(name) == "groupnorm" or plain in (
        "native_batch_norm",
        "native_batch_norm_backward",
    ):  # reads the values for the statistics, and again to normalise
        read += moved(inputs[:2] if plain.endswith("backward") else inputs[:1])
    if plain == "max_pool2d_with_indices_backward":  # reads the indices, not the input
        read -= moved(inputs[1:2])
    if name == "copy_":  # does not read what it overwrites
        read -= moved(inputs[:1])
    what = _WHAT.get(name, "add" if len(inputs) > 1 else "copy")
    return [MemoryBound(what, 0 if what == "zero" else read, made, dtype, ops, 1, rows)]


def _indices(tensors: list[torch.Tensor]) -> int:
    return moved(t for t in tensors if not t.is_floating_point() and t.dim())


def _dtype(tensor: torch.Tensor) -> str:
    return DTYPES.get(tensor.dtype, "fp32")


def _product(args: tuple[Any, ...], role: str) -> Gemm:
    a, b = args[0], args[1]
    batch = a.shape[0] if a.dim() == 3 else 1
    return Gemm(a.shape[-2], b.shape[-1], a.shape[-1], _dtype(a), batch, role)


def _trilinear(a: Any, b: Any, c: Any, for_a: Any, for_b: Any, for_c: Any, summed: Any, unroll: int = 1) -> Gemm:
    """The product of three tensors of torch.nn.Bilinear and its gradients: for each slice of the unrolled dimension, the first two tensors
    are multiplied and summed over one dimension, and the result is multiplied by the third (ATen, native/Linear.cpp)."""
    sizes = [1] * (a.dim() + len(for_a))
    for tensor, added in ((a, for_a), (b, for_b), (c, for_c)):
        own = iter(tensor.shape)
        sizes = [max(size, 1 if at in added else next(own)) for at, size in enumerate(sizes)]
    inner = next((at for at in summed if at != unroll), unroll)
    rest = [size for at, size in enumerate(sizes) if at not in (inner, unroll)]
    return Gemm(rest[0], math.prod(rest[1:]), sizes[inner] if inner != unroll else 1, _dtype(a), sizes[unroll])


def _square(x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, groups: int, out: torch.Tensor, role: str) -> Conv | None:
    """The convolution from `x` to `out` if a `Conv` can describe it; None for 1-D and 3-D ones, dilated ones, and those with different
    strides or paddings in the two directions."""
    if x.dim() != 4 or len(set(stride)) > 1 or len(set(padding)) > 1:
        return None
    b, c, h, w = x.shape
    work = Conv(b, c, h, w, weight.shape[0], weight.shape[2], weight.shape[3], stride[0], padding[0], groups, _dtype(x), role)
    return work if work.out == tuple(out.shape[2:]) else None


def _convolution(x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, groups: int, out: torch.Tensor, role: str) -> Work:
    """A `Conv`, or the GEMM of the same arithmetic where a `Conv` cannot describe it."""
    rows = out.numel() // out.shape[1]
    product = Gemm(rows, weight.shape[0] // groups, math.prod(weight.shape[1:]), _dtype(x), groups, role)
    return _square(x, weight, stride, padding, groups, out, role) or product


def _transposed(x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, groups: int, out: torch.Tensor, role: str) -> Work:
    """A transposed convolution from `x` to `out` is the input gradient of the convolution from `out` to `x`, and its own input gradient is
    that convolution (torch.nn.ConvTranspose2d); the weight's gradient is the same GEMM."""
    swapped = {"fwd": "dgrad", "dgrad": "fwd"}.get(role, role)
    rows = x.numel() // x.shape[1]
    product = Gemm(rows, math.prod(weight.shape[1:]), weight.shape[0] // groups, _dtype(x), groups, role)
    return _square(out, weight, stride, padding, groups, x, swapped) or product


def _recurrent(args: tuple[Any, ...], backward: bool) -> list[Work]:
    """One recurrent layer in one direction as a library runs it (cuDNN, oneDNN): the kernels of `sim.model.language.lstm`, with this
    layer's number of gates."""
    steps, batch, k = args[0].shape
    rows, h = args[2].shape  # recurrent weights: gates x h by h
    forward, back, wgrad = layer_works(batch, steps, k, h, _dtype(args[0]), args[0].element_size(), gates=rows // h)
    return [*back, *wgrad] if backward else [*forward]


def kept_inside(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that a recurrent call keeps for backward in a workspace, which is empty under fake tensors (`lstm.KEPT`); 0 for other calls."""
    if not func._schema.name.endswith("mkldnn_rnn_layer"):
        return 0
    steps, batch, _ = args[0].shape
    rows, h = args[2].shape
    return KEPT[rows // h] * int(batch * steps * h) * int(args[0].element_size())


def _grouped(args: tuple[Any, ...], role: str) -> Work:
    """A grouped GEMM over the rows of all experts: (rows, k) x (experts, k, n); the weights' gradient is (k, rows) x (rows, n) for each
    group."""
    a, b, offsets = args[0], args[1], args[2]
    groups = int(offsets.shape[0])
    if a.dim() == 2 and b.dim() == 2:
        return GroupedGemm(groups, a.shape[1], b.shape[1], a.shape[0], _dtype(a), "wgrad")
    return GroupedGemm(groups, a.shape[-2], b.shape[-1], a.shape[-1], _dtype(a), role)


def _attention(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attention:
    """Fused attention; q, k, v are (batch, heads, sequence, head size). In backward they follow the gradient."""
    backward = "backward" in name
    q, k, v = args[1:4] if backward else args[:3]
    causal = next((value for value in (*args, *kwargs.values()) if isinstance(value, bool)), False)
    if "is_causal" in kwargs:
        causal = bool(kwargs["is_causal"])
    elif "efficient" in name and not backward:
        causal = bool(args[6]) if len(args) > 6 else False
    d, dv = q.shape[3], v.shape[3]
    return Attention(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], d, dv if dv != d else 0, causal, _dtype(q), backward)
