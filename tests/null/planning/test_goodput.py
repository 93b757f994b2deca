"""Failures and checkpoints: the simulated optimum lies where Young and Daly put it, and nothing is free."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.planning.capacity.goodput import Reliability, daly, expected, simulate_run
from topologies.errors import BadInput

HOUR = 3600.0


def test_without_failures_only_checkpoints_cost() -> None:
    run = simulate_run(work=100.0, checkpoint=1.0, interval=10.0, mtbf=math.inf, how=Reliability(), seed=0)
    assert (run.elapsed, run.checkpoints, run.failures, run.lost) == (109.0, 9.0, 0, 0.0)
    run = simulate_run(work=1e12, checkpoint=1.0, interval=1.0, mtbf=math.inf, how=Reliability(), seed=0)  # at once: no loop ends that long
    assert run.checkpoints == 1e12 - 1


def test_daly_is_young_for_short_checkpoints() -> None:
    """Young (1974): sqrt(2 C M)."""
    assert daly(1.0, 1e8) == pytest.approx(math.sqrt(2.0 * 1.0 * 1e8), rel=1e-3)
    assert daly(300.0, 100.0) == 100.0
    assert daly(1.0, math.inf) == math.inf


@pytest.mark.parametrize(("checkpoint", "mtbf"), [(1.0, 1e5), (60.0, 3600.0), (600.0, 3600.0), (1800.0, 3600.0)])
def test_dalys_interval_is_where_the_expected_time_is_least(checkpoint: float, mtbf: float) -> None:
    """With failures as a Poisson process, work in pieces of t takes (exp((t + c) / M) - 1) / t of M (Daly 2006, eq. 20): least within 2 %
    of his interval for checkpoints up to half of M."""

    def taken(piece: float) -> float:
        return math.expm1((piece + checkpoint) / mtbf) / piece

    best = min((math.sqrt(checkpoint * mtbf) * 1.002**step for step in range(-1000, 1001)), key=taken)
    assert daly(checkpoint, mtbf) == pytest.approx(best, rel=0.02)


def test_no_spare_is_a_number_of_spares() -> None:
    """The first failure waits for a repair already."""
    with pytest.raises(BadInput, match="must not be negative"):
        Reliability(spares=-1)
    none, one = (Reliability(restart=0.0, spares=count, repair=7200.0) for count in (0, 1))
    runs = [simulate_run(50 * HOUR, 60.0, HOUR, 10 * HOUR, how, 3) for how in (none, one)]
    assert runs[0].failures > 0 and runs[0].elapsed > runs[1].elapsed


def test_a_repaired_node_stands_by_again() -> None:
    """Failures come days apart and repairs take hours: one spare is always back in time, as if there were no end of them."""
    one, endless = (
        simulate_run(2000 * HOUR, 60.0, HOUR, 100 * HOUR, Reliability(spares=count, repair=HOUR / 60), 5) for count in (1, None)
    )
    assert endless.failures > 10 and one == endless
    slow = simulate_run(2000 * HOUR, 60.0, HOUR, 100 * HOUR, Reliability(spares=1, repair=4 * HOUR), 5)
    assert slow.down < endless.down + 4 * HOUR * 0.2 * slow.failures, "seldom do two nodes fail within four hours"
    none = simulate_run(2000 * HOUR, 60.0, HOUR, 100 * HOUR, Reliability(spares=0, repair=4 * HOUR), 5)
    assert none.down == pytest.approx(none.failures * (4 * HOUR + Reliability().restart), rel=1e-9)


@pytest.mark.parametrize("restart", [60.0, 1200.0, 5400.0])
def test_the_mean_run_is_dalys(restart: float) -> None:
    """Daly 2006, eq. 20: M exp(R / M) (exp((t + c) / M) - 1) for each t of work, where failures come during restarts too: R is up to 1.5 M
    here, and most of the time is spent on restarts."""
    work, saved, mtbf = 100 * HOUR, 120.0, HOUR
    piece = daly(saved, mtbf)
    runs = [simulate_run(work, saved, piece, mtbf, Reliability(restart=restart), seed).elapsed for seed in range(200)]
    taken = mtbf * math.exp(restart / mtbf) * math.expm1((piece + saved) / mtbf) * work / piece
    assert sum(runs) / len(runs) == pytest.approx(taken, rel=0.03)


@pytest.mark.no_cover
def test_a_restart_that_never_ends_is_refused() -> None:
    with pytest.raises(BadInput, match="shorten the checkpoint or the restart"):
        simulate_run(HOUR, 0.0, 10.0, 60.0, Reliability(restart=3600.0), 0)


def test_simulation_agrees_that_dalys_interval_is_best() -> None:
    how, mtbf, checkpoint = Reliability(restart=0.0), 10 * HOUR, 120.0
    best = daly(checkpoint, mtbf)

    def mean(interval: float) -> float:
        return sum(simulate_run(500 * HOUR, checkpoint, interval, mtbf, how, seed).elapsed for seed in range(60)) / 60

    assert mean(best) < mean(best / 4) and mean(best) < mean(best * 4)


@settings(max_examples=60, deadline=None)
@given(st.floats(HOUR, 100 * HOUR), st.floats(1, 600), st.floats(HOUR, 1000 * HOUR), st.integers(0, 5))
def test_time_is_conserved(work: float, checkpoint: float, mtbf: float, seed: int) -> None:
    how = Reliability(restart=300.0)
    run, _ = expected(work, checkpoint, mtbf, how, seed, runs=3)
    assert run.elapsed == pytest.approx(run.work + run.lost + run.checkpoints + run.down, rel=1e-9)
    assert 0 < run.goodput <= 1


def test_a_checkpoint_counts_when_it_is_written() -> None:
    """A failure loses half an interval in the mean, and with it what had been saved and not been written: one interval where it came in time."""
    interval, mtbf, how = 1000.0, 100_000.0, Reliability(restart=0.0)
    for writing in (0.0, 400.0, 1000.0):
        runs = [simulate_run(1e6, 1.0, interval, mtbf, how, seed, writing) for seed in range(200)]
        lost = sum(run.lost for run in runs) / sum(run.failures for run in runs)
        assert lost == pytest.approx(interval / 2 + writing, rel=0.05)
        assert all(run.elapsed == pytest.approx(run.work + run.lost + run.checkpoints + run.down, rel=1e-9) for run in runs)


def test_nobody_saves_more_often_than_it_is_written() -> None:
    how, mtbf = Reliability(), 1e5
    quick, slow = (expected(1e7, 0.1, mtbf, how, writing=writing) for writing in (10.0, 3000.0))
    assert quick[1] == daly(0.1, mtbf) and slow[1] == 3000.0
    assert quick[0].elapsed < slow[0].elapsed


def test_same_seed_same_run() -> None:
    args = {"work": 1e6, "checkpoint": 60.0, "interval": 3600.0, "mtbf": 5e4, "how": Reliability(), "seed": 7}
    assert simulate_run(**args) == simulate_run(**args)  # type: ignore[arg-type]


def test_more_gpus_fail_more_often() -> None:
    how = Reliability()
    assert how.mtbf(16384, 8) == pytest.approx(how.mtbf_gpu / 16384)
    assert how.mtbf(16384, 8) / HOUR == pytest.approx(3.05, abs=0.1)  # Llama 3: an interruption about every 3 hours


def test_nodes_fail_beside_their_gpus() -> None:
    """Twelve GPUs stand in two nodes of eight; what never fails has no mean time."""
    assert Reliability(mtbf_gpu=math.inf, mtbf_node=100.0).mtbf(12, 8) == 50.0
    assert Reliability(mtbf_gpu=600.0, mtbf_node=100.0).mtbf(12, 8) == pytest.approx(25.0)
    assert Reliability(mtbf_gpu=math.inf).mtbf(12, 8) == math.inf


def test_the_run_in_the_middle_is_told() -> None:
    work, mtbf, how = 100 * HOUR, 10 * HOUR, Reliability()
    told, interval = expected(work, 60.0, mtbf, how, seed=4, runs=7)
    elapsed = [simulate_run(work, 60.0, interval, mtbf, how, f"4/{at}").elapsed for at in range(7)]
    assert sorted(elapsed).index(told.elapsed) == 3 and len(set(elapsed)) == 7


def test_seeds_share_no_run() -> None:
    """Of eight seeds in a row each tells a run that no other has played."""
    work, mtbf, how = 1000 * HOUR, 10 * HOUR, Reliability()
    told = [expected(work, 60.0, mtbf, how, seed)[0].elapsed for seed in range(8)]
    assert len(set(told)) == 8


@pytest.mark.no_cover
def test_a_job_that_cannot_make_progress_is_refused() -> None:
    with pytest.raises(BadInput, match="faster than it makes progress"):
        simulate_run(1e9, 1.0, 1e6, 1.0, Reliability(restart=0.0), 0)


@pytest.mark.parametrize(("work", "checkpoint", "interval"), [(-1.0, 1.0, 10.0), (10.0, -1.0, 10.0), (10.0, 1.0, 0.0)])
def test_a_run_that_cannot_be_is_refused(work: float, checkpoint: float, interval: float) -> None:
    with pytest.raises(BadInput, match="must not be negative, the interval must be positive"):
        simulate_run(work, checkpoint, interval, 1e6, Reliability(), 0)


def test_checkpoints_that_cost_nothing_are_made_after_every_step() -> None:
    how, work, mtbf = Reliability(restart=0.0), 1000 * HOUR, 100 * HOUR
    free, often = expected(work, 0.0, mtbf, how, step=2.0)
    cheap, _ = expected(work, 1e-3, mtbf, how, step=2.0)
    assert often == 2.0 and free.failures > 0 and free.lost <= 2.0 * free.failures
    assert free.elapsed <= cheap.elapsed


@pytest.mark.parametrize(
    "said",
    [
        {"mtbf_gpu": 0.0},
        {"mtbf_node": -1.0},
        {"mtbf_gpu": math.nan},
        {"restart": -1.0},
        {"repair": math.inf},
        {"restart": "5 min"},
        {"mtbf_node": None},
        {"spares": -1},
        {"spares": 1.5},
    ],
)
def test_reliability_that_cannot_be_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=next(iter(said))):
        Reliability(**said)  # type: ignore[arg-type]
