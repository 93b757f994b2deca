"""How a framework shares the work out: over data parallel ranks, tensor parallel ones, and the stages of a pipeline."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from sim.framework.layers import Habits


class DataParallel(Habits, frozen=True, kw_only=True):
    """What is sharded over data parallel ranks, and how gradients and parameters travel."""

    zero: Literal[0, 1, 2, 3] = 0
    """Default of parallel.zero when dp_shard > 1."""
    zero1: Literal["shards", "tensors", "ddp"] = "shards"
    """What a rank of ZeRO-1 updates. shards: an equal piece of each bucket, which is reduce-scattered and gathered. tensors: whole
    tensors; buckets are all-reduced over all data-parallel ranks, and each owner broadcasts what it updated (InternEvo). ddp: so, too, of DDP's buckets
    (ZeroRedundancyOptimizer)."""
    zero2: Literal["buckets", "layers"] = "buckets"
    """What zero = 2 means. buckets: DDP's, reduce-scattered, and parameters gathered once a step (DeepSpeed). layers: FSDP that keeps
    gathered parameters from forward to backward (FSDP2's reshard_after_forward = False, FSDP1's SHARD_GRAD_OP)."""
    reduces: Literal["shards", "whole"] = "shards"
    """What a bucket of ZeRO-1 and -2 is summed to on each rank. shards: its part (reduce_scatter). whole: all of it, of which it takes its part."""
    keeps_narrow: bool = False
    """A rank of ZeRO-3 keeps its 16-bit parameters beside the optimizer's fp32 copy; else it has that copy alone, as torch's FSDP."""
    wraps_ends: bool = False
    """FSDP gathers the embedding by itself, and the last norm with the head, which stay for backward; else they are the root's. Tied, they are."""
    keeps_last: bool = False
    """FSDP does not free its last layer after forward: backward begins with it (as a pipeline's layers are kept anyway, zero = 3 alone)."""
    offloads_parameters: bool = False
    """ZeRO-3's shards may lie in host memory between their uses."""
    keeps_among: bool = False
    """ZeRO-3's parameters may lie with a few neighbours from forward to backward (`parallel.reshard_after_forward = 8`)."""
    shard_copies: bool = True
    """FSDP's gathered parameters are copied out of a buffer, and gradients into one before they are scattered: one for all tensors of a layer
    (torch's _fsdp_collectives.py), or what a compiled loop carries from layer to layer. False: collectives on the tensors themselves."""
    quantises_gathered: Literal["", "forward", "passes", "shards"] = ""
    """16-bit weights of 8-bit linears are cast whole, beside their transpose: in each forward pass, or in each pass (what is rematerialised for backward
    casts them again); ZeRO-3's as they have been gathered. shards: with ZeRO-3 each rank's part is cast, and travels in 8 bits. "": they are not."""
    sends_narrow: tuple[Literal["fp8", "mxfp8", "nvfp4"], ...] = ()
    """Precisions whose weights are parameters of 8 bits, and are gathered as such (Megatron's fp8_param_gather). Those with scales of blocks travel in
    16 bits and are made narrow afterwards (reuse_grad_buf_for_mxfp8_param_ag)."""
    overlap_grad: bool = True
    """Gradients travel beside backward."""
    overlap_param: bool = True
    """Parameter all_gather of ZeRO-1/2 beside forward."""
    replicas_at_end: bool = False
    """Gradients of replicas (zero = 0) are summed after backward in messages of `bucket`, also where those of shards leave within it."""
    gradients_at_end: bool = False
    """Compiled, backward is one executable whose gradients come out when it has ended: sums outside of it have nothing to hide behind.
    TensorFlow's XLA clusters under Horovod (horovod issues 1283 and 1673, the latter's answer by a maintainer; NVIDIA/tensorflow commit
    9932ec3 hands them out earlier on request: BERT-Large's step on eight V100 is 13 % shorter)."""
    bucket: Annotated[int, Meta(ge=0)] = 0
    """MiB of gradients that one message carries, or one gradient where that is larger; 0: as torch cuts its buckets."""
    packs_gradients: bool = True
    """Gradients are copied into a buffer to travel, and back; else a group of NCCL calls sums them where they are."""
    prescales: bool = False
    """A full bucket is divided by the ranks in a pass of its own (DistributedDataParallel before PyTorch 1.7: reducer.cpp; apex's; Horovod's, whose pass
    follows the sum; Megatron's without --ddp-average-in-collective)."""
    checks_gradients: bool = False
    """A full bucket's norm is taken before it is sent (Megatron's check_for_nan_in_grad). What the host waits for it is not counted."""
    cycle: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Seconds between two turns of the thread that sends gradients: the last ones wait half of them in the mean (Horovod's RunLoopOnce)."""
    broadcasts_buffers: bool = False
    """Running statistics of batch norms go from the first rank to all others before each step (DistributedDataParallel)."""

    def one_copy(self, zero: int) -> bool:
        """Is the optimizer's copy of the parameters the only one that a rank keeps?"""
        return zero == 3 and not self.keeps_narrow

    def sums_as_ddp(self, zero: int) -> bool:
        """Does each rank sum whole gradients, in DDP's buckets, which owners of tensors read as everybody does?"""
        return zero == 0 or (zero == 1 and self.zero1 == "ddp")


class TensorParallel(Habits, frozen=True, kw_only=True):
    """How linears are split over ranks."""

    style: Literal["megatron", "sync", "dtensor"] = "megatron"
    """sync: every sum follows both products of its linear (Megatron-LM before November 2021; also sums launched beside the second product
    without CUDA_DEVICE_MAX_CONNECTIONS = 1: the product is on the device first, and fills it). megatron: a column-parallel input is kept split
    and gathered again for the weights' gradient, norms' gradients travel in one message. dtensor: the gathered input is kept, each norm's
    gradient travels by itself."""
    overlap: bool = False
    """Collectives beside the products that they feed, chunk by chunk (TransformerEngine's userbuffers)."""
    splits_experts: bool = False
    """Unless told, ranks that split all else split experts too (Megatron's expert_tensor_parallel_size, arguments.py); `parallel.etp` unsaid does
    not, which a prediction then says."""
    copies_one: bool = False
    """dtensor: what is gathered of one sequence is copied too, though its pieces are in place (torch before 2.10, all_gather_tensor)."""
    reads: Literal["each", "first"] = "each"
    """Whose loaders read a batch, which all of a group need. first: those of its first rank, which broadcasts it from its device."""


class Pipeline(Habits, frozen=True, kw_only=True):
    """How stages hand on, and what they shard."""

    zero: Literal[0, 1, 2, 3] = 3
    """The highest level of ZeRO that its pipelines run: DeepSpeed's engine asserts a level below 2 (runtime/pipe/engine.py)."""
    actions: bool = False
    """Stages are gathered and reduced when the schedule says (torch 2.13), not in the first forward and the last backward (2024)."""
    scatter_gather: bool = False
    """Without sequence parallelism all tp ranks hold the same activations: each sends its part of them to the next stage, which gathers
    them again (Narayanan et al. 2021, section 4.1)."""
    uneven_rounds: bool = False
    """Interleaved schedules take a last round of fewer micro-batches, but no less than there are stages (Megatron-Core:
    model_parallel_config.py, microbatch_group_size_per_vp_stage); without it rounds are equal (torch's ScheduleInterleaved1F1B)."""
    syncs_host: bool = False
    """Under 1F1B the host waits for the device after each batch of messages (torch.cuda.synchronize in Megatron's p2p_communication.py, _communicate;
    batch_p2p_sync). Interleaved messages are not batched any more; where they were, until 2022, it made less than 0.1 % of a step."""
    ends_as_layers: Annotated[int, Meta(ge=0)] = 0
    """Layers that the embedding, and the head, count as where layers are dealt out to stages (torchtitan's
    pipeline_parallel_first_stage_less_layers and _last_stage_less_layers)."""
    defers_head: Annotated[int, Meta(ge=0)] = 0
    """Micro-batches whose weights' gradient of an untied head waits for the pipeline's drain (Megatron-Core's
    defer_embedding_wgrad_compute and wgrad_deferral_limit)."""
