"""Which gradients travel together, and over which ranks: limits to the byte, experts apart, nothing for groups of one."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.framework import Framework, load_framework
from sim.lower.binding import job_of
from sim.lower.blocks import lower_block
from sim.lower.data_parallel.buckets import Bucket, buckets_of, limits, rebuilds, trained
from sim.lower.job import Job
from sim.lower.template import BlockOps
from tests.null.lower.tiny import MIB, QUIET, linear, network

EXPERT = {"expert": True}
CORE = load_framework("megatron-core")


def made(*parts: Any, framework: Framework = QUIET, layers: int = 1, **plan: Any) -> tuple[Job, list[BlockOps]]:
    """A job of this plan, and its blocks."""
    net = network(layers, tuple(parts) or None)
    job = job_of(load_plan({"model": "tiny", "precision": "fp32"} | plan), net, framework, "cuda", 2)
    return job, [lower_block(job, name, block) for name, block in net.blocks]


def cut(*parts: Any, step: int = 1, framework: Framework = QUIET, **plan: Any) -> list[Bucket]:
    """The buckets of one step."""
    return buckets_of(*made(*parts, framework=framework, **plan), step)


def test_a_group_of_one_rank_sends_nothing() -> None:
    assert cut(linear()) == []
    assert len(cut(linear(), parallel={"dp_replicate": 2})) == 1


def test_frozen_parts_have_no_gradients() -> None:
    _, blocks = made(linear("a"), linear("b", frozen=True), linear("c"))
    assert [part.part.name for part in trained(blocks)] == ["c", "a"]


@pytest.mark.parametrize(
    ("bucket", "expected"), [(8, [(2,), (2,), (2,)]), (9, [(2, 2), (2,)]), (16, [(2, 2), (2,)]), (17, [(2, 2, 2)]), (25, [(2, 2, 2)])]
)
def test_a_bucket_closes_at_its_limit_to_the_byte(bucket: int, expected: list[tuple[int, ...]]) -> None:
    found = cut(linear("a", 2), linear("b", 2), linear("c", 2), parallel={"dp_replicate": 2}, comm={"bucket": f"{bucket} B"})
    assert [one.tensors for one in found] == expected


def test_each_bucket_starts_empty() -> None:
    found = cut(*(linear(f"p{i}", 2) for i in range(6)), parallel={"dp_replicate": 2}, comm={"bucket": "17 B"})
    assert [one.tensors for one in found] == [(2, 2, 2), (2, 2, 2)]


def test_buckets_are_numbered_and_know_what_completes_them() -> None:
    found = cut(linear("a", 2), linear("b", 2), parallel={"dp_replicate": 2}, comm={"bucket": "8 B"})
    assert [(one.name, one.number, one.last, one.axis, one.elements) for one in found] == [
        ("b0", 0, ("L0", "b"), "dp", 2),
        ("b1", 1, ("L0", "a"), "dp", 2),
    ]
    assert Bucket("b", "dp", (1, 2), ("L0", "a"), frozenset()).number == 0


def test_a_bucket_names_the_blocks_that_it_holds() -> None:
    job, blocks = made(linear("a", 2), layers=3, parallel={"dp_replicate": 2}, comm={"bucket": "16 B"})
    assert [sorted(one.blocks) for one in buckets_of(job, blocks, 1)] == [["L1", "L2"], ["L0", "L1"]]


def test_experts_are_averaged_over_fewer_ranks() -> None:
    plan: dict[str, Any] = {"parallel": {"dp_replicate": 4, "ep": 2}}
    found = cut(linear("dense", 2), linear("up", 2, **EXPERT), linear("down", 2, **EXPERT), **plan)
    assert [(one.name, one.axis, one.tensors, one.last) for one in found] == [
        ("b0", "dp", (2,), ("L0", "dense")),
        ("e0", "edp", (2, 2), ("L0", "up")),
    ]


def test_experts_that_nobody_shares_stay_where_they_are() -> None:
    found = cut(linear("dense", 2), linear("up", 2, **EXPERT), parallel={"dp_replicate": 4, "ep": 4})
    assert [(one.axis, one.tensors) for one in found] == [("dp", (2,))]


def test_without_expert_parallelism_experts_travel_with_the_others() -> None:
    found = cut(linear("dense", 2), linear("up", 2, **EXPERT), parallel={"dp_replicate": 2})
    assert [(one.axis, one.tensors) for one in found] == [("dp", (2, 2))]


@pytest.mark.parametrize(("zero", "dense", "experts"), [(1, "fsdp", "efsdp"), (2, "fsdp", "efsdp")])
def test_sharded_gradients_travel_over_the_sharding_group(zero: int, dense: str, experts: str) -> None:
    found = cut(linear("dense", 2), linear("up", 2, **EXPERT), parallel={"dp_shard": 4, "ep": 2, "zero": zero})
    assert [one.axis for one in found] == [dense, experts]


@pytest.mark.parametrize(
    ("framework", "plan", "step", "expected"),
    [
        (QUIET, {}, 0, (float("inf"), float("inf"))),
        (QUIET, {}, 1, (MIB, 25 * MIB)),
        (QUIET, {"comm": {"bucket": "3 MiB"}}, 0, (float("inf"), float("inf"))),
        (QUIET, {"comm": {"bucket": "3 MiB"}}, 1, (3 * MIB, 3 * MIB)),
        (QUIET, {"comm": {"overlap": False}}, 1, (float("inf"), float("inf"))),
        (QUIET, {"parallel": {"dp_shard": 64, "zero": 1}}, 0, (25 * MIB, 25 * MIB)),
        (QUIET, {"parallel": {"dp_shard": 64, "zero": 2}}, 1, (25 * MIB, 25 * MIB)),
        (CORE, {}, 0, (64_000_000 * 4, 64_000_000 * 4)),
        (CORE, {"parallel": {"dp_replicate": 8}}, 1, (40_000_000 * 4, 40_000_000 * 4)),
        (CORE, {"comm": {"bucket": "3 MiB"}}, 0, (3 * MIB, 3 * MIB)),
    ],
)
def test_limits(framework: Framework, plan: dict[str, Any], step: int, expected: tuple[float, float]) -> None:
    job, _ = made(linear(), framework=framework, **({"parallel": {"dp_replicate": 64}} | plan))
    assert limits(job, step, first_stage=True) == expected


@pytest.mark.parametrize(
    ("framework", "plan", "whole"),
    [
        (CORE, {}, True),
        (CORE, {"comm": {"bucket": "3 MiB"}}, True),
        (CORE.but(data_parallel={"bucket": 100}), {}, False),
        (QUIET, {}, False),
    ],
)
def test_megatron_cuts_the_gradients_of_the_first_stage_alone(framework: Framework, plan: dict[str, Any], whole: bool) -> None:
    """Whatever size is said; other optimizers' own buckets, and torch's, are cut on each."""
    job, _ = made(linear(), framework=framework, **({"parallel": {"dp_replicate": 64}} | plan))
    later = limits(job, 1, first_stage=False)
    assert (later == (float("inf"), float("inf"))) is whole and (whole or later == limits(job, 1, first_stage=True))


@pytest.mark.parametrize(
    ("framework", "parallel", "again"),
    [
        (QUIET, {"dp_replicate": 2}, True),
        (QUIET, {"dp_shard": 2, "zero": 1}, False),
        (CORE, {"dp_replicate": 2}, False),
        (CORE, {"dp_shard": 2, "zero": 1}, False),
    ],
)
def test_only_torchs_ddp_cuts_again(framework: Framework, parallel: dict[str, Any], again: bool) -> None:
    job, _ = made(linear(), framework=framework, parallel=parallel)
    assert rebuilds(job) is again
    assert job.flat_gradients is (framework is CORE)


def test_a_framework_cuts_its_own_buckets_from_the_first_step_on() -> None:
    parts = [linear(f"p{i}", MIB // 2) for i in range(6)]  # 2 MiB each
    horovod = QUIET.but(data_parallel={"bucket": 4})
    for step in (0, 1):
        found = cut(*parts, step=step, framework=horovod, parallel={"dp_replicate": 2})
        assert [len(one.tensors) for one in found] == [2, 2, 2]
    assert [len(one.tensors) for one in cut(*parts, step=0, parallel={"dp_replicate": 2})] == [6], "torch: one bucket in the first step"
    said = cut(*parts, framework=horovod, parallel={"dp_replicate": 2}, comm={"bucket": "2 MiB"})
    assert [len(one.tensors) for one in said] == [1] * 6, "the plan's word wins"
