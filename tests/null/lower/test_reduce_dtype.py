"""comm.reduce_dtype: what gradients travel in, the kernels that cast them, the buffers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.framework.framework import load_framework
from sim.lower.binding import job_of
from sim.lower.checks.verify import verify
from sim.lower.data_parallel.reduced import factors
from sim.lower.optimizer.owned import widens
from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.memory.static import static_bytes
from sim.program import Op, Program
from sim.setting.bind import bind
from sim.work import MemoryBound
from tests.null.lower.tiny import MIB, QUIET, messages, network, program, show
from topologies.errors import Refused

CASTING = QUIET.but(precision={"casts_messages": True}, data_parallel={"zero2": "layers"})


def narrowed(parallel: dict[str, Any], dtype: str, net: Any = None, device: str = "cuda", **changes: Any) -> Program:
    """As `framework_of` applies the plan's word, to a framework of the tests'."""
    how = CASTING.but(precision={"reduce_dtype": dtype}).but(**changes)
    return program({"parallel": parallel, "comm": {"reduce_dtype": dtype}}, net, how, device)


def named(p: Program, id: str, segment: str = "bwd.sync") -> Op:
    return next(op for op in p.segments[segment] if op.id == id)


def moved(op: Op) -> list[tuple[str, int, int]]:
    return [(work.what, work.read, work.written) for work in op.works if isinstance(work, MemoryBound)]


def test_a_hook_casts_a_full_bucket_and_its_sum_back_beside_the_next_message() -> None:
    p = narrowed({"dp_replicate": 2}, "bf16")
    assert messages(p) == [("all_reduce", "dp", 2 * MIB)] * 2
    assert [line for line in show(p.segments["bwd.sync"]) if "/b0" in line] == [
        "compute: grad/b0.copy",
        "compute: grad/b0.cast",
        "compute: grad/b0.full.record",
        "comm.dp: grad/b0.full.wait",
        "comm.dp: grad/b0.all_reduce",
        "comm.dp: grad/b0.summed.record",
        "comm.dp.back: grad/b0.summed.wait",
        "comm.dp.back: grad/b0.widen",
        "comm.dp.back: grad/b0.done.record",
        "compute: grad/b0.done.wait",
        "compute: grad/b0.back",
    ]
    assert moved(named(p, "grad/b0.copy")) == moved(named(p, "grad/b0.back")) == [("scale", 4 * MIB, 4 * MIB)]
    assert moved(named(p, "grad/b0.cast")) == [("cast", 4 * MIB, 2 * MIB), ("scale", 2 * MIB, 2 * MIB)]
    assert moved(named(p, "grad/b0.widen")) == [("cast", 2 * MIB, 4 * MIB)]
    verify(p)


def test_on_a_cpu_the_training_thread_pays_for_the_cast_back() -> None:
    p = narrowed({"dp_replicate": 2}, "bf16", device="cpu")
    order = [op.id for op in p.segments["bwd.sync"]]
    assert named(p, "grad/b0.widen").lane == "compute" and named(p, "grad/b0.widen").blocking
    assert order.index("grad/b0.done.wait") < order.index("grad/b0.widen") < order.index("grad/b0.back")
    assert order.index("grad/b1.all_reduce") < order.index("grad/b0.widen"), "nobody waits in the middle of backward"
    verify(p)


def test_equal_dtypes_cast_nothing() -> None:
    assert narrowed({"dp_replicate": 2}, "fp32").segments == program({"parallel": {"dp_replicate": 2}}).segments


def test_who_packs_in_what_travels_has_no_further_kernels() -> None:
    """Horovod's compression."""
    p = narrowed({"dp_replicate": 2}, "fp16", precision={"casts_messages": False})
    assert moved(named(p, "grad/b0.copy")) == [("scale", 4 * MIB, 2 * MIB)] and messages(p) == [("all_reduce", "dp", 2 * MIB)] * 2
    assert not any("cast" in line or "widen" in line for line in show(p.segments["bwd.sync"]))


