"""The update: bytes, launches, and what the host reads."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.optimizers import OPTIMIZERS
from sim.program import Program
from sim.sections import Optimizer
from sim.setting.bind import bind
from sim.work import HostWork, MemoryBound
from tests.null.lower.tiny import MIB, QUIET, linear, messages, network, program, show
from topologies.errors import Refused

GPT2: dict[str, Any] = {"base": "gpt2-124m", "vocab": 50304}
"""With a vocabulary that no framework fills up."""
MIXED = QUIET.but(precision={"param_dtype": "bf16", "master": True, "grad_dtype": "fp32"})


def works(p: Program, id: str = "optimizer/step") -> list[MemoryBound]:
    return [w for op in p.segments["update"] if op.id == id for w in op.works if isinstance(w, MemoryBound)]


@pytest.mark.parametrize(
    ("name", "each"),
    [("adamw", 28), ("adam", 28), ("momentum", 20), ("sgd", 12), ("lion", 20), ("adagrad", 20), ("lars", 28), ("ademamix", 36)],
)
def test_fused_updates_move_each_tensor_once(name: str, each: int) -> None:
    """fp32 bytes per parameter: PyTorch's fused kernels read p, g and states and write all but g."""
    p = program({"optimizer": {"name": name}})
    assert sum(work.bytes for work in works(p)) == each * 2 * MIB
    assert [work.what for work in works(p)] == [name]


def test_foreach_moves_20_tensors_where_fused_moves_7() -> None:
    p = program({}, framework=QUIET.but(optimizer={"implementation": "foreach"}))
    assert sum(work.bytes for work in works(p)) == 20 * 4 * 2 * MIB
    assert len(works(p)) == 8 and {work.repeat for work in works(p)} == {1}


def test_the_for_loop_launches_for_each_tensor() -> None:
    p = program({}, network(3), QUIET.but(optimizer={"implementation": "for-loop"}))
    assert sum(work.repeat for work in works(p)) == 3 * 8
    assert sum(work.bytes for work in works(p)) == 20 * 4 * 3 * MIB
    python = works(program({}, network(3), QUIET.but(host="python", optimizer={"implementation": "for-loop"})))
    assert [work.repeat for work in python] == [1] * 24, "Python calls each"


