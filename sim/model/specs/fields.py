"""What the specs of all architecture families are made of: kinds of numbers, and a name. Sizes are counts of elements."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=10**4)]
"""Deeper than any that was trained (DeepNet, arXiv 2203.00555, had 1,000)."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
Activation = Literal["gelu", "gelu_new", "quick_gelu", "relu", "relu2", "silu", "tanh", "swiglu", "geglu", "reglu"]
GATED = ("swiglu", "geglu", "reglu")
"""Activations of two linears: act(gate) x up."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family"):
    """One architecture family; its tag is `family` in files."""

    unit: ClassVar[str] = "sequences"
    """What one sample is: sequences | images | videos | samples."""
    name: str = ""

    def input_bytes(self, seq: int) -> int:
        """Bytes of one sample, of `seq` tokens, on its way to the device: ids and labels, int64."""
        return 16 * seq
