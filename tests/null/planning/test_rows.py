"""Rows of a sweep: how they are ranked, and that a space without a plan leaves no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.planfile import load_plan
from sim.planning.space import parse_space
from sim.planning.store import Row
from sim.planning.sweep import sweep
from topologies.errors import BadInput

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 64, "micro": 8}, "parallel": {"dp_replicate": 8}})


def test_a_slip_of_the_pen_keeps_no_name(tmp_path: Path) -> None:
    """Where nothing of a space can run, its file is not there afterwards, and what is too large is told in GiB."""
    big = load_plan({"model": "llama3-70b", "seq_len": 512, "batch": {"global": 8, "micro": 1}})
    with pytest.raises(BadInput, match="alone take") as raised:
        sweep(big, parse_space("zero=0 gpus=8"), "dgx-h100", tmp_path / "c.sqlite")
    told = float(str(raised.value).partition("alone take ")[2].partition(" GiB")[0])
    assert 70e9 * 8 / 2**30 < told < 71e9 * 8 / 2**30  # weights, gradients and Adam's two states in 16 bits
    assert list(tmp_path.iterdir()) == []
    assert sweep(PLAN, parse_space("micro=4,8"), "dgx-h100", tmp_path / "c.sqlite").counts["done"] == 2


def test_plans_without_a_rate_rank_last() -> None:
    none, slow, fast, few = (
        Row("n", "refused"),
        Row("s", "done", rate=1e-3, gpus=8),
        Row("f", "done", rate=50.0, gpus=8),
        Row("o", "done", rate=9.0),
    )
    assert sorted((none, slow, fast, few), key=lambda row: row.effort) == [few, fast, slow, none]
    assert fast.effort == 8 / 50 and few.effort == 1 / 9
