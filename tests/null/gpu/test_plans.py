"""The table of GPU plans: enough of every kind, lawful programs, and tiny twins of the same shape. No torch, no timing."""

from __future__ import annotations

import pytest

from executor.validation.gpu_plans import fewer_layers, node, shared, shrunk, single
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.predict import predict
from sim.setting.bind import model_of, network_of
from sim.work import Gemm, row_alignment

ALL = single() | node(8) | shared()
PLANS = {name: load_plan(tree | {"name": name}) for name, (_, tree) in ALL.items()}


def test_every_kind_that_was_asked_for() -> None:
    kinds = {kind for kind, _ in ALL.values()}
    assert len(single()) >= 15
    assert {
        "GPT-2", "slice of Llama", "BERT", "ResNet-50", "launch-bound", "copy beside compute", "pageable copy", "sync points", "checkpoints",
        "FSDP2 on one rank", "gloo, 2 ranks on one GPU", "DDP", "FSDP2",
    } <= kinds  # fmt: skip
    assert {"gpt2-124m", "gpt2-1.5b", "llama3-8b-4", "llama3.2-1b-8"} <= ALL.keys()


def test_one_gpu_has_no_plans_for_several_and_no_plan_needs_more_than_there_are() -> None:
    assert node(1) == {}
    for gpus in (2, 3, 4, 8):
        assert all(load_plan(tree).world <= gpus for _, tree in node(gpus).values())
    assert all(load_plan(tree).world == 1 for _, tree in single().values())


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_becomes_a_lawful_program(name: str) -> None:
    plan = PLANS[name]
    habits = framework_of(plan)
    verify(lower(plan, network_of(plan, habits), habits, "cuda", 2))


@pytest.mark.parametrize("name", PLANS)
def test_a_tiny_twin_has_the_same_split_input_and_output(name: str) -> None:
    plan, tiny = PLANS[name], load_plan(shrunk(ALL[name][1]) | {"name": name})
    assert (tiny.parallel, tiny.data, tiny.output, tiny.memory, tiny.optimizer) == (
        plan.parallel, plan.data, plan.output, plan.memory, plan.optimizer,
    )  # fmt: skip
    assert tiny.microbatches == plan.microbatches and tiny.precision == "fp32"
    assert type(model_of(tiny)) is type(model_of(plan))
    habits = framework_of(tiny)
    assert network_of(tiny, habits).parameters < 2e6 or name == "resnet50"
    verify(lower(tiny, network_of(tiny, habits), habits, "cpu", 2))


def test_rows_that_matrix_units_do_not_take_are_one_plans_alone() -> None:
    odd = set()
    for name, plan in PLANS.items():
        network = network_of(plan, framework_of(plan))
        program = lower(plan, network, framework_of(plan), "cuda", 1)
        works = {work for ops in program.segments.values() for op in ops for work in op.works if isinstance(work, Gemm)}
        if any(row_alignment(work) < 16 for work in works if work.dtype == "bf16"):
            odd.add(name)
    assert odd == {"odd-vocabulary", "bert-base", "bert-large"}, "BERT's 30,522 words are an even number"


@pytest.mark.no_cover
def test_single_plans_fit_into_80_gb_as_they_are() -> None:
    for name in single():
        found = predict(PLANS[name], "dgx-h100", fold=True)
        assert found.peak_memory_bytes < 0.85 * 80e9, name
        assert 1e-3 < found.step_time_s < 1.0, name


def test_halving_layers_ends() -> None:
    plan, counts = PLANS["gpt2-1.5b"], []
    while (smaller := fewer_layers(plan)) is not None:
        plan = smaller
        counts.append(model_of(plan).layers)  # type: ignore[union-attr]
    assert counts == [24, 12, 6, 3, 1]
    assert plan.model_name == "gpt2-1.5b padded x 1 layers"
    assert fewer_layers(PLANS["resnet50"]) is None
    stages = PLANS["1f1b"]
    halved = fewer_layers(stages)
    assert halved is not None and fewer_layers(halved) is None, "two stages need two layers"
