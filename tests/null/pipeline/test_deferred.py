"""A head's weights' gradient that waits for the pipeline's drain (Megatron-Core's defer_embedding_wgrad_compute)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.engine.run import simulate
from sim.lower.checks.verify import verify
from sim.program import Program
from sim.work import Gemm
from tests.null.lower.tiny import QUIET, Constant, linear, program
from tests.null.pipeline.line import line

LATER = QUIET.but(pipeline={"defers_head": 4})


def _net(**more: Any) -> Any:
    base = line(4)
    head = replace(base.blocks[-1][1], parts=(linear("logits", 64, **more),))
    return replace(base, blocks=(*base.blocks[:-1], ("head", head)))


def _program(microbatches: int, framework: Any = LATER, **more: Any) -> Program:
    return program({"batch": {"global": microbatches}, "parallel": {"pp": 2}}, _net(**more), framework=framework, steps=1)


def _rows(made: Program) -> int:
    """Rows over which the head's weights' gradient is summed in a step on the last rank."""
    return sum(w.k * w.repeat for _, op in made.ops(1) if op.id.startswith("wgrad/head") for w in op.works if isinstance(w, Gemm))


@pytest.mark.parametrize(("microbatches", "late"), [(2, 2), (4, 4), (8, 4), (16, 4)])
def test_as_many_rows_are_summed_as_without(microbatches: int, late: int) -> None:
    made, plain = _program(microbatches), _program(microbatches, QUIET)
    verify(made)
    assert _rows(made) == _rows(plain) == 8 * microbatches
    last = [op for _, op in made.ops(1) if op.id == "wgrad/head.late"]
    assert [work.repeat for op in last for work in op.works if isinstance(work, Gemm)] == [late]


def test_it_runs_after_the_last_backward_and_shortens_the_step() -> None:
    made, plain = _program(4), _program(4, QUIET)
    spans = [s for s in simulate(made, Constant()).spans if s.rank == 1 and s.kind == "compute"]
    late = next(s for s in spans if s.id.endswith("head.late"))
    assert all(s.end <= late.start for s in spans if "/bwd/" in s.id or "/wgrad/L" in s.id)
    assert max(s.end for s in simulate(made, Constant()).spans) < max(s.end for s in simulate(plain, Constant()).spans)


def test_one_stage_other_schedules_frozen_tables_and_experts_do_not_wait() -> None:
    for made in (
        program({"batch": {"global": 4}}, _net(), framework=LATER, steps=1),
        program({"batch": {"global": 4}, "parallel": {"pp": 2, "schedule": "zb-h1"}}, _net(), framework=LATER, steps=1),
        _program(4, frozen=True),
        _program(4, expert=True),
    ):
        assert not [op for rank in range(made.mesh.world) for _, op in made.ops(rank) if op.id.endswith(".late")]
