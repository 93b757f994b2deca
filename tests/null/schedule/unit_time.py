"""A pipeline in unit time: each action takes its given time, messages take none. The yardstick for bubbles."""

from __future__ import annotations

from sim.schedule import Action, chunks_of, schedule

Times = dict[str, float]


def play(name: str, pp: int, microbatches: int, chunks: int, times: Times) -> dict[Action, tuple[float, float]]:
    """Start and end of each action when every rank runs its list in order and data is there at once.

    Raises `AssertionError` when the lists cannot run.
    """
    lists = [schedule(name, pp, rank, microbatches, chunks) for rank in range(pp)]
    last = pp * chunks_of(name, chunks) - 1
    done: dict[Action, tuple[float, float]] = {}
    at, free = [0] * pp, [0.0] * pp
    while any(at[rank] < len(lists[rank]) for rank in range(pp)):
        moved = False
        for rank in range(pp):
            while at[rank] < len(lists[rank]) and (ready := _ready(lists[rank][at[rank]], last, done)) is not None:
                action = lists[rank][at[rank]]
                start = max(ready, free[rank])
                free[rank] = start + times[action.kind]
                done[action] = (start, free[rank])
                at[rank] += 1
                moved = True
        assert moved, f"stuck: {[str(lists[rank][at[rank]]) for rank in range(pp) if at[rank] < len(lists[rank])]}"
    return done


def _ready(action: Action, last: int, done: dict[Action, tuple[float, float]]) -> float | None:
    """When the action's inputs are there; None while they are not."""
    ends = [_end(done, stage, kinds, action.microbatch) for stage, kinds in _inputs(action, last)]
    return None if None in ends else max((end for end in ends if end is not None), default=0.0)


def _inputs(action: Action, last: int) -> list[tuple[int, str]]:
    stage = action.stage
    if action.kind == "F":
        return [(stage - 1, "F")] if stage else []
    if action.kind == "W":
        return [(stage, "I")]
    return [(stage, "F"), *([(stage + 1, "BI")] if stage < last else [])]


def _end(done: dict[Action, tuple[float, float]], stage: int, kinds: str, microbatch: int) -> float | None:
    for kind in kinds:
        if (found := done.get(Action(stage, kind, microbatch))) is not None:  # type: ignore[arg-type]
            return found[1]
    return None


def bubble(
    name: str, pp: int, microbatches: int, chunks: int = 1, *, forward: float = 1.0, split: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Idle share of a rank's time, relative to its work: (makespan - work) / makespan.

    A stage's forward takes `forward` / chunks, its backward the sum of `split` (input's, weights' gradients) / chunks.
    """
    parts = chunks_of(name, chunks)
    times = {"F": forward / parts, "B": sum(split) / parts, "I": split[0] / parts, "W": split[1] / parts}
    makespan = max(end for _, end in play(name, pp, microbatches, chunks, times).values())
    return 1 - microbatches * (forward + sum(split)) / makespan
