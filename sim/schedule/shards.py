"""Adds FSDP's actions on whole stages to a rank's computation: parameters are gathered before use and freed, gradients are reduced.

This is how torch 2.13 lowers its schedules of several stages a rank (torch/distributed/pipelining/schedules.py, `_add_unshard_reshard` and
`_add_reduce_grad` of pull request 166449, which `_PipelineScheduleRuntime` runs). Its schedules of one stage a rank have no such actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.schedule.action import WHOLE, Action
from sim.schedule.placement import chunks_of
from sim.schedule.written import Name, Written

ACTIVE_STAGES = 3
"""The most stages of a rank that are gathered at a time (torch's `max_active_stages`): the ones that it computes on next."""


def by_actions(name: Name, virtual_stages: int) -> bool:
    """True if torch runs the schedule action by action: all but GPipe, 1F1B and interleaved with one stage per rank, which is 1F1B."""
    return isinstance(name, Written) or name not in ("gpipe", "1f1b", "interleaved") or chunks_of(name, virtual_stages) > 1


def add_shards(computes: Sequence[Action], microbatches: int) -> tuple[Action, ...]:
    """A rank's computation with FSDP's actions: UNSHARD of the stages that are used next, RESHARD of stages that are not among these, and
    REDUCE_GRAD after a stage's last weight gradients."""
    following = _following(computes)
    made: list[Action] = []
    active: list[int] = []
    weights: dict[int, int] = {}
    for action, following_stages in zip(computes, following, strict=True):
        made += [Action(stage, "RESHARD", WHOLE) for stage in active if stage not in following_stages]
        made += [Action(stage, "UNSHARD", WHOLE) for stage in following_stages if stage not in active]
        active = [stage for stage in active if stage in following_stages] + [s for s in following_stages if s not in active]
        made.append(action)
        if action.kind in ("B", "W"):
            weights[action.stage] = weights.get(action.stage, 0) + 1
            if weights[action.stage] == microbatches:
                made.append(Action(action.stage, "REDUCE_GRAD", WHOLE))
    return (*made, *(Action(stage, "RESHARD", WHOLE) for stage in active))


def _following(computes: Sequence[Action]) -> list[tuple[int, ...]]:
    """For each action, the next stages in order of use, each once, at most `ACTIVE_STAGES`. The action's own stage is the first."""
    found: list[tuple[int, ...]] = []
    line: tuple[int, ...] = ()
    for action in reversed(computes):
        # The list of all stages must be kept here: the first few stages of the previous action depend on it.
        line = (action.stage, *(stage for stage in line if stage != action.stage))
        found.append(line[:ACTIVE_STAGES])
    return found[::-1]
