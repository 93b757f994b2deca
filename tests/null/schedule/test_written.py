"""Schedules of one's own: read from torch's CSV, checked cell by cell, kept in the plan, and run as those that have a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.files.planfile import dump_plan, dump_tree, load_plan
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.model.stages import in_flight
from sim.plan import Plan
from sim.planning.sweeps.bound import Bounds, put_off_of
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import header_of, sweep
from sim.predict import predict_setting
from sim.schedule import SCHEDULES, chunks_of, rank_of, schedule, splits, with_messages
from sim.schedule.reading import LARGEST, name_of, read_rows, written_of
from sim.sections import VEES
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import confirmed, step_of, whole_step
from topologies.errors import BadInput, Refused

SIZES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("looped-bfs", 2), ("zb-h1", 1), ("zb-h1", 2), ("zb-v", 1), ("dualpipe", 1)]


def rows_of(name: str, pp: int, microbatches: int, chunks: int = 1) -> tuple[str, ...]:
    """A schedule that has a name, written down."""
    return tuple(",".join(map(str, schedule(name, pp, rank, microbatches, chunks))) for rank in range(pp))


def written(folder: Path, name: str, pp: int = 2, microbatches: int = 4, chunks: int = 1) -> str:
    """The path of a file with it."""
    path = folder / f"{name}.csv"
    path.write_text("\n".join(rows_of(name, pp, microbatches, chunks)) + "\n")
    return str(path)


def tree(schedule: str, **more: Any) -> dict[str, Any]:
    """A small model through two ranks, four micro-batches."""
    model = {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000, "ffn": 4096}
    parallel = {"pp": 2, "schedule": schedule, **more}
    return {"model": model, "seq_len": 1024, "framework": "torchtitan", "batch": {"global": 4, "micro": 1}, "parallel": parallel}


@pytest.mark.parametrize(("name", "chunks"), SIZES)
def test_what_has_a_name_can_be_written_down(name: str, chunks: int) -> None:
    """The same computations, messages, places, and passes in flight."""
    pp, microbatches = 3, 6
    own = written_of(rows_of(name, pp, microbatches, chunks))
    chunks = chunks_of(name, chunks)
    assert (own.microbatches, chunks_of(own, 7), own.style) == (microbatches, chunks, "v" if name in VEES else "loop")
    assert [rank_of(own, pp, stage) for stage in range(pp * chunks)] == [rank_of(name, pp, stage) for stage in range(pp * chunks)]
    for shards in (False, True):
        assert with_messages(own, pp, microbatches, chunks, shards) == with_messages(name, pp, microbatches, chunks, shards)
    assert splits(own) == splits(name) == (name in ("zb-h1", *VEES))
    if splits(name):
        assert [put_off_of(schedule(own, pp, rank, microbatches)) for rank in range(pp)] == [
            (2 * rank if name == "zb-v" else rank) + 1 for rank in range(pp)
        ]


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "chunks"), [("interleaved", 2), ("zb-h1", 1), ("zb-v", 1), ("looped-bfs", 2)])
def test_it_takes_the_time_and_the_memory_of_the_one_with_a_name(tmp_path: Path, name: str, chunks: int) -> None:
    file = written(tmp_path, name, chunks=chunks)
    named = bind(load_plan(tree(name, virtual_stages=chunks)), "dgx-h100")
    own = bind(load_plan(tree(file)), "dgx-h100")
    assert own.plan.parallel.chunks == named.plan.parallel.chunks == 2 or chunks == 1
    found, theirs = (predict_setting(setting, steps=2) for setting in (own, named))
    assert found.step_time_s == pytest.approx(theirs.step_time_s, rel=1e-9)
    assert whole_step(own) == pytest.approx(found.step_time_s, rel=1e-6) and confirmed(own) == whole_step(own) == step_of(own)
    assert found.peak_memory_bytes <= theirs.peak_memory_bytes
    assert Bounds().step(own, pricer_for(own)) <= found.step_time_s
    verify(lower(own.plan, own.network, own.framework, "cuda", 2))


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("framework", "name", "chunks"), [("nemo", *size) for size in SIZES] + [("torchtitan", "interleaved", 2), ("torchtitan", "1f1b", 1)]
)
def test_an_order_that_has_a_name_is_run_by_what_the_framework_has_for_it(tmp_path: Path, framework: str, name: str, chunks: int) -> None:
    """Blocking messages, one lane for all of them (DualPipe), a head that waits for the drain, the first chunks' parameters ahead: up to 5 % of a
    step. torch's 1F1B waits for messages, and its runtime, which reads such files, does not."""
    file = written(tmp_path, name, 2, 8, chunks)
    sizes: dict[str, Any] = {"framework": framework, "batch": {"global": 16, "micro": 1}}
    own, named = (
        bind(load_plan(tree(schedule, dp_shard=2, zero=1, **more) | sizes), "dgx-h100")
        for schedule, more in ((file, {}), (name, {"virtual_stages": chunks}))
    )
    found, theirs = (predict_setting(setting, detail=False).step_time_s for setting in (own, named))
    assert (found == pytest.approx(theirs, rel=1e-9)) == ((framework, name) != ("torchtitan", "1f1b")) and found <= theirs * (1 + 1e-9)


