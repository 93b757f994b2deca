"""What is assumed of a row that must have fitted: sharding, micro-batches, recomputation, a split of the model."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.accuracy.published import published_rows
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.sizes import sizes_of
from sim.memory.report import memory_of
from sim.setting.bind import bind
from tests.null.accuracy.test_spellings import row

SILENT = {"sharding": "", "recompute": ""}


def test_replicas_larger_than_a_device_are_shared_out() -> None:
    """8 billion parameters of 16 bytes are no replica on 80 GB; adapters on 16 GB of frozen weights are, and so is what the row says."""
    shared = case_of(row(**SILENT))
    assert (shared.plan.parallel.zero, shared.plan.parallel.dp_shard) == (3, 16)
    assert "sharding not stated: ZeRO-3, for no device holds a replica" in shared.assumed
    assert sum(note.startswith("sharding") for note in shared.assumed) == 1
    trainer = case_of(row(**(SILENT | {"framework": "HF Trainer"}))).plan
    assert trainer == replace(shared.plan, framework="huggingface"), "under FSDP nothing is left in fp32 to be cast"
    assert case_of(row(**(SILENT | {"task": "LoRA"}))).plan.parallel.zero == 0
    assert case_of(row(**(SILENT | {"sharding": "DDP"}))).plan.parallel.zero == 0
    assert case_of(row(**(SILENT | {"gpu": "B300"}))).plan.parallel.zero == 0
    assert case_of(row(**(SILENT | {"n_layers": 8}))).plan.parallel.zero == 0


def test_layers_far_beyond_the_device_were_recomputed() -> None:
    long = {"seq_len": 32768, "global_batch": 16, "sharding": "FSDP"}
    full = case_of(row(recompute="", **long))
    assert full.plan.memory.recompute == "full" and "recomputation not stated: full, for it would not fit without" in full.assumed
    assert case_of(row(recompute="none", **long)).plan.memory.recompute == "none"
    assert case_of(row(recompute="", **(long | {"seq_len": 2048}))).plan.memory.recompute == "none"
    bert = {
        "model_name": "RoBERTa-large",
        "model_type": "roberta",
        "n_layers": None,
        "hidden": None,
        "seq_len": 512,
        "micro_batch": 2048,
        "global_batch": 32768,
    }
    assert case_of(row(recompute="", **bert)).plan.memory.recompute == "none"
    recipe = case_of(row(recompute="", framework="Megatron-Bridge", **long))
    assert recipe.plan.memory.recompute == "none"


def test_a_micro_batch_that_is_not_stated_fits() -> None:
    wide = {
        "model_name": "Gemma-2-9B",
        "model_type": "",
        "n_layers": None,
        "hidden": None,
        "micro_batch": None,
        "recompute": "full",
        "global_batch": 128,
    }
    case = case_of(row(**wide))
    assert case.plan.batch.micro == 4 and "micro-batch not stated: 4, for 8 would not fit" in case.assumed
    assert case_of(row(**(wide | {"micro_batch": 8}))).plan.batch.micro == 8


@pytest.mark.parametrize(("recompute", "micro"), [("full", 16), ("gradient checkpointing", 16), ("", 1), ("selective", 1)])
def test_who_gathers_parameters_for_each_micro_batch_takes_few_of_them(recompute: str, micro: int) -> None:
    """A wide model under FSDP, its layers recomputed; kept, one sample is what fits."""
    assert sizes_of(row(hidden=12288, micro_batch=None, global_batch=256, recompute=recompute), []).micro == micro


def test_fewer_samples_than_gpus_split_the_model() -> None:
    split = case_of(row(tp=None, pp=None, cp=None, global_batch=4, micro_batch=None))
    assert (split.plan.parallel.tp, split.plan.global_batch) == (4, 4)
    assert "tensor parallelism not stated: 4, for a batch of 4 on 16 GPUs" in split.assumed
    told = case_of(row(tp=1, global_batch=4))
    assert (told.plan.parallel.tp, told.plan.global_batch) == (1, 16)


def test_sums_of_each_micro_batch_are_in_no_pipeline() -> None:
    deep = {"framework": "Megatron-LM", "pp": 4, "gpus": 32, "global_batch": 64}
    case = case_of(row(sharding="ZeRO-2", **deep))
    assert case.plan.parallel.zero == 1 and any("ZeRO-2 under a pipeline" in note for note in case.assumed)
    assert case_of(row(sharding="ZeRO-2", **(deep | {"pp": 1}))).plan.parallel.zero == 2
    assert case_of(row(sharding="ZeRO-3", **(deep | {"framework": "Megatron-DeepSpeed"}))).plan.parallel.zero == 1
    assert case_of(row(sharding="FSDP", **(deep | {"framework": "torchtitan"}))).plan.parallel.zero == 3


@pytest.mark.no_cover
@pytest.mark.parametrize(("gpu", "layers"), [("GB300", 20), ("GB200", 40)])
def test_recipes_whose_activations_lie_in_host_memory_in_part_fit(gpu: str, layers: int) -> None:
    """Llama 3 70B in fp8 under Megatron-FSDP: 327 GiB with all of them on the device."""
    rows = [one for one in published_rows() if one.gpu == gpu and one.model_name == "Llama-3-70B" and one.fsdp_size and one.pp == 1]
    assert len(rows) >= 5
    for one in rows:
        case = case_of(one)
        assert (case.plan.memory.offload, case.plan.memory.offload_layers) == ("activations", layers)
        setting = bind(case.plan, case.topology, case.edits)
        device = setting.topology.device(0)
        assert memory_of(setting.plan, setting.network, setting.framework, device, remedies=False).check(device) is None
