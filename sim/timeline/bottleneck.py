"""What a step is bound by: the group of a breakdown's classes that takes most of it. One rule for predicted and measured steps."""

from __future__ import annotations

from sim.timeline.metrics import Breakdown

GROUPS: dict[str, tuple[str, ...]] = {
    "compute": ("compute_s", "optimizer_s"),
    "communication": ("exposed_comm_s",),
    "data": ("data_s",),
    "output": ("output_s",),
    "host": ("host_s",),
    "bubble": ("bubble_s",),
}
ON_CPU = GROUPS | {
    "compute": ("compute_s", "optimizer_s", "host_s"),
    "communication": ("exposed_comm_s", "bubble_s"),
    "host": (),
    "bubble": (),
}
"""On a CPU the host thread computes, and a bubble is a wait for other ranks."""
TIE = 0.1
"""Groups that lie within this share of the step of the largest one bind it as much: runs of one plan differ by as much."""


def shares(split: Breakdown, cpu: bool = False) -> dict[str, float]:
    """Seconds of each group."""
    return {group: sum(getattr(split, name) for name in names) for group, names in (ON_CPU if cpu else GROUPS).items()}


def bottleneck(split: Breakdown, cpu: bool = False) -> str:
    """The group that takes most of the step."""
    found = shares(split, cpu)
    return max(found, key=lambda group: found[group])


def bottlenecks(split: Breakdown, cpu: bool = False) -> tuple[str, ...]:
    """The largest group and those that tie with it, largest first."""
    found = shares(split, cpu)
    order = sorted(found, key=lambda group: -found[group])
    near = found[order[0]] - TIE * sum(found.values())
    return tuple(group for group in order if group == order[0] or (found[group] > 0.0 and found[group] >= near))
