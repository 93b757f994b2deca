"""What a decoder is: a causal transformer's sizes, habits, and its attention, experts, mixers and adapters where they are special.

Sizes are counts of elements; 0 means "as usual" where said. What does not fit together is refused when the value is made.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sim.model.specs.fields import Activation, Count, Fraction, Layers, Natural, Spec
from sim.model.specs.lora import Lora, check_rank
from topologies.errors import BadInput


class Indexer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sparse attention (DeepSeek-V3.2, section 2.1): a lightning indexer scores all keys before a query, which attends to the best."""

    heads: Count = 64
    dim: Count = 128
    top_k: Count = 2048
    """Keys that a query attends to."""
    trained: bool = True
    """It learns what attention makes of the keys it chose (the KL loss of section 2.1.1); false: it stays as it is."""
    every: Count = 1
    """Every n-th layer has one, whose choice the layers up to the next take over (GLM-5.2's IndexShare has 4)."""
    first: Count = 1
    """So many first layers have one of their own in any case."""

    def chooses(self, layer: int) -> bool:
        """Does this layer have an indexer?"""
        return max(0, layer - self.first + 1) % self.every == 0


class Mla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2 paper, section 2.1)."""

    kv_lora: Count
    """Width of the compressed keys and values."""
    q_lora: Natural = 0
    """Width of the compressed queries; 0 = not compressed."""
    rope: Count = 64
    nope: Count = 128
    value: Count = 128
    index: Indexer | None = None
    """Keys are chosen; None: attention to all."""


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
    limited: bool = False
    """What goes into the experts' activation is clamped (GPT-OSS)."""
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


class Delta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gated delta rule mixer (Yang et al. 2024, Gated DeltaNet): keys' heads are shared by several heads of values."""

    channels: bool = False
    """Each channel of a key fades at a rate of its own (Kimi Delta Attention, Kimi Linear report, section 3); the rates and the gate come through
    bottlenecks as wide as a head."""

    key_heads: Count
    value_heads: Count
    key_dim: Count = 128
    value_dim: Count = 128
    conv: Count = 4
    chunk: Count = 64


