"""Memory: measured peaks, closed forms of ZeRO and of the schedules, and remedies that do fit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.framework.framework import Framework, load_framework
from sim.memory.remedies import changes, said
from sim.memory.report import DoesNotFit, MemoryReport, memory_of, memory_of_stages
from sim.model import Network, Shape, describe, load_model
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import ModelSpec
from sim.model.stages import in_flight, layout
from sim.plan import Plan
from sim.predict import predict
from sim.result.figures import figures_of_memory
from sim.sections import Batch, Memory, Optimizer, Parallel
from sim.setting.bind import bind
from sim.setting.rooms import rooms, smallest_devices
from topologies.errors import BadInput
from topologies.hardware import Gpu
from topologies.units import show_size

GIB = 2**30
PLAIN = Framework(name="plain", source="test").but(precision={"param_dtype": "bf16", "grad_dtype": "bf16"})
MEGATRON = load_framework("megatron-lm").but(loss={"fused": True})


def cut(name: str, layers: int, **more: object) -> ModelSpec:
    spec = load_model(name)
    assert isinstance(spec, Decoder)
    return replace(spec, layers=layers, **more)


MODELS = {
    "70b": cut("llama3-70b", 12),
    "405b": cut("llama3.1-405b", 4, kv_heads=16),
    "v2": cut("deepseek-v2", 4),
    "v3": cut("deepseek-v3", 4, first_dense=1),
}

# SimuMax v1.2, Megatron-LM on one node of 8 x B200, one sequence of bf16 per micro-batch, distributed optimizer, fused
# cross-entropy: torch's peak of allocated memory, in GiB.
# model, seq, tp, pp, cp, ep, dp, micro-batches, measured
SIMUMAX = [
    ("70b", 4096, 1, 2, 1, 1, 4, 8, 66.55),
    ("70b", 4096, 2, 1, 1, 1, 4, 8, 60.68),
    ("70b", 4096, 8, 1, 1, 1, 1, 8, 28.29),
    ("70b", 32768, 2, 1, 4, 1, 1, 4, 68.43),
    ("70b", 32768, 1, 1, 8, 1, 1, 4, 104.51),
    ("70b", 131072, 2, 1, 4, 1, 1, 4, 112.67),
    ("70b", 131072, 1, 1, 8, 1, 1, 4, 147.99),
    ("405b", 4096, 1, 2, 1, 1, 4, 4, 87.08),
    ("405b", 4096, 2, 1, 1, 1, 4, 4, 81.59),
    ("405b", 4096, 8, 1, 1, 1, 1, 4, 38.57),
    ("405b", 32768, 1, 1, 8, 1, 1, 4, 139.22),
    ("v2", 4096, 1, 1, 1, 8, 8, 4, 45.63),
    ("v2", 4096, 1, 2, 1, 4, 4, 4, 44.70),
    ("v3", 4096, 1, 1, 1, 8, 8, 4, 104.30),
    ("v3", 4096, 1, 2, 1, 4, 4, 4, 114.00),
]


def report(row: tuple[str, int, int, int, int, int, int, int, float]) -> MemoryReport:
    name, seq, tp, pp, cp, ep, dp, micros, _ = row
    # cp alone shards the optimizer too: the distributed optimizer's group is dp x cp
    parallel = Parallel(dp_shard=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=1)
    plan = Plan(model="x", framework="megatron-lm", seq_len=seq, parallel=parallel, batch=Batch(global_=micros * dp, micro=1))
    shape = Shape(micro=1, seq=seq, tp=tp, sequence_parallel=tp > 1, cp=cp, ep=ep)
    return memory_of(plan, describe(MODELS[name], shape, MEGATRON), MEGATRON)


def test_measured_peaks_of_megatron_on_b200() -> None:
    errors = [abs(report(row).allocated / GIB / row[-1] - 1) for row in SIMUMAX]
    assert sum(errors) / len(errors) < 0.015
    assert max(errors) < 0.04


def llama(plan: Plan, framework: Framework = PLAIN) -> MemoryReport:
    return memory_of(plan, describe(load_model("llama3.2-1b"), Shape(micro=plan.batch.micro, seq=1024), framework), framework)


@pytest.mark.parametrize(
    ("zero", "parameters", "gradients", "optimizer"), [(0, 1, 1, 1), (1, 1, 1, 1 / 8), (2, 1, 1 / 8, 1 / 8), (3, 1 / 8, 1 / 8, 1 / 8)]
)
def test_zero_divides_what_it_names(zero: int, parameters: float, gradients: float, optimizer: float) -> None:
    """Rajbhandari et al. 2020, figure 1, with bf16 parameters, gradients and Adam states."""
    psi = 1_235_814_400
    found = llama(Plan(model="llama3.2-1b", batch=Batch(global_=16), parallel=Parallel(dp_shard=8, zero=zero)))  # type: ignore[arg-type]
    assert (found.parameters, found.gradients, found.optimizer) == (2 * psi * parameters, 2 * psi * gradients, 4 * psi * optimizer)


def test_mixed_precision_takes_16_bytes_a_parameter() -> None:
    mixed = PLAIN.but(precision={"master": True, "grad_dtype": "bf16"})
    found = llama(Plan(model="llama3.2-1b", batch=Batch(global_=2)), mixed)
    assert found.parameters + found.gradients + found.optimizer == 16 * 1_235_814_400
    assert llama(Plan(model="llama3.2-1b", optimizer=Optimizer(name="sgd"))).optimizer == 0


def test_recomputation_keeps_less_and_works_more() -> None:
    def run(how: str) -> MemoryReport:
        return llama(Plan(model="llama3.2-1b", batch=Batch(micro=4), memory=Memory(recompute=how)))  # type: ignore[arg-type]

    none, selective, full = run("none"), run("selective"), run("full")
    assert none.activations > selective.activations > full.activations
    layers, head = 16 * 4 * 1024 * 2048 * 2, full.activations - 16 * 4 * 1024 * 2048 * 2
    assert full.activations == layers + head and head > 0
    assert full.working >= none.working


@pytest.mark.parametrize(
    ("schedule", "chunks", "expected"),
    [
        ("gpipe", 1, [(16,)] * 4),
        ("1f1b", 1, [(4,), (3,), (2,), (1,)]),
        ("zb-h1", 1, [(4,)] * 4),
        ("interleaved", 2, [(7, 4), (5, 4), (4, 3), (4, 1)]),
        ("looped-bfs", 2, [(16, 16)] * 4),
        ("zb-h1", 2, [(4, 4)] * 4),
        ("zb-v", 1, [(7, 1), (6, 2), (5, 3), (4, 4)]),
    ],
)
def test_micro_batches_in_flight(schedule: str, chunks: int, expected: list[tuple[int, ...]]) -> None:
    parallel = Parallel(pp=4, schedule=schedule, virtual_stages=chunks)  # type: ignore[arg-type]
    plan = Plan(model="x", parallel=parallel, batch=Batch(global_=16))
    assert [in_flight(plan, rank) for rank in range(4)] == expected


def test_stages_hold_every_block_once() -> None:
    network = describe(load_model("llama3-8b"), Shape(micro=1, seq=128), PLAIN)
    plan = Plan(model="x", parallel=Parallel(pp=4, stages=(7, 9, 9, 7)), batch=Batch(global_=4))
    stages = layout(network, plan)
    assert [name for stage in stages for name, _ in stage] == [name for name, _ in network.blocks]
    assert [len(stage) for stage in stages] == [8, 9, 9, 8]
    bare = layout(network, Plan(model="x", parallel=Parallel(pp=4, stages=(0, 16, 16, 0)), batch=Batch(global_=4)))
    assert [[name for name, _ in stage][:1] for stage in bare] == [["embed"], ["L0"], ["L16"], ["head"]]
    with pytest.raises(BadInput, match="do not make 64 stages"):
        layout(network, Plan(model="x", parallel=Parallel(pp=64), batch=Batch(global_=64)))


def test_what_does_not_fit_says_what_would() -> None:
    network: Network = describe(load_model("llama3-8b"), Shape(micro=2, seq=8192), PLAIN)
    device = Gpu(name="x", arch="sm90", flops={}, memory=80 * GIB, bandwidth=1.0, l2=1, sms=1, clock=1.0)
    plan = Plan(model="llama3-8b", batch=Batch(micro=2), parallel=Parallel(dp_shard=8, zero=1))
    fit = memory_of(plan, network, PLAIN, device).check(device)
    assert isinstance(fit, DoesNotFit)
    assert fit.needed > fit.available == 80 * GIB
    assert fit.remedies and any("recompute" in text for text in fit.remedies) and len(fit.remedies) <= 3, fit.remedies
    assert "Fits with" in str(fit)
    unsought = memory_of(plan, network, PLAIN, device, remedies=False).check(device, remedies=False)
    assert "ange" not in str(unsought), "nobody looked for a change that helps: it is not said that there is none"
    roomy = replace(device, memory=4000 * GIB)
    assert memory_of(plan, network, PLAIN, roomy).check(roomy) is None


@pytest.mark.parametrize(
    ("model", "shard", "micro", "gib"),
    [("llama3-70b", 8, 2, 80), ("llama3-70b", 1, 1, 80), ("llama3.1-405b", 8, 1, 192), ("gpt3-13b", 1, 4, 40)],
)
def test_even_what_is_far_too_large_has_three_ways(model: str, shard: int, micro: int, gib: int) -> None:
    network = describe(load_model(model), Shape(micro=micro, seq=4096), PLAIN)
    device = Gpu(name="x", arch="sm90", flops={}, memory=gib * GIB, bandwidth=1.0, l2=1, sms=1, clock=1.0)
    plan = Plan(model=model, batch=Batch(micro=micro), parallel=Parallel(dp_shard=shard, zero=3 if shard > 1 else None))
    fit = memory_of(plan, network, PLAIN, device).check(device)
    assert isinstance(fit, DoesNotFit) and fit.remedies
    assert len(fit.remedies) == 3, fit.remedies
    assert len(set(fit.remedies)) == 3
    sizes = [float(text.rpartition("(")[2].split()[0]) for text in fit.remedies]
    assert all(0 < size <= gib for size in sizes), fit.remedies


def test_a_sequence_that_is_too_long_for_a_rank_is_shared() -> None:
    """Its logits alone fill a device: no sharding, recomputation or offloading makes them smaller. What is said is what the plan then takes."""
    plan = {"model": "llama3-8b", "seq_len": 131072, "parallel": {"dp_shard": 8, "zero": 3}, "memory": {"recompute": "full"}}
    missing = figures_of_memory(bind(plan, "2x dgx-h100"))[1]
    assert missing is not None and missing.remedies
    first = missing.remedies[0]
    assert first.startswith("parallel.cp = ") and "GPUs" not in first
    assert any(text.startswith("16 GPUs with parallel.cp = 16, parallel.dp_shard = 1 (") for text in missing.remedies)
    ways = tuple(way.strip() for way in first.partition("(")[0].split(","))
    report, still = figures_of_memory(bind(load_plan(plan, ways), "2x dgx-h100"))
    assert still is None and first.endswith(f"({show_size(report.peak)})")


def test_what_would_fit_is_a_plan_that_can_be_predicted() -> None:
    """CLIP's loss compares all samples of a batch: micro-batches, which were proposed first, are refused."""
    plan = {"model": "clip-vit-l-14", "framework": "pytorch-amp", "batch": {"global": 4096, "micro": 512}, "parallel": {"dp_replicate": 8}}
    missing = figures_of_memory(bind(plan, "dgx-h100"))[1]
    assert missing is not None and missing.remedies
    for way in missing.remedies:
        changes_ = re.split(r", (?=\w+\.)| and ", re.sub(r"^\d+ GPUs with | \([^()]*\)$", "", way))
        report, still = figures_of_memory(bind(load_plan(plan, tuple(changes_)), "2x dgx-h100"))
        assert still is None and show_size(report.peak) in way, way


