"""The clock that a power limit leaves a step: its physics, loops of an H200, and predictions from a calibration that tells of power."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.cost.calibrated import CalibratedPricer
from sim.cost.calibration import Calibration, Sample, load_calibration, save_calibration
from sim.cost.kernel import kernel_cost
from sim.cost.power import ATTENTION, PASSES, WAITING, Draws, Spent, Turn, draws_of, spent_on
from sim.predict import predict, steps_of
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.work import Attention, Conv, Gemm, MemoryBound
from topologies.devices import gpu
from topologies.errors import BadInput

H200 = gpu("h200-sxm")
BOARD = Draws(matrix=1.4, exponent=1.3, attention=0.6, memory=0.88, waiting=0.2, limit=0.99)
BOOST = 1.259e-3
"""Seconds of a product of 8192 at 1,980 MHz, from those at 1,530 of one H200."""
PASS = 187e-6
LOOPS: dict[Turn, float] = {(1, 0, 0): 1.629e-3, (1, 5, 0): 1.542e-3, (1, 12, 0): 1.448e-3}
"""Seconds of the product in steady loops of that H200, beside so many passes over 768 MB."""


def row(name: str, shape: tuple[int, ...], value: float, dtype: str = "") -> Sample:
    return Sample(name, dtype, shape, value, value, value, 9)


def calibrated(power: tuple[Sample, ...], loaded: bool = False, **tables: tuple[Sample, ...]) -> Calibration:
    return Calibration(
        device="cuda", date="", machine="", cores=8, ranks=1, threads=1, loaded=loaded, tables=tables | ({"power": power} if power else {})
    )


def rows(loops: dict[Turn, float] = LOOPS, boost: float = BOOST, held: float = 0.99) -> tuple[Sample, ...]:
    alone = [row("watts", turn, watts) for turn, watts in ((WAITING, 0.18), (PASSES, 0.88), (ATTENTION, 0.6))]
    each = [one for turn, seconds in loops.items() for one in (row("watts", turn, held), row("product", turn, seconds))]
    return (*alone, row("product", WAITING, boost), *each, *(row("pass", turn, PASS) for turn in loops if turn[1]))


POWER = rows()
seconds = st.floats(0.0, 1.0)


@given(st.builds(Spent, seconds, seconds, seconds, st.floats(1e-3, 1.0)), st.floats(1.0, 3.0))
def test_the_draw_meets_the_limit_or_the_clock_is_the_boost_clock(spent: Spent, exponent: float) -> None:
    board = replace(BOARD, exponent=exponent)
    clock = board.clock(spent)
    assert board.clock(Spent(1.0, 0.0, 0.0, 0.0)) - 1e-5 <= clock <= 1.0
    drawn = board.mean(spent, 1.0, clock)
    assert drawn <= board.limit + 1e-9 and (clock == 1.0 or drawn == pytest.approx(board.limit, abs=1e-4))
    assert board.mean(spent, 1.0, 0.9 * clock) <= drawn + 1e-9, "a lower clock never draws more"
    busier = replace(spent, matrix=spent.matrix + 0.1)
    assert board.clock(busier) <= clock + 1e-6 <= board.clock(replace(spent, waiting=spent.waiting + 0.1)) + 2e-6
    later = replace(spent, matrix=spent.matrix / clock)
    assert board.clock(later, clock) == pytest.approx(clock, abs=1e-5), "simulated at the clock that it leaves, a step stays there"


def test_steps_that_wait_or_only_move_memory_keep_the_boost_clock() -> None:
    for spent in (Spent(0.3, 0.0, 0.1, 0.6), Spent(0.0, 0.0, 1.0, 0.0), Spent(0.0, 1.0, 0.0, 0.0), Spent(0.0, 0.0, 0.0, 1.0)):
        assert BOARD.clock(spent) == 1.0
    full = replace(BOARD, memory=1.0)  # passes alone reach the limit: no lower clock helps a step of hardly anything else
    assert full.clock(Spent(0.01, 0.0, 0.99, 0.0)) >= BOARD.clock(Spent(1.0, 0.0, 0.0, 0.0)) - 1e-5
    assert BOARD.clock(Spent(1.0, 0.0, 0.0, 0.0)) == pytest.approx((0.99 / 1.4) ** (1 / 1.3), rel=1e-3)


def test_loops_of_an_h200_run_at_the_clocks_that_they_were_seen_at() -> None:
    found = draws_of(calibrated(POWER))
    assert found is not None and 1.3 < found.matrix < 1.5 and 1.0 < found.exponent < 2.0
    assert (found.memory, found.attention, found.waiting, found.limit) == (0.88, 0.6, 0.18, pytest.approx(0.99))
    for (products, passes, _), product in [*LOOPS.items(), ((2, 2, 0), 1.627e-3)]:  # the last was not read
        clock = found.clock(Spent(products * BOOST, 0.0, passes * PASS, 0.0))
        assert BOOST / clock == pytest.approx(product, rel=0.015)


def test_a_board_that_reaches_no_limit_keeps_its_clock() -> None:
    found = draws_of(calibrated(rows(dict.fromkeys(LOOPS, BOOST), held=0.7)))
    assert found is not None and found.limit == 1.0 and found.clock(Spent(1.0, 0.0, 0.0, 0.0)) == 1.0


def test_half_a_table_or_one_timed_under_load_tells_nothing() -> None:
    assert draws_of(calibrated(())) is None and draws_of(calibrated(POWER, loaded=True)) is None
    for lost in (("watts", WAITING), ("watts", PASSES), ("product", WAITING)):
        assert draws_of(calibrated(tuple(one for one in POWER if (one.name, one.shape) != lost))) is None
    loops = tuple(one for one in POWER if one.shape in (WAITING, PASSES, ATTENTION, (1, 0, 0)))
    assert (found := draws_of(calibrated(loops))) is not None and found.exponent == 2.0, "one loop tells no slope"


def test_the_table_is_read_back(tmp_path: Path) -> None:
    save_calibration(calibrated(POWER), tmp_path / "c.toml")
    assert load_calibration(tmp_path / "c.toml").rows("power") == list(POWER)
    save_calibration(calibrated((), copy=(row("memcpy", (0,), 1.0),)), tmp_path / "d.toml")
    with pytest.raises(BadInput, match="has an impossible row"):
        load_calibration(tmp_path / "d.toml")


CORNERS = tuple(row("fwd", (m, n, k), 2.5e-15 * m * n * k, "bf16") for m in (256, 8192) for n in (256, 8192) for k in (256, 8192))
PRODUCT = Gemm(8192, 8192, 8192)
PLAN: dict[str, Any] = {
    "model": {"family": "decoder", "name": "g", "layers": 4, "hidden": 8192, "heads": 64, "vocab": 4096, "dropout": 0.0},
    "seq_len": 2048, "batch": {"micro": 4},
}  # fmt: skip


def _pricer(calibration: Calibration, board: float = 1.0) -> CalibratedPricer:
    setting = bind(PLAN, "dgx-h200")
    return CalibratedPricer(setting.topology, setting.framework, calibration, board=board)


def test_at_the_boost_clock_kernels_take_what_was_measured_and_at_a_lower_one_matrix_units_take_longer() -> None:
    """Without the catalog's training clock, which stands in where nothing was measured of power."""
    with_it, without = calibrated(POWER, gemm=CORNERS), calibrated((), gemm=CORNERS)
    short = 2.5e-15 * 8192**3
    assert _pricer(with_it).kernel(PRODUCT, H200).seconds == pytest.approx(short)
    assert _pricer(with_it, 0.8).kernel(PRODUCT, H200).seconds == pytest.approx(short + PRODUCT.flops / 989e12 / 0.9 * 0.25)
    assert _pricer(without).kernel(PRODUCT, H200).seconds > 1.1 * short
    far = Gemm(64, 65536, 8192)  # no point covers it
    nearby = [_pricer(with_it, board).kernel(far, H200).seconds for board in (1.0, 0.8)]
    assert nearby[1] > nearby[0]
    add = MemoryBound("add", 2 << 27, 1 << 27)
    assert _pricer(with_it, 0.8).kernel(add, H200) == _pricer(without).kernel(add, H200)


