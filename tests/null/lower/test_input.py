"""The input path: who waits for whom, and for how long."""

from __future__ import annotations

import pytest

from sim.engine.run import simulate
from sim.planning.explain.explanation import explain
from sim.predict import predict
from sim.program import Program
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import whole_step
from sim.steady.settled import loader_seconds
from tests.null.lower.tiny import Constant, network, program, show
from topologies.errors import BadInput

DISK = {"source": "disk", "sample": "1 KiB", "preprocess": "2 s"}


def test_loader_processes_read_prepare_and_hand_over() -> None:
    p = program({"data": DISK | {"workers": 2, "prefetch": 3}, "batch": {"micro": 4, "global": 8}})
    assert show(p.segments["loader.1"]) == [
        "loader.1: data/free",
        "loader.1: data/read",
        "loader.1: data/preprocess",
        "loader.1: data/collate",
        "loader.1: data/ready",
    ]
    free, read, prepare, _, ready = p.segments["loader.1"]
    assert (free.shift, read.bytes, prepare.works[0].count, ready.shift) == (-6, 4096, 4, 0)  # type: ignore[union-attr]
    threads = p.roles["pp0"].threads
    assert [(call.segment, call.index) for call in threads["loader.0"]] == [("loader.0", 0), ("loader.0", 2)]
    assert [(call.segment, call.index) for call in threads["loader.1"]] == [("loader.1.late", 0), ("loader.1", 1), ("loader.1", 3)]
    assert show(p.segments["input"]) == [
        "host: data/wait",
        "host: data/take",
        "host: data/taken",
        "copy.h2d: data/h2d",
        "copy.h2d: data/on-device.record",
        "compute: data/on-device.wait",
    ]


def test_without_workers_the_training_thread_loads() -> None:
    p = program({"data": DISK})
    assert show(p.segments["input"])[:3] == ["host: data/read", "host: data/preprocess", "host: data/collate"]


def test_pageable_memory_holds_the_training_thread_and_the_compute_lane_needs_no_event() -> None:
    p = program({"data": {"pinned": False, "stream": "compute"}})
    assert show(p.segments["input"]) == ["host: data/collate", "compute: data/h2d"]
    assert p.segments["input"][1].blocking and p.segments["input"][1].how == "pageable"


def test_a_batch_that_lies_on_the_device_is_neither_made_nor_copied() -> None:
    assert not show(program({"data": {"source": "device"}}).segments.get("input", ()))
    assert show(program({"data": {"source": "device", "create": "device"}}).segments["input"]) == ["compute: data/create"]
    plan = {
        "model": "resnet18",
        "framework": "pytorch-native-amp",
        "precision": "fp16",
        "batch": {"global": 256, "micro": 256},
    }  # waits for the scale
    lying, copied = (predict(plan | {"data": {"source": source}}, "rtx-3090-x2") for source in ("device", "memory"))
    assert lying.breakdown.data_s == 0.0 < copied.breakdown.data_s and lying.step_time_s < copied.step_time_s


@pytest.mark.parametrize("key", ["workers", "sample", "preprocess"])
def test_a_batch_that_lies_on_the_device_is_not_loaded(key: str) -> None:
    value = {"workers": 2, "sample": "1 KiB", "preprocess": "1 ms"}[key]
    with pytest.raises(BadInput, match=rf"Set data\.{key} to 0, or take another source: disk"):
        program({"data": {"source": "device", key: value}})


def steady(p: Program) -> float:
    """Seconds of the last step."""
    from sim.timeline.metrics import step_times

    return step_times(simulate(p, Constant()))[-1]


def test_a_step_is_as_slow_as_its_input_or_its_compute() -> None:
    """Constant compute: forward 3, backward 4, update 1 kernel: 8 s. One batch takes 2 s of preparation and 0.1 s of reading."""

    def plan(workers: int, preprocess: str) -> Program:
        return program({"data": DISK | {"workers": workers, "preprocess": preprocess}}, steps=6)

    assert steady(plan(1, "2 s")) == pytest.approx(8.0)
    assert steady(plan(1, "20 s")) == pytest.approx(20.1)
    assert steady(plan(2, "20 s")) < 20.1
    assert steady(plan(4, "20 s")) == pytest.approx(8.0, abs=2.5)


@pytest.mark.parametrize(("workers", "pinned", "copies"), [(0, True, 2), (0, False, 1), (1, True, 1), (1, False, 2)])
def test_who_loads_copies_the_batch(workers: int, pinned: bool, copies: int) -> None:
    """100 samples of 1 MB into one batch, at 4 GB/s, and 20 us each; the training thread also into pinned memory, which a thread of its own
    does beside loader processes. A pageable copy holds the training thread for as long again, and from a loader process it first meets the pages."""
    model = {"family": "mlp", "name": "wide", "widths": [250_000, 8]}
    step = predict({"model": model, "batch": {"micro": 100}, "data": {"workers": workers, "pinned": pinned}}, "dgx-h100").step_time_s
    made = 100 * 20e-6 + copies * 100e6 / 4e9
    assert step == pytest.approx(made + (0.025 if not (workers or pinned) else 0.0), rel=0.035)