def test_ranks_that_share_sequences_shard_too() -> None:
    plan = {"model": "llama3-8b", "seq_len": 32768, "parallel": {"cp": 8, "zero": 0}, "memory": {"recompute": "full"}}
    missing = figures_of_memory(bind(plan, "dgx-h100"))[1]
    assert missing is not None and missing.remedies and missing.remedies[0].startswith("parallel.zero = 1 (")


def test_each_stage_is_held_against_its_own_devices() -> None:
    parallel = Parallel(pp=2, dp_shard=8, zero=1, stages=(22, 10))
    plan = Plan(model="llama2-7b", framework="megatron-core", seq_len=4096, parallel=parallel, batch=Batch(global_=64))
    roomy, tight = bind(plan, "dgx-h100 + dgx-a100-40gb"), bind(plan, "dgx-a100-40gb + dgx-h100")
    assert [device.name[:4] for device in smallest_devices(roomy)] == ["h100", "a100"]
    report, fit = figures_of_memory(roomy)
    assert fit is None and report.stage == 0 and report.peak > 50 * GIB
    least, lacking = figures_of_memory(tight)
    assert isinstance(lacking, DoesNotFit) and (lacking.needed, lacking.available) == (least.peak, smallest_devices(tight)[0].memory)
    assert least.allocated == report.allocated and least.slack < report.slack  # what can be given back is not needed
    assert rooms(roomy, (0, 7, 8)) == {rank: smallest_devices(roomy)[rank // 8].memory for rank in (0, 7, 8)}
    deep = replace(plan, parallel=replace(parallel, pp=4, stages=None), model="llama2-13b")
    uneven = bind(deep, "dgx-a100-40gb + 2x dgx-h100 + dgx-a100-40gb")
    each = memory_of_stages(uneven.plan, uneven.network, uneven.framework, smallest_devices(uneven))
    fullest = max(each, key=lambda one: one.peak / smallest_devices(uneven)[one.stage].memory)
    assert figures_of_memory(uneven, remedies=False)[0] == fullest and fullest.stage == 0


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (8, 1), (128, 2)])
def test_ranks_of_a_cpu_host_share_its_memory(ranks: int, nodes: int) -> None:
    setting = bind(Plan(model="gpt2-124m", parallel=Parallel(dp_replicate=ranks)), f"{nodes}x cpu-host")
    topology = setting.topology
    whole = sum(cpu.memory for cpu in topology.sockets(0))
    assert smallest_devices(setting)[0].memory * ranks / nodes == pytest.approx(whole)
    peak = figures_of_memory(setting)[0].peak
    small = bind(setting.plan, f"{nodes}x cpu-host", (f"cpu.memory={1.5 * peak * ranks / nodes / len(topology.sockets(0)):.0f} B",))
    tight = bind(setting.plan, f"{nodes}x cpu-host", (f"cpu.memory={0.9 * peak * ranks / nodes / len(topology.sockets(0)):.0f} B",))
    assert figures_of_memory(small)[1] is None
    missing = figures_of_memory(tight)[1]
    assert missing is not None, "each rank alone would fit, all together do not"
    assert not any("GPUs" in way or "offload" in way for way in missing.remedies or ())


