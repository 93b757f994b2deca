"""Which pipeline rank holds which stage: round and round ("loop"), or there and back ("v"), as torch's generate_stage_to_rank_mapping has them."""

from __future__ import annotations

from sim.schedule.written import Name, Style, Written
from sim.sections import VEES


def chunks_of(name: Name, virtual_stages: int) -> int:
    """Stages on each rank. A V has always two, a written schedule as many as it names."""
    if isinstance(name, Written):
        return name.chunks
    return 2 if name in VEES else virtual_stages


def style_of(name: Name) -> Style:
    """How the schedule's stages lie on the ranks."""
    if isinstance(name, Written):
        return name.style
    return "v" if name in VEES else "loop"


def rank_of(name: Name, pp: int, stage: int) -> int:
    """The rank that holds `stage`."""
    return placed(style_of(name), pp, stage)


def goes_back(name: Name, pp: int, stage: int) -> bool:
    """Does the stage lie on the way back, where the next stage is the rank before?"""
    return style_of(name) == "v" and stage // pp % 2 == 1


def placed(style: Style, pp: int, stage: int) -> int:
    """The rank of a stage: `stage % pp`, or in a V down and up again."""
    return pp - 1 - stage % pp if style == "v" and stage // pp % 2 else stage % pp