@pytest.mark.parametrize(("flat", "zero", "handed"), [(True, 1, 100 // 4 + 1), (False, 1, 100), (True, 0, 100), (False, 3, 100)])
def test_a_rank_s_range_of_a_flat_buffer_has_its_share_of_the_tensors(flat: bool, zero: int, handed: int) -> None:
    """Megatron's distributed optimizer; FSDP2 leaves each rank a piece of every tensor."""
    framework = QUIET.but(host="python", linears={"accumulates": flat})
    parallel = {"dp_shard": 4, "zero": zero} if zero else {"dp_replicate": 4}
    p = program({"parallel": parallel, "batch": {"global": 4}}, network(100), framework)
    (host,) = (work for op in p.segments["update"] if op.id == "optimizer/tensors.host" for work in op.works)
    assert isinstance(host, HostWork) and host.count == handed


def test_many_tensors_take_many_multi_tensor_launches() -> None:
    p = program({}, network(100))
    assert [work.repeat for work in works(p)] == [5], "400 MiB: 104.9 M elements in launches of 320 x 65,536"
    p = program({}, network(100, (linear(elements=10),)))
    assert [work.repeat for work in works(p)] == [3], "100 tensors of four lists, 36 a launch"
    p = program({}, network(100, (linear(elements=10),)), QUIET.but(optimizer={"implementation": "foreach"}))
    assert [work.repeat for work in works(p)] == [1, 2, 1, 2, 2, 1, 1, 3], (
        "what is written over is no list of its own: 110, 64 and 48 a launch"
    )


def test_passes_write_over_what_they_read_but_the_root() -> None:
    """torch/optim/adamw.py: mul_, lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_."""
    assert [work.what for work in works(program({}, framework=QUIET.but(optimizer={"implementation": "foreach"})))] == (
        [f"foreach_{what}" for what in ("scale_", "add_", "scale_", "add_", "sqrt", "scale_", "scale_", "add_")]
    )


def test_a_launch_has_so_many_pieces_of_tensors() -> None:
    """GPT-2's 124 M elements fill six launches of 320 pieces, and take seven: each of its small tensors is a piece (56 kernels of AdamW on H200)."""
    parts = (linear(elements=80 * 65536), *(linear(elements=768) for _ in range(2)))
    p = program({}, network(4, parts), QUIET.but(optimizer={"implementation": "foreach"}))
    assert {work.repeat for work in works(p)} == {2}, "328 pieces"
    assert {work.rows for work in works(p)} == {6} and {work.elements for work in works(p)} == {2 * 80 * 65536 + 4 * 768}


def test_a_master_copy_is_cast_back_unless_fsdp_gathers_from_it() -> None:
    kinds = [work.what for work in works(program({"precision": "bf16"}, framework=MIXED))]
    assert kinds == ["adamw", "foreach_cast"]
    sharded = program({"precision": "bf16", "parallel": {"dp_shard": 2, "zero": 3}}, framework=MIXED)
    assert [work.what for work in works(sharded)] == ["adamw"]
    assert works(sharded)[0].bytes == 28 * MIB, "half the parameters"
    low = program({"precision": "bf16"}, framework=MIXED.but(precision={"grad_dtype": "bf16"}))
    assert [work.what for work in works(low)] == ["foreach_cast", "adamw", "foreach_cast"]


def clipped(framework: Framework, parallel: dict[str, int]) -> Program:
    return program({"parallel": parallel}, framework=framework.but(optimizer={"clip": True}))


def test_clipping_sums_one_number_over_ranks_with_other_parameters() -> None:
    assert show(clipped(QUIET, {"dp_replicate": 2}).segments["update"]) == [
        "compute: optimizer/norm",
        "compute: optimizer/clip",
        "compute: optimizer/step",
    ]
    assert messages(clipped(QUIET, {"dp_shard": 2, "zero": 3, "tp": 2}))[-2:] == [("all_reduce", "fsdp", 4), ("all_reduce", "tp", 4)]


def test_megatron_reads_the_norm_on_the_host() -> None:
    p = clipped(QUIET.but(linears={"accumulates": True}), {})
    ops = {op.id: op for op in p.segments["update"]}
    assert ops["optimizer/norm.read"].blocking and ops["optimizer/norm.read"].bytes == 4
    assert show(p.segments["begin"]) == ["compute: optimizer/zero"]


@pytest.mark.parametrize(("zero", "cleared"), [(0, 3), (1, 3), (2, 0.25 + 1.0)])
def test_a_gradient_buffer_holds_this_ranks_experts_once(zero: int, cleared: float) -> None:
    """One dense linear and two of this rank's experts, 4 ranks share the dense one and 2 the experts (ep = 2); from ZeRO-2 on a shard of each."""
    experts = tuple(linear(name, expert=True) for name in ("up", "down"))
    flat = QUIET.but(linears={"accumulates": True})
    p = program({"parallel": {"dp_shard": 4, "ep": 2, "zero": zero}}, network(1, (linear(), *experts)), flat)
    (zeroed,) = [work for op in p.segments["begin"] for work in op.works]
    assert zeroed.bytes == cleared * 4 * MIB


def test_fp16_is_unscaled_and_the_host_reads_the_verdict() -> None:
    p = program({"precision": "fp16"}, framework=MIXED.but(precision={"param_dtype": "fp16"}))
    ids = [op.id for op in p.segments["update"]]
    assert ids[0] == "optimizer/unscale" and "optimizer/found-inf" in ids


def test_an_offloaded_optimizer_crosses_the_bus_both_ways() -> None:
    p = program({"memory": {"offload": "optimizer"}})
    assert show(p.segments["update"]) == [
        "compute: optimizer/gradients.record",
        "copy.d2h: optimizer/gradients.wait",
        "copy.d2h: optimizer/d2h",
        "host: optimizer/cpu",
        "copy.h2d: optimizer/h2d",
        "copy.h2d: optimizer/parameters.record",
        "compute: optimizer/parameters.wait",
    ]
    assert [op.bytes for op in p.segments["update"] if op.kind == "copy"] == [8 * MIB, 8 * MIB]
    assert p.resident["optimizer"] == 0


def test_frozen_parameters_are_neither_reduced_nor_updated() -> None:
    base = linear("base", frozen=True)
    p = program({"parallel": {"dp_replicate": 2}}, network(1, (replace(base, wgrad=()), linear("adapter", 1000))))
    assert messages(p) == [("all_reduce", "dp", 4000)]
    assert sum(work.bytes for work in works(p)) == 28 * 1000


def test_a_static_graph_has_a_kernel_for_each_operator_and_assigns_at_last() -> None:
    written = works(program({}, network(3), QUIET.but(optimizer={"implementation": "graph"})))
    assert sum(work.repeat for work in written) == 3 * 17 and sum(work.bytes for work in written) == 39 * 4 * 3 * MIB
    compiled = works(program({}, network(3), QUIET.but(compile=True, optimizer={"implementation": "graph"})))
    assert sum(work.bytes for work in compiled) == 13 * 4 * 3 * MIB, "four read, three written, three copied"
    momentum = works(program({"optimizer": {"name": "momentum"}}, framework=QUIET.but(optimizer={"implementation": "graph"})))
    assert sum(work.bytes for work in momentum) == 20 * 2 * MIB, "one operator"


def test_a_scripted_update_is_called_for_each_tensor_and_clips_by_a_norm_that_the_host_reads() -> None:
    p = program({"optimizer": {"name": "lamb"}}, network(3), QUIET.but(optimizer={"implementation": "scripted", "clip": True}))
    large = [work for work in works(p) if work.bytes > 1000]
    assert [work.repeat for work in large] == [1] * 12 and sum(work.bytes for work in large) == 12 * 4 * 3 * MIB
    assert [work.repeat for work in works(p) if work.bytes < 1000] == [10] * 3, "the trust ratio's numbers"
    assert len(works(p, "optimizer/norm")) == len(works(p, "optimizer/clip")) == 3
    assert "optimizer/norm.read" in [op.id for op in p.segments["update"]]


def test_the_loss_may_be_read_before_the_update() -> None:
    p = program({}, framework=QUIET.but(optimizer={"reads_loss": True, "clip": True}))
    ops = [op for op in p.segments["update"] if op.kind not in ("record", "wait")]
    assert [op.id for op in ops[:2]] == ["optimizer/loss.read", "optimizer/norm"]
    assert ops[0].blocking and ops[0].bytes == 4


def test_a_static_graph_updates_by_operators_or_by_one_of_its_own() -> None:
    """Bytes over those of a tensor: TensorFlow 1's Adam with decay is 14 operators and 3 assignments, Keras's one kernel after the decay's three."""

    def moved(**changes: object) -> float:
        found = works(program({}, framework=QUIET.but(optimizer={"implementation": "graph"}).but(**changes)))
        return sum(work.bytes for work in found) / (4 * 2 * MIB)

    assert moved() == pytest.approx(39)
    assert moved(optimizer={"adam_operator": True}) == 7 + 7
    assert moved(optimizer={"adam_operator": True}, compile=True) == 7
    assert moved(compile=True) == 7 + 6


@pytest.mark.parametrize(("states", "each"), [("fp32", 28), ("bf16", 20), ("fp8", 16)])
def test_moments_of_fewer_bytes(states: str, each: int) -> None:
    """Parameter and gradient fp32: 12 bytes, and two moments read and written."""
    p = program({"optimizer": {"states": states}})
    assert sum(work.bytes for work in works(p)) == each * 2 * MIB


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_memory_of_moments_of_fewer_bytes(zero: int) -> None:
    """Megatron's precision-aware optimizer: two moments of 2 or 1 bytes in place of 4."""
    split = {"dp_shard": 8, "zero": zero} if zero else {"dp_replicate": 8}
    found = []
    for states in ("fp32", "bf16", "fp8"):
        plan = load_plan({"model": GPT2, "seq_len": 1024, "framework": "megatron-core", "parallel": split, "optimizer": {"states": states}})
        system = bind(plan, "dgx-h100")
        found.append(memory_of(plan, system.network, system.framework).optimizer)
    ways, params = 8 if zero else 1, system.network.parameters
    fp32, bf16, fp8 = found
    assert fp32 - bf16 == pytest.approx(4 * params / ways, rel=1e-6) and bf16 - fp8 == pytest.approx(2 * params / ways, rel=1e-6)


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-bridge"])
def test_the_precision_aware_optimizer_keeps_what_parameters_lack(framework: str) -> None:
    """Of fp32 parameters 16 bits (store_param_remainders); gradients are read as they are, and parameters written, by the update itself."""
    plan: dict[str, Any] = {"model": GPT2, "seq_len": 64, "framework": framework, "parallel": {"dp_shard": 8, "zero": 1}}
    found = []
    for optimizer in ({}, {"states": "fp32"}):
        system = bind(load_plan(plan | {"optimizer": optimizer}), "dgx-h100")
        p = lower(system.plan, system.network, system.framework, "cuda", 1)
        ops = [op for op in p.segments["update"] if op.id in ("optimizer/main_grads", "optimizer/step")]
        kernels = [work for op in ops for work in op.works if isinstance(work, MemoryBound)]
        found.append((p.resident["optimizer"], sorted({work.what for work in kernels}), sum(work.bytes for work in kernels)))
    (whole, _, moved), (narrow, names, fewer) = found
    elements = system.network.parameters / 8
    assert whole - narrow == pytest.approx(2 * elements, rel=1e-5)
    assert names == ["adamw"], "no casts of gradients and parameters"
    gradient = 2 if framework == "megatron-bridge" else 4
    assert fewer == pytest.approx((24 + gradient) * elements, rel=1e-4), "4 + 8 bytes read and written, and a gradient"
    assert moved - fewer == pytest.approx((6 + (4 - gradient) * 4) * elements, rel=1e-4)


def test_checkpoints_of_moments_of_fewer_bytes() -> None:
    def written(states: str) -> int:
        p = program({"optimizer": {"states": states}, "output": {"checkpoint_every": 1}})
        return max(op.bytes for ops in p.segments.values() for op in ops if op.id == "output/write")

    assert written("fp32") - written("bf16") == 4 * 2 * MIB


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"optimizer": {"states": "bf16"}, "framework": "pytorch"}, 'implementation = "fused"'),
        ({"optimizer": {"states": "fp8", "name": "muon"}}, "not for Muon"),
        ({"optimizer": {"states": "fp8", "on": "cpu"}}, "a host's"),
        ({"optimizer": {"states": "fp8"}, "memory": {"offload": "optimizer"}}, "a host's"),
    ],
)
def test_moments_that_no_kernel_reads_are_refused(said: dict[str, Any], words: str) -> None:
    framework = QUIET.but(optimizer={"implementation": "foreach"}) if "framework" in said else QUIET
    with pytest.raises(Refused, match=words):
        program(said, network(1, (linear(matrices=((1024, 1024),)),)), framework)