def test_changes_leave_the_rest_of_the_plan_alone() -> None:
    plan = Plan(model="x", batch=Batch(micro=4), parallel=Parallel(dp_replicate=4), optimizer=Optimizer(name="sgd"))
    for change in changes(plan):
        assert (change.plan.optimizer, change.plan.batch.micro, change.plan.model) == (plan.optimizer, 4, "x")
        assert 0 < change.scale <= 1
        assert change.plan.microbatches * change.scale == plan.microbatches
    texts = [change.text for change in changes(plan)]
    assert len(texts) == len(set(texts))
    assert texts[:3] == [f"parallel.dp_shard = 4, parallel.dp_replicate = 1, parallel.zero = {level}" for level in (1, 2, 3)], (
        "what costs least time comes first"
    )


def test_what_a_framework_does_unasked_is_no_change() -> None:
    """torchtitan shards over dp_shard unless told otherwise: "zero = 3" changed nothing, and stood in every remedy."""
    for framework, texts in (("torchtitan", []), ("megatron-core", ["parallel.zero = 2", "parallel.zero = 3"])):
        plan = Plan(model="x", framework=framework, parallel=Parallel(dp_shard=4))
        found = [change.text for change in changes(said(plan, framework_of(plan)))]
        assert [text for text in found if text.startswith("parallel.zero") and "and" not in text] == texts
        assert ("8 GPUs with parallel.dp_shard = 8" in found[-6]) and ("zero" in found[-6]) == bool(texts)
    alone = Plan(model="x", framework="torchtitan")
    assert said(alone, framework_of(alone)) is alone


