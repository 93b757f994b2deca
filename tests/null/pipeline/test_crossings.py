"""What crosses from stage to stage: the stream, and beside it what later layers read of an encoder."""

from __future__ import annotations

import pytest

from sim.lower.step import lower
from sim.program import Program
from sim.setting.bind import bind


def _program(model: str, schedule: str = "1f1b") -> Program:
    parallel = {"pp": 4, "schedule": schedule}
    setting = bind(
        {"model": model, "seq_len": 32, "framework": "megatron-lm", "batch": {"global": 8, "micro": 2}, "parallel": parallel}, "dgx-h100"
    )
    return lower(setting.plan, setting.network, setting.framework, "cuda", 2)


def _sent(program: Program, rank: int, up: bool) -> set[int]:
    peer = 1 if up else -1
    return {
        op.bytes
        for call, op in program.ops(rank)
        if call.step == 1 and (op.kind, op.group, op.peer) == ("send", "pp", peer) and op.lane.startswith("comm.pp.")
    }


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize(("model", "first"), [("t5-large", 1), ("transformer-big", 1), ("gnmt", 2)])
def test_stages_of_a_decoder_hand_on_what_it_reads_of_the_encoder(model: str, first: int, schedule: str) -> None:
    """Half of the stages are the encoder's. Each decoder layer reads its result, whose gradient comes back by the same way. The encoder's last
    stage sends that alone where the decoder's first looks up its tokens (Megatron-LM's get_tensor_shapes); GNMT's tokens are all looked up on the first."""
    program, stream = _program(model, schedule), 2 * 32 * 1024 * 2
    assert [_sent(program, rank, True) for rank in range(4)] == [{stream}, {first * stream}, {2 * stream}, set()]
    assert [_sent(program, rank, False) for rank in range(4)] == [set(), {stream}, {first * stream}, {2 * stream}]


def test_a_stream_alone_crosses_where_each_layer_reads_the_one_before() -> None:
    program = _program("gpt2-124m")
    assert [_sent(program, rank, True) for rank in range(4)] == [{2 * 32 * 768 * 2}] * 3 + [set()]


def test_each_stage_sends_the_map_that_it_has_made() -> None:
    """Between ResNet-50's stages: 256 x 56 x 56, 512 x 28 x 28 and 1024 x 14 x 14 values of two pictures, and as much back; not the picture's."""
    plan = {"model": "resnet50", "batch": {"global": 8, "micro": 2}, "parallel": {"pp": 4, "stages": [3, 4, 6, 3]}}
    setting = bind(plan, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    maps = [{2 * c * side**2 * 2} for c, side in ((256, 56), (512, 28), (1024, 14))]
    assert [_sent(program, rank, True) for rank in range(4)] == [*maps, set()]
    assert [_sent(program, rank, False) for rank in range(4)] == [set(), *maps]
