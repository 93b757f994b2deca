"""ZB-V (Qi et al. 2023, section 6; torch's ScheduleZBVZeroBubble): backward is split, and each rank holds two stages in a V, so that the
first rank holds the first and the last stage. No rank waits if forward, input gradients and weight gradients take equally long. Every rank
needs as much memory as the first rank of 1F1B.
"""

from __future__ import annotations

from collections import Counter

from sim.schedule.action import Action, Kind


def zb_v(pp: int, rank: int, microbatches: int, virtual_stages: int = 2) -> tuple[Action, ...]:
    """What rank `rank` computes, in order. With fewer than 2 pp - 1 micro-batches, it is the order for 2 pp - 1 without the missing ones, as in torch."""
    count, left = max(microbatches, 2 * pp - 1), pp - rank
    begun = 2 * pp - rank - 1
    words = [
        *["F0"] * (begun - rank),
        *["F1", "F0"] * rank,
        *["F1", "I1", "W1"] * left,
        *["F0", "I0", "W0", "F1", "I1", "W1"] * (count - begun),
        *["I0", "W0", "F1", "I1", "W1"] * (begun - pp),
        *["I0", "I1"] * rank,
        *["I0", "W0"] * left,
        *["W1"] * rank,
        *["W0"] * rank,
    ]
    stages = {"0": rank, "1": 2 * pp - 1 - rank}
    kinds: dict[str, Kind] = {"F": "F", "I": "I", "W": "W"}
    done: Counter[str] = Counter()
    made = []
    for word in words:
        made.append(Action(stages[word[1]], kinds[word[0]], done[word]))
        done[word] += 1
    return tuple(action for action in made if action.microbatch < microbatches)
