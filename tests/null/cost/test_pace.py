"""The board that a step waits for: of all, or of those in a pipeline's longest stage."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.kernel import assume
from sim.cost.sustained import slowest
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.setting.bind import Setting, bind
from sim.setting.pace import board_clock, pace
from sim.setting.pricer import pricer_for
from sim.steady.shortened import _LAYERS, Run
from sim.timeline.metrics import step_times
from topologies.errors import BadInput
from topologies.load import load_topology

MACHINE = load_topology("8x dgx-h100")
LAYERS: dict[str, Any] = {"layers": 16, "hidden": 4096, "heads": 32, "ffn": 65536, "vocab": 1024}
HEAD = LAYERS | {"vocab": 131072}


def _setting(model: dict[str, Any], on: Any = MACHINE, framework: str = "megatron-core", **keys: Any) -> Setting:
    parallel = {"tp": 4, "pp": 4, "dp_shard": 2, **keys.pop("parallel", {})}
    batch = {"global": 16 * parallel["dp_shard"], "micro": 1}
    return bind({"model": model, "seq_len": 2048, "framework": framework, "parallel": parallel, "batch": batch, **keys}, on)


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=12), st.integers(1, 2000))
def test_the_pace_lies_between_that_of_all_boards_and_that_of_the_longest_stages(loads: list[float], boards: int) -> None:
    least, most = slowest(boards * len(loads)), slowest(boards * loads.count(max(loads)))
    assert least <= pace(loads, boards) <= most


@given(st.floats(0.1, 2.0), st.integers(1, 64), st.integers(1, 2000))
def test_equal_stages_wait_for_all_boards(load: float, stages: int, boards: int) -> None:
    assert pace([load] * stages, boards) == slowest(boards * stages)
    assert pace([load] * stages + [load * 2], boards) == slowest(boards)


@pytest.mark.parametrize("lead", [1.0, 1.01, 1.03, 1.2])
def test_the_longest_stage_takes_as_long_as_drawn_boards_make_the_pipeline_wait(lead: float) -> None:
    draw, loads, boards = random.Random(1), [1.0] * 7 + [lead], 16
    waits = [max(load * (1.0 + max(draw.gauss(0.0, 0.015) for _ in range(boards))) for load in loads) for _ in range(1500)]
    assert lead / pace(loads, boards) == pytest.approx(fmean(waits), abs=0.0025)


def test_without_a_pipeline_a_step_waits_for_the_slowest_of_all_boards() -> None:
    assert board_clock(_setting(HEAD, parallel={"pp": 1, "tp": 1, "dp_shard": 32})) == slowest(32)
    assert board_clock(_setting(HEAD, parallel={"pp": 1, "tp": 4, "dp_shard": 8})) == slowest(32)
    parallel = {"pp": 1, "tp": 1, "dp_shard": 1, "dp_replicate": 8, "zero": 0}
    assert board_clock(_setting(HEAD, parallel=parallel, update={"mode": "async"})) == 1.0 < 1 / slowest(8), "nobody waits for another"


def test_a_stage_with_a_large_head_waits_for_its_own_boards() -> None:
    assert board_clock(_setting(HEAD)) == slowest(8)
    assert slowest(32) < board_clock(_setting(LAYERS)) < slowest(8)  # hardly longer than the others: theirs count too


def test_what_layers_run_again_makes_the_head_a_smaller_part_of_its_stage() -> None:
    """Then the other stages' boards count for more: all layers, one of each stage, attention's core, none."""

    def clock(**memory: Any) -> float:
        return board_clock(_setting(LAYERS, memory=memory))

    full, first = clock(recompute="full"), clock(recompute="full", recompute_layers=1)
    assert slowest(32) < full < first < clock(recompute="selective") < clock() < slowest(8)
    assert clock(recompute="full", recompute_layers=4) == full


def test_stages_take_as_long_as_their_own_devices_need() -> None:
    """Equal layers, one of two stages on a slower GPU: its boards alone count, whichever it is."""

    def clock(on: str) -> float:
        return board_clock(_setting(LAYERS, on, parallel={"pp": 2, "tp": 4, "dp_shard": 2}))

    assert clock("1x dgx-a100 + 1x dgx-h100") == clock("1x dgx-h100 + 1x dgx-a100") == slowest(8)
    assert slowest(16) < clock("2x dgx-h100") < slowest(8)


def test_layers_that_make_no_pipeline_are_refused_as_ever() -> None:
    with pytest.raises(BadInput, match="16 layers do not make 32 stages"):
        pricer_for(_setting(LAYERS, parallel={"pp": 32, "tp": 1, "dp_shard": 2}))


@pytest.mark.no_cover
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipe"])
def test_a_rank_that_stands_for_others_has_their_clock(schedule: str) -> None:
    chunks = {"virtual_stages": 2} if schedule == "interleaved" else {}
    setting = _setting(HEAD, parallel={"schedule": schedule, **chunks})
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    folded, apart = (step_times(simulate(program, pricer_for(setting), symmetry=fold)) for fold in (True, False))
    assert folded == pytest.approx(apart, rel=1e-9)


@pytest.mark.no_cover
def test_a_sweep_prices_layers_at_each_pipelines_clock() -> None:
    """Pipelines of equal worlds whose layers are lowered alike, one after the other: as fast as each by itself."""

    def step(pp: int) -> float:
        return Run(_setting(HEAD, parallel={"pp": pp, "dp_shard": 16 // pp})).whole()

    _LAYERS.clear()
    after = [step(pp) for pp in (2, 4, 8)]
    for pp, seconds in zip((2, 4, 8), after, strict=True):
        _LAYERS.clear()
        assert step(pp) == seconds


def test_a_refit_finds_the_stages_at_its_own_clock() -> None:
    setting = _setting(LAYERS)
    usual = board_clock(setting)
    try:
        assume(0.3)
        assert board_clock(setting) != usual
    finally:
        assume(None)
    assert board_clock(setting) == usual
