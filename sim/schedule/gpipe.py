"""GPipe (Huang et al. 2019): all forwards, then all backwards."""

from __future__ import annotations

from sim.schedule.action import Action, actions


def gpipe(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What rank `rank` computes, in order; it holds one stage. Activations are kept until their backward: memory grows with `microbatches`."""
    return actions((rank, "F", range(microbatches)), (rank, "B", range(microbatches)))
