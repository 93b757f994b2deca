"""Plans: round trips, overrides, and messages that name the key, what is allowed and the next step."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.files.overrides import SHORT
from sim.files.planfile import dump_plan, dump_tree, from_tree, load_plan, read_plan
from sim.framework.framework import load_framework
from sim.model.stages import dealt, layout
from sim.plan import Plan
from sim.rules import check, mesh_of
from sim.sections import Batch, Comm, Data, Memory, Parallel
from sim.setting.bind import bind, model_of
from sim.wrongvalue import wrong_value
from topologies.errors import BadInput, SteptwinError

sizes = st.sampled_from([1, 2, 4])
plans = st.builds(
    lambda micro, accumulate, replicate, shard, tp, pp, cp, zero, bucket, preprocess, recompute: Plan(
        model="mlp",
        batch=Batch(global_=micro * accumulate * replicate * shard, micro=micro),
        parallel=Parallel(dp_replicate=replicate, dp_shard=shard, tp=tp, pp=pp, cp=cp, zero=zero),
        comm=Comm(bucket=bucket),
        data=Data(preprocess=preprocess),
        memory=Memory(recompute=recompute),
    ),
    sizes, sizes, sizes, sizes, sizes, sizes, sizes, st.sampled_from([None, 0, 1, 2, 3]), st.integers(1, 2**30),
    st.floats(0, 10), st.sampled_from(["none", "selective", "full"]),
)  # fmt: skip


@settings(deadline=None)
@given(plans)
def test_plans_round_trip_through_toml(plan: Plan) -> None:
    assert from_tree(tomllib.loads(dump_plan(plan))) == plan
    mesh = mesh_of(plan)
    assert mesh.world == plan.world
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.world)] == list(range(mesh.world))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({}, "names no model"),
        ({"model": "gpt2-124m", "gpus": 2}, r"unknown key 'gpus' in plan: a plan runs on .* --set parallel.dp_shard=2, .* \"dgx-h100:2\""),
        (
            {"model": "gpt2-124m", "parallel": {"world_size": 2}},
            r"unknown key 'parallel.world_size' in plan: a plan runs on dp_replicate x",
        ),
        ({"model": "mlp", "data": {"source": "s3"}}, r"data.source = \"s3\" is none of its values. Did you mean object-store\?"),
        ({"modl": "gpt2-124m"}, "unknown key 'modl' in plan. Did you mean model"),
        ({"model": "mlp", "sequence": 3}, "Did you mean seq_len"),
        ({"model": "mlp", "dp": 4}, r"Did you mean parallel\.dp_shard or parallel\.dp_replicate\?$"),
        ({"model": "mlp", "micro_batch": 4}, r"Did you mean batch\.micro or batch\?$"),
        ({"model": "mlp", "task": "qlora"}, r'Did you mean lora, with lora = { base = "nf4" } in the \[model\] table\? Allowed: train'),
        ({"model": "mlp", "precision": "bfloat16"}, r"Did you mean bf16\? Allowed: fp32"),
        ({"model": "mlp", "noise": {"imbalance": 0.3}}, r'must be a text in quotes, e\.g\. noise\.imbalance = "lognormal\(0\.05\)"'),
        ({"model": "mlp", "parallel": {"tensor": 2}}, r"unknown key 'parallel\.tensor'"),
        ({"model": "mlp", "parallel": {"schedule": "1f2b"}}, r"Did you mean 1f1b\? Allowed: gpipe, 1f1b"),
        ({"model": "mlp", "parallel": {"zero": 7}}, r"parallel\.zero = 7 is none of its values\. Allowed: 0, 1, 2, 3"),
        (
            {"model": "mlp", "parallel": {"tp": 0}},
            r"parallel\.tp = 0 must be a whole number from 1 to 1,000,000,000, e\.g\. parallel\.tp = 1",
        ),
        ({"model": "mlp", "seq_len": "4K"}, r'seq_len = "4K" must be a whole number from 1 to .*, e\.g\. seq_len = 4096'),
        ({"model": "mlp", "comm": {"overlap": "yes"}}, r'comm\.overlap = "yes" must be true or false, e\.g\. comm\.overlap = true'),
        ({"model": "mlp", "parallel": {"stages": [1, "x"]}}, r'stages\[1\] = "x" must be a whole number from 0'),
        ({"model": "mlp", "parallel": {"stages": 3}}, r"stages = 3 must be a list, each item a whole number from 0 to .*= \[8,8\]"),
        ({"model": "mlp", "memory": {"recompute_modules": ["mpl"]}}, r"Did you mean mlp\? Allowed: core_attn"),
        ({"model": 3}, r'model = 3 must be a text in quotes or a table, e\.g\. model = "llama3-8b"'),
        ({"model": "mlp", "precision": 16}, "precision = 16 is none of its values. Allowed: fp32"),
        ({"model": "mlp", "parallel": 3}, "is a section"),
        ({"model": "mlp", "comm": {"bucket": 25}}, '"25 MiB" or "25 MB"'),
        ({"model": "mlp", "batch": {"global": 7}, "parallel": {"dp_shard": 2}}, "Use 6 or 8"),
        ({"model": "mlp", "parallel": {"virtual_stages": 2}}, "interleaved"),
        ({"model": "mlp", "parallel": {"placement": "tp,tp"}}, "placement"),
        ({"model": "mlp", "parallel": {"ep": 3, "dp_shard": 4}}, "ep = 3 must divide"),
        ({"model": "mlp", "update": {"mode": "async"}, "parallel": {"tp": 2}}, "whole model"),
        ({"model": "mlp", "data": {"workers": 10**12}}, r"data\.workers"),
        ({"model": "mlp", "parallel": {"capacity": 1e300}}, r"parallel\.capacity"),
    ],
)
def test_bad_plans_say_what_where_and_what_next(tree: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(BadInput, match=says):
        load_plan(tree)


def test_switches_round_trip_through_toml() -> None:
    tree = {"model": "gpt2-124m", "compile": True, "data": {"pinned": False, "workers": 0}, "parallel": {"stages": [5, 7], "pp": 2}}
    plan = load_plan(tree)
    text = dump_plan(plan)
    assert "compile = true" in text and "pinned = false" in text and "stages = [5,7]" in text
    assert load_plan(tomllib.loads(text)) == plan


def test_overrides_by_dotted_path(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('model = "mlp"\n[batch]\nglobal = 8\n')
    plan = load_plan(file, ("parallel.dp_replicate=4", "comm.bucket=2 MiB", "parallel.schedule=gpipe"))
    assert (plan.parallel.dp_replicate, plan.comm.bucket, plan.parallel.schedule) == (4, 2 << 20, "gpipe")
    for text in ("op", "mlp,op", "mlp, op", ""):  # a list without TOML's brackets
        one = load_plan(file, ("memory.recompute=selective", f"memory.recompute_modules={text}"))
        assert one.memory.recompute_modules == tuple(word for word in ("mlp", "op") if word in text)
    with pytest.raises(BadInput, match=r'recompute_modules = "op" must be a list, each item one of core_attn, .*, e\.g\. .* = \["op"\]'):
        load_plan({"model": "mlp", "memory": {"recompute_modules": "op"}})
    with pytest.raises(BadInput, match=r"recompute_modules\[0\] = \"opp\" is none of its values\. Did you mean op\?"):
        load_plan(file, ("memory.recompute_modules=opp",))
    with pytest.raises(BadInput, match=r"a text such as 'batch\.micro=2', one for each key, not \"{'batch'"):
        load_plan(file, ({"batch": {"micro": 2}},))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="write key=value"):
        load_plan(file, ("nothing",))
    with pytest.raises(BadInput, match="is a value, not a section"):
        load_plan(file, ("name=mine", "name.x=1"))


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", b"[" * 5000, b'model = "mlp"\n' * 2])
def test_broken_files_are_one_message(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"plan\.toml"):
        load_plan(file)


def test_missing_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load_plan(tmp_path / "none.toml")
    big = tmp_path / "big.toml"
    big.write_text("#" * (2 << 20))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        load_plan(big)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "parallel", "tp", "batch", "global", "zero", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.no_cover
@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(["model", "parallel", "batch", "data", "name", "seq_len", "comm"]), json_like, max_size=5))
def test_any_tree_is_read_or_refused(tree: dict) -> None:  # type: ignore[type-arg]
    try:
        check(from_tree(tree))
    except SteptwinError as error:
        assert str(error)


def test_a_model_may_be_a_table() -> None:
    plan = load_plan({"model": {"family": "mlp", "widths": [4, 8]}, "name": "x"})
    assert plan.model_name == "mlp"
    assert from_tree(tomllib.loads(dump_plan(plan))) == plan


@pytest.mark.parametrize(
    ("stages", "how", "good"),
    [
        ([0, 6, 6, 0], {}, True),  # the embedding alone, and the head alone
        ([12, 0], {"pp": 2}, True),
        ([3, 3, 3, 3], {}, True),
        ([4, 0, 4, 4], {}, False),
        ([0, 0, 6, 6], {}, False),
        ([0, 0], {"pp": 2}, False),
        ([6, 6], {}, False),
        ([0, 2, 2, 2, 2, 2, 2, 0], {"schedule": "dualpipe"}, True),  # two stages to a rank, whatever virtual_stages says
        ([3, 3, 3, 3], {"schedule": "dualpipe"}, False),
        ([1, 2, 2, 1, 1, 2, 2, 1], {"schedule": "interleaved", "virtual_stages": 2}, True),
    ],
)
def test_a_plan_names_the_stages_that_the_model_can_be_laid_out_in(stages: list[int], how: dict[str, Any], good: bool) -> None:
    parallel = {"pp": 4, "stages": stages} | how
    tree = {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8}, "parallel": parallel}
    if good:
        plan = load_plan(tree)
        assert load_plan(plan).parallel.stages == tuple(stages) == tuple(dump_tree(plan)["parallel"]["stages"])
        assert [sum(name.startswith("L") for name, _ in stage) for stage in layout(bind(plan, "dgx-h100").network, plan)] == stages
    else:
        with pytest.raises(BadInput, match="stages"):
            load_plan(tree)


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "each"),
    [
        (32, 4, 1, (8, 9, 8, 7)),  # torchtitan's Llama 3 8B: both ends count as a layer
        (32, 8, 1, (4, 5, 4, 4, 4, 4, 4, 3)),
        (6, 8, 1, (0, 1, 1, 1, 1, 1, 1, 0)),
        (30, 4, 0, (8, 8, 7, 7)),
        (4, 4, 3, (1, 1, 1, 1)),  # ends that count as more than a stage has: none counts
        (12, 1, 1, (12,)),
    ],
)
def test_layers_are_dealt_out_as_the_framework_counts_its_ends(layers: int, stages: int, ends: int, each: tuple[int, ...]) -> None:
    assert dealt(layers, stages, ends) == each and sum(each) == layers


def test_torchtitan_counts_both_ends_as_a_layer() -> None:
    tree = {"model": "llama3-8b", "seq_len": 64, "batch": {"global": 8}, "parallel": {"pp": 4}}
    for framework, each in {"torchtitan": [8, 9, 8, 7], "torchtitan-2025": [8, 8, 8, 8], "megatron-core": [8, 8, 8, 8]}.items():
        setting = bind(load_plan(tree | {"framework": framework}), "dgx-h100")
        assert [sum(name.startswith("L") for name, _ in stage) for stage in layout(setting.network, setting.plan)] == each, framework
        named = load_plan(tree | {"framework": framework, "parallel": {"pp": 4, "stages": [7, 8, 9, 8]}})
        said = [sum(name.startswith("L") for name, _ in stage) for stage in layout(bind(named, "dgx-h100").network, named)]
        assert said == [7, 8, 9, 8]


def test_layers_that_a_plan_does_not_share_out_are_refused() -> None:
    for stages in ([5], [5, 6], [6, 6, 1]):
        plan = load_plan({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8}, "parallel": {"pp": len(stages), "stages": stages}})
        with pytest.raises(BadInput, match="12 layers do not make"):
            layout(bind(plan, "dgx-h100").network, plan)


def test_what_is_said_of_a_model_without_a_name_names_its_family() -> None:
    model = {"family": "decoder", "layers": 3, "hidden": 64, "heads": 4, "vocab": 64}
    plan = load_plan({"model": model, "seq_len": 64, "batch": {"global": 8}, "parallel": {"pp": 4}})
    with pytest.raises(BadInput, match=r"^decoder: 3 layers do not make 4 stages"):
        layout(bind(plan, "dgx-h100").network, plan)


def test_a_model_in_the_place_of_a_plan_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r'llama3-8b is a model, not a plan.*model = "llama3-8b"'):
        load_plan("llama3-8b")
    config = tmp_path / "gpt" / "config.json"
    config.parent.mkdir()
    config.write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 128}')
    for name in ("meta-llama/Llama-3.1-8B-Instruct", str(config), str(config.parent)):
        with pytest.raises(BadInput, match=f"^{name} is a model, not a plan"):
            load_plan(name)
    with pytest.raises(BadInput, match=r"unknown plan 'llama3-9b-fsdp8'. Did you mean llama3-8b-fsdp8"):
        load_plan("llama3-9b-fsdp8")
    with pytest.raises(BadInput, match="is no file"):
        load_plan(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        load_plan(tmp_path / "absent.toml")


def test_frameworks_go_by_the_names_that_people_use() -> None:
    with pytest.raises(BadInput, match=r'"our/loop.toml": one of your own is a table in the plan, \[framework\] with base'):
        load_framework("our/loop.toml")
    for name in ("pytorch", "torchtitan", "megatron", "nemo", "llm-foundry", "maxtext"):
        assert load_framework(name).name == name
    assert msgspec.structs.replace(load_framework("megatron"), name="megatron-lm") == load_framework("megatron-lm")


def test_overrides_by_one_word_are_those_of_a_sweep() -> None:
    values = {
        "schedule": "gpipe",
        "recompute": "full",
        "precision": "fp32",
        "framework": "torchtitan",
        "seq_len": "64",
        "placement": "cp,tp,dp,pp",
        "tp_overlap": "true",
        "cp_kind": "all_gather",
    }
    for word, key in SHORT.items():
        text = values.get(word, "1")
        assert read_plan("gpt2-ddp8", (f"{word}={text}",)) == read_plan("gpt2-ddp8", (f"{key}={text}",)), word
    assert load_plan("gpt2-ddp8", ("tp=2", " micro = 4 ")).parallel.tp == 2


@pytest.mark.parametrize(
    ("key", "told"),
    [("overlap", "comm.overlap"), ("workers", "data.workers"), ("prefetch", "parallel.prefetch or data.prefetch"), ("tp", "parallel.tp")],
)
def test_a_key_without_its_section_is_found(key: str, told: str) -> None:
    with pytest.raises(BadInput, match=rf"unknown key '{key}' in plan\. Did you mean {told}\?"):
        load_plan({"model": "mlp", key: 1})


WRONG: dict[str, dict[str, Any]] = {
    "null": {},
    "<object": {"batch": {"micro": object()}},
    f'"{"x" * 59}...': {"batch": {"micro": "x" * 99}},
}


def test_what_no_plan_could_say_is_told_as_it_is() -> None:
    """Of the whole, of a key that there is not, of a value that no file holds; of what is long, the beginning."""
    for message in ("Object contains unknown field `modl`", "Expected `int` - at `$.nothing.at[0]`"):
        assert wrong_value(message, {}, Plan) == message
    told = {text: wrong_value("Expected `int` - at `$.batch.micro`", tree, Plan) for text, tree in WRONG.items()}
    assert all(said.startswith(f"batch.micro = {text}") and "must be a whole number" in said for text, said in told.items())


def test_files_that_a_plan_names_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tool is called from, as a topology's: a plan in another folder was refused, or took a file of that name here."""
    config = {"family": "mlp", "widths": [64, 64]}
    (tmp_path / "own").mkdir()
    for folder, name in ((tmp_path / "own", "beside"), (tmp_path, "here")):
        (folder / "net.json").write_text(json.dumps(config | {"name": name}))
    (tmp_path / "only-here.json").write_text(json.dumps(config))
    (tmp_path / "own" / "mine.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> Plan:
        (tmp_path / "own" / "plan.toml").write_text(text)
        return load_plan("own/plan.toml")

    assert model_of(read('model = "net.json"')).name == "beside"
    assert model_of(read('model = { base = "net.json", widths = [8, 8] }')).name == "own/net.json (changed)"
    assert read('model = "only-here.json"').model == "only-here.json" and read('model = "llama3-8b"').model == "llama3-8b"
    whole = read('model = "llama3-8b"\nbatch = { global = 2, micro = 1 }\nparallel = { pp = 2, schedule = "mine.csv" }')
    assert whole.parallel.actions is not None


def test_words_of_peft_lead_to_the_adapters_targets() -> None:
    """ "Did you mean proj?" was said of v_proj, which is another linear."""
    with pytest.raises(BadInput, match=r"v_proj\" is none of its values\. Did you mean v \(qkv: queries, keys and values\)\?"):
        model_of(load_plan({"model": {"base": "llama3-8b", "lora": {"targets": ["qkv", "v_proj"]}}}))