def test_forward_alone_keeps_nothing() -> None:
    found = llama(Plan(model="llama3.2-1b", task="forward"))
    assert (found.gradients, found.optimizer, found.activations) == (0, 0, 0)


def test_autocast_copies_are_counted() -> None:
    plan = Plan(model="gpt2-124m", framework="pytorch", precision="fp16")
    framework = framework_of(plan).but(precision={"autocast": True})
    network = describe(load_model("gpt2-124m"), Shape(micro=1, seq=256, precision="fp16"), framework)
    found = memory_of(plan, network, framework)
    assert found.parameters == 4 * 124_439_808
    assert found.gathered == 2 * 12 * (12 * 768**2 + 9 * 768)  # weights and biases of the layers' linears


@pytest.mark.parametrize(("recompute", "layers", "whole"), [("none", 0, 4), ("full", 2, 2), ("full", 0, 0)])
def test_autocast_keeps_no_copies_of_frozen_weights_whose_layers_run_again(recompute: str, layers: int, whole: int) -> None:
    """Its cache takes trained weights alone; of frozen ones autograd keeps what a gradient goes through. Of layers that run again the largest linear's
    copy lives."""
    model = {"base": "llama3-8b", "layers": 4}
    memory = {"recompute": recompute, "recompute_layers": layers}
    plan = {"model": model, "seq_len": 512, "framework": "pytorch-amp", "task": "lora", "memory": memory}
    found = bind(plan, "dgx-h100")
    linears = [part for part in dict(found.network.blocks)["L1"].parts if part.cls == "gemm"]
    frozen, adapters = (sum(part.params for part in linears if part.frozen == cold) for cold in (True, False))
    largest = max(part.params for part in linears if part.frozen)
    head = sum(part.params for part in dict(found.network.blocks)["head"].parts if part.cls == "gemm")
    copies = whole * frozen + 4 * adapters + head + (largest if whole < 4 else 0)
    assert memory_of(found.plan, found.network, found.framework).gathered == pytest.approx(2 * copies, rel=1e-3)


