"""Rows that leave something out, or contradict themselves: what stands in, what is noted, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sim.accuracy import row as reading
from sim.accuracy.architecture.models import model_of
from sim.accuracy.collectives.timings import validate_collectives
from sim.accuracy.memory import memory_scores
from sim.accuracy.neusight import neusight_labels
from sim.accuracy.published import published_rows
from sim.accuracy.row import Row, read_rows
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.rows.sizes import gpus_of, sizes_of
from sim.accuracy.score import constant_mfu, summarise
from sim.accuracy.steady import step_seconds
from sim.rules import check
from sim.setting.bind import bind
from tests.null.accuracy.test_plans import row
from topologies.errors import BadInput, Refused


@pytest.mark.parametrize(("vp", "chunks"), [(4, 4), (None, 10)])
def test_chunks_go_by_the_shipped_models_layers_where_the_row_states_none(vp: int | None, chunks: int) -> None:
    """80 layers on four stages: four chunks of five as the row says, or ten of two where it does not say."""
    silent = row(model_name="Llama-2-70B", n_layers=None, hidden=None, n_heads=None, tp=4, pp=4, vp=vp, dp=4, micro_batch=1)
    p = case_of(silent).plan.parallel
    assert (p.pp, p.schedule, p.virtual_stages) == (4, "interleaved", chunks)


@pytest.mark.parametrize(("microbatches", "chunks"), [(8, 5), (10, 5), (3, 5), (9, 1)])
def test_stated_chunks_need_equal_rounds_of_micro_batches_not_multiples_of_stages(microbatches: int, chunks: int) -> None:
    """Ten micro-batches go over four stages in two rounds of five, three in one; nine in no two equal ones, which Megatron-Core takes too."""
    split = {"n_layers": 80, "tp": 4, "pp": 4, "vp": 5, "dp": 4, "micro_batch": 1, "global_batch": 4 * microbatches}
    core = row(model_name="Llama-2-70B", framework="Megatron-Core", **split)
    assert case_of(core).plan.parallel.virtual_stages == 5
    deep = row(model_name="Llama-2-70B", framework="Megatron-LM", date="2023-05", **split)
    case = case_of(deep)
    assert case.plan.parallel.virtual_stages == chunks and any("chunks do not fit" in note for note in case.assumed) == (chunks == 1)
    assert check(case.plan).microbatches == microbatches


def test_a_batch_that_is_not_stated_is_what_the_ranks_take() -> None:
    notes: list[str] = []
    sizes = sizes_of(row(global_batch=None, micro_batch=2, grad_accum=4), notes)
    assert (sizes.dp, sizes.micro, sizes.batch) == (8, 2, 2 * 8 * 4) and "global batch not stated: 64" in notes


@pytest.mark.parametrize(
    "task", ["", "pretrain", "Training", "LLM pretraining", "continued pre-training", "lora", "SFT", "instruction tuning"]
)
def test_a_task_that_is_not_stated_is_training_from_the_start(task: str) -> None:
    """NVIDIA's recipes differ by it: DeepSeek's second head, graphs of a small model, boards whose power is steered since other releases."""
    tuned = task in ("lora", "SFT", "instruction tuning")
    sizes = {"micro_batch": 1, "global_batch": 512, "gpus": 64, "tp": 1, "pp": 1, "dp": None, "task": task}
    deepseek = {"model_name": "DeepSeek V3", "n_layers": None, "hidden": None, "n_heads": None, "ffn_hidden": None}
    plan = case_of(row(**sizes, **deepseek, gpu="GB200", framework="Megatron-Bridge", ep=64)).plan
    assert isinstance(plan.model, dict) and plan.model.get("mtp", 0) == (0 if tuned else 1)
    assert case_of(row(**sizes, gpu="H100", framework="NeMo", framework_version="24.12")).edits == (("gpu.vboost=1",) if tuned else ())
    if not task:
        assert case_of(row(**sizes, model_name="Llama2 7B LoRA", gpu="H100", framework="NeMo", framework_version="24.12")).edits


def test_data_parallelism_is_what_the_gpus_leave() -> None:
    notes: list[str] = []
    assert sizes_of(row(dp=5), notes).dp == 8
    assert "dp = 5 in the row, 8 by the number of GPUs: the latter" in notes
    notes.clear()
    assert sizes_of(row(dp=8), notes).dp == 8 and not any("by the number of GPUs" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"nodes": 4, "gpus_per_node": 8}, 32), ({"nodes": 1, "gpus_per_node": None}, 8), ({"nodes": None, "tp": 8, "pp": 2, "dp": 4}, 64),
        ({"nodes": None, "dp": None, "micro_batch": 2, "grad_accum": 4, "global_batch": 128, "tp": 2, "pp": 1}, 32),
        ({"nodes": None, "dp": None, "gpus_per_node": 8}, 8),
    ],
)  # fmt: skip
def test_gpus_that_are_not_stated_follow_from_the_rest(changes: dict[str, int | None], gpus: int) -> None:
    notes: list[str] = []
    silent = row(**({"gpus": None, "grad_accum": None, "cp": None} | changes))
    assert gpus_of(silent, notes) == gpus and notes[0].startswith(f"number of GPUs not stated: {gpus}")
    assert case_of(silent).plan.world == gpus


def test_gpus_of_which_nothing_tells_are_refused() -> None:
    with pytest.raises(BadInput, match="number of GPUs is not stated"):
        case_of(row(gpus=None, nodes=None, gpus_per_node=None, dp=None, grad_accum=None))


@pytest.mark.parametrize(
    ("changes", "micro"),
    [
        ({"seq_len": 4096}, 4), ({"seq_len": 8192}, 2), ({"seq_len": 32768}, 1), ({"seq_len": 128}, 128), ({"seq_len": 8192, "recompute": "full"}, 8),
        ({"seq_len": 1024, "recompute": "full"}, 64), ({"seq_len": 4096, "grad_accum": 32}, 8), ({"batch_unit": "images"}, 256), ({"hidden": 8192}, 1),
        ({"seq_len": 1024, "hidden": 768}, 16),
    ],
)  # fmt: skip
def test_micro_batches_that_are_not_stated_fit(changes: dict[str, object], micro: int) -> None:
    """256 samples a rank: long sequences, and layers kept whole, leave room for few at a time."""
    silent = row(**({"micro_batch": None, "global_batch": 2048, "gpus": 8, "tp": 1, "pp": 1, "vp": 1, "hidden": 4096} | changes))
    assert sizes_of(silent, []).micro == micro


def test_more_stages_than_layers_are_refused_in_words() -> None:
    with pytest.raises(BadInput, match="layers") as caught:
        case = case_of(row(n_layers=4, pp=8, vp=None))
        step_seconds(case.plan, case.topology, case.edits)
    assert "$" not in str(caught.value)


def test_sharding_groups_that_do_not_divide_are_all_ranks() -> None:
    notes: list[str] = []
    found = sharding_of(row(sharding="ZeRO-3 within groups of 3"), 8, "torchtitan", notes)
    assert (found["dp_shard"], found["dp_replicate"], found["zero"]) == (8, 1, 3)
    assert "sharding group of 3 does not divide dp = 8: all ranks share" in notes


def test_offloaded_optimizers_are_on_the_host() -> None:
    assert case_of(row(sharding="ZeRO-3 + CPU offload")).plan.memory.offload == "optimizer"
    assert case_of(row(sharding="ZeRO-3")).plan.memory.offload == "none"


def test_hybrids_without_their_pattern_are_refused() -> None:
    with pytest.raises(Refused, match="a hybrid needs its layer pattern"):
        model_of(row(model_name="Nemotron-H 8B", model_type="mamba hybrid"), [])
    for name in ("Zamba2-7B", "RWKV-4 7B", "Evo 2 40B", "StripedHyena-7B", "Falcon-H1-7B", "RecurrentGemma 9B", "Jamba 52B"):
        for sizes in ({}, {"n_layers": None, "hidden": None, "n_heads": None}):
            with pytest.raises(Refused, match=r"hybrid needs its layer|no model of that name"):
                model_of(row(model_name=name, model_type="", **sizes), [])


def test_experts_alone_have_no_dense_width() -> None:
    """A mixture whose row names its experts' width alone has no dense layers to guess a width for."""
    notes: list[str] = []
    tree = model_of(row(model_type="qwen3-moe", n_experts=8, top_k=2, moe_ffn_hidden=768, ffn_hidden=None), notes)
    assert not any("ffn_hidden not stated" in note for note in notes)
    assert "768" in str(tree) and "14336" not in str(tree)


