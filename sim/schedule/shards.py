"""What FSDP does to whole stages, put into a rank's computation: parameters gathered ahead of use and dropped, gradients reduced.

As torch 2.13 lowers its schedules of several stages a rank (torch/distributed/pipelining/schedules.py, `_add_unshard_reshard` and
`_add_reduce_grad` of pull request 166449, which `_PipelineScheduleRuntime` runs). Its schedules of one stage a rank have no such actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.schedule.action import WHOLE, Action
from sim.schedule.placement import chunks_of
from sim.schedule.written import Name, Written

ACTIVE_STAGES = 3
"""Stages of a rank that are gathered at a time, `max_active_stages` in torch: those that it computes on next."""


def by_actions(name: Name, virtual_stages: int) -> bool:
    """Does torch run the schedule action by action? All but GPipe and 1F1B, also with one stage a rank."""
    return isinstance(name, Written) or name not in ("gpipe", "1f1b", "interleaved") or chunks_of(name, virtual_stages) > 1


def add_shards(computes: Sequence[Action], microbatches: int) -> tuple[Action, ...]:
    """A rank's computation with UNSHARD of the stages that come next, RESHARD of those that make room for them, and REDUCE_GRAD after a
    stage's last weight gradients."""
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
    """At each action the next stages from it on, each once, in the order of use."""
    found: list[tuple[int, ...]] = []
    line: tuple[int, ...] = ()
    for action in reversed(computes):
        # Of the stages in the order of their next use all are needed to tell the first few of the action before.
        line = (action.stage, *(stage for stage in line if stage != action.stage))
        found.append(line[:ACTIVE_STAGES])
    return found[::-1]