@pytest.mark.parametrize(("name", "precision", "each"), [
    ("megatron-core", "bf16", 0), ("megatron-core", "fp8", 2), ("megatron-core", "nvfp4", 1), ("megatron-bridge", "mxfp8", 0), ("megatron-bridge", "nvfp4", 1),
    ("torchtitan", "fp8", 0),
])  # fmt: skip
def test_narrow_operands_of_weights_are_kept_beside_them(name: str, precision: str, each: int) -> None:
    """Both ways; the head and the table stay in 16 bits. Recipes of Megatron-Bridge keep the weights themselves in 8 bits."""
    model = cut("llama3-8b", 4)
    found = {}
    for how in ("bf16", precision):
        framework = load_framework(name)
        plan = Plan(model="llama3-8b", framework=name, precision=how)  # type: ignore[arg-type]
        network = describe(model, Shape(micro=1, seq=1024, precision=how), framework)
        found[how] = memory_of(plan, network, framework).gathered
    h, ffn, kv = 4096, 14336, 1024
    assert found[precision] - found["bf16"] == each * 4 * (2 * h * h + 2 * h * kv + 3 * h * ffn)


def test_frozen_weights_have_no_dummy_gradients() -> None:
    """TransformerEngine makes them where a weight wants a gradient: those of adapters, in rank 16."""
    plan = {"model": {"base": "llama3-8b", "layers": 4}, "seq_len": 512, "framework": "megatron-lm"}
    found = {}
    for task in ("lora", "train"):
        setting = bind(plan | {"task": task}, "dgx-h100")
        found[task] = memory_of(setting.plan, setting.network, setting.framework).gathered
    assert found["lora"] < 1 << 20 and found["train"] > 100 << 20