def test_a_thread_pins_what_loader_processes_make() -> None:
    p = program({"data": DISK | {"workers": 2}, "batch": {"micro": 4, "global": 8}})
    assert show(p.segments["pinner"]) == ["pinner: data/loaded", "pinner: data/pin", "pinner: data/pinned"]
    assert [(call.segment, call.index) for call in p.roles["pp0"].threads["pinner"]] == [("pinner", batch) for batch in range(4)]
    assert p.segments["input"][0].event == p.segments["pinner"][2].event == "data/pinned"
    for data, device in (({"workers": 2}, "cpu"), ({"workers": 2, "pinned": False}, "cuda"), ({"workers": 0}, "cuda")):
        other = program({"data": DISK | data}, device=device)
        assert "pinner" not in other.segments and "pinner" not in other.threads(0)
        assert other.segments["input"][0].event == ("data/ready" if data["workers"] else "")


WIDE = {"model": {"family": "mlp", "name": "wide", "widths": [250_000, 8]}, "batch": {"micro": 100}}
"""Batches of 100 MB, which one core pins in 25 ms, collates in 27, and copies to the device in 2."""


@pytest.mark.parametrize(("workers", "loaded"), [(1, 27e-3), (2, 0.0), (8, 0.0)])
def test_a_step_is_as_long_as_its_batches_take_to_pin(workers: int, loaded: float) -> None:
    """However many processes make them; each is handed over in 150 us."""
    plan = WIDE | {"data": {"workers": workers}}
    pinned = 100e6 / 4e9 + 150e-6
    found = predict(plan, "dgx-h100")
    assert found.step_time_s == pytest.approx(max(pinned, loaded), rel=1e-3)
    assert found.breakdown.data_s > 0.9 * found.step_time_s
    setting = bind(plan, "dgx-h100")
    assert whole_step(setting) == pytest.approx(found.step_time_s, rel=1e-3)
    assert loader_seconds(found.program, pricer_for(setting)) == pytest.approx(max(pinned, loaded), rel=1e-3)
    assert explain(setting, tries=0).verdict.startswith("data-bound")


def test_each_rank_and_each_micro_batch_is_pinned() -> None:
    plan = WIDE | {"batch": {"micro": 100, "global": 600}, "parallel": {"dp_replicate": 2}, "data": {"workers": 8}}
    one, all_ = (predict(plan, "dgx-h100", fold=fold).step_time_s for fold in (True, False))
    assert one == pytest.approx(3 * (100e6 / 4e9 + 150e-6), rel=2e-3)
    assert one == pytest.approx(all_, rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize(("framework", "readers"), [("megatron-core", 1), ("megatron-2021", 1), ("torchtitan", 4), ("pytorch", 4)])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_rank_of_a_group_reads_for_all_or_each_does(framework: str, readers: int, workers: int) -> None:
    """Megatron's first tensor parallel rank broadcasts what it reads. Eight micro-batches of 200 MB from a disk of 2 GB/s."""
    plan = {
        "model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 128, "framework": framework, "batch": {"global": 8, "micro": 1},
        "parallel": {"tp": 4}, "data": {"source": "disk", "sample": "200 MB", "workers": workers},
    }  # fmt: skip
    one, all_ = (predict(plan, "dgx-h100", edits=("disk.read=2 GB/s",), fold=fold) for fold in (True, False))
    assert one.step_time_s == pytest.approx(readers * 8 * 200e6 / 2e9, rel=0.15)
    assert one.step_time_s == pytest.approx(all_.step_time_s, rel=1e-9)
    sent = [op.id for op in one.program.segments["input"] if op.kind == "collective"]  # type: ignore[union-attr]
    assert sent == (["data/broadcast"] if readers == 1 else [])


def test_copies_run_beside_compute_unless_something_syncs() -> None:
    base = {"data": {"pinned": True}}
    beside = simulate(program(base, steps=4), Constant())
    last = [span for span in beside.spans if span.id.endswith("s3/mb0/data/h2d")]
    compute = [span for span in beside.spans if span.id.endswith("s2/update/optimizer/step") or span.id.endswith("s2/optimizer/step")]
    assert last[0].end <= compute[0].start, "the copy of step 3 is done before step 2 ends"
    stray = simulate(program(base | {"output": {"log_every": 1}}, steps=4), Constant())
    late = [span for span in stray.spans if span.id.endswith("s3/mb0/data/h2d")]
    before = [span for span in stray.spans if span.id.endswith("s2/optimizer/step")]
    assert late[0].start >= before[0].end, "a stray .item() stops the host"


def test_only_the_ends_of_a_pipeline_and_plain_ranks_take_input() -> None:
    p = program({"task": "forward"}, network(1))
    assert [call.segment for call in p.roles["pp0"].threads["host"]] == ["input", "fwd"] * 2


@pytest.mark.parametrize(
    ("device", "create", "made"),
    [
        ("cuda", "device", ["compute: data/create"]),
        ("cuda", "cpu", ["host: data/create", "compute: data/move"]),
        ("cpu", "device", ["host: data/create"]),
        ("cpu", "cpu", ["host: data/create"]),
        ("cuda", "none", []),
    ],
)
def test_tensors_are_made_where_they_are_needed(device: str, create: str, made: list[str]) -> None:
    """`torch.rand(n).to(device)` against `torch.rand(n, device=device)`; on a CPU both are one."""
    p = program({"data": {"create": create}}, device=device)
    assert [line for line in show(p.segments["input"]) if line.endswith(("create", "move"))] == made
