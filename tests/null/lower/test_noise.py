"""Stragglers and imbalance: named ranks are read, drawn ones depend on the seed alone, both multiply."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.files.planfile import load_plan
from sim.lower.noise import factors, table
from topologies.errors import BadInput


def test_named_ranks_are_slower_and_others_are_not() -> None:
    assert table("r3: 1.3x, r7: 2x", "noise.stragglers", 8, 0) == {3: 1.3, 7: 2.0}
    assert table("none", "noise.stragglers", 8, 0) == table("", "noise.stragglers", 8, 0) == {}


def test_stragglers_and_imbalance_multiply() -> None:
    noise = {"stragglers": "r1: 2x", "imbalance": "r1: 1.5x, r2: 3x"}
    of = factors(load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 4}, "batch": {"global": 4}, "noise": noise}))
    assert [of(rank) for rank in range(4)] == [1.0, 3.0, 3.0, 1.0]


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
