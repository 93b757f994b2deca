"""torch 2.13's pipelines with FSDP: stages gathered as a whole ahead of use, reduced after their last message, in time and memory."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.run import simulate
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.program import Program
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.shortened import Run
from sim.timeline.metrics import step_times

MODEL = {"layers": 8, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 7168}
PIPELINES: list[dict[str, Any]] = [
    {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    {"pp": 2, "schedule": "interleaved", "virtual_stages": 4},
    {"pp": 4, "schedule": "interleaved", "virtual_stages": 2},
    {"pp": 4, "schedule": "zb-h1", "dp_replicate": 2},
    {"pp": 2, "schedule": "dualpipe", "tp": 2},
    {"pp": 4, "schedule": "1f1b"},
    {"pp": 4, "schedule": "gpipe"},
    {"pp": 4, "schedule": "zb-v"},
    {"pp": 2, "schedule": "looped-bfs", "virtual_stages": 2},
    {"pp": 2, "schedule": "looped-bfs"},
    {"pp": 2, "schedule": "zb-h1", "virtual_stages": 4},
]


def setting(framework: str, **parallel: Any) -> Setting:
    split = {"dp_shard": 2, "zero": 3, **parallel}
    batch = {"micro": 1, "global": 8 * 2 * split.get("dp_replicate", 1)}
    return bind({"model": MODEL, "seq_len": 2048, "framework": framework, "parallel": split, "batch": batch}, "2x dgx-h100")


def program(framework: str, **parallel: Any) -> Program:
    found = setting(framework, **parallel)
    return lower(found.plan, found.network, found.framework, "cuda", 2)


def ops(made: Program, rank: int = 0) -> list[str]:
    """Second step: collectives, messages and what computes of a rank, in the order of issue."""
    return [op.id for call, op in made.ops(rank) if call.step == 1 and op.kind in ("collective", "send", "recv", "compute")]


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", PIPELINES, ids=str)
def test_programs_run_to_their_end_and_give_back_what_they_take(parallel: dict[str, Any]) -> None:
    made = program("torchtitan", **parallel)
    verify(made)
    for rank in range(made.mesh.world):
        assert sum(op.alloc - op.free for call, op in made.ops(rank) if call.step == 1) == 0


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", PIPELINES, ids=str)
def test_short_and_condensed_programs_take_the_time_of_every_op(parallel: dict[str, Any]) -> None:
    given = setting("torchtitan", **parallel)
    made = lower(given.plan, given.network, given.framework, "cuda", 2)
    whole = step_times(simulate(made, pricer_for(given), condensed=False))
    assert step_times(simulate(made, pricer_for(given), condensed=True)) == pytest.approx(whole, rel=1e-9)
    assert [step.seconds for step in Run(given).times((given.plan.microbatches,) * 2)] == pytest.approx(whole, rel=1e-9)


def test_both_stages_are_gathered_before_the_first_kernel_and_reduced_after_the_message() -> None:
    line = ops(program("torchtitan", pp=2, schedule="interleaved", virtual_stages=2), rank=2)
    first = next(at for at, id in enumerate(line) if id.startswith("fwd/"))
    gathers = [at for at, id in enumerate(line) if id.endswith("all_gather") and "unshard" in id]
    assert len(gathers) == 5 and max(gathers) < first, "four layers, and the head's root"
    sent = max(at for at, id in enumerate(line) if id == "1SEND_B")
    reduced = [at for at, id in enumerate(line) if id.startswith(("grad/L2", "grad/L3"))]
    assert line[sent - 1].startswith("wgrad/L2") and min(reduced) > sent > max(at for at, id in enumerate(line) if id.startswith("bwd/"))
    assert not any(id.startswith("fwd/") and id.endswith("all_gather") for id in line)


def test_in_2024_layers_are_gathered_in_the_first_forward_and_reduced_before_the_message() -> None:
    for schedule, chunks in (("interleaved", 2), ("1f1b", 1)):
        line = ops(program("torchtitan-2024", pp=2, schedule=schedule, virtual_stages=chunks), rank=2)
        assert any(id.startswith("fwd/") and id.endswith("all_gather") for id in line) and not any("unshard" in id for id in line)
        reductions = [at for at, id in enumerate(line) if id.endswith("reduce_scatter")]
        assert line[reductions[-1] + 1] == "1SEND_B"


def test_one_stage_a_rank_reduces_after_its_last_message() -> None:
    line = ops(program("torchtitan", pp=2, schedule="1f1b"), rank=2)
    reductions = [at for at, id in enumerate(line) if id.endswith("reduce_scatter")]
    assert max(at for at, id in enumerate(line) if id.endswith("SEND_B")) < min(reductions)
    assert any(id.startswith("fwd/") and id.endswith("all_gather") for id in line), "gathered in the first forward"


def test_many_stages_a_rank_are_gathered_again_in_every_round() -> None:
    def gathered(chunks: int) -> int:
        return sum(id.endswith("all_gather") for id in ops(program("torchtitan", pp=2, schedule="interleaved", virtual_stages=chunks)))

    assert gathered(2) == 5
    assert gathered(4) > 3 * 5


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", PIPELINES[:3] + PIPELINES[5:], ids=str)
def test_messages_no_longer_wait_for_reductions(parallel: dict[str, Any]) -> None:
    """The first rank's last backward is not held up by the reductions of those after it."""

    def last_backward(framework: str) -> float:
        given = setting(framework, **parallel)
        made = lower(given.plan, given.network, given.framework, "cuda", 1)
        spans = simulate(made, pricer_for(given)).spans
        return max(
            span.end for span in spans if span.rank == 0 and span.lane == "compute" and "/bwd/" in span.id and span.kind == "compute"
        )

    assert last_backward("torchtitan") < last_backward("torchtitan-2024")


