"""1F1B (PipeDream-flush; Narayanan et al. 2021, section 2.2.1): just enough forwards to fill the pipeline, then one forward and one
backward in turn, then the remaining backwards."""

from __future__ import annotations

from sim.schedule.action import Action


def one_f_one_b(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What rank `rank` computes, in order; it holds one stage. It keeps the activations of at most `pp - rank` micro-batches at a time."""
    warmup = min(microbatches, pp - 1 - rank)
    made = [Action(rank, "F", m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        made += [Action(rank, "F", warmup + m), Action(rank, "B", m)]
    return (*made, *(Action(rank, "B", m) for m in range(microbatches - warmup, microbatches)))
