"""What the specs of all architecture families are made of: kinds of numbers, and a name. Sizes are counts of elements."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=10**8)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
Activation = Literal["gelu", "gelu_new", "relu", "relu2", "silu", "tanh", "swiglu", "geglu", "reglu"]
"""`swiglu`, `geglu`, `reglu` are gated: act(gate) x up."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family"):
    """One architecture family; its tag is `family` in files."""

    name: str = ""
