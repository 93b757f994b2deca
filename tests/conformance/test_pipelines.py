"""The lowered pipeline's messages are those of torch.distributed.pipelining: order, peer, and a micro-batch's activations in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.program import Program
from sim.schedule import Action, chunks_of, rank_of
from sim.sections import VEES
from sim.setting.bind import network_of
from tests.conformance.plans import LLAMA
from tests.conformance.torch_schedules import need_torch_schedules, torch_messages, torch_run

SEQ, HIDDEN = 16, 64
Sent = tuple[str, int, int]
"""(send or recv, peer rank, bytes)"""

GRID = [
    *((name, pp, m, 1) for name in ("gpipe", "1f1b") for pp, m in ((2, 2), (2, 5), (4, 4), (4, 9))),
    *(("interleaved", pp, m, v) for pp, m, v in ((2, 4, 2), (4, 8, 2), (4, 4, 3), (2, 3, 2), (4, 10, 2), (4, 7, 3))),
    *(("zb-h1", pp, m, 1) for pp, m in ((2, 2), (4, 8))),
    *(("dualpipe", pp, m, 1) for pp, m in ((2, 4), (4, 9))),
    *(("zb-v", pp, m, 1) for pp, m in ((2, 2), (4, 9))),
    *(("zb-h1", pp, m, v) for pp, m, v in ((2, 4, 2), (4, 8, 2), (4, 6, 2))),
    *(("looped-bfs", pp, m, v) for pp, m, v in ((2, 3, 2), (4, 4, 1), (4, 6, 2))),
]


def lowered(name: str, pp: int, microbatches: int, chunks: int, **more: Any) -> Program:
    parallel = {"pp": pp, "schedule": name, "virtual_stages": chunks, **more}
    layers = pp * (2 if name in VEES else chunks) + 1
    ranks = more.get("dp_replicate", 1) * more.get("dp_shard", 1)
    tree = {
        "model": LLAMA | {"layers": layers},
        "seq_len": SEQ,
        "precision": "fp32",
        "batch": {"global": 2 * microbatches * ranks, "micro": 2},
    }
    plan = load_plan(tree | {"parallel": parallel})
    habits = framework_of(plan)
    program = lower(plan, network_of(plan, habits), habits, "cuda", 2)
    verify(program)
    return program


def program_messages(program: Program, rank: int) -> list[Sent]:
    """What the rank sends and receives in the second step, in the order of issue."""
    found = []
    for call, op in program.ops(rank):
        if call.step == 1 and op.kind in ("send", "recv"):
            group = program.mesh.group(op.group, rank)
            found.append((op.kind, group[(group.index(rank) + op.peer) % len(group)], op.bytes))
    return found


def torch_sent(actions: list[Action], name: str, pp: int) -> list[Sent]:
    """The same of torch's list: fp32 activations of two samples cross each boundary."""
    steps = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}
    size = 2 * SEQ * HIDDEN * 4
    return [(a.kind[:4].lower(), rank_of(name, pp, a.stage + steps[a.kind]), size) for a in actions if a.kind in steps]


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_the_program_sends_what_torch_sends(name: str, pp: int, microbatches: int, chunks: int) -> None:
    need_torch_schedules()
    program = lowered(name, pp, microbatches, chunks)
    early = torch_messages(name, pp, microbatches, chunks_of(name, chunks))
    for rank in range(pp):
        theirs = torch_run(name, pp, microbatches, rank) if name in ("gpipe", "1f1b") else early[rank]
        assert program_messages(program, rank) == torch_sent(theirs, name, pp)


def test_other_axes_change_no_message_of_the_pipeline() -> None:
    """Each data- and tensor-parallel rank talks to its own neighbour; under sequence parallelism about its slice."""
    need_torch_schedules()
    alone, beside = lowered("1f1b", 4, 8, 1), lowered("1f1b", 4, 8, 1, dp_replicate=2, tp=2, placement="pp,tp,cp,dp")
    for rank in range(4):
        theirs = [(kind, peer, size // 2) for kind, peer, size in program_messages(alone, rank)]
        assert [sent for sent in program_messages(beside, rank) if sent[0] in ("send", "recv")] == theirs
