"""Which of Megatron-Bridge's performance recipes a row ran: its releases change how tokens travel and what is captured into CUDA graphs.

Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/*/*_workload_base_configs.py through its releases (moe_a2a_overlap,
moe_flex_dispatcher_backend, cuda_graph_impl, cuda_graph_scope), with what the page of results says of the release.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sim.accuracy.rows import Row

Release = tuple[int, int, int]
"""Of the container: 26.04.01 is (26, 4, 1)."""
_FIRST: Release = (0, 0, 0)
_LAST: Release = (99, 0, 0)
_LATEST: Release = (26, 0, 0)
"""What a row that says no release is taken for."""
_RACKS = r"GB200|GB300"


class Recipe(NamedTuple):
    """A framework file, and the rows that it describes: those that match everything said here."""

    framework: str
    kind: str = ""
    """Of the model (`_kind`), as a pattern."""
    gpus: str = ""
    """As a pattern."""
    since: Release = _FIRST
    before: Release = _LAST
    precision: str = ""
    spread: bool = False
    """Experts lie on several servers."""
    drops: bool = False
    """Tokens beyond an expert's capacity are dropped, as the row says."""


_RECIPES = (
    Recipe("megatron-bridge-captured", "small", f"{_RACKS}|B200|B300"),
    Recipe("megatron-bridge", "small|dense"),
    # Mixtures of experts. Dropping tokens turns DeepEP off ("Using token drop, disabling DeepEP").
    Recipe("megatron-bridge", drops=True),
    # Whole iterations in one graph; exchanges beside another micro-batch.
    Recipe("megatron-bridge-iteration", "", _RACKS, since=(26, 6, 0), precision="mxfp8"),
    Recipe("megatron-bridge-iteration", "gpt-oss", "B300", since=(26, 6, 0), precision="mxfp8"),
    # Exchanges beside another micro-batch, launched from Python: by DeepEP, or by all_to_all.
    Recipe("megatron-bridge-overlapped", "latent", "B200", spread=True),
    Recipe("megatron-bridge-overlapped", "latent", "H100", before=(26, 2, 0)),
    Recipe("megatron-bridge-alltoall-overlapped", "wide", "H100", since=(25, 11, 0)),
    Recipe("megatron-bridge-alltoall-overlapped", "narrow", "H100", since=(25, 11, 0), before=(26, 4, 0)),
    Recipe("megatron-bridge-alltoall-overlapped", "wide", "B200", since=(25, 11, 0), before=(26, 2, 0)),
    # all_to_all, nothing beside it.
    Recipe("megatron-bridge", "gpt-oss"),
    Recipe("megatron-bridge", "wide", "H100|B200|B300"),
    # HybridEP, parts of each layer in graphs; HybridEP or DeepEP alone.
    Recipe("megatron-bridge-deepep", "narrow", "H100", since=(26, 4, 0)),
    Recipe("megatron-bridge-graphs", "", _RACKS, since=(25, 11, 0)),
    Recipe("megatron-bridge-graphs", "", "B300", since=(26, 4, 0)),
    Recipe("megatron-bridge-graphs", "narrow", "B200", since=(26, 2, 1)),
    Recipe("megatron-bridge-deepep", "latent"),
    Recipe("megatron-bridge"),
)
"""The first that matches counts."""


def recipe_of(row: Row) -> str:
    """The framework file of the recipe that a row of Megatron-Bridge ran."""
    found = re.search(r"(\d\d)\.(\d\d)(?:\.(\d\d))?", row.framework_version)
    release: Release = (int(found[1]), int(found[2]), int(found[3] or 0)) if found else _LATEST
    return next(recipe.framework for recipe in _RECIPES if _ran(row, recipe, release))


def _ran(row: Row, recipe: Recipe, release: Release) -> bool:
    return (
        recipe.since <= release < recipe.before
        and re.fullmatch(recipe.kind or ".*", _kind(row)) is not None
        and re.fullmatch(recipe.gpus or ".*", row.gpu.upper()) is not None
        and recipe.precision in row.precision
        and (not recipe.spread or (row.ep or 1) > 8)
        and (not recipe.drops or "tokendrop" in row.notes.lower())
    )


def _kind(row: Row) -> str:
    """Of the model, as recipes differ: dense ones small enough to be captured, mixtures of experts by attention and width."""
    if not row.n_experts:
        return "small" if (row.hidden or 0) <= 4096 and row.task == "pretrain" else "dense"
    name = f"{row.model_type} {row.model_name}".lower()
    if re.search(r"deepseek|kimi", name):
        return "latent"
    if "gpt-oss" in name:
        return "gpt-oss"
    return "wide" if (row.hidden or 0) == 4096 and row.n_experts >= 64 else "narrow" if (row.hidden or 0) <= 2048 else "other"
