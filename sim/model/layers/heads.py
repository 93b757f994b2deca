"""A rank's heads of attention: tensor parallelism splits them, and all_to_all deals them out to the ranks of cp."""

from __future__ import annotations

from typing import NamedTuple

from sim.model.check import divisible
from sim.model.share import Share


class Heads(NamedTuple):
    """Heads on one rank, and their sizes."""

    q: int
    kv: int
    d: int
    dv: int


def split_heads(share: Share, heads: int, kv: int, d: int, dv: int = 0) -> Heads:
    """This rank's heads; key-value heads are copied where tp is larger. Raises `BadInput` where tp does not divide."""
    dealt = share.shape.ulysses
    divisible("attention heads", heads, "tp" if dealt == 1 else f"tp x {_exchange(share)}", share.tp * dealt)
    if kv % share.tp and share.tp % kv:
        divisible("key-value heads", kv, "tp", share.tp)
    local = Heads(heads // share.tp, max(1, kv // share.tp), d, dv or d)
    _dealt_out(share, local)
    return local


def _exchange(share: Share) -> str:
    return "cp (all_to_all)" if share.shape.ulysses == share.shape.cp else "cp_ulysses"


def _dealt_out(share: Share, local: Heads) -> None:
    """Raises `BadInput` where all_to_all cannot give each of its ranks as many key-value heads: TransformerEngine's wants a multiple of them
    (AttnFuncWithCPAndQKVOA2A), DeepSpeed's for Hugging Face's models copies them where they are fewer (UlyssesSPAttentionHF)."""
    ways = share.shape.ulysses
    if local.kv % ways and (ways % local.kv or share.framework.te_attention):
        divisible("key-value heads of a tp rank", local.kv, _exchange(share), ways)
