"""Sequences whose attention stays inside pieces: a decoder's chunks (Llama 4), a tower's windows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.model.parts import Part
from sim.work import Attention, Work


def inside(parts: Sequence[Part], tokens: int) -> list[Part]:
    """The parts with attention over pieces of `tokens` each in place of whole sequences.

    Nothing else changes: linears and norms take all tokens. Attention that is written out, or whose queries lie on other ranks than
    its keys (ring context parallelism), stays whole.
    """
    return [
        replace(part, forward=_each(part.forward, tokens), backward=_each(part.backward, tokens)) if part.cls == "attention" else part
        for part in parts
    ]


def _each(works: Sequence[Work], tokens: int) -> tuple[Work, ...]:
    return tuple(_split(work, tokens) if isinstance(work, Attention) and work.q == work.kv > tokens else work for work in works)


def _split(work: Attention, tokens: int) -> Attention:
    """As many pieces as fill the sequence, to the nearest number; they hold all its queries."""
    pieces = max(1, round(work.q / tokens))
    each = -(-work.q // pieces)
    return replace(work, batch=work.batch * pieces, q=each, kv=each)
