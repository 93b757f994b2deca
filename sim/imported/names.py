"""What a kernel is for, by its name: the classes of a prediction."""

from __future__ import annotations

import re
from functools import lru_cache

_CLASSES = (
    (
        "comm",
        re.compile(
            r"[nr]ccl|msccl|deep_?ep|nvshmem|user_?buffers|(?:one|two)_shot|multimem|symm(?:etric)?_mem|cross_device_reduce|SendRecv", re.I
        ),
    ),
    # Before all that they are named after: lists that FSDP copies or zeroes (by the optimizer's kernel), layouts that cuDNN changes, RoPE.
    ("elementwise", re.compile(r"multi_tensor_apply_kernel.*(?:Copy|Zero)Functor|nchwToNhwc|nhwcToNchw|rotary|(?<![a-z])rope", re.I)),
    (
        "optimizer",  # lambdas are in the names of most of torch's kernels; norms of single tensors are those that gradients are clipped by
        re.compile(r"adam|multi_tensor|foreach|sgd|lamb(?!da)|optimizer|triton_for_fused|addcdiv|lerp|reduce_kernel.*Norm\w*Ops", re.I),
    ),
    ("loss", re.compile(r"log_?softmax|softmax_warp_\w+<[^<>]*, \d+, true|cross_?entropy|_cce_|(?<![a-z])nll|ctc_loss", re.I)),
    (
        "attention",
        re.compile(
            r"flash|fmha|attention|attn|sdpa|(?<![a-z])mla(?![a-z])|softmax_warp_|scaled\w*masked_softmax|(?<!Log)SoftMax\w+Epilogue", re.I
        ),
    ),
    ("norm", re.compile(r"norm(?!al(?!ization))|\b[bl]n_(fw|bw)|gamma_?beta|rowwise_?moments", re.I)),
    ("norm", re.compile(r"triton_(?:red|per)_fused.*(?:pow.*rsqrt|mean.*rsqrt|div.*pow.*sum|rms)")),
    ("conv", re.compile(r"conv(?!ert)|cudnn|fprop|wgrad|dgrad|winograd", re.I)),  # cuDNN's are implicit GEMMs by name
    (
        "gemm",  # hipBLASLt's are named by indices; recurrent layers and experts are products
        re.compile(
            r"gem[mv]|splitk|cutlass|nvjet|cublas|sm\d+_xmma|matmul|(?<![a-z])(?:b|add|badd|baddb)?mm(?:_|\b)|cijk_|fused_moe"
            r"|(?<![a-z])(?:rnn|lstm|gru)(?![a-z])",
            re.I,
        ),
    ),
    ("loss", re.compile(r"softmax", re.I)),
    (
        "embedding",
        re.compile(r"embedding|indexSelect|compute_grad_weight|vectorized_gather_kernel|sum_and_scatter|indexing_backward_kernel", re.I),
    ),
    (
        "elementwise",  # what PyTorch, CUB and TransformerEngine have besides: loops, reductions, sorts; and others' by what they do
        re.compile(
            r"elementwise|at::native|^aten::|triton_(?:poi|red|per)_|\bcub::|CatArray|chunk_cat|split_with_sizes|Functor|memset"
            r"|copy|(?<!pre)fill|cast(?!er)|dropout|glu|gelu|silu|relu|swish|sigmoid|permute|transpose|quant|topk|router|sort|row_id_map"
            r"|gather|scatter|reduce_|index|bias|residual|selective_scan|chunk_(?:scan|state|cumsum)|pool|upsample|(?:^|_)(?:add|mul)(?:_|$)",
            re.I,
        ),
    ),
)
GRAPH = "graph"
"""A CUDA graph that was recorded as one: nothing tells what its kernels are for."""
OTHER = "other"
"""Kernels whose names no pattern knows: one's own, or a library's."""
NAMED = frozenset(cls for cls, _ in _CLASSES) | {"data", "output", GRAPH, OTHER}
"""The classes that names tell."""
_PRODUCTS = ("moe", "rnn")
STEP = re.compile(
    r"(?:(?<![a-z])(?<!micro[ _-])(?:step|iter|iteration|batch)|(?-i:(?<=[a-z])(?:Step|Iter|Iteration)))(?:[\W_]{0,3}(\d{1,9})(?: ?/ ?\d+)?)?\W*\Z",
    re.I,
)
"""Ends of ranges' names that mark a step: torch.profiler's own `ProfilerStep#3`, `step 3`, `Iteration: 3`, `train_step_3`, `## step 3 ##`, or without a
number. Micro-batches are parts of one."""
PART = re.compile(r"optim|forward|backward|fwd|bwd|micro|valid|eval|load|next|get", re.I)
"""What is a part of a step where a name has no number: `optimizer_step`, `forward_step`, `next_batch`."""


_BESIDE = re.compile(r"triton_(?:poi|red|per)_fused")
"""TorchInductor's loops and reductions: named after all operators that they take a part of, of a product its bias or its transposed operand. Products,
convolutions and attention themselves are templates (`triton_tem_`) or libraries' kernels."""
_WHOLE = ("attention", "conv", "gemm")
_LOOP = re.compile(r"triton_poi_fused(?!.*(?:layer|batch|group|instance|rms)_norm)")
"""Of these, loops that apply no normalization: `norm` is in the names of the gradients' too."""
_COPY = re.compile(r"Memcpy |Copy(?:Host|Device)To(?:Host|Device)")
"""Copies by CUPTI's and by ROCm's names."""


@lru_cache(1 << 16)  # a trace has few names, each of them thousands of times
def kernel_class(name: str) -> str:
    """gemm, attention, comm ...; `OTHER` where nothing fits."""
    if _COPY.match(name):
        return copy_class(name)
    never = (*_WHOLE, "norm") if _LOOP.match(name) else _WHOLE if _BESIDE.match(name) else ()
    return next((cls for cls, pattern in _CLASSES if cls not in never and pattern.search(name)), OTHER)


def copy_class(name: str) -> str:
    """Where a memcpy goes: data (to the device), output (to the host), elementwise (inside)."""
    return "data" if re.search("HtoD|HostToDevice", name) else "output" if re.search("DtoH|DeviceToHost", name) else "elementwise"


def kind_of(cls: str) -> str:
    """What an op of a class is that names tell: a copy crosses to the host or from there; one inside the device is a kernel like others."""
    return "collective" if cls == "comm" else "copy" if cls in ("data", "output") else "compute"


def told(cls: str) -> str:
    """What a prediction's class is called where names alone tell classes: copies of gradients and activations are elementwise kernels, what
    communicates does not say for whom, and experts' and recurrent layers' kernels are products."""
    if cls.startswith("comm"):
        return "comm"
    return cls if cls in NAMED else "gemm" if cls in _PRODUCTS else "elementwise"
