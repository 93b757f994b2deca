"""Events of one thread of a trace file nest, as Perfetto asks: what overlaps otherwise it drops."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.files.chrome import to_kineto, write_run
from sim.files.nccl import Wires, wires_of, word_of
from sim.files.planfile import load_plan
from sim.imported.kineto import read_trace
from sim.mesh import Mesh
from sim.predict import predict
from sim.program import MEETING, MESSAGE
from sim.trace import Span, Trace


def _crossing(trace: Trace) -> list[tuple[str, str]]:
    """Pairs of events of one thread of which neither lies inside the other."""
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in to_kineto(trace)["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    found = []
    for events in threads.values():
        open_events: list[dict[str, Any]] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while open_events and open_events[-1]["ts"] + open_events[-1]["dur"] <= event["ts"] + 2e-3:
                open_events.pop()
            if open_events and event["ts"] + event["dur"] > open_events[-1]["ts"] + open_events[-1]["dur"] + 2e-3:
                found.append((open_events[-1]["name"], event["name"]))
            open_events.append(event)
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("plan", "on"),
    [("copy-compute-overlap", "dgx-h100"), ("resnet50-ddp8", "dgx-a100"), ("gpt2-ddp8", "dgx-h100"), ("tiny-ddp", "cpu-host")],
)
def test_a_step_ends_between_two_ops_of_its_host_thread(plan: str, on: str) -> None:
    """The host is ahead of the devices: where the step's last kernel ends, it is in the midst of an op of the next."""
    trace = predict(plan, on).trace
    assert trace is not None and _crossing(trace) == []


def test_launches_lie_in_the_step_that_they_belong_to() -> None:
    trace = predict("resnet50-ddp8", "dgx-a100").trace
    assert trace is not None
    events = [event for event in to_kineto(trace, 0)["traceEvents"] if event["ph"] == "X"]
    marks = {event["name"]: event for event in events if event["cat"] == "user_annotation"}
    assert len(marks) == trace.steps
    for event in events:
        if event["cat"] == "cuda_runtime":
            mark = marks[f"ProfilerStep#{event['args']['op_id'].split('/')[1][1:]}"]
            assert mark["ts"] - 1e-3 <= event["ts"] <= mark["ts"] + mark["dur"] + 1e-3


def test_steps_are_marked_on_each_stream_where_the_device_works_on_them() -> None:
    """The host runs ahead: its own marks end long before the device comes to the step."""
    trace = predict("gpt2-ddp8", "dgx-h100").trace
    assert trace is not None
    events = [event for event in to_kineto(trace, 0)["traceEvents"] if event["ph"] == "X"]
    marks = {(event["tid"], event["name"]): event for event in events if event["cat"] == "gpu_user_annotation"}
    ops = [event for event in events if event["cat"] in ("kernel", "gpu_memcpy")]
    for event in ops:
        mark = marks[event["tid"], f"ProfilerStep#{event['args']['op_id'].split('/')[1][1:]}"]
        assert mark["ts"] <= event["ts"] and event["ts"] + event["dur"] <= mark["ts"] + mark["dur"] + 2e-3
    assert len(marks) == trace.steps * len({event["tid"] for event in ops})


def test_marks_of_steps_that_cross_on_a_stream_are_cut() -> None:
    """What of a step comes after the next one's first op lies in that one's mark: events of a thread nest."""
    spans = [Span(0, "compute", f"r0/s{step}/{at}", float(at), at + 1.0, step=step) for at, step in enumerate((0, 1, 0, 1))]
    marks = [e for e in to_kineto(Trace(spans))["traceEvents"] if e.get("cat") == "gpu_user_annotation"]
    assert [(e["name"], e["ts"], e["dur"]) for e in marks] == [("ProfilerStep#0", 0.0, 1e6), ("ProfilerStep#1", 1e6, 3e6)]
    assert _crossing(Trace(spans)) == []