def test_an_order_that_has_no_name_is_run(tmp_path: Path) -> None:
    """GPipe for two micro-batches at a time, over again: half of its passes are in flight, and the pipeline drains twice."""
    path = tmp_path / "halves.csv"
    orders = [",".join(f"{stage}{kind}{m + i}" for m in (0, 2) for kind in "FB" for i in (0, 1)) for stage in (0, 1)]
    path.write_text("\n".join(orders))
    plan = load_plan(tree(str(path)))
    assert plan.parallel.actions == ("0F0,0F1,0B0,0B1,0F2,0F3,0B2,0B3", "1F0,1F1,1B0,1B1,1F2,1F3,1B2,1B3")
    assert [in_flight(plan, rank) for rank in (0, 1)] == [(2,), (2,)]
    times = [predict_setting(bind(one, "dgx-h100"), steps=2).step_time_s for one in (plan, load_plan(tree("looped-bfs")))]
    assert times[0] > 1.1 * times[1]


def test_pauses_blanks_and_overlapped_pairs_are_read_as_torch_reads_them() -> None:
    own = written_of(("0F0, 0F1 ,,0B0,0B1", ",1F0,(1F1;1B0)OVERLAP_F_B,1B1"))
    assert [" ".join(map(str, row)) for row in own.rows] == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    assert own.columns == ((1, 2, 4, 5), (2, 3, 3, 4)) and own.at(1, 2) == "row 2, column 3"


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("0F0,0X0", "1F0,1B0"), "row 1, column 2: cannot read pipeline action '0X0'"),
    (("0F0,0B0", "1F0,1B0 1B0"), "row 2, column 2: cannot read"),
    (("0F0,0SEND_F0,0B0", "1F0,1B0"), "row 1, column 2: 0SEND_F0 is no computation. Leave messages and FSDP's actions out"),
    (("0UNSHARD,0F0,0B0", "1F0,1B0"), "row 1, column 1: 0UNSHARD is no computation"),
    (("0F0,0F0,0B0", "1F0,1B0"), "row 1, column 2: 0F0 is there already, in column 1"),
    (("0F0,0B0", "1F0,,1B0,1B0"), "row 2, column 4: 1B0 is there already, in column 3"),
    (("0B0,0F0", "1F0,1B0"), "row 1, column 1: 0B0 comes before its forward 0F0"),
    (("0F0,0W0,0I0", "1F0,1B0"), "row 1, column 2: 0W0 comes before the gradient of its input 0I0"),
    (("0F0,0I0,0B0", "1F0,1B0"), "row 1, column 3: 0B0 runs backward what 0I0 in column 2 has run"),
    (("0F0,0B0,0I0", "1F0,1B0"), "row 1, column 3: 0I0 runs backward what 0B0 in column 2 has run"),
    (("0F0,0I0", "1F0,1B0"), "row 1 has no 0W0: each of 1 micro-batches"),
    (("0F0,0F1,0B0", "1F0,1F1,1B0,1B1"), "row 1 has no 0B1: each of 2 micro-batches"),
    (("0F0,0F1,0B0,0B1", "1F0,1B0"), "row 2 has no 1F1"),
    (("0F0,0F2,0B0,0B2", "1F0,1F2,1B0,1B2"), "row 1 has no 0F1"),
    (("0F0,0B0,1F0", "1F0,1B0"), "row 2, column 1: 1F0 is of stage 1, which row 1 has too"),
    (("0F0,0B0", "2F0,2B0"), "no row has an action of stage 1; stages count from 0, and the highest is 2"),
    (("0F0,0B0", ""), "row 2 has no action"),
    ((), "this one has none"),
    (("1F0,1B0", "0F0,0B0"), "In this file: stage 0 on row 2, 1 on row 1"),
    (
        ("0F0,0B0,1F0,1B0", "2F0,2B0,3F0,3B0"),
        "or in a V (stages 1 and 2 on row 2). In this file: stage 0 on row 1, 1 on row 1",
    ),
    (("0F0,0B0,2F0,2B0", "1F0,1B0"), "2 on row 1"),
    (
        ("0F0,0B0,0F1,0B1", "1F0,1F1,1B1,1B0"),
        r"the schedule cannot run: rank 0 at 0B0 (row 1, column 2), rank 1 at 1F1 (row 2, column 2)",
    ),
]