def test_gradients_grow_as_activations_go() -> None:
    """One micro-batch and gradients set to None between steps: never all activations beside all gradients."""
    one = llama(Plan(model="llama3.2-1b"), PLAIN.but(optimizer={"implementation": "fused"}))
    two = llama(Plan(model="llama3.2-1b", batch=Batch(global_=2)), PLAIN.but(optimizer={"implementation": "fused"}))
    assert two.gradients == 2 * 1_235_814_400
    assert one.allocated < two.allocated
    assert one.activations + one.gradients + one.working >= two.gradients


def test_recomputing_whole_layers_takes_no_more_memory() -> None:
    """A layer's gradients come as its activations go, from its last part to its first. (Its input, kept for all of that, is what may be over.)"""
    plan = {
        "model": {"base": "llama3-8b", "layers": 4},
        "seq_len": 2048,
        "batch": {"micro": 1, "global": 1},
        "parallel": {"tp": 2, "pp": 2},
    }
    peaks = []
    for recompute in ("none", "full"):
        setting = bind(plan | {"framework": "maxtext", "memory": {"recompute": recompute}}, "dgx-h100")
        peaks.append(memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0), remedies=False).peak)
    assert peaks[1] <= peaks[0] + 2048 * 4096 * 2


@pytest.mark.no_cover
def test_offloaded_inputs_of_recomputed_blocks_leave_the_device() -> None:
    """Beside a head that keeps gigabytes of logits, two neighbours hold one block's input, not a head's worth more."""
    plan = load_plan("llama3-8b-fsdp8")
    assert plan.memory.recompute == "full"
    there, gone = (
        predict(replace(plan, memory=replace(plan.memory, offload=how)), "dgx-h100").memory.allocated for how in ("none", "activations")
    )
    inputs = 31 * 8192 * 4096 * 2
    assert there - gone == pytest.approx(inputs, rel=0.1)


@pytest.mark.parametrize("update", [{"mode": "async"}, {"aggregate": "cpu"}])
def test_devices_keep_no_state_of_an_optimizer_that_runs_on_a_host(update: dict[str, str]) -> None:
    """A parameter server's worker has parameters and gradients."""
    tree = {"model": "gpt2-124m", "seq_len": 128, "precision": "fp32", "parallel": {"dp_replicate": 8}, "optimizer": {"name": "adam"}}
    own, served = (bind(load_plan(tree | {"update": said}), "dgx-h100") for said in ({}, update))
    before, after = (memory_of(s.plan, s.network, s.framework) for s in (own, served))
    assert before.optimizer == 8 * own.network.parameters and after.optimizer == 0
    assert (after.parameters, after.gradients) == (before.parameters, before.gradients)


