"""A head's weights' gradient that waits for the pipeline's drain (Megatron-Core's defer_embedding_wgrad_compute)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.engine.run import simulate
from sim.lower.checks.verify import verify
from sim.memory.report import memory_of_stages
from sim.program import Program
from sim.setting.bind import bind
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


def test_no_kernel_adds_what_was_not_made_yet() -> None:
    """Put off whole, a head's gradient is made once, into the main gradient: no pass over the table in any micro-batch."""
    made = _program(4, LATER.but(linears={"accumulates": True}))
    assert not [op.id for _, op in made.ops(1) if op.id.startswith("wgrad/head") and op.id.endswith(".add")]
    assert [op.id for _, op in made.ops(1) if op.id.startswith("wgrad/head")] == ["wgrad/head.late"]


def test_what_waits_is_in_the_last_stage_s_memory() -> None:
    """Gradients of 4 x 8192 / 2 rows of logits, and half of what the head reads, for each micro-batch (ColumnParallelLinear's two buffers)."""
    tree: dict[str, Any] = {"model": {"base": "llama3-8b", "layers": 8}, "seq_len": 8192, "framework": "megatron-bridge"}
    tree |= {"batch": {"global": 16, "micro": 1}, "parallel": {"tp": 2, "pp": 4}}
    late = bind(tree, "dgx-h100")
    now = replace(late, framework=late.framework.but(pipeline={"defers_head": 0}))
    found, plain = (memory_of_stages(one.plan, one.network, one.framework) for one in (late, now))
    more = [a.activations - b.activations for a, b in zip(found, plain, strict=True)]
    assert more[:3] == [0, 0, 0] and more[3] == 16 * 8192 * (128256 // 2 + 4096 // 2) * 2


def test_it_runs_after_the_last_backward_and_shortens_the_step() -> None:
    made, plain = _program(4), _program(4, QUIET)
    spans = [s for s in simulate(made, Constant()).spans if s.rank == 1 and s.kind == "compute"]
    late = next(s for s in spans if s.id.endswith("head.late"))
    assert all(s.end <= late.start for s in spans if "/bwd/" in s.id or "/wgrad/L" in s.id)
    assert max(s.end for s in simulate(made, Constant()).spans) < max(s.end for s in simulate(plain, Constant()).spans)


def test_one_stage_other_schedules_and_experts_do_not_wait() -> None:
    for made in (
        program({"batch": {"global": 4}}, _net(), framework=LATER, steps=1),
        program({"batch": {"global": 4}, "parallel": {"pp": 2, "schedule": "zb-h1"}}, _net(), framework=LATER, steps=1),
        _program(4, expert=True),
    ):
        assert not [op for rank in range(made.mesh.world) for _, op in made.ops(rank) if op.id.endswith(".late")]
