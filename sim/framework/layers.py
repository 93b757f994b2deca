"""How a framework writes layers as kernels. Each habit changes which kernels exist or what they move."""

from __future__ import annotations

from typing import Literal

import msgspec


class Habits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of a framework's habits, a table of its file."""


class Attention(Habits, frozen=True, kw_only=True):
    """Attention, between its projections."""

    implementation: Literal["flash", "math"] = "flash"
    """math: written out, whose scores lie in memory."""
    biased: Literal["flash", "math"] = "flash"
    """The same of models that add a bias to their scores (ALiBi, T5) or bound them (Gemma 2): transformers writes these out for torch."""
    kernels: Literal["flash1", "triton1", "flash2", "flash3", "cudnn", "math"] = "flash2"
    """Which family of kernels: flash-attention 1 (its port to Triton), 2 or 3, cuDNN's, or math: products and a softmax."""
    fused_rope: bool = False
    repeats_keys: bool = False
    """Keys and values are copied to all of their query heads before the kernel, which keeps the copies."""
    fused_softmax: bool = False
    """Scale + mask + softmax in one kernel, where written out."""
    compiled: bool = True
    """`compile` makes one kernel of what stands between the products, from scores to what was dropped out, in 16 bits; false where the compiler
    ends a kernel at each sum and takes no random numbers (XLA's auto-clustering)."""
    causal_softmax: bool = False
    """That kernel reads scores below the diagonal alone, writes zeros above it (scaled_upper_triang_masked_softmax)."""
    strided_heads: bool = False
    """Heads of written-out attention are strided views that batched products read in place, as Megatron's baddbmm does on (s, b x h, d);
    else they are copied to be contiguous."""
    tiled_transposes: bool = False
    """Heads are transposed in wide accesses, not value by value."""
    fp8: bool = False
    """In 8 bits too where the linear layers are (TransformerEngine's fp8_dpa)."""

    def of(self, biased: bool) -> Literal["flash", "math"]:
        """How attention of a model runs whose scores have a bias, or have none."""
        return self.biased if biased and self.implementation == "flash" else self.implementation


class Linears(Habits, frozen=True, kw_only=True):
    """Products with weights."""

    fused_projections: bool = True
    """q, k, v as one GEMM, and gate and up as one, where the model leaves it open."""
    gate_apart: bool = False
    """Gate and up are two linears also where q, k and v are one (InternEvo's FeedForward)."""
    joins_gradients: bool = False
    """Backward copies the gradients of a fused projection's parts together (torch.split and chunk; kernels that take them packed do not)."""
    separate_bias: bool = False
    """A bias is added by a kernel of its own, unless an activation's kernel or a compiler takes it: PyTorch before 1.12 on inputs of
    three dimensions (pull request 74070: 15 % of such a product on A100), TensorFlow's BiasAdd."""
    aligned_units: bool = False
    """16-bit products whose sizes are no multiples of 8 run on fp32 units: cuBLAS of before CUDA 11 (NVIDIA/cutlass issue 75)."""
    accumulates: bool = False
    """Weight gradients are added into the main gradient by the GEMM itself (Megatron's gradient_accumulation_fusion)."""
    kept_casts: tuple[Literal["fp8", "mxfp8", "nvfp4"], ...] = ()
    """Precisions whose operands are made of 16-bit weights in a step's first micro-batch and kept, lying both ways (TransformerEngine's
    get_weight_workspace where it is told is_first_microbatch). Else weights are parameters of 8 bits (fp8_param_gather), whose two copies take
    as much as 16, or are cast when they are used."""
    fp8_scaling: Literal["delayed", "shared", "current", "rowwise"] = "delayed"
    """Scales of 8-bit tensors: from the steps before (shared: all ranks of a stage agree after each pass, `sim.lower.scales`); from the tensor
    itself, which is read for them first; or one for each of its rows, and of its columns where they are summed over."""


class Elementwise(Habits, frozen=True, kw_only=True):
    """Norms, activations, dropout and residuals."""

    fused_norm: bool = True
    norm_in_parts: bool = False
    """A norm is a mean, a squared difference, its mean and a scaling, each of which a compiler ends at a reduction
    (tf.contrib.layers.layer_norm: nn.moments, then nn.batch_normalization)."""
    norm_kernels: Literal["joined", "apart", "early", "convolved"] = "joined"
    """joined: one kernel forward, one backward, which leaves partial sums of the weights' gradients (apex's FastLayerNorm). apart: these read
    input and gradient again (apex's FusedLayerNorm and FusedRMSNorm; PyTorch since 1.11: GammaBetaBackward in layer_norm_kernel.cu). early: so do
    the sums over a row (PyTorch 1.5 to 1.10: RowwiseMoments). convolved: a residual block's batch norms are summed by the convolution before and
    applied by the one after (MXNet's NormConvolution)."""
    norm_in_fp32: bool = False
    """A fused norm reads a copy of the residual stream in fp32, made for it (x.float() before apex's mixed kernels, as flash-attention's
    prenorm blocks do)."""
    norm_in_linear: bool = False
    """The norm before a linear is called inside that, as a part of its function in autograd (TransformerEngine's LayerNormLinear; experts and the
    down projections of latent attention have theirs by itself)."""
    quantising_norm: bool = True
    """A norm before a linear writes its 8-bit operand, or finds that one's largest value (TransformerEngine's LayerNormLinear). False: the
    norm is a module of 16 bits, which the linear reads (torchao's Float8Linear behind torch.nn.RMSNorm)."""
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
    dropout: bool = False
    random_apart: bool = False
    """Random numbers of dropout are written in fp32 by a kernel that no compiler fuses, and read in forward and backward: XLA's
    auto-clustering takes no stateful random operators (tensorflow/compiler/jit/mark_for_compilation_pass.cc)."""
    fused_residual: bool = False
    """Bias + dropout + residual add in one kernel."""


