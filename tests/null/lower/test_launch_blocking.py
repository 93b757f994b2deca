"""CUDA_LAUNCH_BLOCKING: the training thread waits for every kernel, so that what it does between them is part of the step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.program import Op, Program
from sim.timeline.metrics import step_times
from tests.null.lower.tiny import QUIET, Constant, network, program
from tests.null.pipeline.line import line

EAGER = replace(QUIET, host="python", launch_blocking=True)


class Launches(Constant):
    """A quarter of a second for each launch and each kind of host work."""

    def local(self, op: Op, rank: int) -> Cost:
        if op.kind == "host":
            return Cost(0.25)
        if op.kind == "compute":
            return Cost(1.0, host=0.25, ready=1.25)
        return super().local(op, rank)


def _program(blocking: bool, **parallel: int) -> Program:
    plan = {"batch": {"global": 4}, "parallel": parallel}
    return program(plan, line(4) if parallel else network(2), replace(EAGER, launch_blocking=blocking))


def test_each_kernel_begins_one_launch_after_the_one_before() -> None:
    trace = simulate(_program(True), Launches())
    starts = [s.start for s in trace.spans if s.cls == "gemm" and "/s1/mb0/fwd" in s.id]
    assert starts[1] - starts[0] == 1.5  # kernel, module call, launch


def test_without_it_launches_hide_behind_kernels() -> None:
    trace = simulate(_program(False), Launches())
    starts = [s.start for s in trace.spans if s.cls == "gemm" and "/s1/mb0/fwd" in s.id]
    assert starts[1] - starts[0] == 1.0


@pytest.mark.parametrize("parallel", [{}, {"pp": 2}, {"pp": 2, "dp_replicate": 2}, {"dp_shard": 2, "zero": 1}])
def test_fused_runs_take_the_same_time(parallel: dict[str, int]) -> None:
    made = _program(True, **parallel)
    exact = step_times(simulate(made, Launches()))
    assert step_times(simulate(made, Launches(), detail=False)) == pytest.approx(exact, rel=1e-12)
    assert step_times(simulate(made, Launches(), condensed=True)) == pytest.approx(exact, rel=1e-12)


def test_fsdp_waits_for_its_collectives_where_there_are_no_streams() -> None:
    """FSDP2 calls them synchronously and leaves the overlap to streams; DDP's are asynchronous on a CPU too."""
    for parallel, waits in (
        ({"dp_shard": 2, "zero": 3}, True),
        ({"dp_replicate": 2, "dp_shard": 2, "zero": 3}, True),
        ({"dp_replicate": 2}, False),
    ):
        found = [program({"parallel": parallel}, network(2), QUIET, device=device) for device in ("cpu", "cuda")]
        host, gpu = ([op for ops in made.segments.values() for op in ops if op.kind == "collective"] for made in found)
        assert host and all(op.blocking is waits for op in host) and not any(op.blocking for op in gpu)
