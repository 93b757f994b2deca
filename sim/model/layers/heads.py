"""A rank's heads of attention: tensor parallelism splits them, and all_to_all deals them out to the ranks of cp."""

from __future__ import annotations

from typing import NamedTuple

from sim.model.check import divisible
from sim.model.share import Share

_TE = ("te", "te-graphs", "graph")
"""Hosts of frameworks whose attention is TransformerEngine's."""


class Heads(NamedTuple):
    """Heads on one rank, and their sizes."""

    q: int
    kv: int
    d: int
    dv: int


def split_heads(share: Share, heads: int, kv: int, d: int, dv: int = 0) -> Heads:
    """This rank's heads; key-value heads are copied where tp is larger. Raises `BadInput` where tp does not divide."""
    ways = share.tp * (share.shape.cp if share.shape.cp_kind == "all_to_all" else 1)
    name = "tp" if ways == share.tp else "tp x cp (all_to_all)"
    divisible("attention heads", heads, name, ways)
    if kv % share.tp and share.tp % kv:
        divisible("key-value heads", kv, "tp", share.tp)
    local = Heads(heads // share.tp, max(1, kv // share.tp), d, dv or d)
    _dealt_out(share, local)
    return local


def _dealt_out(share: Share, local: Heads) -> None:
    """Raises `BadInput` where all_to_all cannot give each rank of cp as many key-value heads: TransformerEngine's wants a multiple of cp
    (AttnFuncWithCPAndQKVOA2A), DeepSpeed's for Hugging Face's models copies them where they are fewer (UlyssesSPAttentionHF)."""
    cp = share.shape.cp if share.shape.cp_kind == "all_to_all" else 1
    if local.kv % cp and (cp % local.kv or share.framework.host in _TE):
        divisible("key-value heads of a tp rank", local.kv, "cp (all_to_all)", cp)
