"""One thing that a pipeline rank does to one micro-batch of one stage; printed as torch prints it (`2F0`).

Kinds: F forward, B whole backward, I gradient of the input alone, W gradients of the weights alone, and the messages
between stages: SEND_F and RECV_F carry activations up, SEND_B and RECV_B gradients down. What FSDP does to a stage as a whole has no
micro-batch (`1UNSHARD`): UNSHARD gathers its parameters, RESHARD frees them, REDUCE_GRAD reduces its gradients.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

from topologies.errors import BadInput

Kind = Literal["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
COMPUTES: tuple[Kind, ...] = ("F", "B", "I", "W")
SENDS: tuple[Kind, ...] = ("SEND_F", "SEND_B")
RECEIVES: tuple[Kind, ...] = ("RECV_F", "RECV_B")
SHARDS: tuple[Kind, ...] = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
WHOLE = -1
"""Stands for the micro-batch in an action that a stage does once for all micro-batches (UNSHARD, RESHARD, REDUCE_GRAD)."""

_TEXT = re.compile(rf"(\d+)(?:({'|'.join(KINDS)})(\d+)|({'|'.join(SHARDS)}))\Z")


class Action(msgspec.Struct, frozen=True, gc=False):
    """`kind` on micro-batch `microbatch` of stage `stage`."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch == WHOLE else self.microbatch}"

    @property
    def computes(self) -> bool:
        return self.kind in COMPUTES

    @property
    def sends(self) -> bool:
        return self.kind in SENDS


def parse_action(text: str) -> Action:
    """The inverse of `str(action)`. Raises `BadInput` for text that is not an action."""
    match = _TEXT.match(text)
    if match is None:
        raise BadInput(
            f"cannot read pipeline action {text[:40]!r}: write stage, kind ({', '.join(KINDS)}) and micro-batch, e.g. 2F0, "
            f"or stage and {', '.join(SHARDS)}"
        )
    return Action(int(match[1]), cast(Kind, match[2] or match[4]), int(match[3]) if match[3] else WHOLE)


def actions(*groups: tuple[int, Kind, range]) -> tuple[Action, ...]:
    """Actions from groups of (stage, kind, micro-batches), one group after the other."""
    return tuple(Action(stage, kind, microbatch) for stage, kind, run in groups for microbatch in run)
