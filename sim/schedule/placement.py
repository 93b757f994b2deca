"""Which pipeline rank holds which stage: "loop" (0 1 2 0 1 2) or "v" (0 1 2 2 1 0), the styles of torch's generate_stage_to_rank_mapping."""

from __future__ import annotations

from sim.schedule.written import Name, Style, Written
from sim.sections import VEES


def chunks_of(name: Name, virtual_stages: int) -> int:
    """The number of stages on each rank: always 2 in a V schedule, `name.chunks` in a written one, else `virtual_stages`."""
    if isinstance(name, Written):
        return name.chunks
    return 2 if name in VEES else virtual_stages


def style_of(name: Name) -> Style:
    """How the schedule places its stages on the ranks: "loop" or "v"."""
    if isinstance(name, Written):
        return name.style
    return "v" if name in VEES else "loop"


def rank_of(name: Name, pp: int, stage: int) -> int:
    """The rank that holds `stage`."""
    return placed(style_of(name), pp, stage)


def goes_back(name: Name, pp: int, stage: int) -> bool:
    """True if the stage lies on a downward half of a V, where the next stage is on the previous rank."""
    return style_of(name) == "v" and stage // pp % 2 == 1


def placed(style: Style, pp: int, stage: int) -> int:
    """The rank of a stage: `stage % pp`; in a V every second run of `pp` stages goes from the last rank to the first."""
    return pp - 1 - stage % pp if style == "v" and stage // pp % 2 else stage % pp
