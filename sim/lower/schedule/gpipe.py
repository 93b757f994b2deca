"""GPipe (Huang et al. 2019): all forwards, then all backwards. With several stages a rank, stage after stage
(breadth-first, Lamy-Poirier 2023), micro-batches backward in reverse, as torch's ScheduleLoopedBFS."""

from __future__ import annotations

from sim.lower.schedule.action import Action, actions


def gpipe(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """Every activation is kept until its backward: memory grows with `microbatches`."""
    ahead, back = range(microbatches), range(microbatches)
    stages = range(rank, pp * virtual_stages, pp)
    if virtual_stages > 1:
        back = back[::-1]
    return actions(*((stage, "F", ahead) for stage in stages), *((stage, "B", back) for stage in reversed(stages)))
