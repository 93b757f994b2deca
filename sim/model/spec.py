"""What a model is, before anything splits it: one frozen value per architecture family.

`ModelSpec` is their union, tagged by `family` (the key of preset files). `sim.model.network.describe` turns a
spec into a `Network` of one rank's kernels. Sizes are counts of elements; 0 means "as usual" where said.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
Activation = Literal["gelu", "relu", "relu2", "silu", "tanh", "swiglu", "geglu", "reglu"]
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
    tied: bool = False
    """The head uses the embedding's weight."""
    head_bias: bool = False
    embed_norm: bool = False
    """A norm after the embedding (BLOOM)."""
    qk_norm: bool = False
    """A norm over each head of the queries and keys (Qwen3)."""
    post_norms: bool = False
    """A norm after attention and after the MLP too (Grok-1, Gemma 2)."""
    sinks: bool = False
    """One learned sink logit per head (GPT-OSS)."""
    parallel_block: bool = False
    """Attention and MLP read the same norm and are added together (GPT-J, Falcon-7B)."""
    window: Natural = 0
    """Keys that a query sees in windowed layers; 0 = all."""
    window_every: Count = 1
    """Every n-th layer is windowed (1 = all): GPT-OSS has 2."""
    fused_qkv: bool | None = None
    """q, k, v (and gate, up) are one linear each; None = as the framework does."""
    dropout: Fraction | None = None
    """None = as the framework does; 0 = none."""
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

    widths: tuple[Count, ...]
    activation: Activation = "relu"
    bias: bool = True
    loss: Literal["cross_entropy", "mse"] = "mse"


ModelSpec = Union[Decoder, Mlp]
