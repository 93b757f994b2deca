"""What a framework computes in, and how it updates."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from sim.framework.layers import Habits

Dtype = Literal["fp32", "bf16", "fp16"]


class Precision(Habits, frozen=True, kw_only=True):
    """In which dtype parameters and gradients are read, kept and sent."""

    autocast: bool = False
    """fp32 parameters cast to the compute dtype at each use (torch autocast, apex O1/O2)."""
    autocast_alone: bool = False
    """So where nothing is sharded, by data parallelism, tp, pp or cp (torchtitan's maybe_enable_amp: elsewhere FSDP casts)."""
    low_stream: bool = False
    """autocast keeps norms, softmax and the residual stream between two products in 16 bits (OneFlow's auto_mixed_precision_lists.cpp: the
    gray list); else they return fp32."""
    wide_adapters: bool = False
    """Adapters are fp32 beside weights of 16 bits, where no rank has a part of a parameter: each casts its input to fp32, and autocast casts that
    and the adapter back for their products (PEFT 0.12 and later: autocast_adapter_dtype; tuners/lora/layer.py, Linear.forward)."""
    param_dtype: Dtype = "bf16"
    """What forward reads; with `master` an fp32 copy lives in the optimizer."""
    master: bool = False
    grad_dtype: Dtype = "bf16"
    """What backward accumulates into and the optimizer reads."""
    reduce_dtype: Dtype = "bf16"
    """What gradient communication carries."""
    casts_messages: bool = False
    """What travels in another dtype than gradients have is cast in passes of its own: a full bucket by DDP's compress hooks before its message
    and after it (torch 2.13, ddp_comm_hooks/default_hooks.py), a reduced shard by FSDP2 (_fsdp_collectives.py, foreach_reduce). Else the
    copies into buckets and out of them cast (Horovod's compression)."""

    sums_apart: bool = False
    """Gradients of `grad_dtype` lie in a buffer that lasts, to which kernels of their own cast and add each micro-batch's, tensor by tensor; what
    autograd left, as wide as the parameters, stays until the next backward (DeepSpeed's BF16_Optimizer, runtime/bf16_optimizer.py:
    update_hp_grads, clear_lp_grads)."""

    @property
    def casts(self) -> bool:
        """There are such passes."""
        return self.casts_messages and self.reduce_dtype != self.grad_dtype


class Updates(Habits, frozen=True, kw_only=True):
    """From gradients to parameters."""

    implementation: Literal["for-loop", "graph", "scripted", "foreach", "fused"] = "foreach"
    """scripted: a compiled function for each tensor, whose elementwise operators are one kernel between its norms (TorchScript). graph: operators
    of a static graph, a kernel each, or (compile) fused as those, whose results are assigned (TensorFlow)."""
    adam_operator: bool = False
    """graph: Adam's update of a tensor is one operator (Keras's), not written out of some."""
    written_adam: bool = False
    """What a for-loop calls for Adam is written out in the script, a kernel an operator (BertAdam of NVIDIA's BERT)."""
    between: Literal["", "unscale", "clip"] = ""
    """What each micro-batch's gradients go through before they join the others'. unscale: divided by the loss scale. clip: looked through for
    infinities, and clipped by their own norm. In both the loss scale's share is fp16's alone."""
    flat_step: Annotated[float, Meta(ge=0.0, le=16.0)] = 0.0
    """Bytes that the step makes anew for each parameter of the rank's shard, in a few tensors as large as the shard (DeepSpeed's
    ZeRO-1: its gradients flattened, and in fp32)."""
    widens: bool = False
    """For an fp32 copy of the parameters, gradients of 16 bits become fp32 ones of their own before anything of the update looks at them."""
    clip: bool = False
    """By the global norm."""
    reads_norm: bool = False
    """The host reads the gradients' norm before it clips them; Megatron's does anyway."""
    reads_loss: bool = False
    """The host reads the loss before anything of the update."""
    reads_losses: bool = False
    """The host reads the loss of each micro-batch behind its backward, in no pipeline: asking whether it is finite (transformers.Trainer:
    logging_nan_inf_filter, on by default)."""
    zeroes_gradients: bool = False
    """Gradients are kept from step to step: zeros are written to each, and the new one is added (torch.optim's zero_grad before PyTorch 2.0)."""
