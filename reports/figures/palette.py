"""Colours of classes of op, the same in every figure. Readable on light and dark, distinct for the colour-blind (Okabe and Ito 2008)."""

from __future__ import annotations

WAITS = "waiting for peers"
"""What a transfer's bar begins with where its other ranks are late."""

_FIXED = {
    WAITS: "#C9CDD3",
    "gemm": "#0072B2",
    "attention": "#56B4E9",
    "conv": "#0072B2",
    "moe": "#3B5BA5",
    "norm": "#8DB6CD",
    "activation": "#7A9CC6",
    "elementwise": "#A3BFD9",
    "embedding": "#5F7FA8",
    "loss": "#4B6A8A",
    "optimizer": "#009E73",
    "data": "#CC79A7",
    "output": "#F0E442",
    "host": "#999999",
    "compute_s": "#0072B2",
    "optimizer_s": "#009E73",
    "exposed_comm_s": "#D55E00",
    "bubble_s": "#C9CDD3",
    "host_s": "#999999",
    "data_s": "#CC79A7",
    "output_s": "#F0E442",
    "measured": "#009E73",
    "fitted": "#56B4E9",
    "assumed": "#E69F00",
}
_COMM = "#D55E00"
_COMMS = {"tp": "#F08A3C", "pp": "#A84300", "cp": "#F6B26B", "ep": "#8C564B", "norm": "#E9A27A"}
"""Shades of communication by group; data parallelism has the plain one."""
_REST = ("#6C8EBF", "#9A7FB8", "#B0936A", "#7FA88B")

WORDS = {
    "compute_s": "compute",
    "exposed_comm_s": "exposed communication",
    "bubble_s": "bubble",
    "host_s": "host gap",
    "data_s": "data stall",
    "optimizer_s": "optimizer",
    "output_s": "output",
    "idle_s": "idle",
}
"""What people call the classes of a breakdown."""
PREDICTED = "#D55E00"
"""Lines that say what was predicted, or what may not be passed."""


def colour(cls: str) -> str:
    """The colour of a class of op; communication is orange, its groups are shades of it."""
    if cls in _FIXED:
        return _FIXED[cls]
    if cls.startswith("comm"):
        return _COMMS.get(cls.partition(".")[2], _COMM)
    return _REST[sum(map(ord, cls)) % len(_REST)]