def test_a_bert_without_sizes_is_the_one_that_ships() -> None:
    notes: list[str] = []
    tree = model_of(row(model_name="BERT-large", model_type="bert", n_layers=None, hidden=None), notes)
    assert (tree["layers"], tree["hidden"]) == (24, 1024) and any("shipped model bert-large" in note for note in notes)


def test_a_peak_that_cannot_be_predicted_is_refused_with_its_reason(tmp_path: Path) -> None:
    """The others are scored all the same."""
    names = ("row_id", "source_id", "gpu", "gpus", "framework", "global_batch", "step_time_s", "model_name", "n_layers", "hidden", "n_heads",
             "vocab_size", "seq_len", "micro_batch", "peak_mem_gb", "precision", "model_type")  # fmt: skip
    good = ("a", "s", "H100", "8", "pytorch", "8", "1.0", "GPT", "4", "1024", "16", "50304", "512", "1", "10", "bf16", "gpt2")
    bad = ("b", "s", "Abacus", *good[3:])
    (tmp_path / "t.csv").write_text("\n".join(",".join(line) for line in (names, good, bad)) + "\n")
    scores = {one.row_id: one for one in memory_scores(tmp_path / "t.csv")}
    assert not scores["a"].refused and scores["a"].predicted > scores["a"].state > 0
    assert "Abacus" in scores["b"].refused and scores["b"].predicted == 0


