"""Trace files: what we write reads back, HTA loads it, foreign and broken files give one message."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steptwin
from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.files.chrome import to_kineto, write_run, write_trace
from sim.imported import events
from sim.imported.kineto import read_trace
from sim.mesh import Mesh
from sim.predict import predict
from sim.program import Op
from sim.result.compare import doubts
from sim.timeline.metrics import breakdown, step_times
from sim.trace import Span, Trace
from tests.null.engine.bench import TablePricer, program
from topologies.errors import BadInput


def two_ranks() -> Trace:
    def rank() -> list[Op]:
        ops = [Op("f", "compute", "compute", cls="gemm"), Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.dp", event="e")]
        ops += [Op("ar", "collective", "comm.dp", name="all_reduce", group="dp", cls="comm.dp", bytes=1024)]
        return [*ops, Op("b", "compute", "compute", cls="gemm"), Op("end", "sync", "host")]

    made = program({"host": rank()}, {"host": rank()}, mesh=Mesh({"dp_replicate": 2}), calls=3)
    return simulate(
        made, TablePricer({"f": Cost(2e-3, host=1e-5), "b": Cost(2e-3, host=1e-5), "ar": Cost(3e-3, host=2e-5)}), symmetry=False
    )


def test_a_trace_reads_back(tmp_path: Path) -> None:
    trace = two_ranks()
    again = read_trace(write_trace(trace, tmp_path / "all.json.gz"))
    wanted = {s.id: (s.kind, s.cls, s.rank, s.step) for s in trace.spans if s.kind in ("compute", "collective")}
    found = {s.id: (s.kind, s.cls, s.rank, s.step) for s in again.spans if s.kind in ("compute", "collective")}
    assert found == wanted
    before = {s.id: s.seconds for s in trace.spans}
    assert all(s.seconds == pytest.approx(before[s.id], abs=2e-9) for s in again.spans if s.id in found)


@pytest.mark.no_cover
def test_a_trace_reads_back_with_all_that_figures_need(tmp_path: Path) -> None:
    """Breakdown, step times, reported step, weights, waits, launches and memory are those of the trace that was written."""
    found = predict("gpt2-ddp8", "dgx-h100").trace
    assert found is not None
    loader = Span(0, "loader.0", "r0/s2/mb0/load", 0.0, 50.0, "host", "data", 2, thread="loader.0")
    trace = msgspec.structs.replace(found, spans=[*found.spans, loader], reported=-2, memory={0: [(0.0, 1), (1e-3, 2**30)]})
    again = read_trace(write_trace(trace, tmp_path / "all.json.gz"))
    assert (again.reported, again.weight, again.world, again.steps) == (-2, trace.weight, trace.world, trace.steps)
    assert again.memory == {0: [(0.0, 1), (pytest.approx(1e-3), 2**30)]}
    assert step_times(again) == pytest.approx(step_times(trace), abs=2e-9)
    ours, theirs = (msgspec.structs.asdict(breakdown(one)) for one in (trace, again))
    assert theirs == pytest.approx(ours, abs=2e-6)
    kept = {s.id: s for s in again.spans}
    for span in trace.spans:
        if span.kind in ("compute", "collective"):
            one = kept[span.id]
            assert (one.step, one.thread, one.group_size, one.source) == (span.step, span.thread, span.group_size, span.source)
            assert (one.wait, one.issued, one.launch) == pytest.approx((span.wait, span.issued, span.launch), abs=2e-9)


def test_launches_of_messages_on_the_training_thread_read_back(tmp_path: Path) -> None:
    trace = predict(steptwin.plan("two-gpus-six-stages", "update.aggregate=cpu"), "dgx-h100").trace
    assert trace is not None
    again = read_trace(write_trace(trace, tmp_path / "cpu.json.gz"))
    kept = {span.id: span for span in again.spans}
    mine = [span for span in trace.spans if span.lane == "host" and span.launch > 0]
    assert mine
    for span in mine:
        assert (kept[span.id].issued, kept[span.id].launch) == pytest.approx((span.issued, span.launch), abs=2e-9)
    assert breakdown(again).host_s == pytest.approx(breakdown(trace).host_s, abs=2e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steptwin": {"reported": 0}}, "reported"),
        ({"steptwin": {"weight": {"0": 0}}}, "weight"),
        ({"memory": [{"ph": "C", "name": "memory", "pid": "", "ts": 0.0}]}, "make no sense"),
        ({"memory": [{"ph": "C", "name": "memory", "pid": 0, "ts": 0.0, "args": {"bytes": {}}}]}, "make no sense"),
    ],
)
def test_what_a_trace_says_of_itself_is_checked(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    found = to_kineto(two_ranks())
    found["traceEvents"] += change.pop("memory", [])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(found | change))
    with pytest.raises(BadInput, match=told):
        read_trace(path)


def test_waits_are_told_in_what_others_read(tmp_path: Path) -> None:
    """Of a collective whose other rank comes a second later; and traces that are too large, packed or not, are refused."""
    trace = Trace([Span(0, "comm.dp", "r0/s0/c", 1.0, 4.0, "collective", wait=1.0, issued=0.5, launch=0.25)])
    events = [event for event in to_kineto(trace)["traceEvents"] if "wait_us" in event.get("args", {})]
    assert [event["args"]["wait_us"] for event in events] == [1e6] and events[0]["args"]["op_id"] == "r0/s0/c"


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_traces_that_are_too_large_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(two_ranks(), tmp_path / name)
    assert read_trace(tmp_path / name).spans
    monkeypatch.setattr(events, "_LARGEST", 100)
    with pytest.raises(BadInput, match="record fewer steps"):
        read_trace(tmp_path / name)


def test_a_run_keeps_its_trace_whole_and_rank_by_rank(tmp_path: Path) -> None:
    """HTA takes a file for one rank, and all that lie in a folder: those of an earlier plan must not stay."""
    trace = two_ranks()
    stale = tmp_path / "hta" / "predicted" / "rank7.json.gz"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    whole = write_run(trace, tmp_path)
    assert whole.read_bytes() == write_trace(trace, tmp_path / "all.json.gz").read_bytes()
    files = sorted(stale.parent.iterdir())
    assert [file.name for file in files] == ["rank0.json.gz", "rank1.json.gz"]
    for rank, file in enumerate(files):
        assert json.loads(gzip.decompress(file.read_bytes())) == to_kineto(trace, rank)


@pytest.mark.no_cover
def test_hta_loads_a_prediction_and_finds_the_overlap(tmp_path: Path) -> None:
    hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    write_run(two_ranks(), tmp_path)
    analysis = hta.TraceAnalysis(trace_dir=str(tmp_path / "hta" / "predicted"))
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    assert list(overlap["rank"]) == [0, 1]
    assert list(overlap["comp_comm_overlap_pctg"]) == pytest.approx([66.67, 66.67], abs=0.1)  # 2 of 3 ms beside compute
    idle = analysis.get_temporal_breakdown(visualize=False)
    assert all(idle["compute_time_pctg"] > 75)


def test_a_foreign_trace_is_classified(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1, "ts": 100.0, "dur": 50.0},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ampere_bf16_s16816gemm_bf16_128x128",
            "pid": 0,
            "tid": 7,
            "ts": 110.0,
            "dur": 10.0,
            "args": {"stream": 7},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)",
            "pid": 0,
            "tid": 20,
            "ts": 112.5,
            "dur": 5.0,
            "args": {"stream": 20},
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "pid": 0,
            "tid": 21,
            "ts": 130.0,
            "dur": 1.5,
            "args": {"stream": 21},
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 101.0, "dur": 2.0},
    ]
    file = tmp_path / "trace.json.gz"
    file.write_bytes(
        gzip.compress(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events}).encode())
    )
    trace = read_trace(file)
    assert [(s.rank, s.lane, s.kind, s.cls, s.step) for s in trace.spans] == [
        (3, "stream 7", "compute", "gemm", 5),
        (3, "stream 20", "collective", "comm", 5),
        (3, "stream 21", "copy", "data", 5),
    ]
    assert trace.spans[0].seconds == pytest.approx(10e-6)


@pytest.mark.parametrize("pids", [(2, 10), (0, 0)])
def test_each_device_of_a_file_is_a_rank(pids: tuple[int, int], tmp_path: Path) -> None:
    """By their processes or by what kernels say; where one kernel went astray is no rank, nor where memory was only set."""

    def kernel(pid: int, device: int | None, ts: float, dur: float = 900.0, cat: str = "kernel") -> dict[str, Any]:
        where = {} if device is None else {"device": device}
        return {"ph": "X", "cat": cat, "name": "sm90_gemm", "pid": pid, "tid": 7, "ts": ts, "dur": dur, "args": {"stream": 7} | where}

    events = [kernel(pid, device, 1000.0 * at) for at in range(3) for device, pid in enumerate(pids)]
    events += [kernel(9, 9, 2000.0, 1.0), kernel(8, 8, 2001.0, cat="gpu_memset")]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 3, "world_size": 1}, "traceEvents": events}))
    trace = read_trace(path)
    assert (trace.ranks, trace.world) == ([0, 1], 2)
    assert [(span.rank, span.start) for span in trace.spans if span.seconds > 5e-4 and span.kind == "compute"][:4] == [
        (0, 0.0),
        (1, 0.0),
        (0, pytest.approx(1e-3)),
        (1, pytest.approx(1e-3)),
    ]
    path.write_text(json.dumps({"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": events[::2]}))
    assert (read_trace(path).ranks, read_trace(path).world) == ([3], 8)


def test_a_collective_is_one_whatever_its_kernel_is_called(tmp_path: Path) -> None:
    args = '{"Collective name": "allreduce", "Group size": 8, "stream": 7}'
    (tmp_path / "t.json").write_bytes(_WHOLE.replace(b'{"stream": 7}', args.encode()))
    (span,) = read_trace(tmp_path / "t.json").spans
    assert (span.kind, span.cls, span.name, span.group_size) == ("collective", "comm", "sm90_gemm", 8)


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16"}, 2000),
        ({"Collective name": "_allgather_base", "In msg nelems": 1000, "Out msg nelems": 8000, "dtype": "Float"}, 32000),
        ({"Collective name": "_reduce_scatter_base", "In msg nelems": 8000, "Out msg nelems": 1000, "dtype": "Float8_e4m3fn"}, 8000),
        ({"Collective name": "barrier", "In msg nelems": 1, "Out msg nelems": 1, "dtype": "Void"}, 0),
    ],
)
def test_a_collective_has_the_bytes_of_its_array(said: dict[str, Any], size: int, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(_WHOLE.replace(b'{"stream": 7}', json.dumps(said).encode()))
    (span,) = read_trace(tmp_path / "t.json").spans
    assert span.bytes == size


def foreign() -> list[dict[str, Any]]:
    """Two steps of a GEMM in a range, a gather whose backend has a name of its own, and copies both ways."""
    gather = {"Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 2048, "dtype": "BFloat16", "Group size": 2}
    kernels = [
        ("kernel", "sm90_gemm", {}),
        ("kernel", "ncclDevKernel_AllGather_RING_SIMPLE", gather | {"Process Group Name": "7"}),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", {"bytes": 64}),
        ("gpu_memset", "Memset (Device)", {}),
    ]
    events: list[dict[str, Any]] = []
    for step in (4, 5):
        at = 1000.0 * step
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9, "tid": 9, "ts": at, "dur": 990.0})
        events.append({"ph": "X", "cat": "user_annotation", "name": "op:fwd/L0.mlp.up", "pid": 9, "tid": 9, "ts": at + 10, "dur": 30.0})
        for number, (cat, name, args) in enumerate(kernels, 10 * step):
            where = {"pid": 9, "tid": 9, "ts": at + 25 + 10 * (number % 10), "dur": 5.0}
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **where, "args": {"correlation": number}})
            where = {"pid": 2, "tid": 7, "ts": at + 100 + 50 * (number % 10), "dur": 40.0}
            events.append({"ph": "X", "cat": cat, "name": name, **where, "args": {"stream": 7, "correlation": number} | args})
    return events


@pytest.mark.no_cover
def test_hta_finds_in_what_is_written_back_what_was_recorded(tmp_path: Path) -> None:
    hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    own = tmp_path / "own"
    own.mkdir()
    (own / "t.json").write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": foreign()}))
    write_run(read_trace(own / "t.json"), tmp_path)
    found = [
        hta.TraceAnalysis(trace_dir=str(folder)).get_temporal_breakdown(visualize=False) for folder in (own, tmp_path / "hta" / "imported")
    ]
    columns = ["compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]
    assert [list(table[column]) for table in found[1:] for column in columns] == [list(found[0][column]) for column in columns]
    assert found[0]["compute_time(us)"][0] > 0


def test_a_foreign_trace_is_written_back_as_it_was(tmp_path: Path) -> None:
    """Under its kernels' own names, with launches that were recorded and no others; and reads back."""
    said = {"rank": 2, "world_size": 4, "backend": "nccl"}
    (tmp_path / "t.json").write_text(json.dumps({"distributedInfo": said, "traceEvents": foreign()}))
    trace = read_trace(tmp_path / "t.json")
    written = to_kineto(trace)["traceEvents"]
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    wanted = [(e["cat"], e["name"]) for e in foreign() if e["cat"] in device]
    assert [(e["cat"], e["name"]) for e in written if e.get("cat") in device] == wanted
    launched = [e["ts"] for e in written if e.get("cat") == "cuda_runtime"]
    assert launched == [0.0, 0.0, 0.0, 0.0, *(1000.0 - 75.0 + 10.0 * at for at in range(4))], "the first before the first kernel"
    alone = [e for e in foreign() if e["cat"] != "cuda_runtime"]
    (tmp_path / "alone.json").write_text(json.dumps({"distributedInfo": said, "traceEvents": alone}))
    assert not [e for e in to_kineto(read_trace(tmp_path / "alone.json"))["traceEvents"] if e.get("cat") == "cuda_runtime"]
    (gather, _) = (e["args"] for e in written if "AllGather" in e["name"])
    assert (gather["Collective name"], gather["In msg nelems"], gather["Out msg nelems"]) == ("_allgather_base", 2048, 4096)
    moved = [msgspec.structs.replace(span, rank=1, start=span.start + 1e-3, end=span.end + 1e-3, issued=5e-4) for span in trace.spans]
    both = msgspec.structs.replace(trace, spans=[*trace.spans, *moved])
    again = read_trace(write_trace(both, tmp_path / "imported.json.gz"))
    fields = ("rank", "step", "id", "name", "kind", "cls", "bytes", "group", "group_size", "lane")
    assert [span.issued for span in again.spans if span.rank == 2] == pytest.approx([span.issued for span in trace.spans], abs=1e-9)
    told = [sorted(tuple(getattr(span, field) for field in fields) for span in one.spans) for one in (both, again)]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"traceEvents": 3}', b'{"traceEvents": []}', b"\x1f\x8b broken", b'{"traceEvents": [{"ts": "x"}]}']
)
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_broken_files_are_one_message(tmp_path: Path, content: bytes, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(BadInput, match=name.replace(".", r"\.")):
        read_trace(file)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "t.json"
    file.write_bytes(content)
    with pytest.raises(BadInput):
        read_trace(file)


_KERNEL = '{"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": 5.0, "dur": 2.0, "pid": 0, "tid": 7, "args": {"stream": 7}}'
_WHOLE = f'{{"traceEvents": [{_KERNEL}]}}'.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.json.gz", _WHOLE),
        ("packed.json", gzip.compress(_WHOLE)),
        ("mark.json", b"\xef\xbb\xbf" + _WHOLE),
        ("list.json", f"\n[{_KERNEL}]".encode()),
        ("crlf.json", _WHOLE.replace(b", ", b",\r\n")),
        ("nan.json", _WHOLE.replace(b'"stream": 7', b'"stream": 7, "est. achieved occupancy %": NaN, "x": -Infinity')),
        ("cpp.json", _WHOLE.replace(b'"stream": 7', b'"stream": 7, "a": nan, "b": -nan, "c": [inf, -inf], "d": -nan(ind)')),
        ("escape.json", _WHOLE.replace(b'"ph"', rb'"path": "C:\data\\x\u12", "half": "\ud83d!", "whole": "\ud83d\ude00", "ph"')),
        ("control.json", _WHOLE.replace(b'"ph"', b'"other": "a\x01\tb\x00", "ph"')),
        ("correlation.json", _WHOLE.replace(b'"stream": 7', b'"stream": 7, "correlation": "abc"')),
        ("bytes.json", _WHOLE.replace(b'"ph"', b'"other": "\xff\xfe", "ph"')),
        ("sp\N{LATIN SMALL LETTER A WITH DIAERESIS}t #1 50%?.json", _WHOLE),
    ],
)
def test_what_profilers_and_people_do_to_files_is_read(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    (span,) = read_trace(file).spans
    assert (span.cls, span.lane) == ("gemm", "stream 7") and span.seconds == pytest.approx(2e-6)


@pytest.mark.parametrize("dur", ["-2.0", "NaN", "Infinity"])
def test_times_that_are_none_are_refused(tmp_path: Path, dur: str) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(_WHOLE.replace(b'"dur": 2.0', f'"dur": {dur}'.encode()))
    with pytest.raises(BadInput, match=r"t\.json"):
        read_trace(file)


_ODD = (
    '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": -1.0}',
    '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": null}',
    '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": 1e999}',
    '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": nan}',
    '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": 1.0, "pid": null}',
    "null",
    "7",
)


@pytest.mark.no_cover
@pytest.mark.parametrize("odd", _ODD)
@pytest.mark.parametrize("listed", [False, True])
def test_an_odd_event_is_left_out_and_told(odd: str, listed: bool, tmp_path: Path) -> None:
    events = f"[{odd}, {_KERNEL}, {odd}]"
    (tmp_path / "t.json").write_text(events if listed else f'{{"distributedInfo": {{"rank": 3}}, "traceEvents": {events}}}')
    trace = read_trace(tmp_path / "t.json")
    assert [(span.rank, span.cls) for span in trace.spans] == [(0 if listed else 3, "gemm")]
    assert "2 events of the trace could not be read and are left out" in doubts(predict("gpt2-ddp8", "dgx-h100"), trace)


def test_an_event_without_arguments_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(_WHOLE.replace(b'{"stream": 7}', b"null"))
    trace = read_trace(tmp_path / "t.json")
    assert [(span.lane, span.cls) for span in trace.spans] == [("stream 7", "gemm")] and "unread" not in trace.meta


def _called(name: str, ts: float, dur: float, tid: int = 7, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {"External id": 3}}


def test_a_trace_of_a_cpu_has_the_outermost_operators(tmp_path: Path) -> None:
    step = [
        ("op:fwd/L0.mlp.up", 0, 30, "user_annotation"),
        ("aten::linear", 1, 20, "cpu_op"),
        ("aten::addmm", 2, 15, "cpu_op"),  # what linear calls
        ("aten::gelu", 31, 5, "cpu_op"),
        ("autograd::engine::evaluate_function: AddmmBackward0", 40, 20, "cpu_op"),  # runs no kernel of its own
        ("aten::mm", 41, 10, "cpu_op"),
        ("Optimizer.step#AdamW.step", 70, 20, "user_annotation"),
        ("aten::mul_", 72, 5, "cpu_op"),
    ]
    events = [_called(f"step {n}", 100 * n, 95, cat="user_annotation") for n in range(2)]
    events += [_called(name, 100 * n + ts, dur, cat=cat) for n in range(2) for name, ts, dur, cat in step]
    events += [_called("gloo:all_reduce", 100 * n + 45, 9, tid=8) for n in range(2)]
    (tmp_path / "cpu.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(tmp_path / "cpu.json")
    assert trace.steps == 2
    found = [(s.id, s.cls, s.kind, round(s.seconds * 1e6)) for s in trace.spans if s.step == 1]
    assert found == [
        ("fwd/L0.mlp.up", "gemm", "compute", 20),
        ("aten::gelu", "elementwise", "compute", 5),
        ("aten::mm", "gemm", "compute", 10),
        ("gloo:all_reduce", "comm", "collective", 9),
        ("aten::mul_", "optimizer", "compute", 5),
    ]
