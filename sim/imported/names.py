"""What a kernel is for, by its name: the classes of a prediction."""

from __future__ import annotations

import re

_CLASSES = (
    ("comm", re.compile(r"nccl|deep_?ep|nvshmem|user_?buffers", re.I)),
    ("optimizer", re.compile(r"adam|multi_tensor|foreach|sgd|lamb(?!da)", re.I)),  # lambdas are in the names of most of torch's kernels
    ("attention", re.compile(r"flash|fmha|attention|attn|sdpa", re.I)),
    ("norm", re.compile(r"norm(?!al(?!ization))|\b[bl]n_(fw|bw)|gamma_?beta|rowwise_?moments", re.I)),
    ("conv", re.compile(r"conv(?!ert)|cudnn|fprop|wgrad|dgrad|winograd", re.I)),  # cuDNN's are implicit GEMMs by name
    ("gemm", re.compile(r"gem[mv]|splitk|cutlass|nvjet|cublas|sm\d+_xmma|matmul|mm_|^cijk_", re.I)),  # last: hipBLASLt's, by indices
    ("loss", re.compile(r"softmax|nll|cross_entropy", re.I)),
    ("embedding", re.compile(r"embedding|indexSelect|compute_grad_weight", re.I)),
)
GRAPH = "graph"
"""A CUDA graph that was recorded as one: nothing tells what its kernels are for."""
NAMED = frozenset(cls for cls, _ in _CLASSES) | {"elementwise", "data", "output", GRAPH}
"""The classes that names tell."""
_PRODUCTS = ("moe", "rnn")
STEP = re.compile(r"(?:ProfilerStep#|step[ :#_]|iteration[ :#_])(\d{1,9})\Z", re.I)
"""Ranges that mark a step: torch.profiler's own, `step 3`, `step:3`, `iteration 3`."""


_BESIDE = re.compile(r"triton_(?:poi|red|per)_fused")
"""TorchInductor's loops and reductions: named after all operators that they take a part of, of a product its bias or its transposed operand. Products,
convolutions and attention themselves are templates (`triton_tem_`) or libraries' kernels."""
_WHOLE = ("attention", "conv", "gemm")


def kernel_class(name: str) -> str:
    """gemm, attention, comm ...; elementwise where nothing else fits."""
    classes = (one for one in _CLASSES if one[0] not in _WHOLE) if _BESIDE.match(name) else _CLASSES
    return next((cls for cls, pattern in classes if pattern.search(name)), "elementwise")


def copy_class(name: str) -> str:
    """Where a memcpy goes: data (to the device), output (to the host), elementwise (inside)."""
    return "data" if "HtoD" in name else "output" if "DtoH" in name else "elementwise"


def kind_of(cls: str) -> str:
    """What an op of a class is that names tell: a copy crosses to the host or from there; one inside the device is a kernel like others."""
    return "collective" if cls == "comm" else "copy" if cls in ("data", "output") else "compute"


def told(cls: str) -> str:
    """What a prediction's class is called where names alone tell classes: copies of gradients and activations are elementwise kernels, what
    communicates does not say for whom, and experts' and recurrent layers' kernels are products."""
    if cls.startswith("comm"):
        return "comm"
    return cls if cls in NAMED else "gemm" if cls in _PRODUCTS else "elementwise"
