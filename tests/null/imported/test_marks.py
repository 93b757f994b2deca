"""Traces from elsewhere: kernels find their op by the range that was open when they were launched."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sim.imported import read_measured
from sim.imported.marks import Marks, Range
from sim.predict import predict
from sim.result.compare import compare, doubts
from sim.timeline.metrics import classify
from topologies.errors import BadInput

MS = 1_000_000


def kineto(path: Path) -> Path:
    """Two steps of two marked GEMMs and one kernel outside any range."""
    events: list[dict[str, object]] = []
    number = 0
    for step in (0, 1):
        at = step * 10_000.0
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": 9000.0})
        for op, start in (("op:fwd/L0.attn.qkv", 100.0), ("op:bwd/L0.attn.qkv", 3000.0), ("", 5000.0)):
            number += 1
            if op:
                events.append({"ph": "X", "cat": "user_annotation", "name": op, "pid": 1, "tid": 1, "ts": at + start, "dur": 50.0})
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + start + 10, "dur": 5.0}
            events.append({**call, "args": {"correlation": number}})
            kernel = {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "pid": 0, "tid": 7, "ts": at + start + 900, "dur": 1000.0}
            events.append({**kernel, "args": {"correlation": number, "stream": 7}})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def nsys(path: Path) -> Path:
    """The same as Nsight Systems exports it."""
    file = sqlite3.connect(path)
    file.executescript(
        "CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
        " (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, demangledName INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY"
        " (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, copyKind INTEGER, bytes INTEGER);"
        "INSERT INTO StringIds VALUES (1, 'sm90_gemm'), (2, 'op:bwd/L0.attn.qkv');"
    )
    number = 0
    for step in (0, 1):
        at = step * 10 * MS
        file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, 9)", (at, at + 9 * MS, f"step {step}"))
        for text, text_id, start in (("op:fwd/L0.attn.qkv", None, MS), (None, 2, 3 * MS), ("", None, 5 * MS)):
            number += 1
            if text or text_id:
                file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, 9)", (at + start, at + start + MS, text, text_id))
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 9, ?)", (at + start + 10, at + start + 20, number))
            kernel = (at + start + MS, at + start + 2 * MS, 7, number)
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, 1)", kernel)
    file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 8, 99, 1, 4096)", (11 * MS, 12 * MS))
    file.commit()
    file.close()
    return path


@pytest.mark.parametrize("make", [kineto, nsys])
def test_kernels_take_the_name_of_their_range(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = read_measured(make(tmp_path / ("t.json" if make is kineto else "t.sqlite")))
    gemms = [(s.step, s.id, round(s.seconds, 9)) for s in trace.spans if s.cls == "gemm"]
    ids = ["fwd/L0.attn.qkv", "bwd/L0.attn.qkv", "sm90_gemm"]
    assert gemms == [(step, id, 1e-3) for step in (0, 1) for id in ids]


def second(path: Path) -> Path:
    """The same once more in another process, on another device, with the numbers of the first."""
    process = 1 << 24
    with sqlite3.connect(path) as file:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            own = {"globalTid": f"globalTid + {process}"}
            if table.endswith(("KERNEL", "MEMCPY")):
                file.execute(f"ALTER TABLE {table} ADD COLUMN globalPid INTEGER DEFAULT {process}")
                file.execute(f"ALTER TABLE {table} ADD COLUMN deviceId INTEGER DEFAULT 3")
                own = {"globalPid": str(2 * process), "deviceId": "5"}
            else:
                file.execute(f"UPDATE {table} SET globalTid = globalTid + {process}")
            columns = [name for _, name, *_ in file.execute(f"PRAGMA table_info({table})")]
            file.execute(f"INSERT INTO {table} SELECT {', '.join(own.get(name, name) for name in columns)} FROM {table}")
    return path


def test_each_device_of_an_export_is_a_rank(tmp_path: Path) -> None:
    one, both = read_measured(nsys(tmp_path / "a.sqlite")), read_measured(second(nsys(tmp_path / "b.sqlite")))
    assert (both.ranks, both.world) == ([0, 1], 2)
    for rank in both.ranks:
        assert [(s.start, s.id, s.step) for s in both.select(rank)] == [(s.start, s.id, s.step) for s in one.spans]
    predicted = predict({"model": "gpt2-124m", "seq_len": 256, "parallel": {"dp_replicate": 2}}, "dgx-h100", steps=2)
    alone, together = compare(predicted, one), compare(predicted, both)
    assert together.classes == alone.classes
    assert [(pair.id, pair.measured) for pair in together.pairs] == [(pair.id, pair.measured) for pair in alone.pairs]


def test_a_copy_to_the_device_is_data(tmp_path: Path) -> None:
    copies = [s for s in read_measured(nsys(tmp_path / "t.sqlite")).spans if s.kind == "copy"]
    assert [(s.cls, s.bytes, s.lane, s.step) for s in copies] == [("data", 4096, "stream 8", 1)]


@pytest.mark.parametrize(("how", "name", "kind", "told"), [(1, "HtoD", "copy", "data_s"), (8, "DtoD", "compute", "compute_s")])
def test_a_copy_inside_the_device_is_no_wait_for_a_batch(how: int, name: str, kind: str, told: str, tmp_path: Path) -> None:
    path, events = nsys(tmp_path / "t.sqlite"), json.loads(kineto(tmp_path / "t.json").read_text())["traceEvents"]
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 7, 99, ?, 4096)", (17 * MS, 18 * MS, how))
    events.append({"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy {name}", "pid": 0, "tid": 7, "ts": 17_000.0, "dur": 1000.0})
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    for trace in (read_measured(path), read_measured(tmp_path / "t.json")):
        (found,) = (s for s in trace.spans if s.name.startswith(f"Memcpy {name}") and s.lane == "stream 7")
        assert found.kind == kind
        assert classify([found], found.start, found.end)[told] == pytest.approx(1e-3)


def test_memory_that_is_set_is_a_kernel_without_a_product(tmp_path: Path) -> None:
    path = nsys(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, bytes INTEGER)"
        )
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, 7, 98, 512)", (13 * MS, 14 * MS))
    (found,) = (s for s in read_measured(path).spans if s.name == "Memset")
    assert (found.kind, found.cls, found.bytes, found.step, round(found.seconds, 9)) == ("compute", "elementwise", 512, 1, 1e-3)


def test_a_cuda_graph_that_was_recorded_whole_is_a_span(tmp_path: Path) -> None:
    """Its kernels stand in no table: without its row the step is shorter by all of them, and empty where nothing else ran."""
    path = nsys(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
            " (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER)"
        )
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, 0, 7, 6, 0, 42)", (17 * MS, 25 * MS))
    trace = read_measured(path)
    (graph,) = (s for s in trace.spans if s.cls == "graph")
    assert (graph.kind, graph.lane, graph.step, graph.name, round(graph.seconds, 9)) == ("compute", "stream 7", 1, "CUDA graph 42", 8e-3)
    predicted = predict({"model": "gpt2-124m", "seq_len": 256}, "dgx-h100", steps=2)
    found = compare(predicted, trace)
    assert found.measured_step.median == pytest.approx(18e-3)
    assert [(row.predicted, round(row.measured, 9)) for row in found.classes if row.cls == "graph"] == [(0.0, 8e-3)]
    assert any("--cuda-graph-trace=node" in said for said in doubts(predicted, trace))


def test_a_prediction_is_compared_op_by_op(tmp_path: Path) -> None:
    predicted = predict({"model": "gpt2-124m", "seq_len": 256}, "dgx-h100", steps=2)
    found = compare(predicted, kineto(tmp_path / "t.json"))
    assert [(p.id, p.measured) for p in found.pairs] == [("fwd/L0.attn.qkv", pytest.approx(1e-3)), ("bwd/L0.attn.qkv", pytest.approx(1e-3))]
    assert predicted.trace is not None
    ours = {s.id: s.seconds for s in predicted.trace.spans if s.step == 1}
    both = ours["r0/s1/mb0/bwd/L0.attn.qkv"] + ours["r0/s1/mb0/wgrad/L0.attn.qkv"]
    assert found.pairs[1].predicted == pytest.approx(both)
    assert found.measured_step.count == 1


def test_the_innermost_open_range_counts() -> None:
    ranges = [(1, Range(0.0, 10.0, "outer")), (1, Range(2.0, 4.0, "inner")), (2, Range(0.0, 10.0, "other"))]
    marks = Marks(ranges, [(1, 1, 3.0), (2, 1, 5.0), (3, 2, 3.0), (4, 1, 11.0)])
    assert [marks.op(n) for n in (1, 2, 3, 4, 5)] == ["inner", "outer", "other", "", ""]


@pytest.mark.parametrize(("name", "content"), [("a.sqlite", b"not a database at all" * 90), ("b.nsys-rep", b"x"), ("c.sqlite", b"")])
def test_other_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match="nsys"):
        read_measured(tmp_path / name)


def test_an_export_may_have_any_name_that_a_file_may_have(tmp_path: Path) -> None:
    assert (
        len(read_measured(nsys(tmp_path / "run #1 50%20?.sqlite")).spans) == len(read_measured(nsys(tmp_path / "plain.sqlite")).spans) > 0
    )
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(BadInput, match="is no file"):
        read_measured(tmp_path / "folder.sqlite")


@pytest.mark.parametrize("make", ["kineto", "nsys", "kineto without launches"])
def test_a_kernel_belongs_to_the_step_that_launched_it(make: str, tmp_path: Path) -> None:
    """The host is through with the second step while the device is still at the first."""
    steps = [(0, 0), (1, 40)]  # (number, microsecond at which the host begins it)
    kernels = [(0, 10, 20), (0, 20, 120), (1, 50, 220), (1, 60, 320)]  # (step, launched, begun)
    if make == "nsys":
        path = nsys(tmp_path / "t.sqlite")
        with closing(sqlite3.connect(path)) as file, file:
            for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"):
                file.execute(f"DELETE FROM {table}")
            for number, at in steps:
                file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, 9)", (at * 1000, at * 1000 + 40_000, f"step {number}"))
            for number, (_, launched, begun) in enumerate(kernels):
                file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 9, ?)", (launched * 1000, launched * 1000 + 1, number))
                file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 7, ?, 1)", (begun * 1000, begun * 1000 + 90_000, number))
    else:
        ranges = [("user_annotation", number, at, 40) for number, at in steps] + [
            ("gpu_user_annotation", n, 20 + 200 * n, 200) for n in (0, 1)
        ]
        events: list[dict[str, object]] = [
            {"ph": "X", "cat": cat, "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": at, "dur": long}
            for cat, number, at, long in ranges
        ]
        for number, (_, launched, begun) in enumerate(kernels):
            args = {"correlation": number, "stream": 7}
            events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": begun, "dur": 90, "args": args})
            if make == "kineto":
                events.append(
                    events[-1] | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": launched, "dur": 5}
                )
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"traceEvents": events}))
    assert [span.step for span in read_measured(path).spans] == [step for step, _, _ in kernels]
