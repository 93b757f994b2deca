"""Max-min fair sharing: known cases, and the definition itself as a law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import BadInput
from topologies.load import load_topology
from topologies.share import fair_share

LINKS = "abcdef"


def test_known_cases() -> None:
    assert fair_share([["a"], ["a"]], {"a": 10.0}) == (5.0, 5.0)
    # Bertsekas and Gallager, figure 6.18's pattern: a long flow and short ones; what one cannot use goes to the others.
    assert fair_share([["a", "b"], ["a"], ["b"], ["b"]], {"a": 3.0, "b": 3.0}) == (1.0, 2.0, 1.0, 1.0)
    assert fair_share([["a"], ["a"]], {"a": 10.0}, limits=[2.0, 100.0]) == (2.0, 8.0)
    assert fair_share([["a", "a"]], {"a": 10.0}) == (5.0,)
    assert fair_share([["a"], ["a"]], {"a": 12.0}, counts=[3, 1]) == (3.0, 3.0)
    assert fair_share([[], ["a"]], {"a": 1.0}) == (float("inf"), 1.0)
    assert fair_share([], {}) == ()


def test_two_groups_over_one_uplink_get_half_each() -> None:
    found = load_topology("64x dgx-h100", ("oversubscription=32",))
    flows = [found.path(0, 256).links, found.path(8, 264).links]
    assert found.rates["net/leaf0.0>net/spine0"] == 50e9
    assert fair_share(flows, found.rates) == (25e9, 25e9)
    assert fair_share([flows[0], found.path(256, 0).links], found.rates) == (50e9, 50e9)  # opposite directions do not meet


def test_links_need_a_rate() -> None:
    with pytest.raises(BadInput, match="no rate"):
        fair_share([["x"]], {})
    with pytest.raises(BadInput, match="above zero"):
        fair_share([["x"]], {"x": 0.0})


FLOWS = st.lists(st.lists(st.sampled_from(LINKS), min_size=1, max_size=4), min_size=1, max_size=8)
RATES = st.fixed_dictionaries({link: st.floats(0.1, 1e3) for link in LINKS})


@given(flows=FLOWS, rates=RATES)
def test_every_flow_has_a_full_link_where_nobody_gets_more(flows: list[list[str]], rates: dict[str, float]) -> None:
    got = fair_share(flows, rates)
    load = {link: sum(rate * flow.count(link) for flow, rate in zip(flows, got, strict=True)) for link in LINKS}
    assert all(load[link] <= rates[link] * (1 + 1e-9) for link in LINKS)
    for flow, rate in zip(flows, got, strict=True):
        full = [link for link in flow if load[link] >= rates[link] * (1 - 1e-9)]
        assert any(all(other <= rate * (1 + 1e-9) for f, other in zip(flows, got, strict=True) if link in f) for link in full)


@given(flows=FLOWS, rates=RATES, factor=st.floats(0.1, 10))
def test_scaling_and_order_change_nothing_else(flows: list[list[str]], rates: dict[str, float], factor: float) -> None:
    got = fair_share(flows, rates)
    assert fair_share(flows[::-1], rates)[::-1] == pytest.approx(got)
    assert fair_share(flows, {link: rate * factor for link, rate in rates.items()}) == pytest.approx([rate * factor for rate in got])


@given(flows=FLOWS, rates=RATES)
def test_counts_are_equal_flows(flows: list[list[str]], rates: dict[str, float]) -> None:
    counted = fair_share(flows, rates, counts=[2] * len(flows))
    assert fair_share(flows + flows, rates)[: len(flows)] == pytest.approx(counted)


@given(flows=FLOWS, rates=RATES, link=st.sampled_from(LINKS))
def test_a_faster_link_never_lowers_the_least_rate(flows: list[list[str]], rates: dict[str, float], link: str) -> None:
    assert min(fair_share(flows, rates | {link: rates[link] * 2})) >= min(fair_share(flows, rates)) * (1 - 1e-9)