@pytest.mark.parametrize("zero", [1, 2])
def test_a_scattered_bucket_is_cast_back_by_shards(zero: int) -> None:
    p = narrowed({"dp_shard": 4, "zero": zero}, "bf16", data_parallel={"zero2": "buckets"})
    assert sum(size for name, _, size in messages(p) if name == "reduce_scatter") == 4 * MIB
    widened = [op for op in p.segments["bwd.sync"] if op.id.endswith(".widen")]
    assert sum(moved(op)[0][1] for op in widened) == 4 * MIB // 4, "two bytes of two million elements, over four ranks"
    verify(p)


@pytest.mark.parametrize(("replicas", "lane"), [(1, "comm.fsdp"), (2, "comm.dp_replicate")])
def test_fsdp2_casts_the_reduced_shard_on_its_messages_lane(replicas: int, lane: str) -> None:
    p = narrowed({"dp_shard": 2, "dp_replicate": replicas, "zero": 3}, "bf16")
    scattered = [size for name, _, size in messages(p) if name == "reduce_scatter"]
    assert scattered == [2 * MIB, 2 * MIB]
    cast = named(p, "grad/L1.cast")
    assert cast.lane == lane and moved(cast) == [("cast", MIB, 2 * MIB)]
    order = [op.id for op in p.segments["bwd.sync"]]
    assert order.index("grad/L1.cast") + 1 == order.index("grad/L1.done.record")
    ends = [op.event for op in p.segments["bwd.sync"] if op.id.startswith("grad/end.")]
    assert ends == ["grad/L0.done"], "the update waits for the cast"
    room = [op.event for op in p.segments["bwd.sync"] if ".room" in op.id]
    assert room[-1] == "grad/L1.scattered", "the buffer is free before it"
    verify(p)


def test_nccl_does_not_divide_fp16() -> None:
    p = narrowed({"dp_shard": 4, "zero": 3}, "fp16")
    order = [op.id for op in p.segments["bwd.sync"]]
    assert order.index("grad/L1.full.wait") < order.index("grad/L1.divide") < order.index("grad/L1.reduce_scatter")
    assert moved(named(p, "grad/L1.divide")) == [("scale_", 2 * MIB, 2 * MIB)] and named(p, "grad/L1.divide").lane == "comm.fsdp"
    assert moved(named(p, "grad/L1.cast")) == [("scale_", MIB // 2, MIB // 2), ("cast", MIB // 2, MIB)]
    two = narrowed({"dp_shard": 2, "zero": 3}, "fp16")
    assert moved(named(two, "grad/L1.cast")) == [("cast", MIB, 2 * MIB)], "two ranks divide once"


@pytest.mark.parametrize(
    ("ranks", "found"), [(2, (2, 1)), (3, (2, 1.5)), (4, (2, 2)), (8, (4, 2)), (12, (4, 3)), (64, (8, 8)), (7, (2, 3.5))]
)
def test_division_is_shared_out_as_torch_does(ranks: int, found: tuple[float, float]) -> None:
    """_get_gradient_divide_factors of torch's _fsdp_collectives.py."""
    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"dp_shard": ranks, "zero": 3}})
    half, wide = (job_of(plan, network(), CASTING.but(precision={"reduce_dtype": dtype}), "cuda", 1) for dtype in ("fp16", "bf16"))
    assert factors(half, ranks) == found and factors(wide, ranks) == (1, 1)


def test_on_a_cpu_fsdp2s_kernels_are_the_training_threads() -> None:
    p = narrowed({"dp_shard": 4, "zero": 3}, "fp16", device="cpu")
    assert {named(p, f"grad/L1.{what}").lane for what in ("divide", "cast")} == {"compute"}
    verify(p)


def test_the_plans_word_wins_over_the_frameworks() -> None:
    def said(framework: str, dtype: str | None, precision: str = "bf16") -> tuple[str, str, bool]:
        comm = {} if dtype is None else {"reduce_dtype": dtype}
        plan = load_plan({"model": "gpt2-124m", "framework": framework, "precision": precision, "comm": comm})
        found = framework_of(plan)
        return found.precision.grad_dtype, found.precision.reduce_dtype, widens(plan, found, 1)

    assert said("pytorch", "fp32") == ("bf16", "fp32", False) and said("pytorch", None) == ("bf16", "bf16", False)
    assert said("pytorch", "bf16", "fp32") == ("fp32", "bf16", False)
    assert said("torchtitan", "bf16") == ("fp32", "bf16", False)
    assert said("megatron-core", "bf16") == ("bf16", "bf16", True), "the buffer's dtype is what travels; the step's gradients are made fp32"
    assert said("megatron-core", "fp32") == said("megatron-core", None) == ("fp32", "fp32", False)
    assert said("nemo", "fp32") == ("fp32", "fp32", False) and said("nemo", "bf16") == said("nemo", None) == ("bf16", "bf16", True)


