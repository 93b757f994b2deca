"""Equal layers priced once = every layer by itself, to 1e-9, over drawn splits of a model, schedules and frameworks. Plans that are
drawn after each other share layers, as those of a sweep do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.engine.run import simulate
from sim.lower.step import lower
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.shortened import Run
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


@pytest.mark.no_cover
@settings(max_examples=20, deadline=None)
@given(split, frameworks, memories, st.sampled_from([3, 4]))
def test_short_programs_equal_condensed_ones(parallel: dict[str, Any], framework: str, memory: dict[str, Any], count: int) -> None:
    shares = parallel["tp"] > 1 and parallel["pp"] > 1  # the whole program is not condensed where they lose much to each other
    assert _apart(_setting(parallel, framework, memory, count), condensed=True) < (5e-4 if shares else 1e-9)


@pytest.mark.no_cover
@settings(max_examples=8, deadline=None)
@given(split, frameworks, memories)
def test_without_data_parallelism_they_equal_the_whole_simulation(parallel: dict[str, Any], framework: str, memory: dict[str, Any]) -> None:
    parallel = parallel | {"dp_shard": 1, "zero": 0}
    # In one node messages between stages take the links of the layers' collectives, which in short run by themselves.
    shares = parallel["tp"] > 1 and parallel["pp"] > 1
    assert _apart(_setting(parallel, framework, memory, 4), condensed=False) < (5e-4 if shares else 1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize("tp, cp, pp, zero", [(1, 8, 1, 0), (2, 4, 1, 1), (4, 2, 2, 0), (1, 2, 2, 1)])
def test_rings_inside_a_node_are_shortened_exactly(tp: int, cp: int, pp: int, zero: int) -> None:
    parallel = {"tp": tp, "cp": cp, "pp": pp, "dp_shard": 8 // (tp * cp), "zero": zero, "schedule": "1f1b", "virtual_stages": 1}
    setting = _setting(parallel, "megatron-core", {"recompute": "full"}, 4)
    passes = {name: ops for name, ops in Run(setting).program((4,)).segments.items() if name.endswith(("fwd", "bwd"))}
    assert passes and not any(op.group == "cp" for ops in passes.values() for op in ops)
    assert _apart(setting, condensed=False) < 1e-9


def test_rings_on_the_links_of_a_pipeline_are_left_as_they_are() -> None:
    parallel = {"tp": 1, "cp": 2, "pp": 2, "dp_shard": 1, "schedule": "1f1b", "virtual_stages": 1}
    setting = _setting(parallel, "megatron-core", {}, 4)
    assert any(op.kind == "send" and op.group == "cp" for ops in Run(setting).program((4,)).segments.values() for op in ops)
    assert _apart(setting, condensed=False) < 1e-9


def test_layers_that_stop_for_a_copy_are_shortened_in_screening() -> None:
    """Experts whose token counts the thread waits for: an op up to the stop, one behind it; what gradients cost beside them is nearly even."""
    tree: dict[str, Any] = {"model": "mixtral-8x7b", "seq_len": 2048, "framework": "megatron-core", "batch": {"global": 16, "micro": 1}}
    setting = bind(tree | {"parallel": {"dp_shard": 8, "ep": 8, "zero": 1}, "memory": {"recompute": "full"}}, "dgx-h100")
    whole, coarse = Run(setting), Run(setting, coarse=True)
    size = [sum(map(len, run.program((2,)).segments.values())) for run in (whole, coarse)]
    assert size[1] < size[0] / 4
    assert abs(coarse.whole() / whole.whole() - 1) < 2e-3
