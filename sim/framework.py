"""How a framework runs a plan: what it fuses, overlaps, stores and spends on the host.

One TOML file per framework in `sim/frameworks/`, each value with its source in a comment. A plan's own words
(compile, attention, optimizer.implementation, comm.overlap, comm.reduce_dtype) win over these defaults.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from sim.plan import Plan
from topologies.errors import BadInput, UnknownName


class Framework(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework's defaults and habits. All physical, none a fudge: each changes which kernels or messages exist."""

    name: str
    source: str
    """Where these habits are documented."""
    attention: Literal["flash", "math"] = "flash"
    attention_efficiency: str = "flash2"
    """Which kernel family: flash1 | flash2 | flash3 | cudnn | math."""
    autocast: bool = False
    """fp32 parameters cast to the compute dtype at each use (torch autocast, apex O1/O2)."""
    low_stream: bool = False
    """autocast keeps norms, softmax and the residual stream between two products in 16 bits (OneFlow's auto_mixed_precision_lists.cpp: the
    gray list); else they return fp32."""
    fused_norm: bool = True
    fused_activation: bool = False
    """Bias + GELU, or SiLU x gate, in one kernel."""
    quantising_activation: bool = True
    """A fused activation writes the 8-bit operand of the product after it, and its backward that of the product before (TransformerEngine's
    LayerNormMLP). False: it leaves 16 bits, which the linears quantise (Megatron-Core's MLP: its own kernels between two linears)."""
    eager_relu2: bool = False
    """relu(x) ** 2 is relu and pow, also where other activations are fused (NeMo's squared_relu, whose torch.jit.script is commented out)."""
    graph_operators: bool = False
    """GELU and dropout are written out of elementwise operators (tf.pow, tf.random_uniform, tf.floor ...), each a kernel in fp32, unless a
    compiler fuses them (TensorFlow 1)."""
    separate_bias: bool = False
    """A linear's bias is added by a kernel of its own, unless an activation's kernel or a compiler takes it: PyTorch before 1.12 on inputs of
    three dimensions (pull request 74070: 15 % of such a product on A100), TensorFlow's BiasAdd."""
    aligned_units: bool = False
    """16-bit products whose sizes are no multiples of 8 run on fp32 units: cuBLAS of before CUDA 11 (NVIDIA/cutlass issue 75)."""
    norm_in_parts: bool = False
    """A norm is a mean, a squared difference, its mean and a scaling, each of which a compiler ends at a reduction
    (tf.contrib.layers.layer_norm: nn.moments, then nn.batch_normalization)."""
    norm_kernels: Literal["joined", "apart", "early", "convolved"] = "joined"
    """joined: one kernel forward, one backward, which leaves partial sums of the weights' gradients (apex's FastLayerNorm). apart: these read
    input and gradient again (apex's FusedLayerNorm and FusedRMSNorm; PyTorch since 1.11: GammaBetaBackward in layer_norm_kernel.cu). early: so do the sums over a row (PyTorch 1.5 to 1.10: RowwiseMoments).
    convolved: a residual block's batch norms are summed by the convolution before and applied by the one after (MXNet's NormConvolution)."""
    channels_last: bool = False
    """Maps of convolutions are NHWC in 32 bits too; those of 16 bits are anyway, unless `planar`."""
    planar: bool = False
    """Maps are NCHW in 16 bits too: cuDNN's kernels for tensor cores take NHWC alone, so it turns round what a convolution reads and writes."""
    random_apart: bool = False
    """Random numbers of dropout are written in fp32 by a kernel that no compiler fuses, and read in forward and backward: XLA's
    auto-clustering takes no stateful random operators (tensorflow/compiler/jit/mark_for_compilation_pass.cc)."""
    fused_rope: bool = False
    fused_residual: bool = False
    """Bias + dropout + residual add in one kernel."""
    fused_softmax: bool = False
    """Scale + mask + softmax in one kernel, for attention = math."""
    causal_softmax: bool = False
    """That kernel reads scores below the diagonal alone, writes zeros above it (scaled_upper_triang_masked_softmax); where written out."""
    strided_heads: bool = False
    """Heads of written-out attention are strided views that batched products read in place, as Megatron's baddbmm does on (s, b x h, d);
    else they are copied to be contiguous."""
    tiled_transposes: bool = False
    """Heads are transposed in wide accesses, not value by value."""
    fused_cross_entropy: bool = False
    jit_cross_entropy: bool = False
    """A fused loss is what a compiler makes of Megatron-Core's steps: three passes over fp32 logits and one back, sums over tp between them
    (fused_vocab_parallel_cross_entropy); else one kernel each way (TransformerEngine's parallel_cross_entropy)."""
    logit_metrics: bool = False
    """Logits are made fp32 before the fused loss; accuracy, perplexity and each kind of data's loss are computed of all (InternEvo)."""
    fused_projections: bool = True
    """q, k, v as one GEMM, and gate and up as one, where the model leaves it open."""
    gate_apart: bool = False
    """Gate and up are two linears also where q, k and v are one (InternEvo's FeedForward)."""
    norm_in_fp32: bool = False
    """A fused norm reads a copy of the residual stream in fp32, made for it (x.float() before apex's mixed kernels, as flash-attention's
    prenorm blocks do)."""
    joins_gradients: bool = False
    """Backward copies the gradients of a fused projection's parts together (torch.split and chunk; kernels that take them packed do not)."""
    dropout: bool = False
    compile: bool = False
    """Elementwise chains fused by a compiler (torch.compile, XLA)."""
    gradients_at_end: bool = False
    """Compiled, backward is one executable whose gradients come out when it has ended: sums outside of it have nothing to hide behind.
    TensorFlow's XLA clusters under Horovod (horovod issues 1283 and 1673, the latter's answer by a maintainer; NVIDIA/tensorflow commit
    9932ec3 hands them out earlier on request: BERT-Large's step on eight V100 is 13 % shorter)."""
    broadcasts_buffers: bool = False
    """Running statistics of batch norms go from the first rank to all others before each step (DistributedDataParallel)."""
    prescales: bool = False
    """A full bucket is divided by the ranks in a pass of its own (DistributedDataParallel before PyTorch 1.7: reducer.cpp; apex's)."""
    zeroes_gradients: bool = False
    """Gradients are kept from step to step: zeros are written to each, and the new one is added (torch.optim's zero_grad before PyTorch 2.0)."""
    cycle: float = 0.0
    """Seconds between two turns of the thread that sends gradients: the last ones wait half of them in the mean (Horovod's RunLoopOnce)."""
    compiled_loss: bool = True
    """`compile` reaches the loss; false where the layers alone are compiled."""
    cuda_graphs: bool = False
    param_dtype: str = "bf16"
    """What forward reads; with `master` an fp32 copy lives in the optimizer."""
    master: bool = False
    grad_dtype: str = "bf16"
    """What backward accumulates into and the optimizer reads."""
    reduce_dtype: str = "bf16"
    """What gradient communication carries."""
    casts_messages: bool = False
    """What travels in another dtype than gradients have is cast in passes of its own: a full bucket by DDP's compress hooks before its message
    and after it (torch 2.13, ddp_comm_hooks/default_hooks.py), a reduced shard by FSDP2 (_fsdp_collectives.py, foreach_reduce). Else the
    copies into buckets and out of them cast (Horovod's compression)."""
    accumulate_in_gemm: bool = False
    """Weight gradients added into the main gradient by the GEMM itself (Megatron)."""
    optimizer: Literal["for-loop", "graph", "scripted", "foreach", "fused"] = "foreach"
    """scripted: a compiled function for each tensor, whose elementwise operators are one kernel between its norms (TorchScript). graph: operators
    of a static graph, a kernel each, or (compile) fused as those, whose results are assigned (TensorFlow)."""
    adam_operator: bool = False
    """graph: Adam's update of a tensor is one operator (Keras's), not written out of some."""
    written_adam: bool = False
    """What a for-loop calls for Adam is written out in the script, a kernel an operator (BertAdam of NVIDIA's BERT)."""
    between: Literal["", "unscale", "clip"] = ""
    """What each micro-batch's gradients go through before they join the others'. unscale: divided by the loss scale. clip: looked through for
    infinities, and clipped by their own norm. In both the loss scale's share is fp16's alone."""
    flat_step: float = 0.0
    """Bytes that the optimizer step makes anew for each parameter of the rank's shard, in a few tensors as large as the shard (DeepSpeed's
    ZeRO-1: averaged 16-bit gradients, flattened, in fp32)."""
    clip: bool = False
    reads_norm: bool = False
    """The host reads the gradients' norm before it clips them; Megatron's does anyway."""
    zero: int = 0
    """Default of parallel.zero when dp_shard > 1."""
    zero2: Literal["buckets", "layers"] = "buckets"
    """What zero = 2 means. buckets: DDP's, reduce-scattered, and parameters gathered once a step (DeepSpeed). layers: FSDP that keeps
    gathered parameters from forward to backward (FSDP2's reshard_after_forward = False, FSDP1's SHARD_GRAD_OP)."""
    pipeline_actions: bool = False
    """Stages of a pipeline are gathered and reduced when its schedule says (torch 2.13), not in the first forward and the last backward (2024)."""
    wraps_ends: bool = False
    """FSDP gathers the embedding by itself, and the last norm with the head, which stay for backward; else they are the root's. Tied, they are."""
    keeps_last: bool = False
    """FSDP does not free its last layer after forward: backward begins with it (as a pipeline's layers are kept anyway, zero = 3 alone)."""
    pipeline_zero: int = 3
    """The highest level of ZeRO that its pipelines run: DeepSpeed's engine asserts a level below 2 (runtime/pipe/engine.py)."""
    shard_copies: bool = True
    """FSDP's gathered parameters are copied out of a buffer, and gradients into one before they are scattered: one for all tensors of a layer
    (torch's _fsdp_collectives.py), or what a compiled loop carries from layer to layer. False: collectives on the tensors themselves."""
    quantises_gathered: Literal["", "forward", "passes"] = ""
    """ZeRO-3's gathered 16-bit weights of 8-bit linears are cast whole, beside their transpose: in each forward pass, or in each pass (what is
    rematerialised for backward casts them again). "": shards are cast before they travel."""
    zero1: Literal["shards", "tensors"] = "shards"
    """What a rank of ZeRO-1 updates. shards: an equal piece of each bucket, which is reduce-scattered and gathered. tensors: whole
    tensors; buckets are all-reduced over all data-parallel ranks, and each owner broadcasts what it updated (InternEvo)."""
    early_stop: bool = False
    """Full recomputation ends with the last saved tensor: the layer's last product is not run again (torch.utils.checkpoint)."""
    launch_blocking: bool = False
    """Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING = 1)."""
    overlap_grad: bool = True
    replicas_at_end: bool = False
    """Gradients of replicas (zero = 0) are summed after backward in messages of `bucket`, also where those of shards leave within it."""
    bucket: int = 0
    """MiB of gradients that one message carries, or one gradient where that is larger; 0: as torch cuts its buckets."""
    packs_gradients: bool = True
    """Gradients are copied into a buffer to travel, and back; else a group of NCCL calls sums them where they are."""
    overlap_param: bool = True
    """Parameter all_gather of ZeRO-1/2 beside forward."""
    tp_overlap: bool = False
    defers_head: int = 0
    """Micro-batches of a pipeline whose weights' gradient of an untied head waits for the pipeline's drain (Megatron-Core's
    defer_embedding_wgrad_compute and wgrad_deferral_limit)."""
    tensor: Literal["megatron", "sync", "dtensor"] = "megatron"
    """How tensor parallelism is written. sync: every sum follows both products of its linear (Megatron-LM before November 2021; also sums
    launched beside the second product without CUDA_DEVICE_MAX_CONNECTIONS = 1: the product is on the device first, and fills it). megatron: a
    column-parallel input is kept split and gathered again for the weights' gradient, norms' gradients travel in one message. dtensor: the
    gathered input is kept, each norm's gradient travels by itself."""
    scatter_gather: bool = False
    """Without sequence parallelism all tp ranks hold the same activations: each sends its part of them to the next stage, which gathers
    them again (Narayanan et al. 2021, section 4.1)."""
    fused_dispatch: bool = False
    """Tokens are sent once to each rank that holds one of their experts, and land sorted by expert (DeepEP, HybridEP); else each
    token is copied top-k times, exchanged by all_to_all, and sorted again."""
    grouped_experts: bool = True
    """All local experts in one grouped kernel; else one GEMM and one quantisation for each expert."""
    stacked_experts: bool = False
    """Weights of all local experts are one tensor, as torch.nn.functional.grouped_mm takes them (torchtitan's GroupedExperts, transformers 5);
    else each expert has its own (TransformerEngine's GroupedLinear)."""
    exchange_overlap: bool = False
    """Tokens travel to their experts beside another micro-batch's kernels (Megatron-Core's overlap_moe_expert_parallel_comm): what the
    step sees of it are the SMs that the exchange holds meanwhile."""
    fp8_attention: bool = False
    """Attention in 8 bits too where the linear layers are (TransformerEngine's fp8_dpa)."""
    low_head: bool = False
    """The head's product too (Megatron-Core's fp8_output_proj)."""
    expert_bias: Literal["epilogue", "loop"] = "epilogue"
    """Biases of the experts' second products: added by the products, or with the routing weights in fp32, expert by expert."""
    fp8_scaling: Literal["delayed", "shared", "current", "rowwise"] = "delayed"
    """Scales of 8-bit tensors: from the steps before (shared: all ranks of a stage agree after each pass, `sim.lower.scales`); from the tensor
    itself, which is read for them first; or one for each of its rows, and of its columns where they are summed over."""
    pads_rows: bool = False
    """Rows of each expert are copied into segments that 8-bit products can take, and their results out of them (TransformerEngine's Fp8Padding
    and Fp8Unpadding in Megatron-Core's TEGroupedMLP), where neither the router nor the exchange has padded them."""
    limits_apart: bool = False
    """Limits of what goes into a gated activation are kernels of their own beside the fused one, whose offset is copied to the device at each
    call, for which the host waits (Megatron-Core's weighted_bias_quick_geglu_impl)."""
    host: Literal["python", "te", "te-graphs", "light", "graph"] = "python"
    """Host time per op: eager Python modules, TransformerEngine's (with parts of each layer captured), C++/compiled launches, or
    replayed CUDA graphs."""


