"""Published forms of what `chakra export` wrote and what `chakra replay` found."""

from __future__ import annotations

from sim.files.forms.prediction import Parts
from sim.files.forms.said import Said


class Exported(Said, frozen=True, kw_only=True):
    """Files PREFIX.0.et, PREFIX.1.et ..., of `ranks` ranks with `nodes` nodes together; `groups`: their communicators, as JSON."""

    prefix: str
    groups: str
    ranks: int
    nodes: int


class Replay(Said, frozen=True, kw_only=True):
    """What a workload takes on a machine. `seconds`: of its step, which `breakdown` and `critical_path` (class of op, seconds) sum to."""

    workload: str
    topology: str
    ranks: int
    nodes: int
    seconds: float
    breakdown: Parts
    critical_path: tuple[tuple[str, float], ...]
