"""Links that the same mix of ranks takes count as one where only some of these ranks are simulated."""

from __future__ import annotations

from sim.cost.price import Cost
from sim.engine.orbits import on_orbits, orbits

UP0, UP1, UP2 = "net/spine0.0>net/core0", "net/spine0.1>net/core1", "net/spine0.2>net/core2"
NIC0, NIC1 = "n0/nic0>net/leaf0.0", "n0/nic1>net/leaf0.1"
CAPACITY = {UP0: 1.0, UP1: 1.0, UP2: 1.0, NIC0: 1.0, NIC1: 1.0}


def cost(*links: str) -> Cost:
    return Cost(1.0, "test", uses=tuple((link, 0.5) for link in links))


def test_links_with_the_same_users_are_one() -> None:
    """Stage a of one replica lies where stage b of the other does."""
    users = [("a", cost(NIC0, UP0)), ("b", cost(NIC0, UP1)), ("a", cost(NIC1, UP1)), ("b", cost(NIC1, UP0))]
    assert orbits(users, CAPACITY) == {UP1: UP0}


def test_links_with_other_users_are_not() -> None:
    """`a` has UP0 to itself, UP1 is shared by two of `b`, and UP2, which those share too, passes more."""
    users = [("a", cost(UP0)), ("b", cost(UP1, UP2)), ("b", cost(UP1, UP2))]
    assert orbits(users, CAPACITY | {UP2: 2.0}) == {}


def test_a_meeting_takes_one_of_equal_links_once() -> None:
    """What it crosses twice it takes twice, as before; what two equal links carry each it takes of the one that stands for both."""
    found = on_orbits(cost(NIC0, UP0, UP1, UP1), {UP1: UP0})
    assert found.uses == ((NIC0, 0.5), (UP0, 1.0))
    same = cost(NIC0, UP0)
    assert on_orbits(same, {UP1: UP0}) is same
