"""A tied embedding on both ends of a pipeline: each end sends its gradient of the table to the other, and updates with the sum."""

from __future__ import annotations

import pytest

from sim.bind import bind
from sim.lower.step import lower
from sim.program import COMPUTE, Op

TABLE = 50257 * 768


def _ops(rank: int, framework: str, pp: int) -> list[Op]:
    plan = {"model": "gpt2-124m", "seq_len": 128, "batch": {"global": 4, "micro": 1}, "parallel": {"pp": pp}, "framework": framework}
    setting = bind(plan, "dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda")
    return [op for call, op in made.ops(rank) if call.step == 1]


@pytest.mark.parametrize(("framework", "width"), [("pytorch", 2), ("megatron-lm", 4)])
def test_the_ends_trade_their_gradients_in_the_width_that_these_have(framework: str, width: int) -> None:
    """Megatron's are fp32 beside 16-bit parameters (main_grad)."""
    for rank, peer in ((0, 3), (3, -3)):
        traded = [op for op in _ops(rank, framework, 4) if op.id.startswith("grad/embedding") and op.kind in ("send", "recv")]
        assert [(op.kind, op.peer, op.bytes) for op in traded] == [("send", peer, TABLE * width), ("recv", peer, TABLE * width)]
    assert not any(op.id.startswith("grad/embedding") for rank in (1, 2) for op in _ops(rank, framework, 4))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_update_waits_for_the_other_end_s_gradient(rank: int) -> None:
    """What leaves is made, and what comes is there before the kernels that update."""
    ops = _ops(rank, "megatron-lm", 2)
    at = {op.id: place for place, op in enumerate(ops)}
    sent, came = at["grad/embedding.send"], at["grad/embedding.recv"]
    backward = max(place for place, op in enumerate(ops) if op.id.startswith(("bwd/", "wgrad/")) and op.kind == "compute")
    made = next(
        place for place, op in enumerate(ops) if op.kind == "wait" and op.lane == ops[sent].lane and op.event == "grad/embedding.made"
    )
    here = next(place for place, op in enumerate(ops) if op.kind == "record" and op.lane == ops[came].lane and place > came)
    held = next(place for place, op in enumerate(ops) if op.kind == "wait" and op.lane == COMPUTE and op.event == ops[here].event)
    update = next(place for place, op in enumerate(ops) if place > backward and op.kind == "compute" and op.id.startswith("opt"))
    assert backward < made < sent and came < here < held < update
