"""Spaces and results files: what people write, what is refused, and that nothing is lost or mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning.sweeps.auto import auto_space, sensible
from sim.planning.sweeps.space import base_tree, candidates, check_values, named, parse_space, settings_of
from sim.planning.sweeps.store import Row, Store, forget
from sim.planning.sweeps.sweep import sweep
from topologies.errors import BadInput


def test_reads_lists_ranges_and_machines() -> None:
    assert parse_space("tp=1,2 pp=1..8 micro=1..7:3 on=dgx-h100,16x dgx-b200") == {
        "tp": ("1", "2"),
        "pp": ("1", "2", "4", "8"),
        "micro": ("1", "4", "7"),
        "on": ("dgx-h100", "16x dgx-b200"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "empty"), ("tp", "write key=value"), ("tp=", "write key=value"), ("tq=1", "Did you mean"), ("nodes=2,4", "say gpus=16,32"), ("workers=1,4", r"Did you mean data\.workers\?"), ("tp=1 tp=2", "twice"), ("zero=1 parallel.zero=3", "twice"),
     ("pp=8..1", "empty"), ("pp=a..b", "cannot read the range"), ("tp=1,,2", "empty value")],
)  # fmt: skip
def test_refuses_the_rest(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_space(text)


def test_gpus_fill_data_parallelism() -> None:
    base = Plan(model="mlp")
    found = list(candidates(base, parse_space("tp=1,2,3 gpus=8 zero=0,1"), "dgx-h100"))
    worlds = [plan.world if isinstance(plan, Plan) else plan for _, plan in found]
    assert worlds == [8, 8, 8, 8, "gpus = 8 is no multiple of tp x pp x cp = 3", "gpus = 8 is no multiple of tp x pp x cp = 3"]
    first, second = found[0][1], found[1][1]
    assert isinstance(first, Plan) and isinstance(second, Plan)
    assert (first.parallel.dp_replicate, second.parallel.dp_shard) == (8, 8)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse_space(text)
    except BadInput as error:
        assert str(error)


def test_the_automatic_space_holds_only_divisors() -> None:
    space = sensible(model_layers=80, heads=64, gpus=512, per_node=8)
    assert space["tp"] == ("1", "2", "4", "8")
    assert all(80 % int(p) == 0 and 512 % int(p) == 0 for p in space["pp"])
    assert space["virtual_stages"] == ("1", "2", "4", "5"), "4 stages of 20 layers make 5 chunks of 4"


@pytest.mark.parametrize(("experts", "ways"), [(8, 4), (160, 6), (256, 8), (60, 3), (1, 1)])
def test_experts_are_split_by_powers_of_two_up_to_128(experts: int, ways: int) -> None:
    found = sensible(model_layers=32, heads=32, gpus=512, per_node=8, experts=experts)["ep"]
    assert found == tuple(str(2**at) for at in range(ways)) and all(experts % int(one) == 0 for one in found)


def test_each_plan_stands_in_a_space_once() -> None:
    base = load_plan({"model": "llama3-8b", "seq_len": 4096, "batch": {"global": 64}})
    space = parse_space("gpus=16 tp=2,8 pp=1,2 zero=1,3 schedule=1f1b,interleaved virtual_stages=1,2")
    found = [(one.key, plan) for one, plan in candidates(base, space, "2x dgx-h100")]
    plans = [
        (p.parallel.tp, p.parallel.pp, p.parallel.zero, p.parallel.schedule, p.parallel.virtual_stages)
        for _, p in found
        if isinstance(p, Plan)
    ]
    assert sum(pp == 1 for _, pp, *_ in plans) == 4  # tp and zero alone
    assert {plan for plan in plans if plan[:2] == (8, 2)} == {(8, 2, 1, "1f1b", 1), (8, 2, 1, "interleaved", 2)}  # nobody to share with
    # Chunks of a schedule that has none are no plan of their own, but are refused with the reason where nothing else was asked for.
    assert all(isinstance(plan, Plan) for _, plan in found)
    refused = [plan for _, plan in candidates(base, parse_space("gpus=16 tp=2 pp=2 schedule=1f1b virtual_stages=2,4"), "2x dgx-h100")]
    assert len(refused) == 2 and all("interleaved" in str(plan) for plan in refused)
    # What a killed sweep holds already is neither repeated nor, where it was refused, mistaken for what comes after it.
    again = [(one.key, plan) for one, plan in candidates(base, space, "2x dgx-h100", skip={key for key, _ in found[:3]})]
    assert again == found[3:]


def test_results_survive_and_are_not_repeated(tmp_path: Path) -> None:
    header = {"space": {"tp": ["1"]}}
    with Store(tmp_path / "a.sqlite", header) as store:
        store.add([Row(key, "done", step_time=seconds, rate=8 / seconds, gpus=8) for key, seconds in (("slow", 2.0), ("fast", 1.0))])
        store.add([Row("x", "failed", "crash")])
    with Store(tmp_path / "a.sqlite", header) as store:
        assert store.done() == {"slow", "fast"}  # what failed is tried again
        assert [row.key for row in store.rows()] == ["fast", "slow", "x"]


def test_another_sweeps_file_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with Store(path, {"space": {"tp": ["1"]}}):
        pass
    with pytest.raises(BadInput, match="another space"):
        Store(path, {"space": {"tp": ["2"]}})
    path.write_bytes(b"half a file" * 100)
    with pytest.raises(BadInput, match="cannot be used"):
        Store(path, {"space": {"tp": ["1"]}})


def test_a_file_that_is_forgotten_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with Store(file, {"space": 1}) as store:
        store.add([Row("a", "refused")])
        assert file.exists()
    forget(file)
    forget(file)
    assert list(tmp_path.iterdir()) == []
    with Store(file, {"space": 2}) as store:
        assert store.done() == set()


@pytest.mark.parametrize(("layers", "pps"), [(126, "1 2 4 8 16 32 64"), (61, "1 2 4 8 16 32"), (80, "1 2 4 8 16"), (48, "1 2 4 8 16")])
def test_pipelines_are_nearly_even_not_even(layers: int, pps: str) -> None:
    """126 and 61 layers divide by next to nothing: their models are trained on uneven stages."""
    assert sensible(model_layers=layers, heads=64, gpus=1024, per_node=8)["pp"] == tuple(pps.split())


def test_stages_hold_for_their_own_pipeline_alone() -> None:
    """What an other pipeline makes of the layers is worked out again; the same pipeline keeps what was said."""
    base = load_plan("llama3.1-405b-16k")
    space = parse_space("pp=8,16 virtual_stages=4 gpus=16384")
    found = {c.overrides[0]: plan for c, plan in candidates(base, space, "2048x dgx-h100") if isinstance(plan, Plan)}
    assert found["parallel.pp=16"].parallel.stages == base.parallel.stages is not None
    assert found["parallel.pp=8"].parallel.stages is None


def test_all_sensible_plans_recompute_all_or_nothing() -> None:
    """A number of layers that the plan's own stages recompute means nothing to others."""
    base = load_plan("llama3.1-405b-16k")
    assert base.memory.recompute_layers == 1
    assert auto_space(base, "128x dgx-h100", 1024)["memory.recompute_layers"] == ("0",)


