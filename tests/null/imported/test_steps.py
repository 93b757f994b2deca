"""Ranges that mark steps: which of several, numbers that begin again, and what comes after the last."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from sim.imported import read_measured
from sim.imported.steps import Mark, Steps
from tests.null.imported.test_marks import MS, nsys

LONG = 1000.0
"""Microseconds of a step."""


def kineto(path: Path, *names: str, tail: int = 0, streams: int = 0) -> Path:
    """A step of ten kernels in each range of a loop, those of `names` around one another; then `tail` kernels of an evaluation. With `streams`, so
    many of the device have the ranges too, and no call tells when kernels were launched."""
    events = []

    def kernel(at: float) -> None:
        number = len(events)
        if not streams:
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 5.0}
            events.append({**call, "args": {"correlation": number}})
        events.append(
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 10, "dur": 50.0, "args": {"correlation": number}}
        )

    for turn, name in enumerate(names):
        begin = LONG * turn
        for depth, one in enumerate(name.split("|")):
            mark = {
                "ph": "X",
                "cat": "user_annotation",
                "name": one,
                "pid": 1,
                "tid": 1,
                "ts": begin + 120 * depth,
                "dur": 950.0 - 130 * depth,
            }
            events.append(mark)
            events += [
                {**mark, "cat": "gpu_user_annotation", "pid": 0, "tid": 7 + at, "ts": mark["ts"] + 300 * at} for at in range(streams)
            ]  # type: ignore[operator]
        for at in range(10):
            kernel(begin + 95.0 * at + 1)
    for at in range(tail):
        kernel(LONG * len(names) + 95.0 * at + 1)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("step 3", "step 4", "step 5"), [3, 4, 5]),
        (("ProfilerStep#0|step 7", "ProfilerStep#1|step 8"), [0, 1]),
        (("step 0", "step 1", "step 0", "step 1"), [0, 1, 2, 3]),
        (("epoch 0 step 0", "epoch 0 step 1", "epoch 1 step 0"), [0, 1, 2]),
        (("train_step", "train_step", "train_step"), [0, 1, 2]),
        (("train_step|batch 0", "train_step|batch 0"), [0, 1]),
        (("step 4|train_step", "step 5|train_step"), [4, 5]),
        (("microbatch 0", "microbatch 1"), [0, 0]),
        (("forward_step", "forward_step"), [0, 0]),
    ],
)
def test_each_turn_of_the_loop_is_a_step(names: tuple[str, ...], numbers: list[int], tmp_path: Path) -> None:
    spans = read_measured(kineto(tmp_path / "t.json", *names)).spans
    assert [span.step for span in spans] == [number for number in numbers for _ in range(10)]


@pytest.mark.parametrize("make", ["json", "sqlite"])
@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#{}", "step_{}", "step{}", "Step: {}", "Iteration {}", "iteration{}", "iter {}", "train_step {}", "training_step_{}", "batch {}",
     "Training step {}", "global_step={}", "## step {} ##", "epoch 0 step {}", "TrainStep {}", "step {}/1000", "step"],
)  # fmt: skip
def test_steps_are_found_as_people_write_them(make: str, name: str, tmp_path: Path) -> None:
    if make == "json":
        path = kineto(tmp_path / "t.json", *(name.format(number) for number in range(2)))
    else:
        path = nsys(tmp_path / "t.sqlite")
        with sqlite3.connect(path) as file:
            for number in range(2):
                file.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = ?", (name.format(number), f"step {number}"))
    assert {span.step for span in read_measured(path).spans} == {0, 1}


@pytest.mark.parametrize(
    "name", ["Optimizer.step#AdamW.step", "misstep 3", "aten::batch_norm", "step 3 loss", "micro-batch 3", "batched_3"]
)
def test_other_names_mark_no_step(name: str) -> None:
    assert Mark.of(name, 0.0, 1.0) is None


def test_what_recurs_with_gaps_is_no_step() -> None:
    """A range of a part of the loop tells its turns, but not which of them a kernel between two belongs to."""
    assert not Steps(Mark(LONG * at, LONG * at + 100, -1, "log_step") for at in range(3))


def test_what_is_launched_after_the_last_step_is_of_none(tmp_path: Path) -> None:
    names = ("step 0", "step 1", "step 2")
    plain, more = (read_measured(kineto(tmp_path / f"{tail}.json", *names, tail=tail)) for tail in (0, 40))
    assert [(span.start, span.step) for span in more.spans] == [(span.start, span.step) for span in plain.spans]


def test_so_it_is_in_an_export_of_nsight_systems(tmp_path: Path) -> None:
    path = nsys(tmp_path / "t.sqlite")
    plain = len(read_measured(path).spans)
    with sqlite3.connect(path) as file:
        for number, at in enumerate((19, 25), 50):  # inside the last range, and after it
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 9, ?)", (at * MS - 1, at * MS, number))
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 7, ?, 1)", (at * MS, (at + 1) * MS, number))
    spans = read_measured(path).spans
    assert len(spans) == plain + 1 and max(span.end for span in spans) < 20e-3


def test_a_range_of_each_stream_is_one_step(tmp_path: Path) -> None:
    spans = read_measured(kineto(tmp_path / "t.json", "step 4", "step 5", streams=3)).spans
    assert [span.step for span in spans] == [number for number in (4, 5) for _ in range(10)]


def test_ranges_that_end_early_do_not_end_the_last_step() -> None:
    """One of the forward pass alone: what comes after it between two of them comes after the last one, too; and a mark without length tells no end."""
    forward = Steps(Mark(LONG * at, LONG * at + 600, at, "step ") for at in range(3))
    assert not forward.after(2 * LONG + 999) and forward.after(3 * LONG + 1)
    moments = Steps(Mark(LONG * at, LONG * at, at, "step ") for at in range(3))
    assert not moments.after(9 * LONG)
    assert not Steps([Mark(0.0, LONG, 0, "step ")]).after(9 * LONG)