def test_what_overlaps_on_a_lane_has_rows() -> None:
    """gloo runs two collectives at once; when they were issued is not known."""
    times = ((1.0, 4.0), (2.0, 3.0), (2.5, 5.0), (4.0, 6.0))
    spans = [Span(0, "comm", f"r0/s0/c{i}", start, end, "collective", "comm", name="all_reduce") for i, (start, end) in enumerate(times)]
    trace = Trace([Span(0, "host", "r0/s0/h", 0.0, 7.0, "host"), *spans, Span(0, "autograd", "r0/s0/b", 0.5, 2.2, "host")], "stock")
    events = to_kineto(trace)["traceEvents"]
    assert _crossing(trace) == []
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    kernels = {event["args"]["op_id"]: event for event in events if event.get("cat") == "kernel"}
    assert [kernels[f"r0/s0/c{i}"]["tid"] for i in range(4)] == [rows[name] for name in ("comm", "comm (2)", "comm (3)", "comm")]
    calls = [event["ts"] for event in events if event.get("cat") == "cuda_runtime"]
    assert calls == [1e6, 2e6, 2.5e6, 4e6], "an op without a known launch is launched where it starts"
    assert "r0/s0/b" not in kernels and rows["autograd"] >= 1000, "a CPU thread is no stream"


def test_a_collective_says_what_a_rank_gives_and_gets() -> None:
    """As torch's profiler counts them: an all_gather takes one rank's part and gives the whole, whatever the precision."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "send")
    spans = [
        Span(0, "comm", f"r0/s0/{name}", at, at + 1.0, "collective", name=name, bytes=4096, group_size=4) for at, name in enumerate(names)
    ]
    spans.append(Span(0, "comm", "r0/s0/unknown", 9.0, 10.0, "collective", name="all_gather", bytes=4096))
    kernels = {e["args"]["op_id"].rpartition("/")[2]: e["args"] for e in to_kineto(Trace(spans))["traceEvents"] if e.get("cat") == "kernel"}
    sizes = {name: (args["dtype"], args.get("In msg nelems"), args.get("Out msg nelems")) for name, args in kernels.items()}
    assert sizes == {
        "all_reduce": ("Byte", 4096, 4096), "all_gather": ("Byte", 1024, 4096), "reduce_scatter": ("Byte", 4096, 1024),
        "send": ("Byte", 4096, 4096), "unknown": ("Byte", None, 4096),
    }  # fmt: skip
    assert kernels["send"]["Group size"] == 4 and "Group size" not in kernels["unknown"]


def test_collectives_have_the_names_that_torch_and_nccl_give_them() -> None:
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier", "send", "recv")
    spans = [
        Span(0, "comm", f"r0/s0/{name}", float(at), at + 1.0, name if name in MESSAGE else "collective", name=name)
        for at, name in enumerate(names)
    ]
    spans.append(Span(0, "comm", "r0/s0/mb0/fwd/dispatch", 20.0, 21.0, "collective", "comm.ep", name="all_to_all"))
    kernels = {e["args"]["op_id"].rpartition("/")[2]: e for e in to_kineto(Trace(spans))["traceEvents"] if e.get("cat") == "kernel"}
    called = [kernels[name]["args"]["Collective name"] for name in (*names, "dispatch")]
    assert called == [
        "allreduce", "_allgather_base", "_reduce_scatter_base", "all_to_all", "broadcast", "reduce", "barrier", "send", "recv", "all_to_allv",
    ]  # fmt: skip
    assert [word_of(name) for name in called] == [*names, "all_to_all"]
    shared = {kernels[name]["name"] for name in ("send", "recv", "all_to_all", "dispatch")}
    assert shared == {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}
    assert kernels["all_gather"]["name"] == "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert kernels["barrier"]["name"].startswith("ncclDevKernel_AllReduce_Sum_f32_RING_LL(")


def test_a_plan_tells_the_ranks_of_groups_and_the_numbers_of_sums(tmp_path: Path) -> None:
    """Every rank's own groups alone, each once; sizes are counted in the numbers that travel, and read back as bytes."""
    plan = load_plan("llama3-8b-fsdp8", ["parallel.tp=2", "parallel.dp_shard=4", "model.layers=1", "batch.global=4", "batch.micro=1"])
    trace = predict(plan, "dgx-h100", fold=False).trace
    assert trace is not None
    whole, one = to_kineto(trace, None, wires_of(plan)), to_kineto(trace, 3, wires_of(plan))
    assert [(group["pg_name"], group["ranks"]) for group in one["distributedInfo"]["pg_config"]] == [("fsdp", [1, 3, 5, 7]), ("tp", [2, 3])]
    assert whole["distributedInfo"]["pg_count"] == 6 and all(len(g["ranks"]) == g["pg_size"] for g in whole["distributedInfo"]["pg_config"])
    kernels = {event["args"]["op_id"]: event for event in one["traceEvents"] if event.get("cat") == "kernel"}
    told = {}
    for name in ("grad/L0.reduce_scatter", "fwd/L0.attn.proj.reduce_scatter", "fwd/L0.all_gather", "fwd/head.loss.max"):
        event = kernels[f"r3/s1/mb0/{name}"]
        args = event["args"]
        told[name] = event["name"].partition("(")[0].removeprefix("ncclDevKernel_"), args["dtype"], args["Process Group Ranks"]
        assert max(args["In msg nelems"], args["Out msg nelems"]) * {"Byte": 1, "BFloat16": 2, "Float": 4}[args["dtype"]] == args["bytes"]
    assert told == {
        "grad/L0.reduce_scatter": ("ReduceScatter_Sum_f32_RING_LL", "Float", "[1, 3, 5, 7]"),
        "fwd/L0.attn.proj.reduce_scatter": ("ReduceScatter_Sum_bf16_RING_LL", "BFloat16", "[2, 3]"),
        "fwd/L0.all_gather": ("AllGather_RING_LL", "Byte", "[1, 3, 5, 7]"),
        "fwd/head.loss.max": ("AllReduce_Max_f32_RING_LL", "Float", "[2, 3]"),
    }
    write_run(trace, tmp_path, wires_of(plan))
    again = {span.id: span for span in read_trace(tmp_path / "predicted.json.gz").spans}
    for span in trace.spans:
        if span.kind in MEETING:
            kept = again[span.id]
            assert (kept.name, kept.bytes, kept.group, kept.group_size) == (span.name, span.bytes, span.group, span.group_size)


