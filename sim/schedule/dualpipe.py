"""DualPipe-V (DeepSeek-AI 2024, section 3.2.1, cut in half to a V): each rank holds two stages, one on the first half of the V
and one on the second. Forwards of one stage alternate with backwards of the other, and weight gradients fill the end of the step.

The eight steps are those of the open DualPipe code (`dualpipe/dualpipev.py`) and torch's ScheduleDualPipeV.
"""

from __future__ import annotations

from collections import defaultdict

from sim.schedule.action import Action, Kind
from topologies.errors import Refused


def dualpipe(pp: int, rank: int, microbatches: int, virtual_stages: int = 2) -> tuple[Action, ...]:
    """What rank `rank` computes, in order. Raises `Refused` for fewer micro-batches than stages (2 pp)."""
    if microbatches < 2 * pp:
        raise Refused(f"dualpipe needs at least 2 x pp = {2 * pp} micro-batches, got {microbatches}. Change batch.global or the schedule")
    run = _Run(rank, 2 * pp - 1 - rank)
    left = pp - 1 - rank
    run.repeat(2 * left, "F0")
    run.repeat(rank + 1, "F0 F1")
    run.repeat(left, "I1 W F1")
    run.repeat(microbatches - 2 * pp + rank + 1, "F0 B1 F1 B0")
    run.repeat(left, "B1 F1 B0")
    # The second half of the last backwards delays its weight gradients; odd and even ranks start to do so on different stages.
    half = (rank + 1) // 2
    run.repeat(half, "B1 B0")
    run.repeat(1, "I1 I0" if rank % 2 else "B1 I0")
    run.repeat(rank - half, "I1 I0")
    run.repeat(left, "W I0")
    run.repeat(rank + 1, "W")
    return tuple(run.made)


class _Run:
    """The actions so far, the next micro-batch of each stage and direction, and the weight gradients that are delayed."""

    def __init__(self, there: int, back: int) -> None:
        self.made: list[Action] = []
        self._stages = (there, back)
        self._next: dict[tuple[int, str], int] = defaultdict(int)
        self._put_off: list[Action] = []

    def repeat(self, times: int, words: str) -> None:
        """Adds the actions of `words` `times` times.

        `F0 B1` is a forward on the rank's first stage and a backward on its second. `W` is the oldest delayed weight gradient, if there is one.
        """
        for _ in range(times):
            for word in words.split():
                if word == "W":
                    self.made += [self._put_off.pop(0)] if self._put_off else []
                else:
                    self._add(self._stages[int(word[1])], "F" if word[0] == "F" else "B" if word[0] == "B" else "I")

    def _add(self, stage: int, kind: Kind) -> None:
        counter = (stage, "F" if kind == "F" else "B")
        microbatch = self._next[counter]
        self._next[counter] += 1
        self.made.append(Action(stage, kind, microbatch))
        if kind == "I":
            self._put_off.append(Action(stage, "W", microbatch))
