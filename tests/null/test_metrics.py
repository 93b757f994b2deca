"""Figures of a trace: classes sum to the step; exposed communication, bubbles and host gaps are what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.align import Measured, align_by_class, align_by_id
from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.files.chrome import to_kineto, write_trace
from sim.imported.kineto import read_trace
from sim.mesh import Mesh
from sim.predict import predict
from sim.program import Op
from sim.timeline.metrics import breakdown, critical_path, step_times
from sim.trace import Span, Trace
from tests.null.engine.bench import TablePricer, program


def made() -> Trace:
    """One rank: 4 s of compute, 3 s of all_reduce of which 2 s are beside compute, 1 s of optimizer."""
    ops = [Op("f", "compute", "compute", cls="gemm"), Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.dp", event="e")]
    ops += [Op("ar", "collective", "comm.dp", name="all_reduce", group="dp", cls="comm.dp"), Op("b", "compute", "compute", cls="gemm")]
    ops += [
        Op("r2", "record", "comm.dp", event="d"),
        Op("w2", "wait", "compute", event="d"),
        Op("o", "compute", "compute", cls="optimizer"),
    ]
    ops += [Op("end", "sync", "host")]
    return simulate(program({"host": ops}, mesh=Mesh({}), calls=2), TablePricer({"f": 2.0, "b": 2.0, "ar": Cost(3.0, "fitted"), "o": 1.0}))


def test_the_classes_sum_to_the_step() -> None:
    split = breakdown(made())
    assert split.total == pytest.approx(6.0)
    assert (split.compute_s, split.exposed_comm_s, split.optimizer_s, split.bubble_s) == pytest.approx((4.0, 1.0, 1.0, 0.0))


def test_the_step_of_a_rank_that_is_ahead_is_its_own() -> None:
    """The first stage of a forward pass has done its share of the second step when that begins on the last one, and waits for the rest of it."""
    ahead = [Span(0, "compute", f"r0/s{step}/k", step, step + 1.0, step=step) for step in range(2)]
    split = breakdown(Trace([*ahead, *(Span(1, "compute", f"r1/s{step}/k", 4.0 * step, 4.0 * step + 4, step=step) for step in range(2))]))
    assert (split.compute_s, split.bubble_s) == pytest.approx((2.5, 1.5))


def test_a_rank_that_has_nothing_to_do_in_the_step_is_in_a_bubble() -> None:
    spans = [
        Span(0, "compute", "r0/s0/k", 0.0, 1.0),
        *(Span(1, "compute", f"r1/s{step}/k", 4.0 * step, 4.0 * step + 4, step=step) for step in (0, 1)),
    ]
    split = breakdown(Trace(spans))
    assert (split.compute_s, split.bubble_s) == pytest.approx((2.0, 2.0))


def test_launches_while_the_device_waits_for_another_rank_are_no_host_gap() -> None:
    """The second rank waits 4 s for a message, and launches for 3 s meanwhile; before that its first launch takes 1 s."""
    send = [Op("long", "compute", "compute"), Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.pp", event="e")]
    send += [Op("m", "send", "comm.pp", group="pp", peer=1, bytes=8, cls="comm.pp")]
    take = [Op("own", "compute", "compute"), Op("t", "recv", "comm.pp", group="pp", peer=-1, bytes=8, cls="comm.pp")]
    take += [Op("come", "record", "comm.pp", event="come"), Op("until", "wait", "compute", event="come")]
    take += [Op(f"k{at}", "compute", "compute") for at in range(3)]
    costs: dict[str, Cost | float] = {"long": 6.0, "own": Cost(1.0, host=1.0), **{f"k{at}": Cost(1.0, host=1.0) for at in range(3)}}
    trace = simulate(program({"host": send}, {"host": take}, mesh=Mesh({"pp": 2})), TablePricer(costs))
    split = breakdown(trace)
    assert split.total == pytest.approx(9.0)
    assert (2 * split.compute_s, 2 * split.host_s, 2 * split.bubble_s) == pytest.approx((6.0 + 4.0, 1.0, 3.0 + 4.0))


def test_the_critical_path_sums_to_the_step() -> None:
    path = dict(critical_path(made()))
    assert path == pytest.approx({"comm.dp": 3.0, "gemm": 2.0, "optimizer": 1.0})


def test_what_held_the_thread_is_on_the_path_also_after_a_launch() -> None:
    """A pageable copy holds the thread for 4 s; it launches a kernel, then computes itself. The copy is on the path, not what came before it."""
    ops = [Op("a", "host", "host", cls="host"), Op("copy", "copy", "copy.h2d", blocking=True, cls="data")]
    ops += [Op("k", "compute", "compute", cls="gemm"), Op("b", "host", "host", cls="host")]
    costs: dict[str, Cost | float] = {"a": 1.0, "copy": 4.0, "k": Cost(0.5, host=0.25), "b": 2.0}
    trace = simulate(program({"host": ops}, mesh=Mesh({})), TablePricer(costs))
    spans = {span.id.rpartition("/")[2]: at for at, span in enumerate(trace.spans)}
    assert trace.spans[spans["b"]].after == spans["copy"]
    assert dict(critical_path(trace))["data"] == pytest.approx(4.0)


def test_steps() -> None:
    assert step_times(made()) == pytest.approx([6.0, 6.0])


def test_a_trace_against_itself_has_no_error() -> None:
    trace = made()
    for found in (align_by_id(trace, trace, step_times(trace)), align_by_class(trace, trace, step_times(trace))):
        assert found.error == 0.0
        assert not found.missing and not found.extra
        assert all(row.error in (0.0, None) for row in found.classes)


def test_missing_and_extra_ops_are_named() -> None:
    trace = made()
    short = Trace([s for s in trace.spans if not s.id.endswith("/o")], "played", steps=2)
    found = align_by_id(trace, short, [1.0])
    assert found.missing == ("r0/s0/o", "r0/s1/o")


def test_measured_has_a_median_and_a_spread() -> None:
    assert Measured.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Measured(3.0, 1.0, 5.0, 5)


def test_sequences_longer_than_the_rule_are_told() -> None:
    """Attention of long sequences is not in 6 x parameters x tokens."""
    tree = {"model": "gpt2-124m", "batch": {"global": 1, "micro": 1}, "memory": {"recompute": "full"}}
    told = {
        seq: [word for word in predict(tree | {"seq_len": seq}, "dgx-h100", steps=2).warnings if "long sequences" in word]
        for seq in (1024, 32768)
    }
    assert told[1024] == [] and len(told[32768]) == 1 and " x (6 x parameters x tokens)" in told[32768][0]


def test_whisper_hears_more_than_its_tokens() -> None:
    found = predict({"model": "whisper-tiny", "seq_len": 64, "batch": {"global": 1, "micro": 1}}, "dgx-h100", steps=2)
    assert not [word for word in found.warnings if "model FLOPs" in word]


def test_a_forward_pass_alone_has_no_flops_of_backward() -> None:
    """A third of a step's, where all is trained; the first stages of Mask R-CNN are not, and have no backward anyway."""
    for model, share in (("llama3.2-1b", 1 / 3), ("vit-b16", 1 / 3), ("mask-rcnn-r50-fpn", 0.350)):
        plan = {"model": model, "batch": {"global": 1, "micro": 1}}
        step, ahead = (predict(plan | {"task": task}, "dgx-h100", steps=2) for task in ("train", "forward"))
        assert ahead.flops_per_step / step.flops_per_step == pytest.approx(share, rel=0.01)
        assert ahead.mfu == pytest.approx(ahead.flops_per_step / ahead.step_time_s / 989e12, rel=1e-3)
        assert not any("FLOP" in one for one in ahead.warnings)


