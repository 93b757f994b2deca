"""DDP's communication hooks: what happens to a full bucket in place of a plain all_reduce (torch.distributed.algorithms.ddp_comm_hooks)."""

from __future__ import annotations

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from executor.kernels.bodies import dtype_of


def reduced_in(dtype: str, model: DistributedDataParallel) -> DistributedDataParallel:
    """The model, which communicates gradients in `dtype` from now on if its parameters have another dtype."""
    if all(parameter.dtype == dtype_of(dtype) for parameter in model.parameters() if parameter.requires_grad):
        return model
    hook = default_hooks.fp16_compress_hook if dtype == "fp16" else bf16
    model.register_comm_hook(model.process_group, hook)
    return model


def bf16(state: object, bucket: GradBucket) -> Future[Tensor]:
    """torch's bf16_compress_hook under another name: DDP accepts it by its own name only with NCCL."""
    return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]


# DDP checks the hook's annotations, which are strings in this file.
bf16.__annotations__ |= {"bucket": GradBucket, "return": Future[Tensor]}