def test_tables_that_are_too_large_or_no_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t.csv"
    table.write_text("row_id\n" + "x\n" * 100)
    monkeypatch.setattr(reading, "_LARGEST", 100)
    with pytest.raises(BadInput, match="has 207 bytes; at most 100 are read"):
        read_rows(table)
    with pytest.raises(BadInput, match="cannot be read"):
        validate_collectives(tmp_path)
    with pytest.raises(BadInput, match=r"neusight_e2e_labels\.csv does not exist"):
        neusight_labels(tmp_path)


def test_timings_of_unknown_machines_alone_say_the_first_reason(tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    file = tmp_path / "facts" / "t.csv"
    file.write_text("kind,gpus,gpu,message_bytes,time_us\nall_reduce,8,Abacus,1024,20\nall_reduce,8,H100,1024,0\n")
    with pytest.raises(BadInput, match="no timing that can be predicted; first reason: GPU 'Abacus' is in no machine of the catalog"):
        validate_collectives(file)


def test_timings_that_are_no_numbers_are_refused_and_the_others_scored(tmp_path: Path) -> None:
    """One cell of a long table must neither end the run nor make every mean a NaN; spreadsheets begin their files with a mark."""
    (tmp_path / "facts").mkdir()
    file = tmp_path / "facts" / "t.csv"
    bad = (
        "8,H100,1024,nan",
        "8,H100,1024,inf",
        "8,H100,inf,20",
        "8,H100,nan,20",
        "8,H100,0.5,20",
        "0,H100,1024,20",
        "-8,H100,1024,20",
        "8,H100",
    )
    file.write_text(
        "\n".join(("kind,gpus,gpu,message_bytes,time_us", "all_reduce,8,H100,1024,20", *(f"all_reduce,{one}" for one in bad))), "utf-8-sig"
    )
    found = validate_collectives(file)
    assert (found["scored"], len(found["refused"])) == (1, len(bad)) and found["mape"] < 10
    assert found["refused"][0]["reason"] == "the row has no time, size or GPUs: nan us, 1024 bytes, 8 GPUs"


def test_nothing_has_no_error() -> None:
    assert msgspec.structs.astuple(summarise(())) == (0, 0.0, 0.0, 0.0)
    assert constant_mfu(()) == (0.0, summarise(()))


@pytest.mark.no_cover
def test_every_published_row_is_a_setting_or_has_a_reason() -> None:
    """Every thirtieth of them."""
    for one in published_rows()[::30]:
        assert isinstance(one, Row)
        try:
            case = case_of(one)
            assert bind(case.plan, case.topology, case.edits).plan.world == one.gpus
        except BadInput as error:
            assert len(str(error)) > 10