@pytest.mark.parametrize("work", [PRODUCT, Attention(8, 16, 16, 1024, 1024, 64), Conv(32, 256, 14, 14, 256, 3, 3, dtype="bf16")])
def test_the_models_own_kernels_take_the_boards_clock_alone(work: Gemm | Attention | Conv) -> None:
    short = kernel_cost(work, H200, "flash2", False).seconds
    found = [_pricer(calibrated(POWER), board).kernel(work, H200).seconds for board in (1.0, 0.8)]
    assert found[0] == short < found[1] <= short / 0.8


def _written(path: Path, power: tuple[Sample, ...]) -> Path:
    save_calibration(calibrated(power, gemm=CORNERS), path)
    return path


def test_a_step_is_predicted_at_the_clock_that_its_own_draw_leaves(tmp_path: Path) -> None:
    path = _written(tmp_path / "c.toml", POWER)
    found, board = predict(PLAN, "dgx-h200", calibration=path), draws_of(load_calibration(path))
    assert board is not None and 0.75 < found.clock < 0.97
    setting = bind(PLAN, "dgx-h200")
    pricer = pricer_for(setting, path, clock=found.clock)
    steps = steps_of(setting, setting.plan, pricer, False, 3)
    assert found.step_time_s == pytest.approx(steps.step, rel=1e-6)
    spent = spent_on(steps.program, pricer, setting.topology, steps.step, found.clock)
    assert sum((spent.matrix, spent.attention, spent.memory, spent.waiting)) == pytest.approx(steps.step)
    assert board.clock(spent, found.clock) == pytest.approx(found.clock, abs=0.005)
    quick = steps_of(setting, setting.plan, pricer_for(setting, path), False, 3).step
    assert quick < found.step_time_s < quick / found.clock
    assert found.to_dict()["clock"] == found.clock and "of the boost clock" in str(found)


