"""DDP: whole programs of a tiny network, torch's buckets, their laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework, load_framework
from sim.lower.binding import job_of
from sim.lower.blocks import lower_block
from sim.lower.data_parallel.buckets import buckets_of
from sim.work import HostWork, MemoryBound
from tests.null.lower.tiny import MIB, QUIET, linear, messages, network, norm, program, show


def test_a_step_without_a_group_is_input_forward_backward_update() -> None:
    p = program({})
    assert [c.segment for c in p.roles["pp0"].threads["host"]] == ["input", "fwd", "bwd", "update"] * 2
    assert show(p.segments["input"]) == [
        "host: data/collate",
        "copy.h2d: data/h2d",
        "copy.h2d: data/on-device.record",
        "compute: data/on-device.wait",
    ]
    assert show(p.segments["fwd"]) == ["compute: fwd/L0.linear", "compute: fwd/L1.linear", "compute: fwd/head.loss"]
    # The first layer's input needs no gradient.
    assert show(p.segments["bwd"]) == [
        "compute: bwd/head.loss",
        "compute: bwd/L1.linear",
        "compute: wgrad/L1.linear",
        "compute: wgrad/L0.linear",
    ]
    assert show(p.segments["update"]) == ["compute: optimizer/step"]


def test_buckets_leave_beside_backward_and_are_awaited_at_its_end() -> None:
    p = program({"parallel": {"dp_replicate": 2}, "batch": {"micro": 1, "global": 4}})
    assert [c.segment for c in p.roles["pp0"].threads["host"]][:6] == ["input", "fwd", "bwd", "input", "fwd", "bwd.add.sync0"]
    assert show(p.segments["bwd.add.sync"]) == [
        "compute: bwd/head.loss",
        "compute: bwd/L1.linear",
        "compute: wgrad/L1.linear",
        "compute: wgrad/L1.linear.add",
        "compute: grad/b0.copy",
        "compute: grad/b0.full.record",
        "comm.dp: grad/b0.full.wait",
        "comm.dp: grad/b0.all_reduce",
        "comm.dp: grad/b0.done.record",
        "compute: wgrad/L0.linear",
        "compute: wgrad/L0.linear.add",
        "compute: grad/b1.copy",
        "compute: grad/b1.full.record",
        "comm.dp: grad/b1.full.wait",
        "comm.dp: grad/b1.all_reduce",
        "comm.dp: grad/b1.done.record",
        "compute: grad/b0.done.wait",
        "compute: grad/b0.back",
        "compute: grad/b1.done.wait",
        "compute: grad/b1.back",
    ]
    assert messages(p, step=0) == [("all_reduce", "dp", 8 * MIB)], "torch's first step has one bucket"
    assert messages(p, step=1) == [("all_reduce", "dp", 4 * MIB)] * 2


def test_without_overlap_all_gradients_leave_after_backward() -> None:
    p = program({"parallel": {"dp_replicate": 2}, "comm": {"overlap": False}})
    assert messages(p, step=1) == [("all_reduce", "dp", 8 * MIB)]
    ops = show(p.segments["bwd.sync"])
    assert ops.index("comm.dp: grad/b0.all_reduce") > ops.index("compute: wgrad/L0.linear")


def test_on_a_cpu_the_training_thread_runs_the_compute_lane() -> None:
    p = program({"parallel": {"dp_replicate": 2}}, device="cpu")
    ops = [op for ops in p.segments.values() for op in ops]
    assert all(op.blocking for op in ops if op.lane == "compute" and op.kind != "record")
    assert not any(op.blocking for op in ops if op.lane == "comm.dp")
    assert not any(op.lane.startswith("copy") for op in ops)


def test_eager_frameworks_spend_host_time_in_modules_autograd_and_hooks() -> None:
    eager = load_framework("pytorch")
    p = program({"parallel": {"dp_replicate": 2}}, framework=eager)
    kinds = [work.what for ops in p.segments.values() for op in ops if op.kind == "host" for work in op.works]  # type: ignore[union-attr]
    assert {"module", "autograd", "accumulate", "ddp_step", "ddp_bucket", "ddp_parameter", "optimizer", "optimizer_step"} <= set(kinds)


def _buckets(sizes: list[int], bucket: int | None, step: int = 1, framework: Framework = QUIET) -> list[tuple[int, ...]]:
    comm = {} if bucket is None else {"bucket": f"{bucket} B"}
    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"dp_replicate": 2}, "comm": comm})
    net = network(1, tuple(linear(f"p{i}", n) for i, n in enumerate(sizes)))
    job = job_of(plan, net, framework, "cuda", 2)
    blocks = [lower_block(job, name, block) for name, block in net.blocks]
    return [bucket.tensors for bucket in buckets_of(job, blocks, step)]


def test_torchs_limits_first_a_mebibyte_then_25() -> None:
    quarter = 256 * 1024  # elements of 1 MiB in fp32
    assert _buckets([quarter] * 30, None) == [(quarter,), (quarter,) * 25, (quarter,) * 4]
    assert _buckets([quarter] * 6, 2 * MIB) == [(quarter,) * 2] * 3, "a size that is said holds for the first bucket too"
    assert _buckets([quarter] * 30, 25 * MIB) == [(quarter,) * 25, (quarter,) * 5], "25 MiB is a size like others"
    assert _buckets([quarter] * 30, None, step=0) == _buckets([quarter] * 30, 2 * MIB, step=0) == [(quarter,) * 30]


@pytest.mark.parametrize("framework", ["megatron-core", "tf1-horovod", "deepspeed", "pytorch"])
def test_a_bucket_that_is_said_is_the_buckets_size_whoever_cuts(framework: str) -> None:
    """24, 25 and 26 MiB are three sizes, and none of them is the framework's own rule."""
    eighth, how = 128 * 1024, load_framework(framework)  # elements of half a MiB in fp32
    width = 2 if how.precision.grad_dtype == "bf16" else 4
    sizes = [eighth * 4 // width] * 300
    for mib in (24, 25, 26):
        assert set(map(len, _buckets(sizes, mib * MIB, framework=how)[:-1])) == {2 * mib}


def test_horovods_first_step_has_the_buckets_of_all() -> None:
    """torch's DDP alone begins with one."""
    quarter, horovod = 256 * 1024, load_framework("tf1-horovod")
    for said in (None, 2 * MIB):
        assert _buckets([quarter] * 99, said, 0, horovod) == _buckets([quarter] * 99, said, 1, horovod) != [(quarter,) * 99]


def test_a_linears_bias_is_ready_before_its_weight_and_a_norms_after() -> None:
    from msgspec.structs import replace

    net = network(1, (norm(), replace(linear(), tensors=(300, 20))))
    job = job_of(load_plan({"model": "tiny", "precision": "fp32", "parallel": {"dp_replicate": 2}}), net, QUIET, "cuda", 2)
    blocks = [lower_block(job, name, block) for name, block in net.blocks]
    assert [b.tensors for b in buckets_of(job, blocks, 1)] == [(20, 300, 8, 8)]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=20), bucket=st.integers(1, 10**7))
