"""Stragglers and imbalance: named ranks are read, drawn ones depend on the seed alone; more samples are not the same as less speed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.files.planfile import load_plan
from sim.lower.noise import loads, slowness, table
from sim.predict import predict
from topologies.errors import BadInput


def test_named_ranks_are_slower_and_others_are_not() -> None:
    assert table("r3: 1.3x, r7: 2x", "noise.stragglers", 8, 0) == {3: 1.3, 7: 2.0}
    assert table("none", "noise.stragglers", 8, 0) == table("", "noise.stragglers", 8, 0) == {}


def test_stragglers_and_imbalance_are_told_apart() -> None:
    noise = {"stragglers": "r1: 2x", "imbalance": "r1: 1.5x, r2: 3x"}
    plan = load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 4}, "batch": {"global": 4}, "noise": noise})
    slow, many = slowness(plan), loads(plan)
    assert [(slow(rank), many(rank)) for rank in range(4)] == [(1.0, 1.0), (2.0, 1.5), (1.0, 3.0), (1.0, 1.0)]


@pytest.mark.no_cover
@pytest.mark.parametrize("on", ["dgx-h100", "cpu-host"])
def test_more_samples_lengthen_all_but_the_update(on: str) -> None:
    """Twelve samples on rank 0 in place of eight take as long as twelve on both, which wait for each other."""
    tree = {"model": "gpt2-355m", "seq_len": 1024, "parallel": {"dp_replicate": 2}, "optimizer": {"implementation": "for-loop"}}
    even, larger = (predict(tree | {"batch": {"micro": micro}}, on) for micro in (8, 12))
    uneven = predict(tree | {"batch": {"micro": 8}, "noise": {"imbalance": "r0: 1.5x"}}, on)
    slow = predict(tree | {"batch": {"micro": 8}, "noise": {"stragglers": "r0: 1.5x"}}, on)
    assert even.step_time_s < uneven.step_time_s < slow.step_time_s
    assert uneven.step_time_s == pytest.approx(larger.step_time_s, rel=0.04), "kernels of more samples are a little more efficient"


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", [{"pp": 4}, {"tp": 4, "sequence_parallel": True}, {"cp": 2, "tp": 2}, {}], ids=str)
def test_all_who_work_on_the_same_samples_have_more(parallel: dict[str, Any]) -> None:
    """One data-parallel rank of twice the samples is a plan of micro-batches twice as large, its messages and memory too."""
    tree = {"model": {"base": "llama3-8b", "layers": 8}, "seq_len": 2048, "parallel": parallel, "batch": {"micro": 4, "global": 16}}
    double = predict(tree | {"batch": {"micro": 8, "global": 32}}, "dgx-h100")
    uneven = predict(tree | {"noise": {"imbalance": "r0: 2x"}}, "dgx-h100")
    assert uneven.step_time_s == pytest.approx(double.step_time_s, rel=0.03)
    assert uneven.peak_memory_bytes == pytest.approx(double.peak_memory_bytes, rel=0.02)


def test_ranks_of_one_batch_cannot_have_different_shares() -> None:
    plan = load_plan(
        {"model": "gpt2-124m", "parallel": {"dp_replicate": 2, "tp": 2}, "batch": {"global": 4}, "noise": {"imbalance": "r2: 2x, r3: 3x"}}
    )
    with pytest.raises(BadInput, match="r2 and r3 work on the same samples"):
        loads(plan)


def test_a_draw_is_one_for_all_ranks_of_a_batch() -> None:
    plan = load_plan(
        {
            "model": "gpt2-124m",
            "parallel": {"dp_replicate": 4, "tp": 2},
            "batch": {"global": 4},
            "noise": {"imbalance": "lognormal(0.1), seed=3"},
        }
    )
    found = [loads(plan)(rank) for rank in range(8)]
    assert found[::2] == found[1::2] and len(set(found)) == 4


@pytest.mark.no_cover
def test_input_of_more_samples_takes_longer() -> None:
    sets = ("data.workers=1", "data.preprocess=100 ms")
    even, uneven = (load_plan("gpt2-ddp8", (*sets, *more)) for more in ((), ("noise.imbalance=r3: 1.5x",)))
    times = [predict(plan, "dgx-h100").step_time_s for plan in (even, uneven)]
    assert times == pytest.approx([0.8, 1.2], rel=2e-3)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["lognormal", "normal", "uniform"]), st.integers(1, 64), st.integers(0, 99))
def test_drawn_factors_depend_on_the_seed_alone(kind: str, world: int, seed: int) -> None:
    text = f"{kind}(0.1), seed={seed}"
    found = table(text, "noise.stragglers", world, 5)
    assert found == table(text, "noise.stragglers", world, 6)
    assert set(found) == set(range(world))
    assert all(value > 0 for value in found.values())
    if kind == "uniform":
        assert all(1.0 <= value <= 1.1 for value in found.values())
    if kind == "normal":
        assert all(value >= 1.0 for value in found.values())


def test_without_a_seed_the_plans_own_is_used() -> None:
    assert table("uniform(0.1)", "x", 4, 1) == table("uniform(0.1), seed=1", "x", 4, 9) != table("uniform(0.1)", "x", 4, 2)


@pytest.mark.parametrize("text", ["r4: 2x", "r0 2x", "r0: -1x", "r0: 0x", "r0: 9999999x", "gauss(1)"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="noise"):
        table(text, "noise.stragglers", 4, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lognormal(1000), seed=1", "a width of 1000 makes factors of thousands; at most 2"),
        ("normal(3)", "at most 2"),
        ("r3: 2x, r1: 1.1x, r3: 3x", "names r3 twice"),
    ],
)
def test_spreads_and_names_that_nobody_means_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        table(text, "noise.stragglers", 8, 0)


def test_a_straggler_is_no_faster_rank() -> None:
    """Whoever writes 0.8 means a share of full speed; of samples a rank may have fewer."""
    tree: dict[str, Any] = {"model": "gpt2-124m", "parallel": {"dp_replicate": 4}, "batch": {"global": 4}}
    with pytest.raises(BadInput, match=r"r2 would be faster.*1.25x"):
        slowness(load_plan(tree | {"noise": {"stragglers": "r1: 1.5x, r2: 0.8x"}}))
    assert loads(load_plan(tree | {"noise": {"imbalance": "r2: 0.5x"}}))(2) == 0.5
    drawn = slowness(load_plan(tree | {"noise": {"stragglers": "lognormal(0.1), seed=3"}}))
    assert min(drawn(rank) for rank in range(4)) < 1.0
