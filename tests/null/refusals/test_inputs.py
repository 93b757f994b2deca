"""Plans, programs, configs and machines that cannot be: the message names what is wrong and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.files.optext import parse_op
from sim.files.planfile import load_plan
from sim.files.text import parse_program
from sim.model import load as loading
from sim.model import load_model
from sim.model.specs.spec import spec_of
from sim.predict import predict
from sim.result.compare import compare
from sim.setting.bind import bind
from topologies.errors import BadInput, Refused, RunFailed, SteptwinError
from topologies.load import load_topology

PLANS = [
    ("precision=fp7", "bf16"),
    ("parallel.schedule=1f2b", "1f1b"),
    ("parallel.tp=0", "tp"),
    ("batch.global=7", "multiple"),
    ("parallel.placement=tp,tp,dp,pp", "once each"),
    ("parallel.virtual_stages=2", "interleaved"),
    ("update.mode=local", "whole model"),
    ("framework=pytroch", "pytorch"),
    ("framework=Transformers", "Did you mean huggingface or huggingface-amp? Allowed: deepspeed, "),
    ("seq_len", "="),
    ("comm.bucket=25", "MiB"),
    ("data.preprocess=2", "ms"),
    ("noise.stragglers=r9: 2x", "r0 to r3"),
    ("noise.stragglers=often", "cannot read"),
    ("noise.stragglers=r1: 2x, r1: 3x", "names r1 twice"),
    ("noise.stragglers=r1: 0x", "above 0"),
    ("update.aggregate=primary", "zero = 0"),
    ("task=forwards", "forward"),
]


@pytest.mark.parametrize(("change", "told"), PLANS)
def test_plans(change: str, told: str) -> None:
    tree: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8}, "parallel": {"dp_shard": 4, "zero": 3}}
    with pytest.raises(SteptwinError) as raised:
        predict(load_plan(tree, (change,)), "dgx-h100", steps=2)
    assert told in str(raised.value)


WHOLE = ("parallel.dp_shard=1", "parallel.dp_replicate=4", "parallel.zero=0")
TOGETHER = [
    ((*WHOLE, "update.mode=local", "update.aggregate=cpu"), "local updates sum no gradients. Leave aggregate out"),
    ((*WHOLE, "update.mode=local", "update.aggregate=primary"), "local updates sum no gradients"),
    ((*WHOLE, "update.mode=async", "update.aggregate=primary"), "a parameter server's host sums them"),
    (("parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2", "batch.global=20"), "5 micro-batches do not make 2 equal rounds over 2 pipeline ranks"),
    (("task=forward", "parallel.pp=2", "parallel.schedule=zb-h1"), 'use schedule = "gpipe", not "zb-h1"'),
    (("attention=math", "parallel.cp=2", "parallel.dp_shard=2"), 'needs fused attention. Use attention = "flash"'),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "told"), TOGETHER, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_keys_that_do_not_go_together(changes: tuple[str, ...], told: str) -> None:
    tree: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8}, "parallel": {"dp_shard": 4, "zero": 3}}
    with pytest.raises(BadInput, match=told):
        predict(load_plan(tree, changes), "dgx-h100", steps=2)


@pytest.mark.parametrize("framework", ["torchtitan", "megatron-lm"])
def test_lonely_updates_are_refused_where_the_framework_alone_splits_the_model(framework: str) -> None:
    tree: dict[str, Any] = {"model": "gpt2-124m", "framework": framework, "update": {"mode": "local"}, "parallel": {"dp_shard": 4}}
    with pytest.raises(Refused, match=f'framework = "{framework}" splits over dp_shard where zero is left out'):
        load_plan(tree)
    assert load_plan(tree, ("parallel.zero=0",)).parallel.zero == 0
    assert load_plan(tree, ("parallel.dp_shard=1", "parallel.dp_replicate=4")).data_ranks == 4


TEXT = """\
program demo device=cuda steps=1
mesh pp=1 tp=2 order=pp,dp_replicate,dp_shard,cp,tp ep=1
segment fwd
  compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm
role all
  thread host
    call fwd s0/mb0/fwd index=0 step=0