_HALVES = ("bf16", "fp16")


def framework_of(plan: Plan) -> Framework:
    """The plan's framework with the plan's own words applied."""
    base = load_framework(plan.framework)
    changes: dict[str, object] = {}
    if plan.attention is not None:
        changes["attention"] = plan.attention
    if plan.compile is not None:
        changes["compile"] = plan.compile
    if base.gradients_at_end and changes.get("compile", base.compile):
        changes["overlap_grad"] = False
    if plan.cuda_graphs is not None:
        changes["cuda_graphs"] = plan.cuda_graphs
    if plan.optimizer.implementation is not None:
        changes["optimizer"] = plan.optimizer.implementation
    if plan.optimizer.clip is not None:
        changes["clip"] = plan.optimizer.clip
    if plan.precision in ("fp32", "tf32"):
        changes |= {"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32", "master": False, "autocast": False}
    if plan.precision in _HALVES:  # a framework's file says how wide; which 16 bits these are, the plan
        fields = ("param_dtype", "grad_dtype", "reduce_dtype")
        changes |= {field: plan.precision for field in fields if getattr(base, field) in _HALVES}
    found: Framework = msgspec.structs.replace(base, **changes)
    return found if plan.comm.reduce_dtype is None else _reducing_in(found, plan.comm.reduce_dtype, plan.optimizer.states is not None)


