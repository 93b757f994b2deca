"""A table that several stages of a pipeline read: each of these has a copy, and updates it with the sum of all copies' gradients.

A tied embedding is on both ends, which send each other theirs. An encoder-decoder's is also where the decoder begins.
"""

from __future__ import annotations

import pytest

from sim.engine.run import simulate
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.memory.report import memory_of_stages
from sim.program import COMPUTE, Op, Program
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for

TABLE = 50304 * 768
FILLED = {"base": "gpt2-124m", "vocab": 50304}
"""With a vocabulary that no framework fills up."""
WORDS = 32128 * 512
"""T5-small's table."""


def _setting(model: str | dict[str, object], framework: str, **parallel: object) -> Setting:
    plan = {"model": model, "seq_len": 128, "batch": {"global": 12, "micro": 1}, "parallel": parallel, "framework": framework}
    return bind(plan, "dgx-h100")


def _lowered(setting: Setting) -> Program:
    return lower(setting.plan, setting.network, setting.framework, "cuda")


def _ops(rank: int, framework: str, pp: int) -> list[Op]:
    return [op for call, op in _lowered(_setting(FILLED, framework, pp=pp)).ops(rank) if call.step == 1]


def _traded(made: Program, rank: int, pp: int) -> list[tuple[str, int, int]]:
    """(kind, the other's place in the pipeline, bytes) of the messages that carry the table's gradient."""
    ops = [op for call, op in made.ops(rank) if call.step == 1 and op.id.startswith("grad/embedding")]
    return [(op.kind, (rank + op.peer) % pp, op.bytes) for op in ops if op.kind in ("send", "recv")]


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


def test_no_end_takes_the_sum_in_before_its_own_backward_is_done() -> None:
    """It is one all_reduce: the last stage, which ends first, has no share of it behind it when the first one comes."""
    setting = _setting(FILLED, "megatron-lm", pp=2)
    spans = simulate(_lowered(setting), pricer_for(setting)).spans
    first = {span.id.split("/", 2)[2]: span for span in spans if span.rank == 0 and span.id.startswith("r0/s1/")}
    last = max(span.end for name, span in first.items() if name.split("/")[1] in ("bwd", "wgrad") and span.lane == COMPUTE)
    assert first["grad/embedding.recv"].start >= last
    assert first["grad/embedding.recv"].end == pytest.approx(first["grad/embedding.send"].end, rel=1e-9)


@pytest.mark.parametrize("parallel", [{}, {"stages": [4, 2, 4, 2]}, {"schedule": "zb-h1"}])
def test_three_stages_of_an_encoder_decoder_sum_the_table_s_gradient(parallel: dict[str, object]) -> None:
    """The first, the one where the decoder begins and the last (Megatron's embedding group), around a ring: four turns of a third."""
    made = _lowered(_setting("t5-small", "megatron-lm", pp=4, **parallel))
    third = round(WORDS * 4 / 3)
    for rank, ahead, behind in ((0, 2, 3), (2, 3, 0), (3, 0, 2)):
        assert _traded(made, rank, 4) == [("send", ahead, third), ("recv", behind, third)] * 4
    assert not _traded(made, 1, 4)
    verify(made)


def test_a_part_of_the_sum_goes_on_when_it_has_come() -> None:
    made = _lowered(_setting("t5-small", "megatron-lm", pp=4))
    ops = [op for call, op in made.ops(2) if call.step == 1]
    at = {op.id: place for place, op in enumerate(ops)}
    for turn in range(1, 4):
        sent = at[f"grad/embedding.{turn}.send"]
        assert ops[sent - 1].kind == "wait" and ops[sent - 1].lane == ops[sent].lane
        assert ops[sent - 1].event == f"grad/embedding.{turn - 1}.here"
    update = next(
        place
        for place, op in enumerate(ops)
        if op.id.startswith("opt") and op.kind == "compute" and place > at["grad/embedding.made.record"]
    )
    held = next(place for place, op in enumerate(ops) if op.kind == "wait" and op.lane == COMPUTE and op.event == "grad/embedding.3.here")
    assert held < update


@pytest.mark.parametrize(
    ("model", "parallel", "pair"),
    [
        ("t5-small", {"pp": 2}, (0, 1)),  # the decoder begins on the last stage
        ("t5-small", {"pp": 2, "schedule": "dualpipe"}, (0, 1)),  # both ends are the first rank's
        ("t5-small", {"pp": 3, "schedule": "interleaved", "virtual_stages": 2}, (0, 2)),  # stage 3 of 6 is the first rank's too
        ("flan-t5-small", {"pp": 4}, (0, 2)),  # the head has its own weight, both embeddings one
    ],
)
def test_what_one_rank_reads_twice_it_has_once(model: str, parallel: dict[str, object], pair: tuple[int, int]) -> None:
    setting = _setting(model, "megatron-lm", **parallel)
    made, pp = _lowered(setting), setting.plan.parallel.pp
    whole = WORDS * 4
    for rank in range(pp):
        other = pair[1 - pair.index(rank)] if rank in pair else 0
        assert _traded(made, rank, pp) == ([("send", other, whole), ("recv", other, whole)] if rank in pair else [])
    verify(made)
    stages = memory_of_stages(setting.plan, setting.network, setting.framework)
    assert sum(stage.parameters for stage in stages) == 2 * (setting.network.parameters + WORDS)


@pytest.mark.parametrize("zero", [0, 1])
def test_each_copy_takes_memory_and_is_updated(zero: int) -> None:
    """Three copies of T5's table: 16-bit parameters, fp32 gradients, and what Adam holds of it on one of ZeRO's ranks."""
    setting = _setting("t5-small", "megatron-lm", pp=4, dp_shard=2, zero=zero)
    stages = memory_of_stages(setting.plan, setting.network, setting.framework)
    elements = setting.network.parameters + 2 * WORDS
    assert sum(stage.parameters for stage in stages) == 2 * elements
    assert sum(stage.gradients for stage in stages) == 4 * elements
    assert sum(stage.optimizer for stage in stages) == 12 * elements // (2 if zero else 1)
    resident = _lowered(setting).resident
    fullest = max(stages, key=lambda stage: stage.parameters + stage.gradients + stage.optimizer)
    assert resident == {"parameters": fullest.parameters, "gradients": fullest.gradients, "optimizer": fullest.optimizer}