def test_sharding_among_nobody_is_one_plan() -> None:
    """Replicas hold whole copies, whatever `zero` says; ranks of context parallelism split them."""
    base = load_plan({"model": "gpt2-124m", "seq_len": 64, "parallel": {"dp_replicate": 8}})
    assert len(list(candidates(base, parse_space("zero=0,1,3"), "dgx-h100"))) == 1
    assert len(list(candidates(base, parse_space("zero=0,1,3 parallel.dp_shard=1,2"), "2x dgx-h100"))) == 4
    assert len(list(candidates(base, parse_space("zero=0,1,3 cp=2"), "2x dgx-h100"))) == 3


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ("tp=1,x gpus=8", r'the space has tp=x: .*parallel\.tp = "x" must be a whole number from 1'),
        ("gpus=8,many", r"the space has gpus=many: write whole numbers"),
        ("gpus=0", r"the space has gpus=0: "),
        ("recompute=none,fulll gpus=8", r"Did you mean full\? Allowed: none, selective, full"),
        ("framework=pytorch,nemoo", r"the space has framework=nemoo: unknown framework"),
        ("comm.bucket=25,30", r"the space has comm.bucket=25: .*unit"),
        ("parallel.tpp=1,2", r"unknown key 'parallel.tpp'"),
    ],
)
def test_a_mistyped_value_is_bad_input_before_anything_is_kept(space: str, told: str, tmp_path: Path) -> None:
    """Not a point among others that is no plan; one that no split allows is."""
    with pytest.raises(BadInput, match=told):
        sweep(load_plan("gpt2-ddp8"), parse_space(space), "dgx-h100", tmp_path / "s.sqlite")
    assert not list(tmp_path.iterdir())
    check_values(load_plan("gpt2-ddp8"), parse_space("tp=1,5 pp=3 gpus=7 schedule=zb-v model.heads=5,x on=dgx-h100"), "dgx-h100")


