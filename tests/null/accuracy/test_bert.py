"""What BERT's scripts set that tables do not print: optimizers and compilers of fine-tuning, containers, vocabularies, machines."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.architecture.models import model_of
from sim.accuracy.row import Row
from sim.accuracy.rows.machines import machine_of
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.updating import optimizer_of
from sim.accuracy.rows.wording import compiled, framework_of_row

BERT = Row(
    row_id="r", model_name="BERT-Large", model_type="bert", n_layers=24, hidden=1024, n_heads=16, gpu="V100", gpus=16, gpus_per_node=16, nodes=1,
    system="DGX-2", seq_len=128, micro_batch=8, grad_accum=1, optimizer="LAMB", framework="TensorFlow 1 (Horovod, XLA)", precision="fp32",
    framework_version="NGC tf 20.06 / 19.08 (multi-node)", task="train", step_time_s=1.0, quality="B",
)  # fmt: skip
SQUAD = "finetune (SQuAD)"


def row(**changes: object) -> Row:
    return msgspec.structs.replace(BERT, **changes)


@pytest.mark.parametrize(
    ("framework", "task", "precision", "name", "implementation"),
    [
        ("TensorFlow 1 (Horovod, XLA)", "train", "fp32", "lamb", None),
        ("TensorFlow 1 (Horovod, XLA)", SQUAD, "fp32", "adamw", None),
        ("PyTorch (apex DDP)", SQUAD, "fp16", "adamw", None),
        ("PyTorch (apex DDP)", SQUAD, "tf32", "adamw", "for-loop"),
    ],
)
def test_fine_tuning_is_by_adam(framework: str, task: str, precision: str, name: str, implementation: str | None) -> None:
    found = optimizer_of(row(framework=framework, task=task), precision)
    assert (found.name, found.implementation) == (name, implementation)


def test_images_without_a_word_are_trained_with_momentum() -> None:
    assert optimizer_of(row(model_name="ResNet-50", model_type="cnn", optimizer=""), "fp16").name == "momentum"
    assert optimizer_of(row(model_name="ResNet-50", model_type="cnn", optimizer="AdamW"), "fp16").name == "adamw"


@pytest.mark.parametrize(
    ("said", "name", "noted"),
    [("Lion", "lion", False), ("decoupled_lionw", "lion", False), ("LARS", "lars", False), ("SGD (LARS)", "lars", False),
     ("RMSprop", "momentum", True), ("SGD + momentum", "momentum", False), ("novograd", "momentum", True), ("", "momentum", False)],
)  # fmt: skip
def test_words_of_optimizers_are_the_plans_own_or_are_noted(said: str, name: str, noted: bool) -> None:
    assumed: list[str] = []
    found = row(model_name="ResNet-50", model_type="cnn", optimizer=said)
    assert optimizer_of(found, "fp16", assumed).name == name
    assert assumed == ([f"optimizer {said!r} taken as SGD with momentum"] if noted else [])


@pytest.mark.parametrize(
    ("model", "framework", "said", "name"),
    [
        ("Kimi-K2", "Megatron-Bridge / Megatron-Core", "adam", "muon"),  # the table's word for all models of this framework
        ("Kimi-K2", "Megatron-LM", "adam", "adamw"),
        ("Moonlight-16B-A3B", "Megatron-LM", "", "muon"),
        ("DeepSeek-V3", "Megatron-Bridge / Megatron-Core", "adam", "adamw"),
        ("Llama-3-8B", "torchtitan", "Muon", "muon"),
    ],
)
def test_models_and_rows_that_train_by_muon(model: str, framework: str, said: str, name: str) -> None:
    found = row(model_name=model, model_type="moe (MLA)", framework=framework, optimizer=said, task="pretrain")
    assert optimizer_of(found, "bf16").name == name


@pytest.mark.parametrize(
    ("task", "precision", "framework", "xla"),
    [
        (SQUAD, "fp32", "TensorFlow 1 (Horovod, XLA)", False),
        (SQUAD, "tf32", "TensorFlow 1 (Horovod, XLA)", True),
        (SQUAD, "mixed fp16 (AMP)", "TensorFlow 2 (Horovod, XLA)", True),
        ("train", "fp32", "TensorFlow 2 (Horovod, XLA)", True),
        (SQUAD, "fp32", "PyTorch (apex DDP)", None),
        ("pretrain", "fp8", "MaxText (JAX, XLA)", True),
        ("pretrain", "fp8", "Paxml (JAX, XLA)", None),
    ],
)
def test_fp32_is_tuned_without_xla(task: str, precision: str, framework: str, xla: bool | None) -> None:
    assert compiled(row(task=task, precision=precision, framework=framework)) is xla
    if xla is not None and "TensorFlow" in framework:
        assert case_of(row(task=task, precision=precision, framework=framework)).plan.compile is xla


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({}, "tf1-horovod"),
        ({"nodes": 4, "gpus": 64}, "tf1-horovod-cuda10"),
        ({"source_id": "dlperf-v1", "framework_version": "report v1.0"}, "tf1-horovod-cuda10"),
        ({"framework": "OneFlow 0.2"}, "oneflow-bert"),
        ({"framework": "OneFlow 0.2", "model_name": "ResNet-50", "model_type": "cnn"}, "oneflow"),
        ({"source_id": "dlperf-v1", "model_name": "ResNet-50", "model_type": "cnn"}, "tf1-horovod"),
    ],
)
def test_containers_of_static_graphs(changes: dict[str, object], framework: str) -> None:
    assert framework_of_row(row(**changes), []) == framework


@pytest.mark.parametrize(
    ("framework", "vocab"), [("PyTorch (apex DDP)", 30528), ("TensorFlow 1 (Horovod, XLA)", 30522), ("OneFlow 0.2", 30522)]
)
def test_only_the_scripts_in_pytorch_pad_the_vocabulary(framework: str, vocab: int) -> None:
    assert model_of(row(framework=framework), [])["vocab"] == vocab


@pytest.mark.parametrize(("nodes", "machine"), [(1, "dgx2-v100"), (4, "4x dgx2h-v100:16")])
def test_clusters_of_dgx_2_were_of_dgx_2h(nodes: int, machine: str) -> None:
    assert machine_of(row(nodes=nodes, gpus=16 * nodes), [])[0] == machine


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"gpu": "H100"}, "pytorch"),  # no PyTorch before 2.0 was built for it
        ({"gpu": "L40"}, "pytorch"),
        ({"gpu": "RTX PRO 6000"}, "pytorch"),
        ({"gpu": "A40"}, "pytorch-apex-ddp"),
        ({"gpu": "A100", "framework": "PyTorch 2.3"}, "pytorch"),
        ({"gpu": "V100", "framework_version": "PyTorch 1.5"}, "pytorch-apex-ddp"),
        ({"gpu": "H100", "source_id": "nv-dle"}, "pytorch-apex-jit"),
    ],
)
def test_an_undated_row_is_as_old_as_its_release_or_its_gpu(changes: dict[str, str], framework: str) -> None:
    """Before 2021 the vocabulary's scores of every token were computed, and attention written out."""
    undated = row(**{"framework": "PyTorch (DDP)", "framework_version": "", "date": "", "precision": "fp16", "system": ""} | changes)
    plan = case_of(undated).plan
    assert isinstance(plan.model, dict) and plan.framework == framework
    assert plan.model["predictions"] == (128 if framework == "pytorch-apex-ddp" else 20)


