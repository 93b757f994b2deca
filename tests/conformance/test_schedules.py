"""Every schedule equals torch.distributed.pipelining's, action by action, with and without messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sim.schedule import KINDS, Action, chunks_of, late, rank_of, schedule, with_messages
from sim.schedule.reading import read_rows, written_of
from tests.conformance.torch_schedules import (
    need_torch_schedules,
    torch_messages,
    torch_read,
    torch_run,
    torch_schedule,
    torch_text,
    torch_with_comms,
    torch_written,
)

GRID = [
    *(("gpipe", pp, m, 1) for pp in (1, 2, 4) for m in (1, 2, 7)),
    *(("looped-bfs", pp, m, v) for pp in (1, 2, 4) for m in (1, 2, 7) for v in (1, 2, 3)),
    *(("zb-v", pp, m, 2) for pp in (1, 2, 3, 4, 8) for m in (1, pp, 2 * pp - 2, 2 * pp - 1, 2 * pp, 5 * pp) if m),
    *(("1f1b", pp, m, 1) for pp in (1, 2, 3, 4, 8) for m in (pp, pp + 1, 2 * pp, 3 * pp + 2)),
    *(("interleaved", pp, m, v) for pp in (2, 3, 4) for m in (pp, 2 * pp, 4 * pp) for v in (2, 3)),
    ("interleaved", 4, 10, 2),
    ("interleaved", 4, 3, 2),
    *(("zb-h1", pp, m, v) for pp in (2, 4, 8) for m in (pp, 2 * pp, 4 * pp) for v in (1, 2)),
    *(("dualpipe", pp, m, 2) for pp in (1, 2, 3, 4, 8) for m in (2 * pp, 2 * pp + 1, 5 * pp)),
]
"""(schedule, pp, micro-batches, stages a rank)"""


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_computation_equals_torch(name: str, pp: int, microbatches: int, chunks: int) -> None:
    need_torch_schedules()
    made = [list(schedule(name, pp, rank, microbatches, chunks)) for rank in range(pp)]
    assert made == torch_schedule(name, pp, microbatches, chunks)


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_messages_equal_torch(name: str, pp: int, microbatches: int, chunks: int) -> None:
    need_torch_schedules()
    assert list(map(list, with_messages(name, pp, microbatches, chunks))) == torch_messages(name, pp, microbatches, chunks)


@pytest.mark.parametrize(("name", "pp", "microbatches"), [row[:3] for row in GRID if row[0] in ("gpipe", "1f1b") and row[3] == 1])
def test_blocking_schedules_equal_what_torch_runs(name: str, pp: int, microbatches: int) -> None:
    need_torch_schedules()
    made = with_messages(name, pp, microbatches)
    assert [list(late(actions)) for actions in made] == [torch_run(name, pp, microbatches, rank) for rank in range(pp)]


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), [row for row in GRID if row[3] > 1 and row[1] > 1])
def test_pairs_talk_in_the_runtime_s_order(name: str, pp: int, microbatches: int, chunks: int) -> None:
    """torch's runtime receives at other moments (FSDP's actions and overlapped pairs shift them), in the same order."""
    need_torch_schedules()
    ours, theirs = with_messages(name, pp, microbatches, chunks), torch_with_comms(name, pp, microbatches, chunks)
    for rank in range(pp):
        for peer in {(rank - 1) % pp, (rank + 1) % pp}:
            for steps in ({"SEND_F": 1, "SEND_B": -1}, {"RECV_F": -1, "RECV_B": 1}):
                assert _between(ours[rank], steps, peer, pp, name) == _between(theirs[rank], steps, peer, pp, name)


def _between(actions: Iterable[Action], steps: dict[str, int], peer: int, pp: int, name: str) -> list[Action]:
    return [a for a in actions if a.kind in steps and rank_of(name, pp, a.stage + steps[a.kind]) == peer]


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), [row for row in GRID if row[0] not in ("gpipe", "1f1b") and row[3] > 1])
def test_files_are_read_as_torch_reads_them(name: str, pp: int, microbatches: int, chunks: int, tmp_path: Path) -> None:
    """What torch has written is the schedule of that name, also with its pauses and overlapped pairs."""
    need_torch_schedules()
    path = tmp_path / "schedule.csv"
    torch_written(name, pp, microbatches, chunks, path)
    own = written_of(read_rows(path))
    assert own.rows == tuple(schedule(name, pp, rank, microbatches, chunks) for rank in range(pp))
    path.write_text("\n".join(",".join(map(str, row)) for row in own.rows))  # without pairs, whose messages torch puts after both
    theirs = torch_read(path, pp, microbatches, chunks, shards=True)
    for apart in (("RESHARD",), ("RECV_F", "RECV_B")):  # as in test_pipeline_fsdp.py
        ours = [[a for a in line if a.kind not in apart] for line in with_messages(own, pp, microbatches, chunks, True)]
        assert ours == [[a for a in line if a.kind not in apart] for line in theirs]


def test_torch_reads_our_actions() -> None:
    need_torch_schedules()
    for kind in KINDS:
        assert torch_text(Action(3, kind, 12)) == str(Action(3, kind, 12)) == f"3{kind}12"


def test_stages_lie_where_torch_puts_them() -> None:
    need_torch_schedules()
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    for name, style, chunks in (("interleaved", "loop", 3), ("looped-bfs", "loop", 2), ("dualpipe", "v", 2), ("zb-v", "v", 2)):
        for pp in (1, 2, 5):
            stages = pp * chunks_of(name, chunks)
            assert {s: rank_of(name, pp, s) for s in range(stages)} == generate_stage_to_rank_mapping(pp, stages, style)
