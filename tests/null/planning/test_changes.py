"""Changes of plan that an explanation proposes: what can run, fits and gains, of all that are one step away."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.planning.explain import changes as explaining
from sim.planning.explain.changes import best_changes
from sim.planning.explain.explanation import explain
from sim.planning.explain.neighbours import neighbours
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.setting.bind import bind
from sim.timeline.bottleneck import bottleneck
from topologies.errors import BadInput

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 512, "framework": "pytorch", "batch": {"global": 16, "micro": 2}}


def test_the_three_best_changes_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best first; what gains less than a thousandth is none, and what cannot be built is passed over."""
    setting = bind(BASE | {"parallel": {"dp_replicate": 8}}, "dgx-h100")
    steps = {"a": 0.9, "b": 0.5, "c": 0.9995, "d": 0.7, "e": 0.8, "f": 1.2}

    def bound(plan: str, topology: object) -> str:
        if plan == "x":
            raise BadInput("more ranks than the machine has")
        return plan

    def predicted(near: str) -> float:
        if near == "y":
            raise BadInput("32 layers do not make 64 stages")
        return steps[near]

    monkeypatch.setattr(explaining, "neighbours", lambda plan, node: [((name,), name) for name in ("x", "y", *steps)])
    monkeypatch.setattr(explaining, "bind", bound)
    monkeypatch.setattr(explaining, "fits", lambda near: near != "b")
    monkeypatch.setattr(explaining, "_predicted", predicted)
    monkeypatch.setattr(explaining, "fill_of", lambda near: None)
    monkeypatch.setattr(explaining, "screened", lambda near: 1.0 if near is setting else predicted(near) * 1.01)
    found = best_changes(setting, 1.0)
    assert [(*one.overrides, one.step_time_s) for one in found] == [("d", 0.7), ("e", 0.8), ("a", 0.9)]
    assert [one.gain for one in found] == pytest.approx([0.3, 0.2, 0.1])
    assert [one.overrides for one in best_changes(setting, 1.0, tries=1)] == [("d",)], (
        "what seems best is simulated, however late it stands"
    )
    assert best_changes(setting, 1.0, tries=0) == []


@pytest.mark.no_cover
def test_changes_that_do_not_fit_or_cannot_be_are_not_proposed() -> None:
    """25 heads are not halved, and what fits by recomputation alone stays recomputed."""
    tree = {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"global": 256, "micro": 16}, "parallel": {"dp_shard": 8, "zero": 3}}
    tree |= {"memory": {"recompute": "full"}}
    setting = bind(tree, "dgx-a100-40gb")
    assert figures_of_memory(bind(load_plan(setting.plan, ("memory.recompute=none",)), "dgx-a100-40gb"))[1] is not None
    step = predict_setting(setting, steps=2, detail=False).step_time_s
    found = best_changes(setting, step, tries=40)
    assert 0 < len(found) <= 3
    for change in found:
        assert not {"parallel.tp=2", "memory.recompute=none"} & set(change.overrides)
        near = bind(load_plan(setting.plan, change.overrides), "dgx-a100-40gb")
        assert figures_of_memory(near)[1] is None
        assert predict_setting(near, steps=2, detail=False).step_time_s == pytest.approx(change.step_time_s)
        assert change.gain == pytest.approx(1 - change.step_time_s / step)


@pytest.mark.no_cover
def test_all_changes_are_looked_at_however_few_are_simulated() -> None:
    """A plan split four ways has more than twenty neighbours; the best of them is the best of any number of tries."""
    split = {"dp_shard": 2, "tp": 2, "pp": 2, "schedule": "1f1b"}
    tree = BASE | {"model": {"base": "gpt2-124m", "layers": 4}, "parallel": split, "batch": {"global": 32, "micro": 1}}
    setting = bind(tree, "dgx-h100")
    step = predict_setting(setting, detail=False).step_time_s
    assert len(neighbours(setting.plan)) > 20
    few, all_ = best_changes(setting, step, tries=3), best_changes(setting, step, tries=100)
    assert few[0] == all_[0] and all_[0].gain > 0.1


