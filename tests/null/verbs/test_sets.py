"""`--set` takes keys of plans and of machines; a verb without a plan refuses its keys."""

from __future__ import annotations

import pytest

from topologies.errors import BadInput
from topologies.verbs import of_machine, split

RATE = "link.nvlink.rate=200 GB/s"


def test_keys_are_told_apart_by_their_first_word() -> None:
    assert split(["parallel.tp=2", RATE, "rails=4"], ["spine:0"], ["nic"]) == (
        ("parallel.tp=2",),
        (RATE, "rails=4", "fail=spine:0", "without=nic"),
    )


def test_a_verb_without_a_plan_takes_no_key_of_one() -> None:
    assert of_machine([RATE], None, ["nic"]) == (RATE, "without=nic") and of_machine(None) == ()
    with pytest.raises(BadInput, match=r"--set bogus=1 is no key of a machine.*oversubscription"):
        of_machine([RATE, "bogus=1"])