def test_buckets_hold_every_gradient_once_in_backward_order(sizes: list[int], bucket: int) -> None:
    for step in (0, 1):
        buckets = _buckets(sizes, bucket, step)
        assert [n for tensors in buckets for n in tensors] == sizes[::-1]
    for tensors in _buckets(sizes, bucket)[:-1]:
        assert sum(tensors) * 4 >= bucket > sum(tensors[:-1]) * 4, "a bucket closes with the gradient that fills it"


def test_megatrons_buckets_are_counted_in_elements() -> None:
    core = load_framework("megatron-core")
    big = network(4, (linear("linear", 30_000_000),))
    p = program({"parallel": {"dp_replicate": 2}, "precision": "bf16"}, big, core)
    assert messages(p) == [("all_reduce", "dp", 60_000_000 * 4)] * 2


@pytest.mark.parametrize(("grad", "reduce", "each"), [("fp32", "fp32", (4, 4)), ("bf16", "fp32", (2, 4))])
def test_copies_into_buckets_move_every_gradient_once(grad: str, reduce: str, each: tuple[int, int]) -> None:
    """And out of them as often, the other way; one kernel for each tensor."""
    framework = QUIET.but(precision={"grad_dtype": grad, "reduce_dtype": reduce})
    net = network(3, (norm(), linear("a"), linear("b", MIB // 4)))
    p = program({"parallel": {"dp_replicate": 2}, "comm": {"bucket": "3 MiB"}}, net, framework)
    elements = sum(block.params for _, block in net.blocks)
    for end, (read, written) in (("copy", each), ("back", each[::-1])):
        works = [work for op in p.segments["bwd.sync"] if op.id.startswith("grad/") and op.id.endswith(end) for work in op.works]
        kernels = [work for work in works if isinstance(work, MemoryBound)]
        assert sum(work.repeat for work in kernels) == 3 * 4 and len(kernels) > 2
        assert sum(work.read * work.repeat for work in kernels) == pytest.approx(elements * read, rel=1e-4)
        assert sum(work.written * work.repeat for work in kernels) == pytest.approx(elements * written, rel=1e-4)


def test_what_a_rank_holds_between_steps() -> None:
    """Of Megatron's mixed precision: 2 bytes of weights, 4 of gradients, 12 of Adam's states and the master copy; sharded as ZeRO says."""
    net = network(2)
    count = sum(block.params for _, block in net.blocks)
    for split, ways in (({"dp_replicate": 4}, 1), ({"dp_shard": 4, "zero": 1}, 4)):
        p = program({"parallel": split, "precision": "bf16", "batch": {"micro": 1, "global": 4}}, net, load_framework("megatron-core"))
        assert sum(p.resident.values()) == pytest.approx(count * (2 + 4 + 12 / ways), rel=1e-3)


@pytest.mark.parametrize(
    ("between", "precision", "kinds"),
    [
        ("", "fp16", ["add_"]),
        ("unscale", "fp16", ["scale", "add_"]),
        ("unscale", "fp32", ["add_"]),
        ("clip", "fp16", ["reduce", "norm", "scale", "add_"]),
        ("clip", "fp32", ["norm", "scale", "add_"]),
    ],
)
def test_what_gradients_go_through_before_they_are_added(between: str, precision: str, kinds: list[str]) -> None:
    framework = QUIET.but(optimizer={"between": between}, precision={"grad_dtype": "fp32"})
    p = program({"precision": precision, "batch": {"global": 4, "micro": 1}, "parallel": {"dp_replicate": 2}}, network(1), framework)
    found = [[w.what for w in op.works if isinstance(w, MemoryBound)] for s in p.segments.values() for op in s if op.id.endswith(".add")]
    assert found and all(one == kinds for one in found)


def test_torchs_own_operators_are_cheaper_nodes_beside_functions_in_python() -> None:
    """And what autograd does not see is none."""
    part = replace(linear("p", 64), forward=linear("p", 64).forward * 4, native=2, nodes=7, untracked=1)
    net = network(1, (part,))
    spent: dict[str, dict[str, float]] = {}
    for name in ("pytorch", "megatron-lm"):
        job = job_of(load_plan({"model": "tiny", "precision": "fp32"}), net, load_framework(name), "cuda", 2)
        ops = [op for made in lower_block(job, "L0", net.blocks[0][1]).parts for op in made.joint if op.id.endswith(".autograd")]
        spent[name] = {work.what: work.count for op in ops for work in op.works if isinstance(work, HostWork)}
    assert spent["pytorch"] == {"autograd": 3, "accumulate": 1}
    assert spent["megatron-lm"] == {"autograd": 1, "node": 7, "accumulate": 1}


def test_gradients_may_be_summed_where_they_are() -> None:
    plan = {"parallel": {"dp_replicate": 2}}
    in_place = program(plan, framework=QUIET.but(data_parallel={"packs_gradients": False}))
    assert [line for line in show(program(plan).segments["bwd.sync"]) if "copy" in line or "back" in line]
    assert not [line for line in show(in_place.segments["bwd.sync"]) if "copy" in line or "back" in line]
    assert messages(in_place) == messages(program(plan))