@pytest.mark.parametrize(("name", "written", "compiled"), [("lion", 19, 9), ("adagrad", 5, 5), ("lars", 7, 7)])
def test_updates_with_one_state_in_static_graphs_and_compiled(name: str, written: int, compiled: int) -> None:
    """Tensors moved over those of the parameters: an operator of the graph's own, or written out and assigned (parameter and momentum)."""

    def moved(**changes: object) -> float:
        found = works(program({"optimizer": {"name": name}}, framework=QUIET.but(**changes)))
        return sum(work.bytes for work in found) / (4 * 2 * MIB)

    assert (moved(optimizer={"implementation": "graph"}), moved(optimizer={"implementation": "graph"}, compile=True)) == (written, compiled)
    assert moved(optimizer={"implementation": "scripted"}) == {"lars": 7}.get(name, 5)


@pytest.mark.parametrize("name", ["lion", "adagrad", "lars"])
@pytest.mark.parametrize("zero", [0, 3])
def test_one_state_in_memory_and_checkpoints(name: str, zero: int) -> None:
    split = {"dp_shard": 8, "zero": zero} if zero else {"dp_replicate": 8}
    found = []
    for which in (name, "momentum", "adam"):
        plan = load_plan({"model": "gpt2-124m", "seq_len": 128, "precision": "fp32", "parallel": split, "optimizer": {"name": which}})
        system = bind(plan, "dgx-h100")
        found.append(memory_of(plan, system.network, system.framework).optimizer)
    assert found[0] == found[1] and found[2] == pytest.approx(2 * found[0], rel=1e-6)

    def saved(which: str) -> int:
        p = program({"optimizer": {"name": which}, "output": {"checkpoint_every": 1}})
        return max(op.bytes for ops in p.segments.values() for op in ops if op.id == "output/write")

    assert saved(name) == saved("sgd") + 4 * 2 * MIB


