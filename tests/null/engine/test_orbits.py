"""Links that the same mix of ranks takes count as one where only some of these ranks are simulated."""

from __future__ import annotations

from sim.cost.price import Cost
from sim.engine.fold import Passage
from sim.engine.orbits import on_orbits, orbits

UP0, UP1, UP2 = "net/spine0.0>net/core0", "net/spine0.1>net/core1", "net/spine0.2>net/core2"
NIC = "n0/nic0>net/leaf0.0"
CAPACITY = {UP0: 1.0, UP1: 1.0, UP2: 1.0}
STAGES = [0, 1, 0, 1]
"""Ranks 2 and 3 are simulated as 0 and 1."""


def test_links_with_the_same_users_are_one() -> None:
    """A stage of one replica lies where another stage of the other does."""
    found = [Passage("tp", (0,), (UP0,)), Passage("tp", (1,), (UP1,)), Passage("tp", (2,), (UP1,)), Passage("tp", (3,), (UP0,))]
    assert orbits(found, STAGES, CAPACITY) == {UP1: UP0}


def test_links_with_other_users_are_not() -> None:
    """UP0 is one stage's, UP1 is shared by two, and UP2, which those share too, passes more; what goes the other way is no equal either."""
    found = [Passage("tp", (0,), (UP0,)), Passage("tp", (1,), (UP1, UP2)), Passage("tp", (3,), (UP1, UP2))]
    assert orbits(found, STAGES, CAPACITY | {UP2: 2.0}) == {}
    assert orbits([Passage("pp+1", (0,), (UP0,)), Passage("pp-1", (0,), (UP1,))], STAGES, CAPACITY) == {}


def test_a_meeting_takes_one_of_equal_links_once() -> None:
    """What it crosses twice it takes twice, as before; what two equal links carry each it takes of the one that stands for both."""
    found = on_orbits(Cost(1.0, "test", uses=tuple((link, 0.5) for link in (NIC, UP0, UP1, UP1))), {UP1: UP0})
    assert found.uses == ((NIC, 0.5), (UP0, 1.0))
    same = Cost(1.0, "test", uses=((NIC, 0.5), (UP0, 0.5)))
    assert on_orbits(same, {UP1: UP0}) is same
