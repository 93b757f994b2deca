"""Tokens that travel once: how many places each goes to, the word for it, and what it saves."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.collective import collective_cost
from sim.routing import different, experts_of, once
from topologies.errors import BadInput
from topologies.load import load_topology


@given(st.integers(1, 256), st.integers(1, 16))
def test_no_more_places_than_there_are_and_than_experts(places: int, experts: int) -> None:
    found = different(places, experts)
    assert 1.0 - 1e-12 <= found <= min(places, experts) + 1e-9
    assert found <= different(places + 1, experts) + 1e-12 <= different(places + 1, experts + 1) + 2e-12


def test_different_places_are_the_mean_over_all_draws() -> None:
    draws = [len(set(draw)) for draw in product(range(4), repeat=3)]
    assert different(4, 3) == pytest.approx(sum(draws) / len(draws))


@given(st.integers(1, 512))
def test_the_word_is_read_back(experts: int) -> None:
    assert experts_of(once(experts)) == experts


@pytest.mark.parametrize("how", ["", "ring", "hierarchical"])
def test_other_words_are_other_ways(how: str) -> None:
    assert experts_of(how) == 0


@pytest.mark.parametrize("how", ["once:", "once:0", "once:-1", "once:2.5", "once:\u0663"])
def test_a_spoilt_word_is_an_error(how: str) -> None:
    with pytest.raises(BadInput, match="once:8"):
        collective_cost("all_to_all", 1 << 20, (0, 1), load_topology("dgx-h100"), how)


@pytest.mark.no_cover
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 16), st.integers(10, 30))
def test_once_to_each_node_is_never_slower_and_the_same_inside_one(nodes: int, experts: int, power: int) -> None:
    machine = load_topology(f"{nodes}x dgx-h100")
    ranks = tuple(range(8 * nodes))
    plain, sent = (collective_cost("all_to_all", 1 << power, ranks, machine, how).seconds for how in ("auto", once(experts)))
    assert sent == plain if nodes == 1 else sent <= plain * (1 + 1e-12)


def test_the_network_carries_a_token_once_for_each_node() -> None:
    """Four nodes, eight experts a token: 7.2 ranks and 3.6 nodes, so that half as much crosses the network."""
    machine, ranks, size = load_topology("4x dgx-h100"), tuple(range(32)), 1 << 30
    plain, sent = (collective_cost("all_to_all", size, ranks, machine, how) for how in ("auto", once(8)))
    share = different(4, 8) / different(32, 8)
    assert 0.45 < share < 0.55
    assert (sent.seconds - sent.latency) / (plain.seconds - plain.latency) == pytest.approx(share, rel=0.02)
