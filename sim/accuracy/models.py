"""From a row's columns to a plan's model table: the architecture that was trained.

The columns give sizes; what they leave out (norms, positions, biases, tied embeddings, latent attention) follows
from the model's family, as its makers published it (`sim.model.families`). Every guess is noted.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from sim.accuracy.names import shipped_model
from sim.accuracy.proportions import with_sizes
from sim.accuracy.rows import Row
from sim.model.decoder_spec import Decoder, Mla
from sim.model.families import decoder
from sim.model.load import load_model
from sim.model.spec import Encoder, TransformerXl
from topologies.errors import Refused

_FAMILIES: tuple[tuple[str, str], ...] = (
    # (pattern over "model_type | model_name", family); the first that matches counts
    (r"internlm", "internlm"),
    (r"mpt", "mpt"),
    (r"bloom|alibi", "bloom"),
    (r"nemotron|squared-relu", "nemotron"),
    (r"gpt-?oss|sliding-window", "gpt-oss"),
    (r"deepseek|kimi|\bmla\b", "deepseek"),
    (r"qwen-?3", "qwen3"),
    (r"qwen", "qwen2"),
    (r"grok|geglu", "grok"),
    (r"mixtral|\bmoe\b", "mixtral"),
    (r"mistral", "mistral"),
    (r"falcon", "falcon"),
    (r"llama|yi-|baichuan", "llama"),
    (r"gpt|megatron|opt-", "gpt"),
)
_ACTIVATIONS = {"gated quick-gelu": "swiglu", "squared-relu": "relu2", "swiglu": "swiglu", "geglu": "geglu", "gelu": "gelu", "relu": "relu"}
"""gated quick-gelu: x sigmoid(1.702 x) times the other half, the same kernels as SwiGLU."""


_NAMED = (
    r"resnet|resnext|\bcnn\b|ssd|mask|transformer-xl|gnmt|seq2seq|encoder-decoder|\bvit\b|\bvgg|\bt5\b|diffusion|\bdit\b|u-?net\b|dlrm"
    r"|recommend|whisper|wav2vec|rnn|tacotron|speech|\bclip\b"
)
"""Models that are no decoders: the table's columns do not describe them, a shipped model of the name does."""


def family_of(row: Row) -> str:
    """The decoder family by name; "" where the row is no decoder that is known."""
    text = f"{row.model_type} | {row.model_name}".lower()
    return next((family for pattern, family in _FAMILIES if re.search(pattern, text)), "")


def model_of(row: Row, assumed: list[str], vocab_multiple: int = 1) -> dict[str, Any]:
    """The plan's model table; guesses are added to `assumed`.

    `vocab_multiple`: the vocabulary is padded to a multiple, as the framework does.
    Raises `Refused` where the architecture is not given and its name is none that ships.
    """
    kind = f"{row.model_type} | {row.model_name}".lower()
    if re.search(r"bert\b", kind):
        return _bert(row, assumed)
    if "transformer-xl" in kind and row.n_layers is not None and row.hidden is not None:
        return _transformer_xl(row)
    if re.search(_NAMED, kind):
        return _by_name(row, assumed)
    if row.n_layers is None or row.hidden is None:
        if shipped_model(row.model_name, row.params) or not (sized := with_sizes(row, assumed)):
            return _by_name(row, assumed)
        row = sized
    if "mamba" in kind:
        if shipped_model(row.model_name) and "hybrid" not in kind:
            return _by_name(row, assumed)
        raise Refused(f"{row.model_name}: a hybrid needs its layer pattern, which the row does not give")
    return _decoder(row, assumed, vocab_multiple)