def test_a_file_of_another_plan_names_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    first, second = (base_tree(load_plan("llama3-8b-fsdp8", change)) for change in ((), ("seq_len=4096", "memory.recompute=none")))
    with Store(path, {"plan": first, "on": "dgx-h100"}):
        pass
    told = r'of another plan \(memory.recompute is "full" there, "none" here; seq_len is 8192 there, 4096 here\): name another'
    with pytest.raises(BadInput, match=told):
        Store(path, {"plan": second, "on": "dgx-h100"})
    with pytest.raises(BadInput, match=r'of another on \("dgx-h100" there, "dgx-b200" here\)'):
        Store(path, {"plan": first, "on": "dgx-b200"})
    with pytest.raises(BadInput, match=r"batch.global is 8 there, 64 here; .*; \d+ more\)"):
        Store(path, {"plan": base_tree(load_plan("gpt2-ddp8")), "on": "dgx-h100"})
    with pytest.raises(BadInput, match=r"another plan \(more.a is not said there, 1 here\)"):
        Store(path, {"plan": first | {"more": {"a": 1}}, "on": "dgx-h100"})


def test_a_value_with_blanks_is_found_by_its_name() -> None:
    """What a results file names is simulated once more before it is called the best."""
    base = load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 8}, "batch": {"micro": 1, "global": 8}})
    space = parse_space("comm.bucket=25 MiB,100 MiB noise.stragglers=r3: 1.3x gpus=8 on=1x dgx-h100")
    for candidate, plan in candidates(base, space, "dgx-a100"):
        assert isinstance(plan, Plan) and named(base, candidate.key) == (candidate, plan)
        assert settings_of(candidate.key)["comm.bucket"] in space["comm.bucket"]


def test_gpus_are_shared_out_over_what_of_data_parallelism_is_not_said() -> None:
    """Four that share parameters on eight GPUs are two copies: the plan was of four GPUs, and called the best of eight."""
    base = load_plan({"model": "llama3-8b", "batch": {"micro": 1, "global": 32}, "parallel": {"dp_shard": 8, "zero": 3}})

    def found(space: str) -> list[tuple[int, int] | str]:
        plans = [plan for _, plan in candidates(base, parse_space(space), "dgx-h100")]
        return [(plan.parallel.dp_shard, plan.parallel.dp_replicate) if isinstance(plan, Plan) else str(plan) for plan in plans]

    assert found("dp_shard=4,8 gpus=8") == [(4, 2), (8, 1)]
    assert found("parallel.dp_replicate=1,2 gpus=8") == [(8, 1), (4, 2)]
    assert found("dp_shard=2 tp=2 gpus=8") == [(2, 2)]
    assert found("dp_shard=2,4 dp_replicate=2 gpus=8") == ["gpus = 8 is not tp x pp x cp x dp_shard x dp_replicate = 4", (4, 2)]
    assert found("dp_shard=3 gpus=8") == ["gpus = 8 is no multiple of tp x pp x cp x dp_shard = 3"]
