"""What a kernel is for, by its name: the classes of a prediction."""

from __future__ import annotations

import re

_CLASSES = (
    ("comm", re.compile(r"nccl", re.I)),
    ("optimizer", re.compile(r"adam|multi_tensor|foreach|sgd|lamb", re.I)),
    ("attention", re.compile(r"flash|fmha|attention|sdpa", re.I)),
    ("gemm", re.compile(r"gemm|cutlass|nvjet|cublas|sm\d+_xmma|matmul|mm_", re.I)),
    ("conv", re.compile(r"conv|cudnn|wgrad|dgrad", re.I)),
    ("norm", re.compile(r"norm", re.I)),
    ("loss", re.compile(r"softmax|nll|cross_entropy", re.I)),
    ("embedding", re.compile(r"embedding|indexSelect", re.I)),
)
STEP = re.compile(r"(?:ProfilerStep#|step[ :#_]|iteration[ :#_])(\d{1,9})\Z", re.I)
"""Ranges that mark a step: torch.profiler's own, `step 3`, `step:3`, `iteration 3`."""


def kernel_class(name: str) -> str:
    """gemm, attention, comm ...; elementwise where nothing else fits."""
    return next((cls for cls, pattern in _CLASSES if pattern.search(name)), "elementwise")


def copy_class(name: str) -> str:
    """Where a memcpy goes: data (to the device), output (to the host), elementwise (inside)."""
    return "data" if "HtoD" in name else "output" if "DtoH" in name else "elementwise"
