"""The bottleneck of a step: the group of breakdown classes that takes most of it. Predicted and measured steps use the same rule."""

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
"""The groups on a CPU, where the host thread itself computes and a bubble is a wait for other ranks."""
TIE = 0.1
"""A group is also a bottleneck if it is smaller than the largest by at most this share of the step: runs of one plan differ by as much."""


def shares(split: Breakdown, cpu: bool = False) -> dict[str, float]:
    """Seconds of a step in each group; `cpu` selects the groups of `ON_CPU`."""
    return {group: sum(getattr(split, name) for name in names) for group, names in (ON_CPU if cpu else GROUPS).items()}


def bottleneck(split: Breakdown, cpu: bool = False) -> str:
    """The group that takes most of the step."""
    found = shares(split, cpu)
    return max(found, key=lambda group: found[group])


def bottlenecks(split: Breakdown, cpu: bool = False) -> tuple[str, ...]:
    """The largest group and those within `TIE` of it, largest first."""
    found = shares(split, cpu)
    order = sorted(found, key=lambda group: -found[group])
    near = found[order[0]] - TIE * sum(found.values())
    return tuple(group for group in order if group == order[0] or (found[group] > 0.0 and found[group] >= near))