class Lightning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lightning attention mixer (MiniMax-01): linear attention whose state fades at a fixed rate for each head, with a gate on its result."""

    heads: Count
    head_dim: Count = 128
    chunk: Count = 256


class Decoder(Spec, tag="decoder", frozen=True, kw_only=True):
    """A causal transformer: GPT, Llama, MPT, BLOOM, Falcon, Mixtral, DeepSeek, Nemotron-H ..."""

    adapters: ClassVar[type[Lora]] = Lora
    """What `task = "lora"` adds where the model says nothing of it."""
    layers: Layers
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
    """Norms have learned weights (OLMo's have none, and no biases)."""
    bias: bool = False
    """Linear layers have biases."""
    qkv_bias: bool | None = None
    """None = `bias`."""
    proj_bias: bool | None = None
    """Bias of the attention's output projection; None = `bias`."""
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    positions: Natural = 0
    """Rows of a learned position table, at least; it holds the sequence of the plan in any case."""
    rotary: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Share of the head that is rotated."""
    rope_scaled: bool = False
    """What is rotated is also scaled (YaRN's attention factor is not 1): TransformerEngine's fused kernel cannot, Megatron then writes it out."""
    tied: bool = False
    """The head uses the embedding's weight."""
    further_rows: Natural = 0
    """Rows of the embedding beyond the vocabulary, for which there are no logits (Llama 3.2 Vision: 8)."""
    head_bias: bool = False
    embed_norm: bool = False
    """A norm after the embedding (BLOOM)."""
    qk_norm: bool = False
    """A norm over each head of the queries and keys (Qwen3)."""
    qk_norm_whole: bool = False
    """... or one over all heads together (OLMo 2)."""
    qk_norm_weight: bool = True
    """The norms of queries and keys have learned weights (Llama 4's have none)."""
    pre_norms: bool = True
    """A norm before attention and before the MLP."""
    post_norms: bool = False
    """A norm after attention and after the MLP (Grok-1, Gemma 2; OLMo 2 has only these)."""
    capped_scores: bool = False
    """A tanh bounds attention's scores (Gemma 2's attn_logit_softcapping, Grok-1)."""
    capped_logits: bool = False
    """... and the logits (final_logit_softcapping)."""
    scaled: tuple[Literal["embedding", "mixers", "head", "logits"], ...] = ()
    """What a fixed number multiplies: the embedding's rows (Gemma, Granite, MiniCPM), what attention and the MLP make (Granite's residual_multiplier,
    MiniCPM's scale_depth), what the head's linear reads (MiniCPM's dim_model_base), the logits (Granite, Cohere). A kernel each, but for compilers."""
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
    chunked: bool = False
    """Windowed layers cut the sequence into chunks of `window` tokens that do not see each other (Llama 4)."""
    full_unrotated: bool = False
    """Layers that see all keys have no rotary positions (Llama 4, Command A)."""
    gated_attention: bool = False
    """The query projection also makes a gate, whose sigmoid scales the attention's output (Qwen3-Next)."""
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
    mixers: str = ""
    """What mixes tokens in each layer, where it is not always attention: one letter a layer, M = Mamba-2, D = delta rule, L = lightning
    attention, X = attention on pictures (a vision-language model's, Llama 3.2 Vision), * = attention. The MLP or the experts follow as in every layer (Granite 4, Qwen3-Next, MiniMax-Text-01)."""
    mamba: Mamba | None = None
    delta: Delta | None = None
    lightning: Lightning | None = None
    lora: Lora | None = None
    mtp: Natural = 0
    """Modules of multi-token prediction after the last layer (DeepSeek-V3 trained with 1), each with a layer of the last one's kind. A config.json's
    num_nextn_predict_layers is what its checkpoint holds; transformers trains without."""
    mtp_pattern: str = ""
    """Layers of each such module of a hybrid, in `pattern`'s letters (Megatron-Bridge's mtp_hybrid_override_pattern: *E for Nemotron 3)."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def biased_scores(self) -> bool:
        """Something is done to attention's scores that torch's fused kernels do not do: a bias is added, or a tanh bounds them."""
        return self.position == "alibi" or self.capped_scores

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def rotated(self) -> int:
        """Columns of a head that are rotated, where positions are. A share that was divided out may lie a hair below."""
        return self.mla.rope if self.mla is not None else int(self.head * self.rotary + 1e-6)

    @property
    def inner(self) -> int:
        return self.ffn or 4 * self.hidden


def _check(spec: Decoder) -> None:
    """Raises `BadInput` where heads, experts or a layer pattern do not fit together."""
    name = spec.name or "model"
    if not spec.head_dim and spec.mla is None and spec.hidden % spec.heads:
        raise BadInput(
            f"{name}: heads = {spec.heads} does not divide hidden = {spec.hidden}. Set head_dim, or a divisor of hidden as heads"
        )
    if spec.heads % spec.kv:
        raise BadInput(f"{name}: kv_heads = {spec.kv} does not divide heads = {spec.heads}. Use a divisor of {spec.heads}")
    if spec.position == "rope" and spec.rotated % 2:
        made_of = "mla.rope" if spec.mla is not None else "head_dim (else hidden / heads) x rotary"
        raise BadInput(
            f"{name}: rotary positions turn pairs of columns, and {spec.rotated} of a head are rotated. Make {made_of} an even number"
        )
    if spec.moe is not None and spec.moe.top_k > spec.moe.experts:
        raise BadInput(f"{name}: moe.top_k = {spec.moe.top_k} is more than moe.experts = {spec.moe.experts}")
    if not (spec.pre_norms or spec.post_norms) or (spec.parallel_block and not spec.pre_norms):
        raise BadInput(f"{name}: pre_norms = false needs post_norms = true, and parallel_block = false")
    if spec.parallel_block and spec.post_norms:
        raise BadInput(f"{name}: parallel_block adds attention and MLP up as they are. Use post_norms = false, or parallel_block = false")
    if spec.tied and spec.further_rows:
        raise BadInput(f"{name}: further_rows = {spec.further_rows}: a tied head has logits for all rows. Add them to vocab")
    if spec.mla is not None and spec.biased_scores:
        raise BadInput(f"{name}: latent attention ([mla]) has no scores with a bias or a bound. Leave out alibi and capped_scores")
    if spec.lora is not None and spec.mla is not None and spec.mla.index is not None:
        raise BadInput(f"{name}: adapters beside sparse attention ([mla.index]) are not supported. Leave out index, or lora")
    check_rank(name, spec.lora, spec.hidden)
    if bool(spec.mtp_pattern) != bool(spec.mtp and spec.pattern):
        raise BadInput(
            f'{name}: mtp_pattern is what a module of multi-token prediction holds in a hybrid ("*E"): it goes with mtp and pattern'
        )
    if spec.pattern and spec.mixers:
        raise BadInput(f"{name}: pattern and mixers exclude each other: pattern's layers hold one mixer and nothing else. Give one of them")
    for field, letters in (("pattern", "M*-E"), ("mixers", "MDLX*"), ("mtp_pattern", "M*-E")):
        if getattr(spec, field):
            _check_letters(spec, name, field, letters)


def _check_letters(spec: Decoder, name: str, field: str, letters: str) -> None:
    given = getattr(spec, field)
    layers = spec.layers if field != "mtp_pattern" else len(given)
    if len(given) != layers or set(given) - set(letters):
        raise BadInput(f"{name}: {field} has {len(given)} letters for layers = {layers}; write one of {' '.join(letters)} for each layer")
    for letter, table in (("M", "mamba"), ("E", "moe"), ("D", "delta"), ("L", "lightning")):
        if letter in given and getattr(spec, table) is None:
            raise BadInput(f"{name}: {field} has '{letter}' layers but {table} is not given. Add a [{table}] table")
    delta = spec.delta
    if delta is not None and delta.value_heads % delta.key_heads:
        raise BadInput(f"{name}: delta.key_heads = {delta.key_heads} does not divide delta.value_heads = {delta.value_heads}")