def test_of_one_key_the_best_value_is_proposed() -> None:
    """A step that waits for its loaders: as many as help, once, and beside them what else gains."""
    setting = bind("cifar10-two-workers", "h100-pcie-x8")
    step = predict_setting(setting, detail=False).step_time_s
    found = best_changes(setting, step)
    assert found[0].overrides == ("data.workers=16",) and found[0].gain == pytest.approx(1 - 2 / 16, abs=0.01)
    assert sum(change.overrides[0].startswith("data.workers") for change in found) == 1


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("slow", "change"),
    [
        ({"comm": {"overlap": False}, "compile": True}, "comm.overlap=true"),
        ({"output": {"item_every": 1}, "batch": {"global": 16, "micro": 2}}, "output.item_every=0"),
    ],
    ids=["no overlap", "item"],
)
def test_what_a_plan_does_without_is_proposed(slow: dict[str, Any], change: str) -> None:
    setting = bind(BASE | {"parallel": {"dp_replicate": 8}, "batch": {"global": 128, "micro": 16}} | slow, "dgx-h100")
    step = predict_setting(setting, detail=False).step_time_s
    assert change in [word for found in best_changes(setting, step, tries=12) for word in found.overrides]


def test_with_fused_attention_layers_are_kept_by_operator() -> None:
    """Its core alone, run again, saves next to nothing."""
    for attention, words in (
        ("flash", ("memory.recompute=selective", "memory.recompute_modules=op")),
        ("math", ("memory.recompute=selective",)),
    ):
        found = [change for change, _ in neighbours(load_plan(BASE | {"memory": {"recompute": "full"}, "attention": attention}))]
        assert [change for change in found if "memory.recompute=selective" in change] == [words]


def test_a_step_that_copies_from_pageable_memory_is_told_to_pin_it() -> None:
    setting = bind(
        load_plan("copy-compute-overlap", ("batch.micro=2048", "data.workers=16", "data.pinned=false", "output.item_every=1")),
        "h100-pcie-x8",
    )
    found = best_changes(setting, predict_setting(setting, detail=False).step_time_s)
    assert found[0].overrides == ("data.pinned=true",) and found[0].gain > 0.1


@pytest.mark.no_cover
def test_messages_of_gradients_that_are_too_large_are_cut() -> None:
    """One bucket of all gradients travels when backward has ended."""
    setting = bind(BASE | {"parallel": {"dp_replicate": 8}, "comm": {"bucket": "10 GiB"}}, "h100-pcie-x8")
    found = best_changes(setting, predict_setting(setting, detail=False).step_time_s)
    assert found[0].overrides == ("comm.bucket=25 MiB",) and found[0].gain > 0.05


@pytest.mark.no_cover
def test_an_explanation_has_the_intervals_of_the_prediction_and_says_what_does_not_fit() -> None:
    small = bind(BASE | {"parallel": {"dp_replicate": 8}}, "dgx-h100")
    found = explain(small, tries=0)
    assert found.interval == pytest.approx(predict_setting(small).interval) and found.fits
    large = bind({"model": "gpt2-1.5b", "batch": {"micro": 64}, "attention": "math"}, "dgx-h100")
    told = explain(large, tries=0)
    assert not told.fits and "DOES NOT FIT" in str(told)


@pytest.mark.no_cover
def test_a_step_that_mostly_saves_is_bound_by_output() -> None:
    """What no faster resource takes away: the verdict is that of the prediction's breakdown, and says what is left without it."""
    loud = bind(BASE | {"parallel": {"dp_replicate": 8}, "output": {"checkpoint_every": 1}}, "dgx-h100")
    found, seen = explain(loud, tries=0), predict_setting(loud)
    assert bottleneck(seen.breakdown) == "output"
    share = 1 - seen.breakdown.output_s / seen.step_time_s
    assert found.verdict == f"output-bound: without logging, syncs and checkpoints the step would take {share:.0%} of its time"
    seldom = bind(BASE | {"parallel": {"dp_replicate": 8}, "output": {"checkpoint_every": 1000}}, "dgx-h100")
    assert not explain(seldom, tries=0).verdict.startswith("output-bound")


