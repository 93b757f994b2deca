"""An optimizer on the CPU: bound by its cores where a rank is alone, by the sockets' memory where all ranks update."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict

ELEMENTS = 8_030_261_248
NS = 0.25e-9
"""Seconds per element on a rank's cores (sim/cost/params/host.toml)."""
SOCKET = 307.2e9
"""Xeon 8480C: eight channels of DDR5-4800."""


def plan(ranks: int, away: bool, **more: Any) -> dict[str, Any]:
    """Each rank updates a whole Llama 3 8B, so that what is off the CPU is the same for all."""
    memory = {"offload": "optimizer" if away else "none"}
    return {
        "model": "llama3-8b", "seq_len": 512, "framework": "megatron-core", "parallel": {"dp_replicate": ranks}, "memory": memory, **more
    }  # fmt: skip


def update(ranks: int, fold: bool = True, *edits: str, **more: Any) -> float:
    """Seconds of the CPU's update, from the trace."""
    from sim.engine.run import simulate
    from sim.lower.step import lower
    from sim.setting.bind import bind
    from sim.setting.pricer import pricer_for

    setting = bind(plan(ranks, True, **more), "dgx-h100", edits)
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 1)
    trace = simulate(program, pricer_for(setting, None, "fitted"), fold and setting.foldable)
    return max(span.end - span.start for span in trace.spans if span.id.endswith("optimizer/cpu"))


def test_alone_the_cores_set_the_pace() -> None:
    assert update(1) == pytest.approx(ELEMENTS * NS, rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize("fold", [True, False])
def test_where_there_are_fewer_cores_they_do(fold: bool) -> None:
    """The rate is that of 16 cores; here the node has eight."""
    few = "cpu.cores=4"
    assert update(1, fold, few) == pytest.approx(2 * ELEMENTS * NS, rel=1e-6)
    assert update(8, fold, few) == pytest.approx(8 * 2 * ELEMENTS * NS, rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize("fold", [True, False])
def test_together_the_sockets_memory_does(fold: bool) -> None:
    """28 bytes of fp32 states and gradients and 2 of the parameters that go up, four ranks to a socket."""
    assert update(8, fold) == pytest.approx(4 * ELEMENTS * 30 / SOCKET, rel=0.01)


def test_the_step_shows_it() -> None:
    extra = predict(plan(8, True), "dgx-h100").step_time_s - predict(plan(8, False), "dgx-h100").step_time_s
    copies = ELEMENTS * (4 + 2) / 64e9
    assert extra > 4 * ELEMENTS * 30 / SOCKET + 0.5 * copies


def test_an_update_without_states_passes_over_three_tensors_of_adamws_seven() -> None:
    assert update(1, optimizer={"name": "sgd"}) == pytest.approx(ELEMENTS * NS * 3 / 7, rel=1e-6)