def _decoder(row: Row, assumed: list[str], vocab_multiple: int) -> dict[str, Any]:
    family = family_of(row) or "llama"
    if not family_of(row):
        assumed.append(f"model type {row.model_type!r} taken as llama")
    assert row.n_layers is not None and row.hidden is not None
    heads = row.n_heads or _heads(row, assumed)
    vocab = row.vocab_size or _vocab(family, assumed)
    more: dict[str, Any] = {}
    if family == "gpt-oss" and (window := _number(row.arch_note, r"window (\d+)")):
        more["window"] = window
    if family == "grok" and "nemo" in row.framework.lower():
        more |= {"post_norms": False, "tied": False}  # Mixtral's layer in its sizes (grok1_314b.yaml; NeMo, pretrain_grok1_314b.py)
    if family == "bloom" and "sweep" in row.model_name.lower():
        more["embed_norm"] = False  # the prequel's sweeps ran Megatron's GPT before the embedding norm was added
    spec = decoder(
        family,
        name=row.model_name,
        n_layers=row.n_layers,
        hidden=row.hidden,
        n_heads=heads,
        vocab_size=-(-vocab // vocab_multiple) * vocab_multiple,
        n_kv_heads=row.n_kv_heads or 0,
        head_dim=row.head_dim or 0,
        ffn_hidden=row.ffn_hidden or _ffn(row, family, assumed),
        activation=_ACTIVATIONS.get(row.activation, ""),
        n_experts=row.n_experts or 0,
        top_k=row.top_k or 0,
        moe_ffn_hidden=row.moe_ffn_hidden or (row.ffn_hidden or 0),
        shared_ffn_hidden=_number(row.arch_note, r"shared experts? \(?(\d+)"),
        first_dense=_number(row.arch_note, r"(\d+) dense layer|dense_layers=(\d+)"),
        mla=_latent(row) if family == "deepseek" else None,
        **more,
    )
    return _with_task(_examples(spec, row, assumed), row, assumed)


_SQUAD_EXAMPLE = 200
"""Tokens of a SQuAD example: a context of 117 words in the mean, a question of 10 and an answer of 3 (Rajpurkar et al. 2016), in a template,
at 4 tokens for 3 words."""
_PACKING = r"nemo|megatron-bridge"


def _examples(spec: Decoder, row: Row, assumed: list[str]) -> Decoder:
    """Fine-tuning recipes of NeMo and Megatron-Bridge pack SQuAD into sequences of 4096 when run for speed, and take sequences of 2048 when
    not (nemo/collections/llm/recipes/llama3_8b.py: finetune_recipe, performance_mode)."""
    tuned = re.search(r"\bsft\b|lora|\bpeft\b|fine-?tun", row.task.lower())
    words = f"{row.framework} {row.source_id}".lower()
    if not tuned or (row.seq_len or 0) < 4096 or not re.search(_PACKING, words) or "mlperf" in words:
        return spec
    assumed.append(f"fine-tuning on packed sequences: SQuAD's examples of {_SQUAD_EXAMPLE} tokens")
    return msgspec.structs.replace(spec, packed=_SQUAD_EXAMPLE)


def trains_adapters(row: Row) -> bool:
    """LoRA, said of the task or of the model ("Llama-2-70B LoRA")."""
    return re.search(r"lora\b|\bpeft\b|adapter", f"{row.task} {row.model_name}".lower()) is not None


def _with_task(spec: Decoder, row: Row, assumed: list[str]) -> dict[str, Any]:
    if trains_adapters(row):
        from sim.model.decoder_spec import Lora

        if "mlperf" in f"{row.framework} {row.source_id}".lower():  # llama2_70b_lora of mlcommons/training: qkv_proj,o_proj, lora_r 16
            assumed.append("LoRA of rank 16 on qkv and the output projection: MLPerf's rule")
            lora = Lora(rank=16, targets=("qkv", "proj"))
        else:  # finetune_performance_optimizations of NeMo's Llama recipes: peft.target_modules = ["linear_qkv"], dim 16
            assumed.append("LoRA of rank 16 on linear_qkv: the performance setting of NeMo's Llama recipes")
            lora = Lora(rank=16, targets=("qkv",))
        spec = msgspec.structs.replace(spec, lora=lora)
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


def _heads(row: Row, assumed: list[str]) -> int:
    """Heads as near to 128 wide as tensor parallelism allows, the width that most models take."""
    assert row.hidden is not None
    whole = math.lcm(row.tp or 1, row.n_kv_heads or 1)
    fits = [n for n in range(1, row.hidden // 32 + 1) if row.hidden % n == 0 and n % whole == 0] or [row.n_kv_heads or 1]
    heads = min(fits, key=lambda n: abs(math.log(row.hidden / n / 128)) if row.hidden else 0.0)
    assumed.append(f"n_heads not stated: {heads}")
    return heads


def _ffn(row: Row, family: str, assumed: list[str]) -> int:
    """Llama-like models round 8/3 x hidden up to a multiple of 256, others take 4 x hidden."""
    if row.moe_ffn_hidden:
        return 0
    assert row.hidden is not None
    gated = row.activation in ("swiglu", "geglu") or family in ("llama", "internlm", "mistral", "qwen2", "qwen3", "mixtral")
    width = -(-8 * row.hidden // 3 // 256) * 256 if gated else 4 * row.hidden
    assumed.append(f"ffn_hidden not stated: {width}")
    return width


def _vocab(family: str, assumed: list[str]) -> int:
    """The family's own tokenizer."""
    known = {"llama": 32000, "mpt": 50368, "bloom": 250680, "qwen3": 151936, "deepseek": 129280, "internlm": 103168, "gpt-oss": 201088}
    size = known.get(family, 50304)
    assumed.append(f"vocab_size not stated: {size}")
    return size


def _latent(row: Row) -> Mla:
    """DeepSeek-V2/V3: 128 + 64 (rotary) wide queries and keys, values of 128 (their config.json)."""
    return Mla(kv_lora=_number(row.arch_note, r"kv_lora (\d+)") or 512, q_lora=_number(row.arch_note, r"q_lora (\d+)") or 1536)


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(next(group for group in found.groups() if group)) if found else 0


def _by_name(row: Row, assumed: list[str]) -> dict[str, Any]:
    """A shipped model of that name, where the row gives no sizes. Raises `Refused` where there is none."""
    found = shipped_model(row.model_name, row.params, modern=not "" < row.date < "2024")
    if not found:
        raise Refused(f"{row.model_name or 'model'}: the row gives no architecture, and no model of that name ships")
    assumed.append(f"architecture of the shipped model {found}")
    spec = load_model(found)
    if isinstance(spec, Decoder):
        return _with_task(_examples(spec, row, assumed), row, assumed)
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


def _bert(row: Row, assumed: list[str]) -> dict[str, Any]:
    """BERT with its pre-training heads, or the span scores of SQuAD.

    Masked words per sequence: 20 of 128 and 80 of 512 (max_predictions_per_seq of the published scripts). NVIDIA's
    PyTorch scripts before 2021 computed the vocabulary scores of every token.
    """
    if row.n_layers is None or row.hidden is None:
        found = _by_name(row, assumed)
        row = msgspec.structs.replace(row, n_layers=found["layers"], hidden=found["hidden"], n_heads=found["heads"])
    assert row.n_layers is not None and row.hidden is not None
    squad = "squad" in row.task.lower()
    seq = row.seq_len or 0
    every = "pytorch" in row.framework.lower() and row.date[:4] < "2021"
    spec = Encoder(
        name=row.model_name,
        layers=row.n_layers,
        hidden=row.hidden,
        heads=row.n_heads or row.hidden // 64,
        ffn=row.ffn_hidden or 0,
        vocab=-(-(row.vocab_size or 30522) // 8) * 8,
        positions=max(512, seq),
        head="squad" if squad else "pretraining",
        predictions=0 if squad else seq if every else {128: 20, 512: 80}.get(seq, 0),
    )
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


def _transformer_xl(row: Row) -> dict[str, Any]:
    """WikiText-103's vocabulary and clusters; the large model embeds rare words in 4, 16 and 64 times fewer columns
    (NVIDIA's wt103 configurations: div_val 1 for base, 4 for large; dropatt 0 and 0.2)."""
    assert row.n_layers is not None and row.hidden is not None
    spec = TransformerXl(
        name=row.model_name,
        layers=row.n_layers,
        hidden=row.hidden,
        heads=row.n_heads or row.hidden // 64,
        ffn=row.ffn_hidden or 4 * row.hidden,
        memory=_number(row.arch_note, r"mem_len (\d+)") or row.seq_len or 192,
        div=4 if row.hidden >= 1024 else 1,
        attention_dropout=0.2 if row.hidden >= 1024 else 0.0,
    )
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree
