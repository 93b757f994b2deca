"""Shares of the layers, and numbers of them, where a pipeline's ranks hold several chunks."""

from __future__ import annotations

from typing import Any

import pytest

from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.recomputation import recompute_of
from tests.null.accuracy.test_spellings import row


@pytest.mark.parametrize(
    ("changes", "chunks", "layers"),
    [
        ({"recompute": "50 % of the layers", "vp": 2}, 2, 4), ({"recompute": "every other block"}, 1, 8), ({"recompute": "every other block", "vp": 4}, 4, 2),
        ({"recompute": "selective (SAVE_QKV_PROJ)", "vp": 2}, 2, 7), ({"recompute": "every other layer", "vp": 16}, 16, 1),
        ({"recompute": "block", "recompute_detail": "block 3 layers", "vp": 2}, 2, 3), ({"recompute": "block 6 layers"}, 4, 2), ({"recompute": "block 1 layers"}, 4, 1), ({"recompute": "block 40 layers"}, 2, 8),
    ],
)  # fmt: skip
def test_layers_of_each_chunk_are_recomputed(changes: dict[str, Any], chunks: int, layers: int) -> None:
    """Sixteen layers of a rank. A number that comes without chunks is of all a rank's layers."""
    assert recompute_of(row(**changes), 16, "megatron-core", [], chunks) == {"recompute": "full", "recompute_layers": layers}


def test_half_of_the_layers_is_half_of_the_work_again() -> None:
    """Two chunks of eight layers: four of each, where eight of each were all."""
    plan = case_of(
        row(recompute="50 % of the layers", pp=2, vp=2, gpus=2, global_batch=8, framework="Megatron-Core", sharding="ZeRO-1")
    ).plan
    assert (plan.parallel.chunks, plan.memory.recompute_layers) == (2, 4)
