"""ZB-H1 (Qi et al. 2023, section 3; with several stages per rank torch's ScheduleInterleavedZeroBubble): backward is split.
No other stage waits for weight gradients, so they fill the bubbles. Memory stays that of 1F1B's first rank."""

from __future__ import annotations

from sim.schedule.action import Action
from sim.schedule.interleaved import check_rounds, round_of, stage_order


def zb_h1(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What rank `rank` computes, in order; it delays `rank` weight gradients to the end of the step.

    Raises `BadInput` if it holds several stages and the micro-batches do not make equal rounds.
    """
    if virtual_stages > 1:
        check_rounds(pp, microbatches)
    size = round_of(pp, microbatches) if virtual_stages > 1 else microbatches
    total = virtual_stages * microbatches
    warmup = min(total, (virtual_stages - 1) * size + pp - 1 - rank)
    forward = stage_order("F", pp, rank, virtual_stages, size, microbatches)
    backward = list(stage_order("I", pp, rank, virtual_stages, size, microbatches))
    weights = [Action(action.stage, "W", action.microbatch) for action in backward]
    made = [next(forward) for _ in range(warmup)]
    for step, action in enumerate(backward):
        made += [ahead] if (ahead := next(forward, None)) else []
        made.append(action)
        made += weights[step - rank : step - rank + 1] if step >= rank else []
    return (*made, *weights[max(0, total - rank) :])