def test_three_states_in_memory_and_checkpoints() -> None:
    """AdEMAMix keeps half as much again as Adam; where its moments are narrow, all three are."""

    def held(which: str, **more: str) -> int:
        return program({"optimizer": {"name": which, **more}}).resident["optimizer"]

    assert held("ademamix") == 12 * 2 * MIB and held("adamw") == 8 * 2 * MIB
    assert held("ademamix", states="bf16") == 6 * 2 * MIB
    narrow = works(program({"optimizer": {"name": "ademamix", "states": "bf16"}}))
    assert sum(work.bytes for work in narrow) == (3 * 4 + 2 * 3 * 2) * 2 * MIB, "parameter twice, gradient, and moments both ways"


def test_on_a_cpu_one_pass_does_for_all_tensors() -> None:
    for name, passes in (("lion", 7), ("adagrad", 5), ("lars", 7)):
        p = program({"optimizer": {"name": name}}, network(3), QUIET.but(optimizer={"implementation": "foreach"}), "cpu")
        assert len(works(p)) == passes and {work.repeat for work in works(p)} == {1}


def test_every_optimizer_that_a_plan_may_name_has_a_record_and_no_other() -> None:
    assert set(get_args(get_type_hints(Optimizer)["name"])) == set(OPTIMIZERS)
    for name, one in OPTIMIZERS.items():
        own = {"fused": one.fused != (0, 0), "loop": one.loop, "script": one.script, "graph": one.graph}
        lacking = [how for how, what in own.items() if not what]
        assert one.whole_matrices or not lacking, f"{name} has no {', '.join(lacking)}: it would update for nothing there"
        assert OPTIMIZERS[one.like].like == one.like and OPTIMIZERS[one.like].torch, f"{name} is like {one.like}, which has no kernel"
