"""Tasks, optimizers, schedules and lengths: what rows say of them, and what stands in where they do not."""

from __future__ import annotations

import re

import msgspec
import pytest

from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.updating import optimizer_of
from sim.accuracy.rows.wording import compiled
from sim.accuracy.steady import step_seconds
from tests.null.accuracy.test_spellings import row
from topologies.errors import Refused


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"model_name": "BERT-Large", "framework": "PyTorch (MLPerf)"}, 512), ({"model_name": "BERT-Large"}, 128), ({"model_name": "T5-3B"}, 512), ({"model_name": "Transformer-XL Large"}, 384), ({"model_name": "Transformer-XL base"}, 192), ({"model_name": "GPT-2 XL"}, 1024),
     ({"model_name": "Llama-3-8B"}, 8192), ({"model_name": "Whisper large-v3"}, 448), ({"model_name": "Transformer-big"}, 50), ({"model_name": "GNMT"}, 50), ({"model_name": "BART-large"}, 1024)],
)  # fmt: skip
def test_lengths_that_are_not_stated_are_the_models(changes: dict[str, str], size: int) -> None:
    case = case_of(row(**({"seq_len": None, "model_type": "", "n_layers": None, "hidden": None} | changes)))
    assert case.plan.seq_len == size and f"seq_len not stated: {size}" in case.assumed


@pytest.mark.parametrize(("length", "tokens"), [(3000, 448), (1500, 448), (224, 224)])
def test_whispers_sound_is_no_text(length: int, tokens: int) -> None:
    heard = row(model_name="Whisper-small", model_type="", n_layers=None, hidden=None, seq_len=length)
    assert case_of(heard).plan.seq_len == tokens


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("DLRM Criteo Terabyte", "dlrm-terabyte"),
        ("DLRM (Criteo 1TB)", "dlrm-terabyte"),
        ("DLRM Criteo Kaggle", "dlrm-kaggle"),
        ("DLRM (Kaggle)", "dlrm-kaggle"),
        ("DLRM-DCNv2", "dlrm-dcnv2"),
        ("DLRM (DCNv2)", "dlrm-dcnv2"),
        ("dlrm_dcn_v2", "dlrm-dcnv2"),
        ("DLRM v2 (Criteo 1TB)", "dlrm-dcnv2"),
    ],
)
def test_a_recommenders_tables_are_shared_by_all(name: str, model: str) -> None:
    asked = row(
        model_name=name, model_type="recommender", n_layers=None, hidden=None, gpus=8, nodes=1, global_batch=65536, batch_unit="samples"
    )
    case = case_of(msgspec.structs.replace(asked, tp=None, pp=None, vp=None, dp=None, micro_batch=None, sharding=""))
    assert isinstance(case.plan.model, dict) and case.plan.model["name"] == model
    assert case.plan.parallel.ep == 8 and step_seconds(case.plan, case.topology, case.edits)[0] > 0
    assert case.plan.optimizer.name == ("adagrad" if model == "dlrm-dcnv2" else "sgd")
    assert optimizer_of(msgspec.structs.replace(asked, optimizer="Adam"), "fp32").name == "adamw"


def test_words_of_optimizers_and_tasks() -> None:
    for words, name in (
        ("Lion", "lion"),
        ("paged AdamW 8-bit", "adamw"),
        ("Adafactor", "adamw"),
        ("LARS", "lars"),
        ("Adagrad", "adagrad"),
        ("AdEMAMix", "ademamix"),
        ("RMSprop", "momentum"),
        ("FusedLAMB", "lamb"),
        ("Muon", "muon"),
    ):
        assert case_of(row(optimizer=words)).plan.optimizer.name == name
    assert (
        case_of(row(optimizer="DeepSpeedCPUAdam", framework="DeepSpeed", sharding="ZeRO-2", tp=1, pp=1)).plan.memory.offload == "optimizer"
    )
    small = case_of(row(optimizer="paged AdamW 8-bit", framework="ours (PyTorch)", tp=1, pp=1, vp=None))
    assert small.plan.optimizer.states == "fp8" and step_seconds(small.plan, small.topology)[0] > 0
    for words in ("Adam-mini", "1-bit Adam", "0/1 Adam"):
        assert f"optimizer {words!r} taken as adamw" in case_of(row(optimizer=words)).assumed
    assert not [note for note in case_of(row(optimizer="adam (FusedAdam)")).assumed if note.startswith("optimizer")]
    assert "optimizer 'SOAP' taken as adamw" in case_of(row(optimizer="SOAP")).assumed
    assert case_of(row(task="inference")).plan.task == "forward" and case_of(row(task="DoRA")).plan.task == "lora"
    assert row(quality="b").scored and not row(quality="c").scored