@pytest.mark.parametrize(("date", "framework", "update"), [("2021-11", "pytorch-apex-squad", "for-loop"), ("2024-05", "pytorch", None)])
def test_squad_in_pytorch_2_is_tuned_as_any_model(date: str, framework: str, update: str | None) -> None:
    tuned = row(
        framework="PyTorch (DDP)", framework_version="", task=SQUAD, precision="bf16", gpu="A100", system="", gpus=8, gpus_per_node=8
    )
    plan = case_of(msgspec.structs.replace(tuned, date=date)).plan
    assert (plan.framework, plan.optimizer.implementation) == (framework, update)


@pytest.mark.parametrize(
    ("changes", "framework"),
    [
        ({"task": "finetune GLUE MNLI", "date": "2024-05"}, "pytorch"), ({"task": "fine-tuning IMDB", "date": "2020-05"}, "pytorch"), ({"task": "glue", "framework": "HF Trainer", "date": ""}, "pytorch-amp"),
        ({"task": "pretrain", "framework": "HF Trainer", "date": ""}, "pytorch-amp"), ({"task": "pretrain", "date": "2024-05"}, "pytorch"), ({"task": "pretrain", "date": "2020-05"}, "pytorch-apex-ddp"),
        ({"task": "pretrain", "date": "2023-05", "source_id": "nv-dle"}, "pytorch-apex-jit"), ({"task": "glue", "date": "2020-05", "source_id": "nv-dle"}, "pytorch"),
    ],
)  # fmt: skip
def test_nvidias_script_is_of_pretraining(changes: dict[str, str], framework: str) -> None:
    told = {
        "framework": "PyTorch",
        "framework_version": "",
        "source_id": "",
        "source": "",
        "gpu": "A100",
        "precision": "fp16",
        "sharding": "DDP",
    }
    assert framework_of_row(row(**(told | changes)), []) == framework
