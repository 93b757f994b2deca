"""`--set` takes keys of plans and of machines; a verb without a plan refuses its keys."""

from __future__ import annotations

import pytest

from tests.null.verbs.test_verbs import Call, call
from topologies.errors import BadInput
from topologies.verbs import of_machine, split

__all__ = ["call"]

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


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "words", [("explain",), ("capacity", "--tokens", "1e9"), ("spread", "--draws", "2"), ("faults", "--fault", "slow=r0:0.8")]
)
def test_what_has_no_effect_is_said_by_every_verb_about_one_plan(call: Call, words: tuple[str, ...]) -> None:
    """Of the machine and of the plan; and nothing is where there is nothing to say."""
    verb, *more = words
    sets = ("--set", "oversubscription=4", "--set", "memory.offload_layers=3")
    said = call(verb, "plan.toml", *more, *sets, "--json").err
    assert "oversubscription=4 has no effect: the one node" in said and "offload_layers = 3 has no effect" in said
    quiet = call(verb, "plan.toml", *more, "--json").err
    assert "no effect" not in quiet and (quiet == "") != (verb == "explain"), "which says how much it will do"


@pytest.mark.no_cover
def test_a_cluster_in_time_says_what_its_size_changes_about_the_plan(call: Call) -> None:
    """As `--set` takes it; nothing where the plan is as it was."""
    words = ("capacity", "plan.toml", "--tokens", "1e9", "--set", "batch.global=8")
    days = call(*words, "--json").json["days"]
    shown, found = (call(*words, "--days", str(days / 1.5), *more) for more in ((), ("--json",)))
    assert found.json["overrides"] == ["parallel.dp_shard=8"] and "--set parallel.dp_shard=8" in shown.out
    assert call(*words, "--json").json["overrides"] == []