class Maps(Habits, frozen=True, kw_only=True):
    """Feature maps of convolutions."""

    channels_last: bool = False
    """NHWC in 32 bits too; those of 16 bits are anyway, unless `planar`."""
    planar: bool = False
    """NCHW in 16 bits too: cuDNN's kernels for tensor cores take NHWC alone, so it turns round what a convolution reads and writes."""
    padded: bool = False
    """Pictures have a fourth channel of zeros, for tensor cores (--image-shape 4,224,224 of NVIDIA's MXNet scripts, DALI's pad_output)."""


class Loss(Habits, frozen=True, kw_only=True):
    """The head and the loss."""

    in_place: bool = False
    """Megatron's vocabulary-parallel cross entropy also where one rank has the whole vocabulary: fp32 logits become the softmax in place."""
    fused: bool = False
    """Cross entropy in one kernel each way (TransformerEngine's parallel_cross_entropy)."""
    scripted: bool = False
    """A fused loss is what a compiler makes of Megatron-Core's steps: three passes over fp32 logits and one back, sums over tp between them
    (fused_vocab_parallel_cross_entropy)."""
    compiled: bool = True
    """`compile` reaches the loss; false where the layers alone are compiled."""
    metrics: bool = False
    """Logits are made fp32 before the fused loss; accuracy, perplexity and each kind of data's loss are computed of all (InternEvo)."""
    narrow: bool = False
    """An unfused loss keeps the logits of 16 bits alone, and its gradient is as wide (flash-attention's cross entropy, beside kernels of metrics)."""
    low_head: bool = False
    """The head's product runs in 8 bits too (Megatron-Core's fp8_output_proj)."""


class Experts(Habits, frozen=True, kw_only=True):
    """Mixtures of experts: how tokens reach their experts, and how these are called."""

    fused_dispatch: bool = False
    """Tokens are sent once to each rank that holds one of their experts, and land sorted by expert (DeepEP, HybridEP); else each
    token is copied top-k times, exchanged by all_to_all, and sorted again."""
    own_rows: bool = False
    """Ranks of tensor parallelism that split an expert permute and exchange rows of their own tokens, and gather what came in; rows are sorted
    by expert once more, whether or not they travelled (Megatron-Core's MoEAlltoAllTokenDispatcher). Else such ranks gather tokens first, and
    rows that did not travel are in order. Exchanges with `fused_dispatch` do neither."""
    exchange_overlap: bool = False
    """Tokens travel to their experts beside another micro-batch's kernels (Megatron-Core's overlap_moe_expert_parallel_comm): what the
    step sees of it are the SMs that the exchange holds meanwhile."""
    paired_overlap: bool = False
    """So they do under DualPipe, whose forwards and backwards run in pairs on two threads, where nothing is recomputed (torchtitan's
    pipeline_parallel_expert_parallel_overlap). Of the few passes without a partner, at a step's begin and end, exchanges are covered too."""
    grouped: bool = True
    """All local experts in one grouped kernel; else one GEMM and one quantisation for each expert."""
    stacked: bool = False
    """Weights of all local experts are one tensor, as torch.nn.functional.grouped_mm takes them (torchtitan's GroupedExperts, transformers 5);
    else each expert has its own (TransformerEngine's GroupedLinear)."""
    bias: Literal["epilogue", "loop"] = "epilogue"
    """Biases of the second products: added by the products, or with the routing weights in fp32, expert by expert."""
    pads_rows: bool = False
    """Rows of each expert are copied into segments that 8-bit products can take, and their results out of them (TransformerEngine's Fp8Padding
    and Fp8Unpadding in Megatron-Core's TEGroupedMLP), where neither the router nor the exchange has padded them."""
    limits_apart: bool = False
    """Limits of what goes into a gated activation are kernels of their own beside the fused one, whose offset is copied to the device at each
    call, for which the host waits (Megatron-Core's weighted_bias_quick_geglu_impl)."""
