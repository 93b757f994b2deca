"""What a model is, before anything splits it: one frozen value per architecture family.

`ModelSpec` is their union, tagged by `family` (the key of preset files). `sim.model.network.describe` turns a
spec into a `Network` of one rank's kernels. Sizes are counts of elements; 0 means "as usual" where said.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec

from sim.model.captured import Captured

Count = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
Activation = Literal["gelu", "gelu_new", "relu", "relu2", "silu", "tanh", "swiglu", "geglu", "reglu"]
"""`swiglu`, `geglu`, `reglu` are gated: act(gate) x up."""


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family"):
    name: str = ""


class Mla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2 paper, section 2.1)."""

    kv_lora: Count
    """Width of the compressed keys and values."""
    q_lora: Natural = 0
    """Width of the compressed queries; 0 = not compressed."""
    rope: Count = 64
    nope: Count = 128
    value: Count = 128


class Moe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Routed experts in place of the MLP."""

    experts: Count
    top_k: Count
    ffn: Count
    """Inner width of one expert."""
    shared: Natural = 0
    """Inner width of the experts that every token passes through, together."""
    shared_gate: bool = False
    router_bias: bool = False
    """The router's linear has a bias (GPT-OSS)."""
    bias: bool = False
    """The experts' linears have biases (GPT-OSS)."""
    correction: bool = False
    """The router adds one learned number per expert when it chooses, without a gradient (DeepSeek-V3)."""
    latent: Natural = 0
    """Tokens are projected to this width before the experts and back after (Nemotron 3 Super); 0 = not."""


