"""Colours of classes of op, the same in every figure. Readable on light and dark, distinct for the colour-blind (Okabe and Ito 2008)."""

from __future__ import annotations

BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE, GREY = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#8a97a6"
"""Okabe and Ito's colours; the grey is another one, for lines in the background."""
WAITS = "waiting for peers"
"""Class of the first part of a transfer's bar, if other ranks are late."""

_FIXED = {
    WAITS: "#C9CDD3",
    "gemm": BLUE,
    "attention": SKY,
    "conv": BLUE,
    "moe": "#3B5BA5",
    "norm": "#8DB6CD",
    "activation": "#7A9CC6",
    "elementwise": "#A3BFD9",
    "embedding": "#5F7FA8",
    "loss": "#4B6A8A",
    "optimizer": GREEN,
    "data": PURPLE,
    "output": "#F0E442",
    "host": "#999999",
    "compute_s": BLUE,
    "optimizer_s": GREEN,
    "exposed_comm_s": VERMILION,
    "bubble_s": "#C9CDD3",
    "host_s": "#999999",
    "data_s": PURPLE,
    "output_s": "#F0E442",
    "measured": GREEN,
    "fitted": SKY,
    "assumed": ORANGE,
}
_COMM = VERMILION
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
"""Class of a breakdown -> its name on pages."""
PREDICTED = VERMILION
"""Colour of lines that show a prediction or a limit."""


def colour(cls: str) -> str:
    """The colour of a class of op; communication is orange, its groups are shades of it."""
    if cls in _FIXED:
        return _FIXED[cls]
    if cls.startswith("comm"):
        return _COMMS.get(cls.partition(".")[2], _COMM)
    return _REST[sum(map(ord, cls)) % len(_REST)]
