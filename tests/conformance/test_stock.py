"""The lowered program sends what stock PyTorch sends: the same collectives, to the same ranks, of the same size, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.framework.chosen import framework_of
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.plan import Plan
from sim.setting.bind import network_of
from tests.conformance.fake import Message, need_fake, stock_messages
from tests.conformance.plans import GPT, LLAMA, MLP, PLANS, SPREAD, plan, title

STEPS = 2
"""DDP cuts its buckets anew after the first."""


def lowered_messages(given: Plan, rank: int) -> list[list[Message]]:
    """What `rank` of the lowered program sends and receives in each step, in the order of issue."""
    habits = framework_of(given)
    program = lower(given, network_of(given, habits), habits, "cpu", STEPS)
    verify(program)
    found: list[list[Message]] = [[] for _ in range(STEPS)]
    for call, op in program.ops(rank):
        group = program.mesh.group(op.group, rank) if op.kind in ("collective", "send", "recv") else ()
        if op.kind == "collective" and len(group) > 1:
            found[call.step].append((op.name, tuple(sorted(group)), op.bytes))
        elif group and op.kind != "collective":
            found[call.step].append((op.kind, (group[(group.index(rank) + op.peer) % len(group)],), op.bytes))
    return found


def by_lane(steps: list[list[Message]]) -> list[list[list[Message]]]:
    """Each step's collectives, and its messages of a pipeline: they have lanes of their own, and an order of their own."""
    return [[[m for m in step if (m[0] in ("send", "recv")) == piped] for piped in (False, True)] for step in steps]


def agree(given: Plan, number: int, view: Callable[[list[list[Message]]], object]) -> None:
    """On one of the ranks both send the same, as far as `view` looks."""
    need_fake()
    rank = number % given.world
    assert view(lowered_messages(given, rank)) == view(stock_messages(given, rank, STEPS))


def test_the_grid_is_wide() -> None:
    assert len(PLANS) >= 80 and len({repr(plan) for plan in PLANS}) == len(PLANS)


@pytest.mark.no_cover
@pytest.mark.parametrize("number", range(len(PLANS)), ids=[f"{i} {title(plan)}" for i, plan in enumerate(PLANS)])
def test_stock_and_program_send_the_same(number: int) -> None:
    agree(PLANS[number], number * 7, by_lane)


def by_group(steps: list[list[Message]]) -> list[dict[tuple[bool, tuple[int, ...]], list[Message]]]:
    """Each step's messages by their group: `ep` and the ranks that shard together may be the same ranks, in groups of their own."""
    found = []
    for step in steps:
        groups: dict[tuple[bool, tuple[int, ...]], list[Message]] = {}
        for message in step:
            groups.setdefault((message[0] == "all_to_all", message[1]), []).append(message)
        found.append(groups)
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize("number", range(len(SPREAD)), ids=[f"{i} {title(plan)}" for i, plan in enumerate(SPREAD)])
def test_experts_send_the_same_in_each_group(number: int) -> None:
    """In which order groups come differs: torchtitan gathers a layer ahead by name, and FSDP2 sums experts' gradients before dense ones'."""
    agree(SPREAD[number], number * 7, by_group)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Models and splits of up to 64 ranks that divide evenly."""
    kind = draw(st.sampled_from(["ddp", "fsdp", "tp", "both", "pipeline"]))
    heads, layers = draw(st.sampled_from([8, 16])), draw(st.integers(1, 3))
    model = LLAMA | {
        "heads": heads,
        "kv_heads": draw(st.sampled_from([4, 8])),
        "layers": layers,
        "hidden": 64,
        "ffn": draw(st.sampled_from([64, 192])),
    }
    micros = draw(st.integers(1, 3))
    if kind == "ddp":
        model = draw(st.sampled_from([model, GPT, MLP]))
        return plan(model, micros, dp_replicate=draw(st.sampled_from([2, 3, 64])), comm={"bucket": f"{draw(st.integers(1, 300))} KiB"})
    shards, replicas = draw(st.sampled_from([(2, 1), (8, 1), (4, 2), (16, 4)]))
    tp = draw(st.sampled_from([2, 4]))
    split = draw(st.booleans())
    if kind == "tp":
        return plan(model, micros, tp=tp, sequence_parallel=split)
    if kind == "pipeline":
        pp, replicas = draw(st.sampled_from([(2, 1), (2, 2), (4, 1), (4, 2)]))
        beside: dict[str, Any] = draw(
            st.sampled_from([{"dp_replicate": replicas}, {"dp_shard": 2, "dp_replicate": replicas, "zero": 3}, {"tp": tp}])
        )
        beside |= {"sequence_parallel": split, "schedule": draw(st.sampled_from(["gpipe", "1f1b"]))}
        return plan(model | {"layers": pp + layers - 1}, pp + micros - 1, pp=pp, **beside)
    parallel = {
        "dp_shard": shards,
        "dp_replicate": replicas,
        "zero": draw(st.sampled_from([2, 3])),
        "reshard_after_forward": draw(st.sampled_from([True, False, *([shards // 2] if shards > 2 and kind != "both" else [])])),
    }
    if kind == "both":
        parallel |= {"tp": tp if shards * replicas * tp <= 64 else 1, "sequence_parallel": split}
    return plan(model if kind == "both" else draw(st.sampled_from([model, GPT, MLP])), micros, **parallel)


@pytest.mark.no_cover
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans(), st.integers(0, 63))
def test_drawn_plans_send_the_same(drawn: Plan, number: int) -> None:
    agree(drawn, number, by_lane)
