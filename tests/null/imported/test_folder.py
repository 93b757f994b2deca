"""A folder with a file for each rank, whose clocks differ, is one trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sim.files.chrome import write_run
from sim.imported import read_measured
from sim.predict import predict
from sim.result.compare import compare, measured_file, measured_times
from topologies.errors import BadInput

STEP, LATE = 1000.0, 123_456.0
"""Microseconds of a step, and between two ranks' clocks."""


def recorded(rank: int, numbers: range = range(5, 9), odd: int = 0) -> bytes:
    """Steps of one GEMM and one collective, which takes longer on later ranks; the first is longer everywhere."""
    events: list[dict[str, Any] | None] = [None] * odd
    for step in numbers:
        at = LATE * rank + STEP * step + (300.0 if step > 5 else 0.0)
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": STEP})
        for name, begin, dur in (("sm90_gemm", 10.0, 300.0), ("ncclDevKernel_AllReduce", 320.0, 100.0 + 10 * rank)):
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": 7, "ts": at + begin, "dur": dur})
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}).encode()


def test_all_ranks_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "node0_17.1720000000.pt.trace.json.gz").write_bytes(gzip.compress(recorded(0)))
    (tmp_path / "node1_18.1720000001.pt.trace.json").write_bytes(recorded(3, odd=2))
    (tmp_path / "rank2.json.gz").write_bytes(gzip.compress(recorded(2, range(5, 8))))
    (tmp_path / "README.txt").write_text("where it ran")
    assert measured_file(tmp_path) == tmp_path
    trace = read_measured(tmp_path)
    assert (trace.ranks, trace.world, trace.steps) == ([0, 2, 3], 4, 3)
    assert (trace.meta["file"], trace.meta["unread"]) == (tmp_path.name, "2")
    for step in (5, 6, 7):
        begins = {round(min(span.start for span in trace.select(rank, step=step)) * 1e6, 3) for rank in trace.ranks}
        assert len(begins) == 1, "each step begins at once"
    assert measured_times(trace) == pytest.approx([1.3e-3, 1e-3])
    assert min(span.start for span in trace.spans) == 0.0


def test_a_folder_is_compared(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}.pt.trace.json").write_bytes(recorded(rank))
    predicted = predict({"model": "gpt2-124m", "seq_len": 256, "parallel": {"dp_replicate": 4}}, "dgx-h100")
    found = compare(predicted, tmp_path)
    assert found.measured_step.median == pytest.approx(1e-3)
    assert {row.cls: row.measured for row in found.classes}["comm"] == pytest.approx(105e-6)


def test_a_prediction_s_files_for_hta_are_the_prediction(tmp_path: Path) -> None:
    """StepTwin's own traces have one clock: who waits for whom stays as it was."""
    trace = predict({"model": "gpt2-124m", "seq_len": 256, "parallel": {"pp": 2}, "batch": {"global": 4, "micro": 1}}, "dgx-h100").trace
    assert trace is not None
    whole = read_measured(write_run(trace, tmp_path))
    parts = read_measured(tmp_path / "hta" / "predicted")
    assert {(s.id, s.start, s.end) for s in parts.spans} == {(s.id, s.start, s.end) for s in whole.spans}
    assert (parts.world, parts.steps, parts.reported) == (whole.world, whole.steps, whole.reported)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.json": recorded(1), "b.json": recorded(1)}, r"a\.json and .*b\.json are both of rank 1"),
        ({"a.json": recorded(0), "b.json": recorded(1, range(20, 22))}, "no step in common"),
        ({"a.json": recorded(0), "b.json": b"{"}, r"b\.json is no Kineto trace"),
    ],
)
def test_folders_that_are_no_run_are_refused(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read_measured(measured_file(tmp_path))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="without a measured trace"):
        measured_file(tmp_path)
    with pytest.raises(BadInput, match="holds no trace"):
        read_measured(tmp_path)


def test_a_run_s_steps_are_those_that_were_timed(tmp_path: Path) -> None:
    """A step takes longer beside the profiler that records its spans; of a run from before its trace told of others there are those alone."""
    predicted = predict({"model": "gpt2-124m", "seq_len": 256, "parallel": {"pp": 2}, "batch": {"global": 4, "micro": 1}}, "dgx-h100")
    assert predicted.trace is not None
    profiled = replace(predicted.trace, origin="stock")
    write_run(profiled, tmp_path / "before")
    write_run(replace(profiled, timed=[0.25, 0.125, 0.5]), tmp_path / "now")
    before, now = (compare(predicted, tmp_path / name) for name in ("before", "now"))
    assert before.measured_step.median == pytest.approx(predicted.step_time_s)
    assert (now.measured_step.median, now.measured_step.count) == (0.25, 3)
    assert (now.classes, now.pairs) == (before.classes, before.pairs), "ops are those of the spans"
    assert measured_times(read_measured(tmp_path / "now" / "hta" / "stock")) == [0.25, 0.125, 0.5]