def _reducing_in(framework: Framework, dtype: str, reads_narrow: bool) -> Framework:
    """Gradients travel in `dtype`. Megatron's flat buffer is of that dtype itself (megatron/core/distributed/distributed_data_parallel.py,
    grad_reduce_in_fp32); from a narrow one each rank's share becomes fp32 for the step (optimizer/distrib_optimizer.py,
    _copy_model_grads_to_main_grads), unless the update `reads_narrow` ones (the precision-aware optimizer)."""
    changes: dict[str, object] = {"reduce_dtype": dtype}
    if framework.accumulate_in_gemm:
        changes["grad_dtype"] = dtype
        if framework.master and framework.grad_dtype == "fp32" != dtype and not reads_narrow:
            changes["flat_step"] = framework.flat_step + 4.0
    return msgspec.structs.replace(framework, **changes)


def frameworks() -> dict[str, Path]:
    """Name -> file of every framework that is described."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "frameworks").glob("*.toml"))}


@cache
def load_framework(name: str) -> Framework:
    """Raises `UnknownName` with the nearest name."""
    known = frameworks()
    if name not in known:
        raise UnknownName("framework", name, known)
    tree = tomllib.loads(known[name].read_text("utf-8"))
    if "base" in tree:  # says only what differs from another framework
        tree = msgspec.to_builtins(load_framework(tree.pop("base"))) | tree
    try:
        return msgspec.convert(tree, Framework)
    except msgspec.ValidationError as error:
        raise BadInput(f"sim/frameworks/{name}.toml: {error}") from None


def sharding_of(plan: Plan, framework: Framework) -> tuple[int, bool]:
    """(level of ZeRO, whether gathered parameters are freed after forward). 0 where there is nobody to share with, 3 where the framework's
    ZeRO-2 is an FSDP that keeps its parameters; a pipeline's FSDP keeps them through the step (torchtitan, parallelize_llama.py)."""
    p = plan.parallel
    zero = p.zero if p.zero is not None else framework.zero
    if p.dp_shard * p.cp == 1 or (p.dp_shard == 1 and p.zero is None):
        zero = 0
    layers = zero == 2 and framework.zero2 == "layers"
    return 3 if layers else zero, p.reshard_after_forward and not layers and p.pp == 1