def test_large_groups_are_listed_as_far_as_profilers_do() -> None:
    wires = Wires(Mesh({"dp_replicate": 64}))
    span = Span(5, "comm", "r5/s0/c", 0.0, 1.0, "collective", name="all_reduce", group="dp", group_size=64)
    found = to_kineto(Trace([span], world=64), 5, wires)
    (args,) = [event["args"] for event in found["traceEvents"] if event.get("cat") == "kernel"]
    assert args["Process Group Ranks"] == f"[{', '.join(map(str, range(30)))}, ...]"
    assert found["distributedInfo"]["pg_config"][0]["ranks"] == list(range(64))
    other = to_kineto(Trace([msgspec.structs.replace(span, group_size=8)], world=64), 5, wires)
    assert "ranks" not in other["distributedInfo"]["pg_config"][0], "a group of another size is none of this mesh"


@pytest.mark.no_cover
def test_arrows_go_from_launches_to_what_they_launched() -> None:
    """In a file of all ranks each has a number of its own; where nobody knows the launch, none is drawn."""
    trace = predict("gpt2-ddp8", "dgx-h100", fold=False).trace
    assert trace is not None and len(trace.ranks) == 8
    events = to_kineto(trace)["traceEvents"]
    kernels = {event["args"]["correlation"]: event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")}
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    for phase, ends in (("s", calls), ("f", kernels)):
        arrows = {event["id"]: event for event in events if event["ph"] == phase}
        assert len(arrows) == sum(event["ph"] == phase for event in events) == len(ends)
        assert all(arrows[at][key] == end[key] for at, end in ends.items() for key in ("pid", "tid", "ts"))
        assert {(event["cat"], event["name"], event.get("bp")) for event in arrows.values()} == {
            ("ac2g", "ac2g", "e" if phase == "f" else None)
        }
    whole = {event["args"]["op_id"]: at for at, event in kernels.items()}
    alone = {e["args"]["op_id"]: e["args"]["correlation"] for e in to_kineto(trace, 5)["traceEvents"] if e.get("cat") == "kernel"}
    assert alone.items() <= whole.items(), "a rank's own file has the same numbers"
    unknown = to_kineto(Trace([Span(0, "compute", "r0/s0/a", 0.0, 1.0)]))["traceEvents"]
    assert not [event for event in unknown if event["ph"] in ("s", "f")]


def test_copies_tell_their_bandwidth() -> None:
    spans = [
        Span(0, "copy.h2d", "r0/s0/a", 0.0, 1e-3, "copy", bytes=50_000_000),
        Span(0, "copy.h2d", "r0/s0/b", 1e-3, 1e-3, "copy", bytes=1),
    ]
    args = [e["args"] for e in to_kineto(Trace(spans))["traceEvents"] if e.get("cat") == "gpu_memcpy"]
    assert args[0]["memory bandwidth (GB/s)"] == 50.0 and "memory bandwidth (GB/s)" not in args[1]
