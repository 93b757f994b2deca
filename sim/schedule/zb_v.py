"""ZB-V (Qi et al. 2023, section 6; torch's ScheduleZBVZeroBubble): backward is split, and each rank holds one stage on the way there and one
on the way back, so that the last stage is the first rank's. Nobody waits where forward, the gradients of inputs and those of weights take
equally long; memory is that of 1F1B's first rank, on all ranks alike.
"""

from __future__ import annotations

from collections import Counter

from sim.schedule.action import Action, Kind


def zb_v(pp: int, rank: int, microbatches: int, virtual_stages: int = 2) -> tuple[Action, ...]:
    """Fewer micro-batches than fill the pipeline (2 pp - 1) take the places that they have among so many, as in torch."""
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
