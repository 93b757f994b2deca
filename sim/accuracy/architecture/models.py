"""From a row's columns to a plan's model table: the architecture that was trained.

The columns give sizes; what they leave out (norms, positions, biases, tied embeddings, latent attention) follows
from the model's family, as its makers published it (`sim.model.readers.families`). Every guess is noted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from sim.accuracy.architecture.adapters import adapters_of, trains_adapters
from sim.accuracy.architecture.blanks import named, with_blanks
from sim.accuracy.architecture.encoders import BERTS, SEQ2SEQ, bert, encoder_decoder, transformer_xl
from sim.accuracy.architecture.mixtures import first_dense, latent, note_number, predictions, shared_width
from sim.accuracy.architecture.names import shipped_model
from sim.accuracy.architecture.pictures import of_pictures, picture_model, with_side
from sim.accuracy.architecture.proportions import MIXERS, with_sizes
from sim.accuracy.row import Row
from sim.model.load import load_model
from sim.model.readers.families import decoder
from sim.model.specs.decoder import Decoder
from topologies.errors import Refused

_FAMILIES: tuple[tuple[str, str], ...] = (
    # (pattern over "model_type | model_name", family); the first that matches counts
    (r"internlm(?!2)", "internlm"),
    (r"mpt", "mpt"),
    (r"bloom|alibi", "bloom"),
    (r"nemotron|squared[-_ ]relu", "nemotron"),
    (r"gpt[-_ ]?oss|sliding[-_ ]window", "gpt-oss"),
    (r"(deepseek[-_ ]?(v[23]|r1)|kimi|moonlight)(?!.*distill)|\bmla\b", "deepseek"),  # latent attention; DeepSeek's first models are Llamas
    (r"qwen-?3", "qwen3"),
    (r"qwen", "qwen2"),
    (r"grok|geglu", "grok"),
    (r"mixtral|\bmoe\b", "mixtral"),
    (r"mistral", "mistral"),
    (r"falcon", "falcon"),
    (r"llama|yi-|baichuan|deepseek|smollm|internlm2|codestral|tulu|vicuna", "llama"),
    (r"gpt|megatron|\bopt\b|opt-|galactica", "gpt"),
)
_ACTIVATIONS: tuple[tuple[str, str], ...] = (
    # (pattern, the model's word); the first that is found counts
    (r"gated quick.?gelu|swi.?glu|silu|swish", "swiglu"),  # x sigmoid(1.702 x) times the other half: the same kernels as SwiGLU
    (r"ge.?glu|gated.?gelu|gelu.*gated", "geglu"),
    (r"squared.?relu|relu.?(\^|\*\*)?(2|²|squared)|sq.?relu", "relu2"),
    (r"reglu", "reglu"),
    (r"gelu", "gelu"),
    (r"relu", "relu"),
)


_NAMED = (
    r"resnet|resnext|\bcnn\b|ssd|retinanet|mask|transformer[-_ ]xl|gnmt|seq2seq|encoder[-_ ]decoder|\bvit\b|\bvgg|alexnet|inception|\bm?t5x?\b|\bm?bart|\bul2\b|pegasus|marian|nllb|diffusion|\bdit\b|u-?net\b|dlrm"
    r"|recommend|whisper|wav2vec|hubert|rnn|tacotron|speech|\bclip\b|conformer|parakeet|canary|\bflux\b|\bsd-?3|imagen|pixart|\bwan[- ]?\d|cogvideo|hunyuan-?video|open-?sora"
    r"|video|fold\d?\b|\bvl\b|internvl|llava|paligemma|pixtral|vision[- ]language"
)
"""Models that are no decoders: the table's columns do not describe them, a shipped model of the name does."""


_DESCRIBED: tuple[tuple[str, Callable[[Row, list[str]], dict[str, Any] | None]], ...] = (
    (BERTS, bert),
    (r"transformer[-_ ]xl", lambda row, _: transformer_xl(row)),
    (SEQ2SEQ, encoder_decoder),
    (
        r"\bvit\b|\bvit_|deit|vision transformer|\bbeit|\bmae\b|masked auto|\bdino|\beva\b|\beva[-_ ]?0|resnext|resnet|\bwrn|\bvgg",
        picture_model,
    ),
)
"""(Pattern, what builds such a model from the row's columns and name)."""