def test_schedules_that_are_named() -> None:
    deep = {"framework": "ours (PyTorch)", "pp": 4, "gpus": 32, "global_batch": 128, "vp": None}
    for note in ("compared with DualPipe", "faster than GPipe", "no zero bubble"):
        assert case_of(row(notes=note, **deep)).plan.parallel.schedule == "1f1b"
    for words, schedule in (("DualPipe", "dualpipe"), ("zero bubble (ZB-H1)", "zb-h1"), ("GPipe", "gpipe"), ("", "1f1b")):
        case = case_of(row(comm_overlap=words, **deep))
        assert case.plan.parallel.schedule == schedule and step_seconds(case.plan, case.topology)[0] > 0
    assert case_of(row(comm_overlap="DualPipe", **(deep | {"global_batch": 32}))).plan.parallel.schedule != "dualpipe"


def test_who_trains_with_neox_since_2023_has_flash_attention() -> None:
    neox = {"framework": "GPT-NeoX", "gpu": "A100", "gpus": 8, "sharding": "ZeRO-1"}
    assert case_of(row(date="2023-12", **neox)).plan.attention == "flash"
    assert case_of(row(date="2022-04", **neox)).plan.attention is None


@pytest.mark.parametrize("task", ["pretrain", "Pre-training", "training", "train"])
def test_training_by_its_names(task: str) -> None:
    bridge = {"framework": "Megatron-Bridge", "framework_version": "26.04", "gpu": "B200", "gpus": 8, "sharding": ""}
    assert case_of(row(task=task, **bridge)).plan.framework == "megatron-bridge-captured"
    assert case_of(row(task="sft", **bridge)).plan.framework == "megatron-bridge"


def test_no_step_waits_for_its_images() -> None:
    """They come ahead: half precision, whose loss scale is read on the host each step, hides their copy as fp32 does."""
    images = row(
        model_name="ResNet-50", model_type="cnn", n_layers=None, hidden=None, batch_unit="images", micro_batch=256, global_batch=256, gpus=1
    )
    for precision in ("mixed fp16 (AMP)", "fp32"):
        case = case_of(msgspec.structs.replace(images, framework="MXNet", precision=precision))
        slow = step_seconds(case.plan, case.topology, ("link.pcie.rate=8 GB/s",))[0]
        assert slow == pytest.approx(step_seconds(case.plan, case.topology)[0], rel=0.01)


EVERY = ["qkv", "proj", "up", "down"]


@pytest.mark.parametrize(
    ("framework", "targets"),
    [
        ("NeMo", ["qkv"]), ("NeMo (MLPerf)", ["qkv", "proj"]), ("Megatron-Bridge", ["qkv"]), ("HF Trainer", ["q", "v"]), ("DeepSpeed", ["qkv"]), ("axolotl", EVERY),
        ("LLaMA-Factory", EVERY), ("Unsloth", EVERY), ("torchtune", EVERY),
    ],
)  # fmt: skip
def test_adapters_are_where_the_recipe_has_them(framework: str, targets: list[str]) -> None:
    model = case_of(row(task="LoRA", framework=framework, sharding="", gpus=8)).plan.model
    assert isinstance(model, dict) and list(model["lora"]["targets"]) == targets


@pytest.mark.parametrize(
    ("notes", "rank", "targets"),
    [
        ("rank 64", 64, ["q", "v"]),
        ("r=32 on all linear layers", 32, EVERY),
        ("", 8, ["q", "v"]),
        ("on q_proj and o_proj", 8, ["q", "proj"]),
        ("r=4: q_proj, k_proj, v_proj, gate_proj, up_proj", 4, ["qkv", "up"]),
    ],
)
def test_adapters_are_what_a_row_says_of_them(notes: str, rank: int, targets: list[str]) -> None:
    model = case_of(row(task="LoRA", framework="PEFT", sharding="", gpus=8, notes=notes)).plan.model
    assert isinstance(model, dict) and (model["lora"]["rank"], list(model["lora"]["targets"])) == (rank, targets)


