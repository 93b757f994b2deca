"""Published forms of what `chakra export` wrote and what `chakra replay` found."""

from __future__ import annotations

from sim.files.forms.prediction import OnPath, Parts
from sim.files.forms.said import Said


class Exported(Said, frozen=True, kw_only=True):
    """Files PREFIX.0.et, PREFIX.1.et ..., of `ranks` ranks with `nodes` nodes together; `groups`: their communicators, as JSON."""

    prefix: str
    groups: str
    ranks: int
    nodes: int


class Replay(Said, frozen=True, kw_only=True):
    """What a workload takes on a machine; `breakdown` and `critical_path` sum to its step."""

    workload: str
    topology: str
    ranks: int
    nodes: int
    step_time_s: float
    breakdown: Parts
    critical_path: list[OnPath]
