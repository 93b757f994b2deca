"""Fused = unfused, to 1e-9: drawn programs of launches, kernels and a collective beside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.mesh import Mesh
from sim.program import Op
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.timeline.metrics import step_times
from tests.null.engine.bench import TablePricer, program

seconds = st.floats(0.01, 10.0)
kernels = st.lists(st.tuples(seconds, seconds, st.booleans()), min_size=1, max_size=12)


@pytest.mark.no_cover
@settings(max_examples=150, deadline=None)
@given(kernels, st.integers(0, 11), seconds, st.floats(1.0, 2.0))
def test_fused_equals_unfused(drawn: list[tuple[float, float, bool]], at: int, comm: float, slow: float) -> None:
    ops: list[Op] = []
    costs: dict[str, Cost | float] = {"ar": Cost(comm, host=0.1), "tp": Cost(comm / 2, host=0.2)}
    for number, (device, host, python) in enumerate(drawn):
        if python:
            ops.append(Op(f"h{number}", "host", "host"))
            costs[f"h{number}"] = Cost(host / 2)
        ops.append(Op(f"k{number}", "compute", "compute"))
        costs[f"k{number}"] = Cost(device, host=host)
        if number == at:
            ops += [Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.dp", event="e")]
            ops.append(Op("ar", "collective", "comm.dp", name="all_reduce", group="dp"))
            ops.append(Op("tp", "collective", "compute", name="all_reduce", group="tp"))
    made = program({"host": ops}, mesh=Mesh({}), calls=2)
    pricer = TablePricer(costs, slow=slow)
    whole, fused = simulate(made, pricer), simulate(made, pricer, detail=False)
    assert len(fused.spans) <= len(whole.spans)
    for one, other in zip(step_times(whole), step_times(fused), strict=True):
        assert abs(one - other) <= 1e-9 * max(one, 1.0)


def test_a_run_ahead_of_the_device_becomes_one_span() -> None:
    made = program({"host": [Op(f"k{i}", "compute", "compute") for i in range(50)]}, mesh=Mesh({}))
    trace = simulate(made, TablePricer({f"k{i}": Cost(1.0, host=0.1) for i in range(50)}), detail=False)
    assert [(s.id, round(s.start, 9), round(s.end, 9)) for s in trace.spans] == [("r0/s0/k0..k49", 0.1, 50.1)]


@pytest.mark.no_cover
def test_runs_have_the_flops_of_their_ops() -> None:
    """They were remembered by where an op lay in memory, where another one lay later."""
    plan = {
        "model": {"layers": 8, "hidden": 512, "heads": 8, "vocab": 4096},
        "framework": "pytorch",
        "seq_len": 512,
        "batch": {"global": 16, "micro": 1},
    }
    setting = bind(plan | {"parallel": {"pp": 4, "tp": 2, "dp_shard": 2}, "output": {"log_every": 1, "item_every": 1}}, "2x dgx-h100")
    made, pricer = program_for(setting, 3), pricer_for(setting)
    fine, runs = (sum(span.flops for span in simulate(made, pricer, setting.places, detail).spans) for detail in (True, False))
    assert runs == pytest.approx(fine, rel=1e-12)