@pytest.mark.no_cover
def test_groups_that_shard_within_a_node_are_proposed_over_a_slow_network() -> None:
    """Parameters cross the network in every layer where all ranks shard; of groups by node gradients alone do."""
    tree = {"model": "gpt2-1.5b", "batch": {"global": 32, "micro": 1}, "parallel": {"dp_shard": 32, "zero": 3}}
    setting = bind(tree, "4x dgx-a100", ("nic.rate=10 Gbit/s",))
    best = best_changes(setting, predict_setting(setting, detail=False).step_time_s)[0]
    assert best.overrides == ("parallel.dp_shard=8", "parallel.dp_replicate=4") and best.gain > 0.2
    sizes = {there.parallel.dp_shard for _, there in neighbours(setting.plan) if there.parallel.dp_replicate > 1}
    assert sizes == {16, 8, 4, 2}
    back = load_plan(setting.plan, best.overrides)
    assert ("parallel.dp_shard=16", "parallel.dp_replicate=2") in [overrides for overrides, _ in neighbours(back)]


def test_the_interval_of_local_updates_is_of_all_their_steps_whichever_verb_says_it() -> None:
    """Replicas average in one step of fifty, for half of the mean step: what of the mean step travels is as unsure as the network."""
    plan: dict[str, Any] = BASE | {"parallel": {"dp_replicate": 4}, "update": {"mode": "local", "every": 50}}
    setting = bind(plan, "4x l4-x8", ("ranks_per_node=1", "nic.rate=50 Mbit/s"))
    found = predict_setting(setting, detail=False)
    assert found.breakdown.exposed_comm_s > 0.4 * found.step_time_s
    assert explain(setting, tries=0).interval == pytest.approx(found.interval)
    quiet = predict_setting(bind(plan, "4x l4-x8", ("ranks_per_node=1", "nic.rate=100 Gbit/s")), detail=False)
    assert found.interval[1] / found.interval[0] > 1.3 * quiet.interval[1] / quiet.interval[0]


def test_ranks_that_share_a_sequence_are_offered_other_ways_to() -> None:
    """Between rings and exchanged heads lie groups of every size."""
    plan = load_plan({"model": "llama3-8b", "seq_len": 65536, "parallel": {"cp": 8}})
    ways = [words for words, _ in neighbours(plan) if words[0].startswith("parallel.cp_kind")]
    assert ways == [
        ("parallel.cp_kind=all_gather",),
        ("parallel.cp_kind=all_to_all",),
        ("parallel.cp_kind=all_to_all+p2p", "parallel.cp_ulysses=2"),
        ("parallel.cp_kind=all_to_all+p2p", "parallel.cp_ulysses=4"),
    ]


def test_parameters_may_stay_in_their_node() -> None:
    """From forward to backward, where they are sharded over several; not where one node has all, or has one rank."""
    said = ("parallel.reshard_after_forward=4",)
    for shards, node, offered in ((8, 4, True), (4, 4, False), (8, 1, False)):
        plan = load_plan({"model": "llama3-8b", "parallel": {"dp_shard": shards, "zero": 3}})
        assert (said in [words for words, _ in neighbours(plan, node)]) is offered


def test_changes_of_what_does_not_fit_are_those_that_make_it_fit() -> None:
    """They are slower than what cannot run, and none was named."""
    plan = {
        "model": "llama3-8b",
        "seq_len": 8192,
        "framework": "torchtitan",
        "parallel": {"dp_shard": 8, "zero": 3},
        "batch": {"micro": 4, "global": 32},
    }
    found = explaining.best_changes(bind(plan, "dgx-h100"), 1e-3, tries=2)
    assert found and all(change.gain < 0 for change in found)
    assert all(explaining.fits(bind(load_plan(plan, change.overrides), "dgx-h100")) for change in found)


@pytest.mark.parametrize(
    ("model", "capacity", "proposed"),
    [
        ("llama3-8b", 0, ("cuda_graphs=true",)),
        ("mixtral-8x7b", 0, ("cuda_graphs=true", "parallel.capacity=1")),
        ("mixtral-8x7b", 2, ("cuda_graphs=true",)),
    ],
)
def test_a_graph_of_experts_is_proposed_with_what_it_takes(model: str, capacity: float, proposed: tuple[str, ...]) -> None:
    plan = load_plan({"model": model, "batch": {"global": 8}, "parallel": {"dp_shard": 8, "capacity": capacity}})
    assert [words for words, _ in neighbours(plan) if words[0] == "cuda_graphs=true"] == [proposed]
