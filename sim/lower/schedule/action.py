"""One thing that a pipeline rank does to one micro-batch of one stage; printed as torch prints it (`2F0`).

Kinds: F forward, B whole backward, I gradient of the input alone, W gradients of the weights alone, and the messages
between stages: SEND_F and RECV_F carry activations up, SEND_B and RECV_B gradients down.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

from topologies.errors import BadInput

Kind = Literal["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
COMPUTES: tuple[Kind, ...] = ("F", "B", "I", "W")
SENDS: tuple[Kind, ...] = ("SEND_F", "SEND_B")
RECEIVES: tuple[Kind, ...] = ("RECV_F", "RECV_B")

_TEXT = re.compile(rf"(\d+)({'|'.join(KINDS)})(\d+)\Z")


class Action(msgspec.Struct, frozen=True, gc=False):
    """`kind` on micro-batch `microbatch` of stage `stage`."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def computes(self) -> bool:
        return self.kind in COMPUTES

    @property
    def sends(self) -> bool:
        return self.kind in SENDS


def parse_action(text: str) -> Action:
    """The inverse of `str(action)`. Raises `BadInput`."""
    match = _TEXT.match(text)
    if match is None:
        raise BadInput(f"cannot read pipeline action {text[:40]!r}: write stage, kind ({', '.join(KINDS)}) and micro-batch, e.g. 2F0")
    return Action(int(match[1]), cast(Kind, match[2]), int(match[3]))


def actions(*groups: tuple[int, Kind, range]) -> tuple[Action, ...]:
    """Runs of one kind on one stage, one run after the other."""
    return tuple(Action(stage, kind, microbatch) for stage, kind, run in groups for microbatch in run)