@pytest.mark.no_cover
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("parallel", [*PIPELINES, {"pp": 4, "schedule": "dualpipe", "dp_shard": 1, "zero": 0}], ids=str)
def test_messages_of_a_pair_of_ranks_share_a_stream(parallel: dict[str, Any], device: str) -> None:
    """Of a GPU that sends and receives by itself, as ProcessGroupNCCL keeps one for each pair; gloo has none."""
    given = setting("torchtitan", **parallel)
    made = lower(given.plan, given.network, given.framework, device, 2)
    verify(made)
    apart = parallel["schedule"] not in ("1f1b", "gpipe") and device == "cuda"
    pp = parallel["pp"]
    for rank in range(made.mesh.world):
        lanes: dict[str, set[tuple[int, str]]] = {}
        for _, op in made.ops(rank):
            if op.kind in ("send", "recv"):
                lanes.setdefault(op.lane, set()).add((op.peer % pp, op.kind))
        for sorts in lanes.values():
            peers, kinds = {peer for peer, _ in sorts}, {kind for _, kind in sorts}
            assert (len(peers), len(kinds)) == (1, 2) if apart else len(kinds) == 1


def test_parameters_of_three_stages_a_rank_are_gathered_at_a_time() -> None:
    """Sixteen layers over 2 ranks: of eight stages of one layer each, three have their parameters whole; gradients are whole of all."""

    def gathered(framework: str, chunks: int) -> int:
        parallel = {"pp": 2, "dp_shard": 4, "zero": 3, "schedule": "interleaved", "virtual_stages": chunks}
        given = bind(
            {
                "model": MODEL | {"layers": 16},
                "seq_len": 2048,
                "framework": framework,
                "parallel": parallel,
                "batch": {"micro": 1, "global": 32},
            },
            "dgx-h100",
        )
        return memory_of(given.plan, given.network, given.framework, given.topology.device(0), remedies=False).gathered

    assert gathered("torchtitan", 2) == gathered("torchtitan-2024", 2) == pytest.approx(gathered("torchtitan-2024", 8), rel=1e-3)
    layer = 2048 * 2048 * 4 + 3 * 2048 * 7168 + 2 * 2048
    assert gathered("torchtitan-2024", 8) - gathered("torchtitan", 8) == pytest.approx(5 * layer * 2, rel=1e-3)
