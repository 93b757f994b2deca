"""A long step told from short ones equals the step simulated whole: micro-batch by micro-batch, also where launches bind it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.engine.run import simulate
from sim.lower.step import lower
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import step_of
from sim.steady.shortened import Run
from sim.timeline.metrics import step_time
from topologies.errors import BadInput
from topologies.load import load_topology

MACHINE = load_topology("4x dgx-h100")
MODEL = "gpt2-124m"
split = st.sampled_from(
    [
        {"tp": 1, "pp": 1, "dp_shard": 8, "zero": 3},
        {"tp": 8, "pp": 1, "dp_shard": 4, "zero": 1},
        {"tp": 4, "pp": 4, "dp_shard": 2, "zero": 1},
        {"tp": 2, "pp": 4, "dp_shard": 4, "zero": 3},
        {"tp": 4, "pp": 4, "dp_shard": 2, "zero": 1, "schedule": "interleaved", "virtual_stages": 2},
    ]
)


def _plan(parallel: dict[str, Any], framework: str, count: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "seq_len": 1024,
        "framework": framework,
        "parallel": parallel,
        "batch": {"global": count * parallel["dp_shard"], "micro": 1},
    }


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(split, st.sampled_from(["megatron-core", "torchtitan", "pytorch"]), st.sampled_from([16, 24, 32]))
def test_a_long_step_by_rounds_equals_the_whole(parallel: dict[str, Any], framework: str, count: int) -> None:
    # GPT-2 at micro-batch 1 on H100s: the launches bind it, and the thread loses its lead over many micro-batches.
    try:
        setting = bind(_plan(parallel, framework, count), MACHINE)
        whole = Run(setting).times((count, count))[-1].seconds
    except BadInput:
        assume(False)
        raise
    assert step_of(setting) == pytest.approx(whole, rel=2e-3)


@pytest.mark.parametrize("parallel", [{"pp": 4, "schedule": "1f1b"}, {"pp": 2, "schedule": "1f1b"}, {}], ids=str)
def test_launches_that_begin_to_bind_are_no_rate(parallel: dict[str, Any]) -> None:
    """128 micro-batches of 512 tokens, eager: between the first steps the device catches up with the thread, which is no time of a round."""
    plan = _plan(parallel | {"dp_shard": 1, "dp_replicate": 2}, "pytorch", 256) | {"seq_len": 512}
    setting = bind(plan, MACHINE)
    assert step_of(setting) == pytest.approx(Run(setting).times((128, 128))[-1].seconds, rel=3e-3)


def test_dualpipe_is_shortened_to_no_fewer_microbatches_than_it_takes() -> None:
    setting = bind(_plan({"pp": 4, "dp_shard": 1, "schedule": "dualpipe"}, "megatron-core", 32), MACHINE)
    assert step_of(setting) == pytest.approx(Run(setting).times((32, 32))[-1].seconds, rel=2e-3)


def test_experts_whose_tokens_are_counted_on_the_host_are_not_shortened() -> None:
    plan = {
        "model": {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000, "ffn": 2048, "moe": {"experts": 8, "top_k": 2, "ffn": 2048}},
        "seq_len": 1024,
        "framework": "megatron-core",
        "parallel": {"tp": 2, "dp_shard": 4, "zero": 1, "pp": 2},
        "batch": {"global": 16, "micro": 1},
    }
    setting = bind(plan, MACHINE)
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    assert any(op.kind == "copy" and op.lane == "copy.d2h" for ops in program.segments.values() for op in ops)
    whole = step_time(simulate(program, pricer_for(setting)))
    assert Run(setting).times((4, 4))[-1].seconds == pytest.approx(whole, rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1"])
@pytest.mark.parametrize("count", [3, 10, 15])
def test_rounds_of_other_lengths_than_the_pipeline(schedule: str, count: int) -> None:
    """torch's flexible rounds: all micro-batches in equal ones of `pp` or a few more. Nothing repeats from which a longer step could be told."""
    setting = bind(
        _plan({"tp": 4, "pp": 4, "dp_shard": 2, "zero": 1, "schedule": schedule, "virtual_stages": 2}, "torchtitan", count), MACHINE
    )
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 3)
    # Three micro-batches leave the device as long as the thread takes to launch them, but for a hundredth of a per mille.
    assert step_of(setting) == pytest.approx(step_time(simulate(program, pricer_for(setting), symmetry=setting.places)), rel=2e-5)
