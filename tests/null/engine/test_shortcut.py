"""Equal layers priced once = every layer by itself, to 1e-9, over drawn splits of a model, schedules and frameworks. Plans that are
drawn after each other share layers, as those of a sweep do."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.bind import Setting, bind
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.pricer import pricer_for
from sim.shortened import Run
from sim.timeline.metrics import step_times
from topologies.errors import BadInput
from topologies.load import load_topology

split = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp_shard": st.sampled_from([1, 2, 4]),
        "zero": st.sampled_from([0, 1, 3]),
        "schedule": st.sampled_from(["1f1b", "interleaved", "gpipe", "zb-h1"]),
        "virtual_stages": st.sampled_from([1, 2]),
    }
)
frameworks = st.sampled_from(["megatron-core", "torchtitan", "pytorch", "nemo"])

MACHINE = load_topology("8x dgx-h100")
memories = st.sampled_from(
    [
        {"recompute": "none"},
        {"recompute": "selective"},
        {"recompute": "selective", "recompute_modules": ["layernorm", "mlp"]},
        {"recompute": "full"},
        {"offload": "activations"},
    ]
)


def _setting(parallel: dict[str, Any], framework: str, memory: dict[str, Any], count: int) -> Setting:
    batch = {"global": count * parallel["dp_shard"], "micro": 1}
    plan = {
        "model": "gpt2-124m",
        "seq_len": 1024,
        "framework": framework,
        "parallel": parallel,
        "batch": batch,
        "memory": memory,
    }
    try:
        return bind(plan, MACHINE)
    except BadInput:
        assume(False)
        raise


def _apart(setting: Setting, condensed: bool) -> float:
    try:
        program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    except BadInput:
        assume(False)
        raise
    whole = step_times(simulate(program, pricer_for(setting), condensed=condensed))
    short = Run(setting).times((setting.plan.microbatches,) * 2)
    return max(abs(one / other.seconds - 1) for one, other in zip(whole, short, strict=True))


@settings(max_examples=20, deadline=None)
@given(split, frameworks, memories, st.sampled_from([3, 4]))
def test_short_programs_equal_condensed_ones(parallel: dict[str, Any], framework: str, memory: dict[str, Any], count: int) -> None:
    assert _apart(_setting(parallel, framework, memory, count), condensed=True) < 1e-9


@settings(max_examples=8, deadline=None)
@given(split, frameworks, memories)
def test_without_data_parallelism_they_equal_the_whole_simulation(parallel: dict[str, Any], framework: str, memory: dict[str, Any]) -> None:
    parallel = parallel | {"dp_shard": 1, "zero": 0}
    # In one node messages between stages take the links of the layers' collectives, which in short run by themselves.
    shares = parallel["tp"] > 1 and parallel["pp"] > 1
    assert _apart(_setting(parallel, framework, memory, 4), condensed=False) < (5e-4 if shares else 1e-9)
