"""Hugging Face `config.json` as plain JSON: no transformers import, so what its classes default to is written here.

Each `model_type` has a reader from the config's keys to a spec's fields. A missing field is named; an unknown type names
the closest. Files say only what differs from their class's defaults, so each default (tied embeddings, biases, share of
rotary columns) is that of the class in transformers 4. What transformers 5 keeps about rotary positions in a table of its own is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers import experts, gated, gpt, hybrid, others, pairs, pictures, sight, speech
from sim.model.readers.config import Config
from sim.model.specs.spec import ModelSpec, spec_of
from topologies.errors import BadInput, Refused, UnknownName

Reader = Callable[[Config], dict[str, Any]]

READERS: dict[str, Reader] = {
    **gated.READERS, **experts.READERS, **hybrid.READERS, **gpt.READERS, **others.READERS, **pictures.READERS, **speech.READERS, **sight.READERS,
    **pairs.READERS,
}  # fmt: skip
"""Reader by `model_type`."""


def from_config(tree: dict[str, Any], where: str) -> ModelSpec:
    """A spec from a config. Raises `UnknownName` for a type, `BadInput` for a missing or misshapen field, `Refused` where a
    variant is known and not described."""
    kind = tree.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"{where}: 'model_type' is missing. It is what names the architecture; known: {', '.join(sorted(READERS))}")
    if kind not in READERS:
        raise _not_read(kind, tree, where)
    _check_weights(tree, where)
    name = str(tree.get("_name_or_path") or kind)
    try:
        share = Config(tree, where).inner("rope_parameters").tree.get("partial_rotary_factor")
        fields = READERS[kind](Config({"partial_rotary_factor": share, **tree}, where))
    except (TypeError, ValueError, ZeroDivisionError) as error:  # a list that is none, heads that are 0 ...
        raise BadInput(
            f"{where}: a field is not of the form that a config of model_type '{kind}' has ({error}). Look at its lists and its zeros"
        ) from None
    return spec_of(fields, where, name)


_WIDENED = ("fp8", "fbgemm_fp8", "mxfp4", "compressed-tensors", "modelopt")
"""Forms that releases are stored in (DeepSeek-V3, Llama 3.1 405B, GPT-OSS, Kimi K2), and that training reads as 16 bits."""


def _check_weights(tree: dict[str, Any], where: str) -> None:
    """Raises `Refused` for a base whose weights stay in few bits while adapters are trained beside them: what packs them is said of the adapters."""
    form = Config(tree, where).inner("quantization_config").tree.get("quant_method")
    if form is not None and form not in _WIDENED:
        raise Refused(
            f"{where}: quantization_config.quant_method = {str(form)[:40]!r}: weights that stay quantized are read of no config. Take the config "
            'of the original model, or leave quantization_config out; with task = "lora", lora = { base = "nf4" } packs its linears in four bits (QLoRA)'
        )


_CAPTURE = "Any torch.nn.Module can be recorded instead: steptwin plan capture MODULE:FUNCTION --input ... --out mine.model.json"


def _not_read(kind: str, tree: dict[str, Any], where: str) -> BadInput:
    """Why a type has no reader, and what to do."""
    from sim.model.readers.undescribed import BY_FAMILY, UNDESCRIBED

    if isinstance(tree.get("text_config"), dict):
        return Refused(
            f"{where}: model_type '{kind}' joins several models, which is not supported. "
            "Save its text_config as a config.json of its own to predict the language model alone"
        )
    if kind in BY_FAMILY:
        return Refused(
            f"{where}: configs of model_type '{kind}' are not read, but the model is supported. "
            f'Write its sizes into the plan\'s [model] table, with family = "{BY_FAMILY[kind]}", or take a preset (steptwin plan list)'
        )
    if kind in UNDESCRIBED:
        return Refused(f"{where}: model_type '{kind}' has {UNDESCRIBED[kind]}, which is not supported. {_CAPTURE}")
    alike = "A config of your own takes the model_type whose keys and layers it has, e.g. llama, or qwen3_moe with experts"
    return UnknownName("model_type", kind, READERS, where, otherwise=f"{alike}. {_CAPTURE}")