ranks 2 all
"""
PROGRAMS = [
    ("segment fwd\n", "", "before the first segment"),
    ("role all\n", "", "before the first role"),
    ("  thread host\n", "", "before the first thread"),
    ("segment fwd\n", "segment fwd\nsegment fwd\n", "stands twice"),
    ("mesh pp", "mess pp", "mesh"),
    ("mesh pp=1 tp=2 order=pp,dp_replicate,dp_shard,cp,tp ep=1\n", "", "starts with the lines"),
    ("device=cuda", "device=tpu", "cuda"),
    ("device=cuda steps=1", "device=cuda", "expected device="),
    ("index=0 step=0", "index=0", "expected index="),
    ("ranks 2 all", "ranks 2", "is missing"),
    ("ranks 2 all", "ranks 3 all", "its mesh has 2"),
    ("ranks 2 all", "ranks 2 some", "role"),
    ("call fwd", "call bwd", "segment"),
    ("order=pp,dp_replicate,dp_shard,cp,tp", "order=pp,tp", "once"),
    ("tp=2", "tp=0", "at least 1"),
    ("pp=1", "px=1", "mesh axis"),
    ("cls=gemm", "cls=gemm cls=gemm", "stands twice"),
    ("cls=gemm", "clss=gemm", "op field"),
    ("L0.qkv gemm", '"L0.qkv gemm', "quotes"),
    ("compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm", "compute compute", "cannot read op"),
    ("gemm(m=8", "gemm(mm=8", "mm"),
]


@pytest.mark.parametrize(("old", "new", "told"), PROGRAMS)
def test_programs(old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(BadInput) as raised:
        parse_program(TEXT.replace(old, new, 1))
    assert told in str(raised.value)


def test_ops_of_unknown_kinds() -> None:
    with pytest.raises(BadInput, match="compute"):
        parse_op("comptue compute L0")


DECODER: dict[str, Any] = {"family": "decoder", "layers": 4, "hidden": 64, "heads": 4, "vocab": 128}
MODELS = [
    ({"heads": 5}, "does not divide hidden"),
    ({"kv_heads": 3}, "does not divide heads"),
    ({"moe": {"experts": 2, "top_k": 4, "ffn": 64}}, "top_k"),
    ({"hidden": 60}, "15 of a head are rotated. Make head_dim (else hidden / heads) x rotary an even number"),
    ({"mla": {"kv_lora": 32, "rope": 7}}, "7 of a head are rotated. Make mla.rope an even number"),
    ({"pre_norms": False}, "post_norms"),
    ({"parallel_block": True, "post_norms": True}, "parallel_block adds attention and MLP up as they are. Use post_norms = false"),
    ({"pattern": "M*"}, "letters"),
    ({"pattern": "MMMM"}, "mamba"),
    ({"pattern": "EEEE"}, "moe"),
    ({"family": "decodr"}, "decoder"),
    ({"hiden": 3}, "hidden"),
    ({"lora": {"rank": 65}}, "lora.rank = 65 is more than hidden = 64. Use 1 to 64"),
    ({"activation": "swish2"}, "activation"),
    ({"layers": 10**6}, "layers"),
]


@pytest.mark.parametrize(("change", "told"), MODELS, ids=lambda value: str(value))
def test_models(change: dict[str, Any], told: str) -> None:
    with pytest.raises(SteptwinError) as raised:
        bind(load_plan({"model": DECODER | change, "seq_len": 16}), "dgx-h100")
    assert told in str(raised.value)


MLP: dict[str, Any] = {"family": "mlp", "widths": [64, 64, 64]}
SPLITS: list[tuple[str | dict[str, Any], dict[str, Any], str]] = [
    (MLP, {"parallel": {"tp": 2}}, "an MLP is split by data or pipeline parallelism only"),
    ("gnmt", {"parallel": {"tp": 2}}, "split by data or pipeline parallelism only; set tp = cp = ep = 1"),
    ("transformer-xl-base", {"parallel": {"cp": 2}}, "split by data or pipeline parallelism only; set tp = cp = ep = 1"),
    ("vit-b16", {"parallel": {"cp": 2}}, "context parallelism splits long sequences; set cp = 1 for images"),
    ("efficientnet-b0", {"parallel": {"tp": 2}}, "a convolutional network is split by data or pipeline parallelism only"),
    ("unet", {"parallel": {"tp": 2}}, "a convolutional network is split by data parallelism only; set tp = cp = ep = 1"),
    ({"base": "unet", "image": 500}, {}, "image = 500 cannot be halved 4 times. Use a multiple of 16"),
    ({"base": "convnext-tiny", "depths": [3, 3]}, {}, "differ in length; give one of each a stage"),
    ({"base": "convnext-tiny", "image": 16}, {}, "image = 16 is nothing after 32 pixels become one"),
    ({"base": "efficientnet-b0", "variant": "v3"}, {}, "Allowed: v1, v2-s, v2-m, v2-l"),
    ({"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "image": 224, "patch": 15}, {}, "patch = 15 does not divide image = 224"),
    ({"base": "t5-small", "relative": 3}, {}, r"relative = 3 is no count of buckets .* Use 4 to 255 \(T5: 32\), or 0"),
    ({"base": "t5-small", "relative": 256}, {}, "relative = 256 is no count of buckets"),
    (MLP | {"activation": "swiglu"}, {}, 'mlp: activation = "swiglu" gates one linear by another, .* Use gelu, .*, silu, tanh$'),
    ({"family": "cnn", "arch": "resnet", "depth": 51}, {}, "unknown resnet depth '51'"),
    (DECODER | {"heads": 8, "hidden": 128, "kv_heads": 4}, {"parallel": {"tp": 8}}, ""),
    (DECODER | {"heads": 6, "hidden": 96, "kv_heads": 3}, {"parallel": {"tp": 2}}, "key-value heads"),
    ({"base": "gnmt", "layers": 1}, {}, "layers = 1 must be a whole number from 2 to 100,000,000, e.g. layers = 4"),
    ({"base": "transformer-xl-large", "div": 16}, {}, "div = 16 leaves no column of hidden = 1024 for the last of 4 clusters. Use less"),
    ("bert-base", {"task": "lora"}, "has adapters for decoders, .*; bert-base is none of these .encoder."),
]


@pytest.mark.parametrize(("model", "change", "told"), SPLITS, ids=lambda value: str(value)[:40])
def test_splits_that_a_model_has_not(model: str | dict[str, Any], change: dict[str, Any], told: str) -> None:
    plan = load_plan({"model": model, "seq_len": 64, "batch": {"global": 2}} | change)
    if not told:  # key-value heads are copied where there are fewer than ranks
        assert bind(plan, "dgx-h100").network.parameters > 0
        return
    with pytest.raises(BadInput, match=told):
        bind(plan, "dgx-h100")


def test_a_model_in_a_table_of_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text('family = "decoder"\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 128\n')
    assert load_model(str(tmp_path / "mine.toml")) == spec_of(DECODER, "here", "mine")
    monkeypatch.setattr(loading, "_LARGEST", 10)
    with pytest.raises(BadInput, match=r"mine\.toml has \d+ bytes; at most 10 are read"):
        load_model(str(tmp_path / "mine.toml"))


LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
CONFIGS = [
    ({"hidden_size": "64"}, "whole number"),
    ({"hidden_size": None}, "is missing"),
    ({"tie_word_embeddings": "yes"}, "true or false"),
    ({"hidden_act": "swish9"}, "activation"),
    ({"model_type": "lama"}, "llama"),
]


@pytest.mark.parametrize(("change", "told"), CONFIGS, ids=lambda value: str(value))
def test_configs(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert load_model(str(path)) is not None
    path.write_text(json.dumps(LLAMA | change))
    with pytest.raises(SteptwinError) as raised:
        load_model(str(path))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.json", "[1]", "table of fields"),
        ("config.json", "{", "valid JSON"),
        ("config.toml", "a = ", "TOML"),
        ("config.json", None, "does not exist"),
    ],
)
def test_model_files(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as raised:
        load_model(str(tmp_path / name))
    assert told in str(raised.value)


def test_a_description_names_what_it_lacks() -> None:
    """All of it at once, in a table of it too, and of a list which item is wrong."""
    for tree, told in (
        ({"layers": 2}, r"\[model\]: the table is missing hidden \(a whole number from 1 to [\d,]+\), heads \(.*\), vocab"),
        ({"family": "mlp"}, r"missing widths \(a list, each item a whole number from 1 to [\d,]+, at least 2 of them\)"),
        ({"family": "mlp", "widths": [8]}, r"widths = \[8\] must be a list, .* at least 2 of them"),
        ({"family": "mlp", "widths": [8, 0]}, r"widths\[1\] = 0 must be a whole number from 1"),
        ({"layers": 2, "hidden": 8, "heads": 1, "vocab": 8, "moe": {"experts": 8}}, r"moe is missing top_k \(.*\), ffn \("),
        ({"layers": 2, "hidden": 8, "heads": 1, "vocab": 8, "dropout": 1.0}, r"dropout = 1\.0 must be a number from 0\.0 to below 1\.0"),
    ):
        with pytest.raises(BadInput, match=told):
            spec_of(tree, "[model]")


MACHINES = [
    ("0x dgx-h100", "1 to"),
    ("dgx-h100:0", "no GPU"),
    ("dgx-h100:9", "8 ranks per node"),
    ("dgx-h100 + cpu-host", "mixes"),
    ("dgx-h100 +", "cannot read"),
    ("", "no name"),
    ("missing.toml", "no topology file"),
]


@pytest.mark.parametrize(("source", "told"), MACHINES)
def test_machines(source: str, told: str) -> None:
    with pytest.raises(BadInput) as raised:
        load_topology(source)
    assert told in str(raised.value)


FILES = [
    ("nodes = 3", "named there in a text"),
    ('nodes = "2x dgx-h100"\nedits = "oversubscription=2"', "list of texts"),
    ('base = "dgx-h100"\nnvlink = { mesh = [[0, 9, 1]] }', "GPU"),
    ('base = "dgx-h100"\nnvlink = { mesh = [[0, 0, 1]] }', "joins two"),
    ('base = "dgx-h100"\nnvlink = { mesh = [[0, 1]] }', "each row"),
    ('base = "dgx-h100"\nnvlink = { mesh = "some" }', "list of"),
    ('base = "dgx-h100"\nnvlink = { switch = [99] }', "links"),
    ('base = "dgx-h100"\nnvlink = { switch = "four" }', "must list"),
    ('base = "dgx-h100"\nlinks = 3', "must be a table"),
    ("base = 3", "in quotes"),
    ('bace = "dgx-h100"', "base"),
    ('base = "dgx-h100"\nranks = "two"', "whole number"),
]


@pytest.mark.parametrize(("text", "told"), FILES)
def test_machine_files(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n")
    with pytest.raises(BadInput) as raised:
        load_topology(str(path))
    assert told in str(raised.value)


def test_a_machine_file_that_stands_on_itself(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b.toml"\n')
    (tmp_path / "b.toml").write_text('base = "a.toml"\n')
    with pytest.raises(BadInput, match="includes itself"):
        load_topology(str(tmp_path / "a.toml"))


EDITS = [
    "link.nvlnk.rate=1 GB/s",
    "fail=link:gpu0-gpu99",
    "fail=nothing",
    "without=wheels",
    "slow=r99:0.5",
    "oversubscription=0",
    "rails=x",
    "fail=spine:99999",
    "nope=1",
]


@pytest.mark.parametrize("edit", EDITS)
def test_what_ifs(edit: str) -> None:
    with pytest.raises(BadInput) as raised:
        load_topology("2x dgx-h100", (edit,))
    assert len(str(raised.value)) > 20


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="ranks 0 to 7"):
        load_topology("dgx-h100").device(8)


def test_a_failed_run_says_where_its_rest_is() -> None:
    assert str(RunFailed("rank 1 died.", "runs/x")).endswith("What was measured is kept in runs/x.")
    assert str(RunFailed("rank 1 died.")) == "rank 1 died."
    assert RunFailed("x").exit_code == 4 and Refused("x").exit_code == 2


def test_what_is_no_prediction_no_edit_and_no_number_of_steps_is_said() -> None:
    with pytest.raises(BadInput, match=r"compare takes a prediction.*not str"):
        compare("gpt2-ddp8", "trace.json")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="an edit is a text"):
        load_topology("dgx-h100", (3,))  # type: ignore[arg-type]
    for steps in (0, -1, 1.5):
        with pytest.raises(BadInput, match="steps = "):
            predict({"model": "gpt2-124m", "seq_len": 64}, "dgx-h100", steps=steps)  # type: ignore[arg-type]


def test_one_edit_may_be_a_text_and_numbers_may_be_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    assert load_topology("2x dgx-h100", "rails=2").cluster == load_topology("2x dgx-h100", ("rails=2",)).cluster
    tree = {"model": "gpt2-124m", "seq_len": numpy.int64(64), "batch": {"global": numpy.int32(8)}, "compile": numpy.bool_(True)}
    assert load_plan(tree) == load_plan({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8}, "compile": True})
