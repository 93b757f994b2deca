"""GPipe (Huang et al. 2019): all forwards, then all backwards."""

from __future__ import annotations

from sim.schedule.action import Action, actions


def gpipe(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """Every activation is kept until its backward: memory grows with `microbatches`. One stage a rank."""
    return actions((rank, "F", range(microbatches)), (rank, "B", range(microbatches)))