def test_letters_of_one_linear_are_its_adapter_beside_the_others_that_a_row_names() -> None:
    model = case_of(row(task="LoRA", framework="DeepSpeed", sharding="", gpus=8, notes="on v_proj and o_proj")).plan.model
    assert isinstance(model, dict) and list(model["lora"]["targets"]) == ["qkv", "proj"]


@pytest.mark.parametrize(
    ("sharding", "base", "noted"), [("none", "nf4", r"four bits \(NF4\)"), ("FSDP FULL_SHARD", "", "neither its bytes nor its unpacking")]
)
@pytest.mark.parametrize(("task", "precision"), [("QLoRA", "bf16"), ("LoRA", "NF4")])
def test_bases_in_four_bits(sharding: str, base: str, noted: str, task: str, precision: str) -> None:
    case = case_of(row(task=task, framework="PEFT", sharding=sharding, gpus=8, precision=precision))
    assert isinstance(case.plan.model, dict) and (case.plan.model["lora"]["base"], case.plan.precision) == (base, "bf16")
    assert any(re.search(noted, note) for note in case.assumed)
    assert case_of(row(task="LoRA", framework="PEFT", sharding=sharding, gpus=8)).plan.model["lora"]["base"] == ""  # type: ignore[index]


def test_longer_encoders_have_more_positions() -> None:
    model = case_of(row(model_name="BERT-large", model_type="bert", seq_len=4096, sharding="none")).plan.model
    assert isinstance(model, dict) and model["positions"] == 4096


@pytest.mark.parametrize(
    ("changes", "attention"),
    [({"date": "2020-12"}, "math"), ({"date": "2022-11"}, None), ({"date": "2022-11", "gpu": "V100"}, "math"), ({"date": "2023-06", "gpu": "V100"}, None), ({"gpu": "V100"}, "math"),
     ({"date": "2020-12", "flash_attn": "yes"}, "flash")],
)  # fmt: skip
def test_attention_was_written_out_before_it_was_fused(changes: dict[str, str], attention: str | None) -> None:
    assert case_of(row(**({"precision": "fp16", "gpu": "A100"} | changes))).plan.attention == attention


def test_sequence_parallelism_is_of_2022() -> None:
    wide = {"framework": "Megatron-LM", "gpu": "A100", "tp": 8, "flash_attn": "no"}
    assert case_of(row(date="2022-11", **wide)).plan.parallel.sequence_parallel
    assert not case_of(row(date="2022-01", **wide)).plan.parallel.sequence_parallel


@pytest.mark.parametrize(
    ("layers", "pp", "chunks"), [(80, 4, 10), (126, 16, 4), (88, 8, 11), (96, 12, 4), (61, 8, 1), (95, 8, 1), (46, 8, 3)]
)
def test_chunks_that_are_not_stated_divide_the_layers(layers: int, pp: int, chunks: int) -> None:
    """Or the layers and two: Llama 3.1 405B's first and last of 64 stages have one layer in place of two."""
    deep = row(n_layers=layers, pp=pp, tp=1, gpus=8 * pp, global_batch=64 * pp, framework="NeMo", vp=None, sharding="")
    p = case_of(deep).plan.parallel
    assert p.virtual_stages == chunks
    assert p.stages is None or chunks == 1 or p.stages[0] == p.stages[-1] == p.stages[1] - 1


def test_steps_that_generate_are_no_training_steps() -> None:
    for task in ("RLHF", "PPO", "GRPO"):
        with pytest.raises(Refused, match="generates texts"):
            case_of(row(task=task))
    assert case_of(row(task="DPO")).plan.task == "dpo"


def test_a_frameworks_name_says_that_it_compiles() -> None:
    assert compiled(row(framework="PyTorch FSDP2 + torch.compile")) is True and compiled(row(framework="PyTorch FSDP2")) is None
    assert compiled(row(framework="PyTorch (torch.compile off)", compile="no")) is None
