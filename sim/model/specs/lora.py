"""What low-rank adapters are (Hu et al. 2021): of decoders, and, with other defaults, of diffusion models. Sizes are counts of elements."""

from __future__ import annotations

from typing import Literal

import msgspec

from sim.model.specs.fields import Count, Fraction
from topologies.errors import BadInput, Refused

Target = Literal["qkv", "q", "k", "v", "proj", "up", "down"]
"""A kind of linear: what makes queries, keys and values, all of them or some; what takes attention's result; an MLP's, up (with its gate) and down."""


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters on a frozen base: of attention, and of dense MLPs. Experts and other mixers have none."""

    rank: Count = 16
    targets: tuple[Target, ...] = ("qkv", "proj")
    dropout: Fraction = 0.1
    base: Literal["", "nf4"] = ""
    """How the layers' frozen linears lie: in the plan's dtype, or in four bits, unpacked for each product (QLoRA, Dettmers et al. 2023)."""

    @property
    def adapted(self) -> frozenset[str]:
        """The targets, with `qkv` as its three letters."""
        letters = tuple("qkv") if "qkv" in self.targets else ()
        return frozenset((*(target for target in self.targets if target != "qkv"), *letters))


class DiffusionLora(Lora, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As diffusers' examples train them (train_text_to_image_lora.py, train_dreambooth_lora_flux.py): of rank 4 and without dropout, on queries,
    keys, values and the projection of all attentions."""

    rank: Count = 4
    dropout: Fraction = 0.0


class SpeechLora(Lora, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As PEFT's example trains Whisper (int8 training of whisper-large-v2: rank 32, dropout 0.05), on queries and values of all attentions."""

    rank: Count = 32
    targets: tuple[Target, ...] = ("q", "v")
    dropout: Fraction = 0.05


def check_rank(name: str, lora: Lora | None, hidden: int) -> None:
    """Raises `BadInput` for more ranks than the narrowest linear has columns."""
    if lora is not None and lora.rank > hidden:
        raise BadInput(f"{name}: lora.rank = {lora.rank} is more than hidden = {hidden}. Use 1 to {hidden}")


def check_adapters(name: str, lora: Lora | None, hidden: int) -> None:
    """Of other models than decoders: raises `BadInput` as `check_rank`, `Refused` for a base in four bits, which is supported for decoders alone."""
    check_rank(name, lora, hidden)
    if lora is not None and lora.base:
        raise Refused(f'{name}: lora.base = "{lora.base}" is supported for decoders alone. Leave lora.base out')