def test_convolutions_of_32_bits_may_do_less_than_their_products() -> None:
    """Winograd's algorithm, beyond the peak of plain products."""
    found = predict({"model": "vgg19", "batch": {"global": 32, "micro": 32}, "precision": "fp32"}, "dgx-a100", steps=2)
    assert found.mfu is not None and found.mfu > 1 and not [word for word in found.warnings if "above the device's peak" in word]


def test_files_are_byte_identical_and_kineto_shaped(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one, two = write_trace(made(), tmp_path / "a.json.gz"), write_trace(made(), tmp_path / "b.json.gz")
    assert one.read_bytes() == two.read_bytes()
    events = to_kineto(made())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
    assert {e["args"]["correlation"] for e in kernels} == launches
    assert all(isinstance(e["args"]["stream"], int) for e in kernels)
    assert any(e["name"].startswith("ncclDevKernel_AllReduce") and e["args"]["Group size"] == 1 for e in kernels)
    assert any(e["name"] == "ProfilerStep#1" for e in events)


def test_collectives_of_a_profile_that_does_not_say_what_they_are_for_are_one_class() -> None:
    """NCCL kernels of somebody's profile, or several groups at once: beside all communication that is predicted, not beside none."""

    def spans(classes: dict[str, str]) -> list[Span]:
        first = Span(0, "compute", "r0/s0/f", 0.0, 2.0, "compute", "gemm")
        return [first, *(Span(0, "comm", f"r0/s0/{name}", 2.0, 3.0, "collective", cls) for name, cls in classes.items())]

    predicted = Trace(spans({"a": "comm.tp", "b": "comm.pp"}))
    rows = {
        row.cls: (row.predicted, row.measured, row.ops) for row in align_by_class(predicted, Trace(spans({"k": "comm"})), [3.0]).classes
    }
    assert rows == {"gemm": (2.0, 2.0, 1), "comm": (2.0, 1.0, 2)}
    rows = {
        row.cls: (row.predicted, row.measured, row.ops) for row in align_by_class(predicted, Trace(spans({"k": "comm.tp"})), [3.0]).classes
    }
    assert rows == {"gemm": (2.0, 2.0, 1), "comm.tp": (1.0, 1.0, 1), "comm.pp": (1.0, 0.0, 1)}


def test_loader_processes_count_where_they_were_recorded() -> None:
    """A profiler of the training process does not see them: what they did was told as 30 times too much of its data."""
    seen = [Span(0, "compute", "r0/s0/a", 0.0, 2.0, "compute", "gemm"), Span(0, "host", "r0/s0/take", 2.0, 2.5, "host", "data")]
    loader = Span(0, "loader.0", "r0/s0/made", 0.0, 9.0, "host", "data")
    for stock, spent in (([*seen], 0.5), ([*seen, loader], 9.5)):
        rows = {row.cls: (row.predicted, row.measured) for row in align_by_class(Trace([*seen, loader]), Trace(stock), [3.0]).classes}
        assert rows == {"gemm": (2.0, 2.0), "data": (spent, spent)}


def test_a_cpu_hosts_trace_names_gloos_work_and_no_nccl_kernel(tmp_path: Path) -> None:
    """As torch.profiler does; and what is read again is written the same."""
    tree = {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 2, "micro": 1}, "parallel": {"dp_replicate": 2}}
    cpu, gpu = (predict(tree, on, steps=2).trace for on in ("cpu-host", "dgx-h100"))
    assert cpu is not None and gpu is not None
    said, nccl = to_kineto(cpu), to_kineto(gpu)
    names = {event["name"] for event in said["traceEvents"] if event.get("args", {}).get("kind") == "collective"}
    assert names == {"gloo:all_reduce"} and "nccl" not in json.dumps(said).lower()
    assert said["distributedInfo"]["backend"] == "gloo" and nccl["distributedInfo"]["backend"] == "nccl"
    again = to_kineto(read_trace(write_trace(cpu, tmp_path / "cpu.json")))
    assert {event["name"] for event in again["traceEvents"]} >= names