class Mamba(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Mamba-2 mixer (Dao & Gu 2024): in_proj, short convolution, chunked scan, gated norm, out_proj."""

    heads: Count
    head_dim: Count
    state: Count = 128
    groups: Count = 8
    conv: Count = 4
    chunk: Count = 128


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters on a frozen base (Hu et al. 2021)."""

    rank: Count = 16
    targets: tuple[Literal["qkv", "proj", "up", "down"], ...] = ("qkv", "proj")
    dropout: Fraction = 0.1


class Decoder(_Spec, tag="decoder", frozen=True, kw_only=True):
    """A causal transformer: GPT, Llama, MPT, BLOOM, Falcon, Mixtral, DeepSeek, Nemotron-H ..."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Natural = 0
    """Key-value heads; 0 = `heads` (MHA), 1 = MQA."""
    head_dim: Natural = 0
    """0 = hidden / heads."""
    ffn: Natural = 0
    """Inner width of the (dense) MLP; 0 = 4 x hidden."""
    vocab: Count
    activation: Activation = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: bool = True
    """LayerNorm has a bias."""
    norm_weight: bool = True
    """Norms have learned weights (OLMo's have none)."""
    bias: bool = False
    """Linear layers have biases."""
    qkv_bias: bool | None = None
    """None = `bias`."""
    proj_bias: bool | None = None
    """Bias of the attention's output projection; None = `bias`."""
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    positions: Natural = 0
    """Rows of a learned position table; 0 = the sequence length of the plan."""
    rotary: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Share of the head that is rotated."""
    rope_scaled: bool = False
    """What is rotated is also scaled (YaRN's attention factor is not 1): TransformerEngine's fused kernel cannot, Megatron then writes it out."""
    tied: bool = False
    """The head uses the embedding's weight."""
    head_bias: bool = False
    embed_norm: bool = False
    """A norm after the embedding (BLOOM)."""
    qk_norm: bool = False
    """A norm over each head of the queries and keys (Qwen3)."""
    qk_norm_whole: bool = False
    """... or one over all heads together (OLMo 2)."""
    pre_norms: bool = True
    """A norm before attention and before the MLP."""
    post_norms: bool = False
    """A norm after attention and after the MLP (Grok-1, Gemma 2; OLMo 2 has only these)."""
    sinks: bool = False
    """One learned sink logit per head (GPT-OSS)."""
    parallel_block: bool = False
    """Attention and MLP read the same norm and are added together (GPT-J, Falcon-7B)."""
    two_norms: bool = False
    """parallel_block: the MLP has a norm of its own (GPT-NeoX, Falcon-40B)."""
    window: Natural = 0
    """Keys that a query sees in windowed layers; 0 = all."""
    window_every: Count = 1
    """Every n-th layer is windowed (1 = all): GPT-OSS has 2."""
    full_every: Natural = 0
    """Every n-th layer sees all keys whatever `window_every` says: Gemma 3 has 6; 0 = none does."""
    packed: Natural = 0
    """Tokens of each example that a sequence is packed of: attention stays inside it; 0 = the sequence is one."""
    fused_qkv: bool | None = None
    """q, k, v (and gate, up) are one linear each; None = as the framework does."""
    dropout: Fraction | None = None
    """None = as the framework does; 0 = none."""
    attention_dropout: Fraction | None = None
    """Of the attention's probabilities; None = as `dropout`."""
    mla: Mla | None = None
    moe: Moe | None = None
    first_dense: Natural = 0
    """So many first layers keep the dense MLP (DeepSeek)."""
    moe_every: Count = 1
    """Every n-th layer has experts."""
    pattern: str = ""
    """Hybrids: one letter a layer, M = Mamba-2, * = attention, - = MLP, E = experts, each with its own norm and residual."""
    mamba: Mamba | None = None
    lora: Lora | None = None

    def __post_init__(self) -> None:
        from sim.model.check import check_decoder

        check_decoder(self)

    @property
    def kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def inner(self) -> int:
        return self.ffn or 4 * self.hidden


class Mlp(_Spec, tag="mlp", frozen=True, kw_only=True):
    """Linear layers with an activation between: `widths` from the input to the output."""

    widths: Annotated[tuple[Count, ...], msgspec.Meta(min_length=2)]
    activation: Activation = "relu"
    bias: bool = True
    loss: Literal["cross_entropy", "mse"] = "mse"


class Encoder(_Spec, tag="encoder", frozen=True, kw_only=True):
    """A bidirectional transformer with norms after the residuals: BERT (Devlin et al. 2018)."""

    layers: Count
    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    vocab: Count = 30522
    positions: Count = 512
    types: Natural = 2
    """Segment embeddings; 0 = none (DistilBERT)."""
    head: Literal["pretraining", "masked", "squad", "none"] = "pretraining"
    """pretraining: masked words and next sentence; masked: words alone (RoBERTa); squad: two scores a token."""
    predictions: Natural = 0
    """Masked words per sequence; 0 = 15 %, rounded up."""
    dropout: Fraction = 0.1
    tied: bool = True
    """The masked-word head uses the embedding's weight (pretraining only)."""

    def __post_init__(self) -> None:
        from sim.model.check import check_heads

        check_heads(self.name or "encoder", self.hidden, self.heads)


class Vit(_Spec, tag="vit", frozen=True, kw_only=True):
    """A vision transformer on square images cut into patches (Dosovitskiy et al. 2020)."""

    layers: Count
    hidden: Count
    heads: Count
    ffn: Natural = 0
    image: Count = 224
    patch: Count = 16
    classes: Count = 1000
    dropout: Fraction = 0.0

    def __post_init__(self) -> None:
        from sim.model.check import check_heads

        check_heads(self.name or "vit", self.hidden, self.heads)


class Cnn(_Spec, tag="cnn", frozen=True, kw_only=True):
    """A convolutional network: resnet (also ResNeXt, SE), vgg, ssd300, cifar."""

    arch: Literal["resnet", "vgg", "ssd300", "cifar"] = "resnet"
    depth: Natural = 50
    """resnet: 18 34 50 101 152; vgg: 11 13 16 19."""
    groups: Count = 1
    width: Count = 64
    """Channels of one group in the first stage (ResNeXt 32x4d: groups 32, width 4)."""
    se: bool = False
    """Squeeze and excitation after each block (Hu et al. 2018), reduction 16."""
    batch_norm: bool = True
    """vgg: with batch norm after each convolution; resnet always has it."""
    image: Natural = 0
    """Pixels of a side; 0 = 224, for ssd300 300, for cifar 32."""
    classes: Natural = 0
    """0 = 1000, for ssd300 81, for cifar 10."""


class EncDec(_Spec, tag="encdec", frozen=True, kw_only=True):
    """Encoder and decoder with cross-attention: T5, the Transformer of 2017."""

    layers: Count
    """Of the encoder, and as many of the decoder."""
    hidden: Count
    heads: Count
    head_dim: Natural = 0
    ffn: Count
    vocab: Count
    activation: Activation = "relu"
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    pre_norm: bool = True
    bias: bool = True
    relative: Natural = 0
    """Buckets of a learned relative position bias in the first layer of each stack (T5: 32); 0 = sinusoids."""
    tied: bool = True
    target: Natural = 0
    """Target tokens per sample; 0 = as many as source tokens (the plan's seq_len)."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        from sim.model.check import check_heads

        check_heads(self.name or "encdec", self.hidden, self.heads, self.head_dim)


class TransformerXl(_Spec, tag="transformer-xl", frozen=True, kw_only=True):
    """Segments with memory and relative positions (Dai et al. 2019), adaptive softmax."""

    layers: Count
    hidden: Count
    heads: Count
    head_dim: Natural = 0
    ffn: Count
    memory: Count
    """Tokens of the previous segment that attention sees."""
    vocab: Count = 267735
    cutoffs: tuple[Count, ...] = (19997, 39997, 199997)
    div: Count = 1
    """Each further cluster of words is embedded in so many times fewer columns."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        from sim.model.check import check_heads

        check_heads(self.name or "transformer-xl", self.hidden, self.heads, self.head_dim)


class Seq2Seq(_Spec, tag="seq2seq", frozen=True, kw_only=True):
    """LSTM encoder and decoder with additive attention: GNMT (Wu et al. 2016)."""

    layers: Count = 4
    """Of the encoder (the first is bidirectional), and as many of the decoder."""
    hidden: Count = 1024
    vocab: Count = 32320
    longest: Count = 50
    """Sentences are cut to so many tokens, whatever the plan's seq_len (GNMT v2: --max-length-train 50)."""
    dropout: Fraction = 0.2


ModelSpec = Union[Decoder, Encoder, EncDec, TransformerXl, Seq2Seq, Vit, Cnn, Mlp, Captured]