def family_of(row: Row) -> str:
    """The decoder family by name; "" where the row is no decoder that is known."""
    text = f"{row.model_type} | {row.model_name}".lower()
    return next((family for pattern, family in _FAMILIES if re.search(pattern, text)), "")


def model_of(row: Row, assumed: list[str]) -> dict[str, Any]:
    """The plan's model table; guesses are added to `assumed`.

    Raises `Refused` where the architecture is not given and its name is none that ships.
    """
    kind = f"{row.model_type} | {row.model_name}".lower()
    for pattern, described in _DESCRIBED:
        if re.search(pattern, kind) and (tree := described(row, assumed)):
            return tree
    if re.search(_NAMED, kind):
        return _by_name(row, assumed)
    if (found := shipped_model(row.model_name)) and not isinstance(load_model(found), Decoder):
        return _by_name(row, assumed)
    if not found and (tree := of_pictures(row, family_of(row), assumed)):
        return tree
    row = with_blanks(row, assumed)
    if row.n_layers is None or row.hidden is None:
        if shipped_model(row.model_name, row.params) or not (sized := with_sizes(row, assumed)):
            return _by_name(row, assumed)
        row = sized
    if re.search(MIXERS, kind):
        if shipped_model(row.model_name) and "hybrid" not in kind:
            return _by_name(row, assumed)
        raise Refused(f"{row.model_name}: a hybrid needs its layer pattern, which the row does not give, and layers that are supported")
    return _decoder(row, assumed)


def _decoder(row: Row, assumed: list[str]) -> dict[str, Any]:
    assert row.n_layers is not None and row.hidden is not None
    base = named(row)
    family = family_of(row) or _usual(row)
    if base and _unlike(family_of(row), base):
        return _with_task(_cut(base, row), row, assumed)
    if not family_of(row):
        assumed.append(f"model type {row.model_type!r} taken as {family}")
    heads = row.n_heads or _heads(row, assumed)
    vocab = row.vocab_size or _vocab(family, assumed)
    more = _as_run(row, family)
    if family == "gpt-oss" and (window := note_number(row.arch_note, r"window (\d+)")):
        more["window"] = window
    if family == "bloom" and "sweep" in row.model_name.lower():
        more["embed_norm"] = False  # the prequel's sweeps ran Megatron's GPT before the embedding norm was added
    spec = decoder(
        family,
        name=row.model_name,
        n_layers=row.n_layers,
        hidden=row.hidden,
        n_heads=heads,
        vocab_size=vocab,
        n_kv_heads=row.n_kv_heads or 0,
        head_dim=row.head_dim or 0,
        ffn_hidden=row.ffn_hidden or _ffn(row, family, assumed),
        activation=_activation(row),
        n_experts=row.n_experts or 0,
        top_k=row.top_k or 0,
        moe_ffn_hidden=row.moe_ffn_hidden or (row.ffn_hidden or 0),
        shared_ffn_hidden=shared_width(row, base),
        first_dense=first_dense(row, base) if row.n_experts else 0,
        mla=latent(row, base) if family == "deepseek" else None,
        **more,
    )
    return _with_task(spec, row, assumed)


_LLAMA = "2023-02"
"""When Llama was published, whose layers most have taken since."""


def _usual(row: Row) -> str:
    """The family of a decoder whose type says nothing: Llama's, or GPT's where its MLP has no gate or the row is of before Llama."""
    return "gpt" if _activation(row) in ("gelu", "relu") or "" < row.date < _LLAMA else "llama"


def _as_run(row: Row, family: str) -> dict[str, Any]:
    """What recipes of the row's framework change of the model that it names."""
    more: dict[str, Any] = {"mtp": found} if (found := predictions(row)) else {}
    if family == "grok" and "nemo" in row.framework.lower():
        more |= {"post_norms": False, "tied": False}  # Mixtral's layer in its sizes (grok1_314b.yaml; NeMo, pretrain_grok1_314b.py)
    return more


