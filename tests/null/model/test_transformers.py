"""transformers' models in its Trainer, with PEFT's adapters: what differs from PyTorch's own modules."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.model import Part
from sim.predict import predict
from sim.setting.bind import bind, network_of
from sim.setting.program import program_for
from topologies.errors import Refused, UnknownName

PLAN: dict[str, Any] = {"framework": "huggingface", "seq_len": 512, "precision": "bf16", "batch": {"global": 8, "micro": 1}}
MODEL = {"base": "llama3-8b", "layers": 2, "lora": {"rank": 16, "targets": ["qkv", "proj"]}}
TUNED = PLAN | {"model": MODEL, "task": "lora"}


def parts_of(tree: dict[str, Any]) -> list[Part]:
    plan = load_plan(tree)
    return [part for _, block in network_of(plan, framework_of(plan)).blocks for part in block.parts]


def test_the_host_waits_for_each_micro_batch() -> None:
    """trainer.py asks whether the loss is finite."""
    setting = bind(TUNED | {"parallel": {"dp_replicate": 2}}, "dgx-h100")
    reads = [call.step for call, op in program_for(setting, 2).ops(0) if op.id == "loss/read"]
    assert reads == [0] * 4 + [1] * 4
    quiet = {"framework": {"base": "huggingface", "optimizer": {"reads_losses": False}}}
    waits, goes_on = (predict(tree, "dgx-h100").step_time_s for tree in (TUNED, TUNED | quiet))
    assert waits > goes_on


@pytest.mark.parametrize("more", [{"parallel": {"pp": 2}}, {"task": "forward"}])
def test_no_loss_is_read(more: dict[str, Any]) -> None:
    setting = bind(PLAN | {"model": "llama3-8b"} | more, "dgx-h100")
    assert not [op for _, op in program_for(setting, 1).ops(0) if op.id == "loss/read"]


def test_adapters_are_fp32_beside_a_base_of_16_bits() -> None:
    parts = parts_of(TUNED)
    base, adapters = (sum(part.params for part in parts if part.frozen == frozen) for frozen in (True, False))
    found = predict(TUNED, "dgx-h100").memory
    assert found.parameters == 2 * base + 4 * adapters
    assert found.optimizer == 8 * adapters, "both moments"
    assert found.gathered == 2 * adapters, "autocast's copies for products"
    program = program_for(bind(TUNED | {"parallel": {"dp_replicate": 2}, "batch": {"global": 2, "micro": 1}}, "dgx-h100"), 1)
    assert sum(op.bytes for _, op in program.ops(0) if op.name == "all_reduce") == 4 * adapters


def test_each_reads_a_copy_of_its_input_in_fp32() -> None:
    """PEFT casts to it, dropout reads and writes it, autocast casts back: 20 bytes an element beside the 5 of dropout in 16 bits."""
    narrow = TUNED | {"framework": {"base": "huggingface", "precision": {"wide_adapters": False}}}
    wide, plain = ({part.name: part for part in parts_of(tree)}["attn.proj.lora"] for tree in (TUNED, narrow))
    rows, columns, weights = 512, 4096, 2 * 16 * 4096

    def moved(part: Part) -> int:
        return sum(work.read + work.written for work in part.forward if hasattr(work, "read"))

    assert moved(wide) - moved(plain) == rows * columns * (6 + 4 + 6) + weights * 6
    assert wide.saved == plain.saved


@pytest.mark.parametrize("more", [{"parallel": {"dp_shard": 8, "zero": 3}}, {"precision": "fp32"}, {"task": "finetune"}])
def test_adapters_are_as_wide_as_the_base(more: dict[str, Any]) -> None:
    """FSDP gathers one dtype; fp32 is wide already; and who trains all of a model has no adapters."""
    plan = load_plan(TUNED | more)
    assert not framework_of(plan).precision.wide_adapters
    assert not any(part.stored for part in parts_of(TUNED | more))


def test_a_model_without_the_named_linears_is_refused() -> None:
    with pytest.raises(Refused, match="nothing would be trained"):
        predict(TUNED | {"model": {"base": "mixtral-8x7b", "lora": {"targets": ["up", "down"]}}}, "dgx-h100")


@pytest.mark.parametrize("name", ["trl", "Transformers", "peft", "axolotl"])
def test_what_trains_by_it_leads_to_it(name: str) -> None:
    with pytest.raises(UnknownName, match="Did you mean huggingface or huggingface-amp"):
        predict({"model": "gpt2-124m", "framework": name}, "dgx-h100")