def test_copies_become_shards_before_anything_is_offloaded_or_added() -> None:
    """Also where some share already: four copies over 32 GPUs were told to offload, or to take 128."""
    tree: dict[str, Any] = {"model": "llama3-70b", "seq_len": 8192, "framework": "torchtitan", "batch": {"global": 32, "micro": 1}}
    missing = figures_of_memory(bind(tree | {"parallel": {"dp_replicate": 4, "dp_shard": 8, "zero": 3}}, "4x dgx-h100"))[1]
    assert missing is not None and missing.remedies
    first, _, more = missing.remedies
    assert first.startswith('parallel.dp_shard = 32, parallel.dp_replicate = 1 and memory.recompute = "full" (')
    assert " 64 GPUs with parallel.dp_shard = 64, batch.global = 64 (" in more and more.count("dp_shard") == 1
    followed = tree | {"parallel": {"dp_shard": 32, "zero": 3}, "memory": {"recompute": "full"}}
    report, none = figures_of_memory(bind(followed, "4x dgx-h100"))
    assert none is None and first.endswith(f"({show_size(report.peak)})")


def test_sharding_goes_with_smaller_micro_batches_before_all_is_recomputed() -> None:
    tree: dict[str, Any] = {"model": "llama3-8b", "seq_len": 8192, "framework": "deepspeed", "batch": {"global": 16, "micro": 2}}
    missing = figures_of_memory(bind(tree | {"parallel": {"dp_replicate": 8, "zero": 1}}, "dgx-h100"))[1]
    assert missing is not None and missing.remedies
    assert missing.remedies[0].startswith("parallel.dp_shard = 8, parallel.dp_replicate = 1, parallel.zero = 3 and batch.micro = 1 (")


@pytest.mark.parametrize(
    ("model", "micro", "machine"), [("mpt-125m", 26, "mosaic-a100-40gb"), ("mpt-350m", 18, "mosaic-a100-40gb"), ("mpt-1b", 20, "dgx-h100")]
)
def test_micro_batches_of_mosaics_table_fit(model: str, micro: int, machine: str) -> None:
    """llm-foundry's benchmark without recomputation: flash-attention's cross entropy keeps bf16 logits, and makes their gradient beside them."""
    plan = {"model": model, "framework": "llm-foundry", "seq_len": 2048, "batch": {"micro": micro}, "parallel": {"dp_shard": 8, "zero": 3}}
    setting = bind(plan, machine)
    assert figures_of_memory(setting, remedies=False)[1] is None
    parts = [part for _, block in setting.network.blocks for part in block.parts]
    logits = micro * 2048 * 50368 * 2
    assert (parts[-1].saved - 8 * micro * 2048, parts[-1].working) == (logits, logits)


@pytest.mark.parametrize(
    ("model", "framework", "zero", "micro", "machine"),
    [
        ("llama2-13b", "megatron-core", 1, 12, "dgx-h200"),
        ("llama2-13b", "torchtitan", 1, 4, "dgx-h200"),  # two micro-batches keep their gradients until the step
        ("mixtral-8x7b", "deepspeed", 3, 4, "dgx-b200"),  # the step's own tensors know no samples
        ("llama3-8b", "pytorch", 3, 15, "dgx-h100"),  # 7 sequences do not divide 15
    ],
)
def test_smaller_micro_batches_need_what_is_said_of_them(model: str, framework: str, zero: int, micro: int, machine: str) -> None:
    tree: dict[str, Any] = {"model": model, "framework": framework, "seq_len": 4096, "parallel": {"dp_shard": 8, "zero": zero}}
    missing = figures_of_memory(bind(load_plan(tree | {"batch": {"micro": micro, "global": 8 * micro}}), machine))[1]
    assert missing is not None
    ways = [text.split(" (") for text in missing.remedies or () if "batch.micro = " in text and "GPUs" not in text]
    for words, size in ways:
        changed = tree | {"batch": {"global": 8 * micro}, "parallel": dict(tree["parallel"]), "memory": {}}
        for one in words.split(" and "):
            key, _, value = one.partition(" = ")
            table, name = key.split(".")
            changed[table][name] = int(value) if value.isdigit() else value.strip('"')
        peak, none = figures_of_memory(bind(load_plan(changed), machine))
        assert none is None and f"{show_size(peak.peak)})" == size
    assert ways
