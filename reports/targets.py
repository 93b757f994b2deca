"""The project's targets for errors against published steps, and which of them were missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.accuracy.tables import FEWEST, GROUPS, RANK, STEPS

TARGETS = {"mape": STEPS, "median_ape": 0.08, "bias": 0.04, "coverage": 0.97, "group": GROUPS, "rank": RANK}
"""The targets (errors as fractions); groups count if they have at least `FEWEST` rows."""
INSIDE = (0.75, 0.85)
"""Least and largest share of the measurements that should be in the 80 % interval."""


def missed(summary: Mapping[str, Any]) -> list[str]:
    """Targets that were not reached, in words."""
    found = [
        f"{words} is {summary[key]:.1%}; the target is {TARGETS[key]:.0%}"
        for key, words in (("mape", "Mean error"), ("median_ape", "Median error"))
        if summary[key] > TARGETS[key]
    ]
    if abs(summary["bias"]) > TARGETS["bias"]:
        found.append(f"Bias is {summary['bias']:+.1%}; the target is within {TARGETS['bias']:.0%}")
    if summary["coverage"] < TARGETS["coverage"]:
        found.append(f"{summary['coverage']:.1%} of the rows are predicted; the target is {TARGETS['coverage']:.0%}")
    low, high = INSIDE
    if not low <= summary["interval"]["coverage"] <= high:
        found.append(
            f"The 80 % interval holds {summary['interval']['coverage']:.1%} of the measurements; the target is {low:.0%} to {high:.0%}"
        )
    for kind in ("family", "gpu"):
        off = [
            f"{name} {one['mape']:.1%}"
            for name, one in summary[f"by_{kind}"].items()
            if one["rows"] >= FEWEST and one["mape"] > TARGETS["group"]
        ]
        if off:
            found.append(f"Mean error above {TARGETS['group']:.0%} by {'GPU' if kind == 'gpu' else kind}: {', '.join(off)}")
    again = summary["rank_correlation_measured_again"]
    ranks = [
        f"{name} {value:.2f}" + (f" ({again[name]:.2f} if measured again)" if name in again else "")
        for name, value in summary["rank_correlation"].items()
        if value < TARGETS["rank"]
    ]
    if ranks:
        found.append(f"Rank correlation below {TARGETS['rank']}: {', '.join(ranks)}")
    return found