@pytest.mark.parametrize(("rows", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_named_by_row_and_column(rows: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        written_of(rows)
    assert said in str(error.value)
    path = tmp_path / "wrong.csv"
    path.write_text("\n".join(rows) + "\n")
    if rows and rows[-1]:
        with pytest.raises(type(error.value), match=r"schedule file .*wrong\.csv: ") as same:
            load_plan(tree(str(path)))
        assert said in str(same.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [(None, "cannot be read"), (b"\xff\xfe", "is no text"), (b"0" * (LARGEST + 1), "is over 512 KiB"), (b'0F0,"0B0', "is no CSV")],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes | None, said: str) -> None:
    path = tmp_path / "mine.csv"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadInput, match=said):
        read_rows(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("parallel.pp=4",), r"parallel\.pp = 4, but the schedule's file is written for 2: 2 rows"),
        (("batch.global=8",), "micro-batches of a step = 8, but the schedule's file is written for 4"),
        (("parallel.virtual_stages=2",), r"parallel\.virtual_stages = 2, but the schedule's file is written for 1"),
        (("parallel.actions=[]",), r'schedule = "csv" without actions'),
        (("memory.offload=activations",), "csv splits them"),
    ],
)
def test_it_is_for_the_pipeline_that_it_is_written_for(tmp_path: Path, changes: tuple[str, ...], said: str) -> None:
    plan = load_plan(tree(written(tmp_path, "zb-h1")))
    with pytest.raises(BadInput, match=said):
        bind(load_plan(plan, changes), "dgx-h100") if "memory" not in changes[0] else predict_setting(
            bind(load_plan(plan, changes), "dgx-h100")
        )


def test_actions_without_their_schedule_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r'schedule = "1f1b" and actions'):
        load_plan(tree("1f1b", actions=["0F0,0B0"]))
    path = tmp_path / "one.csv"
    path.write_text("0F0,0B0\n")
    with pytest.raises(Refused, match="use pp > 1"):
        load_plan(tree(str(path), pp=1) | {"batch": {"global": 1}})
    with pytest.raises(BadInput, match=r'Allowed: gpipe, 1f1b.*, csv, or the path of a "\.csv" file'):
        load_plan(tree("mine.txt"))


def test_a_plan_keeps_what_the_file_said(tmp_path: Path) -> None:
    """Run folders, other machines and results of sweeps have the plan alone: the file may change, or be gone."""
    file = written(tmp_path, "zb-v")
    plan = load_plan(tree(file))
    Path(file).unlink()
    kept = tmp_path / "plan.toml"
    kept.write_text(dump_plan(plan))
    again = load_plan(str(kept))
    assert again == plan and dump_tree(plan)["parallel"]["actions"] == rows_of("zb-v", 2, 4, 2)
    assert name_of(again.parallel) is name_of(plan.parallel), "read once"
    other: Plan = load_plan(again, ("parallel.schedule=1f1b", "parallel.virtual_stages=1"))
    assert other.parallel.actions == () and other.parallel.schedule == "1f1b"


def test_zero_bubbles_written_down_warm_up_as_the_one_with_a_name(tmp_path: Path) -> None:
    """Two steps before the one that counts: the lighter first stage begins each one earlier than the one before."""
    sizes: dict[str, Any] = {"batch": {"global": 16, "micro": 1}, "framework": "pytorch", "model": tree("")["model"] | {"layers": 7}}
    own, named = (
        bind(load_plan(tree("") | sizes | {"parallel": {"schedule": schedule, "pp": 4, "stages": [1, 2, 2, 2], "dp_shard": 2}}), "dgx-h100")
        for schedule in (written(tmp_path, "zb-h1", 4, 8), "zb-h1")
    )
    assert whole_step(own) == whole_step(named) == pytest.approx(predict_setting(own).step_time_s, rel=1e-6)


def test_a_sweep_keeps_schedules_by_what_their_files_say(tmp_path: Path) -> None:
    file = written(tmp_path, "zb-h1")
    base = load_plan(tree("1f1b"))
    space = parse_space(f"schedule=1f1b,{file} virtual_stages=1")
    found = sweep(base, space, "dgx-h100", tmp_path / "kept.sqlite", every="whole")
    assert found.counts["done"] == 2
    before = header_of(base, space, "dgx-h100", {})
    Path(file).write_text("\n".join(rows_of("gpipe", 2, 4)))
    assert header_of(base, space, "dgx-h100", {}) != before
    with pytest.raises(BadInput, match="holds a sweep of another"):
        sweep(base, space, "dgx-h100", tmp_path / "kept.sqlite")


def test_every_schedule_that_has_a_name_is_written_here() -> None:
    assert {name for name, _ in SIZES} == set(SCHEDULES)