@pytest.mark.parametrize("framework", ["nemo", "megatron-bridge"])
def test_narrow_gradients_become_fp32_ones_before_the_norm(framework: str) -> None:
    """Megatron-Core's _copy_model_grads_to_main_grads: four bytes more an element of the shard, which norm and clip read. (They had none by
    default, and 16 GiB less than Megatron-LM with the same dtypes for 8B on two GPUs.)"""
    split = {"dp_shard": 8, "zero": 1}
    model = {"base": "gpt2-124m", "vocab": 50304}
    setting = bind({"model": model, "seq_len": 1024, "framework": framework, "parallel": split}, "dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 1)
    ops = {op.id: op.works for op in made.segments["update"]}
    order = [name for name in ops if name in ("optimizer/main_grads", "optimizer/norm", "optimizer/clip", "optimizer/step")]
    assert order == ["optimizer/main_grads", "optimizer/norm", "optimizer/clip", "optimizer/step"]
    elements = setting.network.parameters / 8
    moved_there = [sum(work.bytes for work in ops[name] if isinstance(work, MemoryBound)) / elements for name in order]
    assert moved_there[:3] == pytest.approx([6, 4, 8], rel=1e-3)
    assert static_bytes(setting.plan, setting.network, setting.framework, (setting.network.blocks,))["step"] == pytest.approx(
        4 * elements, rel=1e-3
    )


@pytest.mark.parametrize(("framework", "dtype"), [("megatron-core", "fp16"), ("nemo", "fp16")])
def test_a_flat_buffer_is_fp32_or_as_parameters(framework: str, dtype: str) -> None:
    plan = {"framework": framework, "precision": "bf16", "parallel": {"dp_replicate": 2}, "comm": {"reduce_dtype": dtype}}
    with pytest.raises(Refused, match='Use "fp32" or "bf16"'):
        program(plan, network(), load_framework(framework).but(precision={"reduce_dtype": dtype}))


def memory(framework: str, split: dict[str, Any], dtype: str | None, **more: Any) -> Any:
    comm = {} if dtype is None else {"reduce_dtype": dtype}
    model = {"base": "gpt2-124m", "vocab": 50304}
    plan = load_plan({"model": model, "seq_len": 1024, "framework": framework, "parallel": split, "comm": comm, **more})
    system = bind(plan, "dgx-h100")
    return memory_of(plan, system.network, system.framework), system.network.parameters


def test_a_hooks_buffers() -> None:
    """DDP's first bucket holds all gradients: the hook's copy of it is as long."""
    plain, params = memory("pytorch", {"dp_replicate": 8}, None, precision="fp32")
    narrow, _ = memory("pytorch", {"dp_replicate": 8}, "bf16", precision="fp32")
    assert plain.gathered == 4 * params and narrow.gathered == 6 * params
    local, _ = memory("pytorch", {"dp_replicate": 8}, "bf16", precision="fp32", update={"mode": "local"})
    assert local.gathered == 0, "nobody sums gradients"


def test_megatrons_buffer_is_half_as_large() -> None:
    wide, params = memory("megatron-core", {"dp_replicate": 8}, None)
    narrow, _ = memory("megatron-core", {"dp_replicate": 8}, "bf16")
    assert wide.gradients - narrow.gradients == 2 * params


def test_unsharded_gradients_are_held_in_what_travels() -> None:
    split = {"dp_shard": 2, "pp": 2, "zero": 3}
    wide, _ = memory("torchtitan", split, None, batch={"global": 8})
    narrow, _ = memory("torchtitan", split, "bf16", batch={"global": 8})
    assert wide.gathered > narrow.gathered