def test_exact_fp32_reaches_no_limit(tmp_path: Path) -> None:
    """No matrix units do it. TF32 they do."""
    path = _written(tmp_path / "c.toml", POWER)
    exact, rounded = (predict(PLAN | {"precision": precision}, "dgx-h200", calibration=path) for precision in ("fp32", "tf32"))
    assert exact.clock == 1.0 > rounded.clock


def test_a_step_that_waits_for_its_host_is_predicted_at_the_boost_clock(tmp_path: Path) -> None:
    small = PLAN | {"model": PLAN["model"] | {"hidden": 256, "heads": 4}, "seq_len": 128, "batch": {"micro": 1}}
    found = predict(small, "dgx-h200", calibration=_written(tmp_path / "c.toml", POWER))
    assert found.clock == 1.0 and "clock" not in found.to_dict()


def test_without_such_a_table_the_catalogs_training_clock_stays(tmp_path: Path) -> None:
    old = predict(PLAN, "dgx-h200", calibration=_written(tmp_path / "d.toml", ()))
    setting = bind(PLAN, "dgx-h200")
    assert old.clock == 1.0
    assert old.step_time_s == pytest.approx(
        steps_of(setting, setting.plan, pricer_for(setting, tmp_path / "d.toml"), False, 3).step, rel=1e-6
    )


def test_of_several_boards_the_slowest_is_waited_for_at_that_clock(tmp_path: Path) -> None:
    """Ranks of a stage that is busy draw; one that waits for it lowers no clock."""
    path = _written(tmp_path / "c.toml", POWER)
    eight = predict(PLAN | {"parallel": {"dp_replicate": 8}, "batch": {"micro": 4, "global": 32}}, "dgx-h200", calibration=path)
    alone = predict(PLAN, "dgx-h200", calibration=path)
    assert eight.step_time_s > 1.005 * alone.step_time_s and eight.clock == pytest.approx(alone.clock, abs=0.05)
