"""torchtitan's FSDP, and pipelines with it, do what torch's runtime does with them, in its order: actions on whole stages, every message."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.plan import Plan
from sim.schedule import Action, with_messages
from sim.schedule.action import SHARDS
from tests.conformance.fake import need_fake, stock_messages
from tests.conformance.plans import GPT, LLAMA, UNTIED, plan
from tests.conformance.test_stock import lowered_messages
from tests.conformance.torch_schedules import need_torch_schedules, torch_text, torch_with_comms

GRID = [
    *(("interleaved", pp, m, v) for pp in (2, 4) for m in (pp, 2 * pp, 4 * pp) for v in (2, 3, 4, 6)),
    *(("looped-bfs", pp, m, v) for pp, m, v in ((2, 4, 2), (4, 6, 3), (4, 4, 5), (2, 3, 1))),
    *(("zb-v", pp, m, 2) for pp, m in ((2, 4), (4, 8))),
    *(("zb-h1", pp, m, v) for pp, m, v in ((2, 4, 2), (4, 8, 2), (2, 8, 4), (4, 6, 2))),
    *(("interleaved", pp, m, v) for pp, m, v in ((2, 3, 2), (4, 10, 2))),
]
"""(schedule, pp, micro-batches, stages a rank); dualpipe's overlapped pairs are one action there."""


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_stages_are_gathered_dropped_and_reduced_where_torch_does(name: str, pp: int, microbatches: int, chunks: int) -> None:
    need_torch_schedules()
    ours, theirs = with_messages(name, pp, microbatches, chunks, True), torch_with_comms(name, pp, microbatches, chunks, True)
    # From torch 2.15 on a stage is dropped one receive later, where both stand side by side: each order is that without the other.
    for apart in (("RESHARD",), ("RECV_F", "RECV_B")):
        assert [[a for a in line if a.kind not in apart] for line in ours] == [[a for a in line if a.kind not in apart] for line in theirs]


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 9)])
def test_of_a_v_they_are_the_same_in_the_order_of_each_stage(pp: int, microbatches: int) -> None:
    need_torch_schedules()
    ours, theirs = with_messages("dualpipe", pp, microbatches, 2, True), torch_with_comms("dualpipe", pp, microbatches, 2, True)
    for mine, line in zip(ours, theirs, strict=True):
        for stage in {action.stage for action in mine}:
            kinds = ("F", "B", "I", "W", *SHARDS)
            assert [a for a in mine if a.stage == stage and a.kind in kinds] == [a for a in line if a.stage == stage and a.kind in kinds]


def test_torch_reads_what_is_done_to_whole_stages() -> None:
    need_torch_schedules()
    for kind in SHARDS:
        assert torch_text(Action(3, kind, -1)) == str(Action(3, kind, -1)) == f"3{kind}"


def _plan(layers: int, micros: int, **parallel: Any) -> Plan:
    return _titan(LLAMA | {"layers": layers}, micros, zero=3, pp=2, **parallel)


def _titan(model: dict[str, Any], micros: int, **parallel: Any) -> Plan:
    return replace(plan(model, micros, **parallel), framework="torchtitan")


PLANS = [
    _plan(5, 4, dp_shard=2, schedule="1f1b"),
    _plan(5, 4, dp_shard=2, schedule="gpipe"),
    _plan(5, 4, dp_shard=2, schedule="interleaved", virtual_stages=2),
    _plan(9, 4, dp_shard=4, schedule="interleaved", virtual_stages=4),
    _plan(9, 8, dp_shard=2, dp_replicate=2, schedule="interleaved", virtual_stages=4),
    _plan(5, 2, dp_shard=2, tp=2, schedule="interleaved", virtual_stages=2),
    _plan(5, 4, dp_shard=2, schedule="looped-bfs", virtual_stages=2),
    _plan(5, 4, dp_shard=2, schedule="zb-h1"),
    _plan(5, 4, dp_shard=2, schedule="zb-v"),  # of dualpipe torch sends what an overlapped pair makes after both
    _plan(5, 2, dp_shard=2, schedule="interleaved", virtual_stages=2, memory={"recompute": "full"}),
    *(_titan(model, micros, dp_shard=4, zero=3) for model in (LLAMA, UNTIED) for micros in (1, 3)),
    _titan(GPT, 2, dp_shard=4, zero=3),
    _titan(LLAMA, 2, dp_shard=4, zero=2),
    _titan(LLAMA, 2, dp_shard=2, dp_replicate=2, zero=3, memory={"recompute": "full"}),
    _titan(LLAMA, 1, dp_shard=2, tp=2, zero=3),
]
"""Ends that share no table are units of their own (and so they are wrapped here); GPT's share one."""


@pytest.mark.no_cover
@pytest.mark.parametrize("number", [at for at, given in enumerate(PLANS) if given.parallel.pp == 1])
def test_a_last_layer_that_stays_gathered_is_not_gathered_again(number: int) -> None:
    """torchtitan before pull request 1094: messages as stock's with reshard_after_forward = False for the last layer; one fewer a backward."""
    need_fake()
    given = replace(PLANS[number], framework="torchtitan-2025")
    ours = lowered_messages(given, 0)
    assert ours == stock_messages(given, 0, 2)
    again = lowered_messages(replace(given, framework="pytorch"), 0)
    gathers = [sum(kind == "all_gather" for kind, _, _ in steps[1]) for steps in (again, ours)]
    assert gathers[0] - gathers[1] == given.microbatches * (given.parallel.zero == 3)


@pytest.mark.no_cover
@pytest.mark.parametrize("end", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("framework", ["torchtitan", "pytorch"])
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_stock_and_program_issue_all_messages_in_one_order(number: int, framework: str, end: int) -> None:
    """Gathers, reductions and the pipeline's own, as one list: what waits for what on the streams follows from it. In `pytorch` the ends are
    the root's."""
    need_fake()
    given = replace(PLANS[number], framework=framework)
    rank = end % given.world
    for ours, theirs in zip(lowered_messages(given, rank), stock_messages(given, rank, 2), strict=True):
        assert ours == theirs and len(ours) > 8