def _unlike(family: str, base: Decoder) -> bool:
    """The habits of a shipped model are not those that its family's name stands for: it is taken itself, with the row's sizes."""
    return not family or family == "falcon" or (family == "gpt" and base.position != "learned")


def _cut(base: Decoder, row: Row) -> Decoder:
    """The shipped model with the sizes that the row states. Raises `Refused` where its layers differ in kind and the row has not all of them."""
    layers = row.n_layers or base.layers
    if layers != base.layers and (base.pattern or base.mixers):
        raise Refused(f"{row.model_name}: {layers} of {base.layers} layers, which differ in kind: which of them is not stated")
    own = {
        "layers": layers,
        "heads": row.n_heads,
        "kv_heads": row.n_kv_heads,
        "head_dim": row.head_dim,
        "ffn": row.ffn_hidden,
        "vocab": row.vocab_size,
    }
    base = msgspec.structs.replace(base, name=row.model_name)
    return msgspec.structs.replace(base, **{name: value for name, value in own.items() if value})


def _with_task(spec: Decoder, row: Row, assumed: list[str]) -> dict[str, Any]:
    if trains_adapters(row):
        spec = msgspec.structs.replace(spec, lora=adapters_of(row, assumed))
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


_MOST_HEADS = 10**6
"""128 wide, of a model wider than any may be (`sim.model.specs.fields.Count`): a row that states more columns is refused for them."""


def _heads(row: Row, assumed: list[str]) -> int:
    """Heads as near to 128 wide as tensor parallelism allows, the width that most models take."""
    assert row.hidden is not None
    whole = math.lcm(row.tp or 1, row.n_kv_heads or 1)
    fits = [n for n in range(1, min(row.hidden // 32, _MOST_HEADS) + 1) if row.hidden % n == 0 and n % whole == 0] or [row.n_kv_heads or 1]
    heads = min(fits, key=lambda n: abs(math.log(row.hidden / n / 128)) if row.hidden else 0.0)
    assumed.append(f"n_heads not stated: {heads}")
    return heads


def _ffn(row: Row, family: str, assumed: list[str]) -> int:
    """Gated MLPs, as those of Llama-like models, round 8/3 x hidden up to a multiple of 256, others take 4 x hidden."""
    if row.moe_ffn_hidden:
        return 0
    assert row.hidden is not None
    activation = _activation(row)
    gated = activation.endswith("glu") if activation else family in ("llama", "internlm", "mistral", "qwen2", "qwen3", "mixtral")
    width = -(-8 * row.hidden // 3 // 256) * 256 if gated else 4 * row.hidden
    assumed.append(f"ffn_hidden not stated: {width}")
    return width


def _vocab(family: str, assumed: list[str]) -> int:
    """The family's own tokenizer."""
    known = {"llama": 32000, "mpt": 50368, "bloom": 250680, "qwen3": 151936, "deepseek": 129280, "internlm": 103168, "gpt-oss": 201088}
    size = known.get(family, 50304)
    assumed.append(f"vocab_size not stated: {size}")
    return size


def _activation(row: Row) -> str:
    return next((name for pattern, name in _ACTIVATIONS if re.search(pattern, row.activation.lower())), "")


def _by_name(row: Row, assumed: list[str]) -> dict[str, Any]:
    """A shipped model of that name, where the row gives no sizes. Raises `Refused` where there is none."""
    found = shipped_model(row.model_name, row.params, modern=not "" < row.date < "2024")
    if not found:
        raise Refused(f"{row.model_name or 'model'}: the row gives no architecture, and no model of that name ships")
    assumed.append(f"architecture of the shipped model {found}")
    spec = load_model(found)
    if isinstance(spec, Decoder):
        spec = msgspec.structs.replace(spec, **_as_run(row, family_of(row)))
        return _with_task(spec, row, assumed)
    tree: dict[str, Any] = msgspec.to_builtins(with_side(spec, row, assumed))
    return tree
