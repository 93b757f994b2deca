"""The simulator's classes of what a profile shows: by the part of the model, else by the name of the op or kernel."""

from __future__ import annotations

import re

from executor.profiles.event import Event

CLASSES = (
    ("gemm", ("mm", "addmm", "bmm", "linear", "matmul", "baddbmm", "_grouped_mm")),
    ("attention", ("scaled_dot_product", "flash_attention", "efficient_attention")),
    ("norm", ("layer_norm", "rms_norm", "batch_norm")),
    ("activation", ("gelu", "silu", "relu", "tanh", "threshold")),
    ("embedding", ("embedding",)),
    ("loss", ("cross_entropy", "log_softmax", "nll_loss", "mse_loss")),
    ("conv", ("conv",)),
)
_BY_PART = {
    "qkv": "gemm",
    "proj": "gemm",
    "up": "gemm",
    "down": "gemm",
    "linear": "gemm",
    "logits": "gemm",
    "core": "attention",
    "act": "activation",
}
_BY_PART |= dict.fromkeys(("pooler", "next", "transform", "span", "fc", "fc1", "fc2", "fc3"), "gemm")
_BY_PART |= {
    "norm": "norm",
    "norm1": "norm",
    "norm2": "norm",
    "q_norm": "norm",
    "k_norm": "norm",
    "post_norm": "norm",
    "tokens": "embedding",
    "positions": "embedding",
    "loss": "loss",
    "rope": "elementwise",
}
_WHOLE = (("norm", re.compile(r"bn\d*")), ("conv", re.compile("patches")), ("embedding", re.compile("masked")))
"""Parts whose ops all have one class: ReLU and the residual's add in a batch norm's part count as norm."""

_EXPERTS = tuple(f".moe.{name}" for name in ("router", "permute", "up", "down", "unpermute"))
"""Parts of routed experts: scores, sorting and GEMMs have one class."""


def classify(op: str, part: str) -> str:
    """Class of an ATen op: by its part if that has only one class, else by its name, else by its part's usual class."""
    last = part.rpartition(".")[2]
    if part.endswith(_EXPERTS):
        return "moe"
    whole = next((cls for cls, pattern in _WHOLE if pattern.fullmatch(last)), "")
    if whole:
        return whole
    name = op.removeprefix("aten::")
    for cls, words in CLASSES:
        if name in words if cls == "gemm" else any(word in name for word in words):
            return cls
    return _BY_PART.get(last, "elementwise")


GRADIENTS = "grad.copy"
"""Class of copies and sums between autograd and communication."""
_FSDP = ("aten::split_with_sizes_copy", "aten::_chunk_cat", "aten::_foreach_copy_")
"""Ops with which FSDP2 copies a unit's parameters and gradients into send buffers and out of receive buffers (_fsdp_collectives.py)."""


def moves_gradients(engine: Event | None, part: str, op: str) -> bool:
    """True for ops between autograd and communication: copies of DDP's buckets and FSDP2's units, sums over micro-batches. `engine`: the
    autograd node that runs the op; None in forward."""
    if op in _FSDP:
        return True
    if engine is not None:  # the second is FSDP2's, after a unit's last gradient
        return "AccumulateGrad" in engine.name or "RegisterPostBackward" in engine.name
    return not part and op in ("aten::copy_", "aten::mul_", "aten::div_", "aten::mul", "aten::div")


def kernel_kind(e: Event, part: str, cls: str, comm: str, gloo: bool) -> tuple[str, str]:
    """(kind, class) of what ran on the device. Copies within the device count as kernels. Copies to the host and back are those of a batch,
    of output, or of gradients that gloo sums on the host (ProcessGroupGloo's collectives of device tensors). Without `gloo`, copies among
    gradients are the addresses that FSDP2's copying kernels read (pack_vecs, aten/src/ATen/native/cuda/TensorShape.cu), and count to these
    kernels."""
    if "nccl" in e.name.lower():
        return "collective", comm
    if cls == GRADIENTS and e.cat == "gpu_memcpy" and ("HtoD" in e.name or "DtoH" in e.name):
        return ("copy", comm) if gloo else ("compute", cls)
    if e.cat == "gpu_memcpy" and "HtoD" in e.name:
        return "copy", "data"
    if e.cat == "gpu_memcpy" and "DtoH" in e.name:
        return "copy", "output"
    if not cls and "gemm" in e.name.lower():
        cls = "gemm"
    return "compute", cls or classify(e.name, part)
