"""Timing on a device, on a stand-in with two clocks: what is read is the device's share."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor import stock
from executor.device_times import DeviceTimer, around
from executor.players.events import wake
from executor.probes import comm as probe_comm
from executor.probes import device as probe_device
from executor.probes import host as probe_host
from executor.probes.bench import Bench
from executor.probes.rest import Rest
from sim.cost.calibration import SHAPES
from tests.gloo.gpu_standin import StandIn, alone


@pytest.mark.parametrize(("launch", "kernel"), [(8e-6, 2e-6), (8e-6, 3e-3), (2e-6, 40e-6), (100e-6, 1e-6)])
def test_the_launch_is_not_in_it(launch: float, kernel: float) -> None:
    device = StandIn(simulated=True)
    found = DeviceTimer(device, device.clock).times([lambda: device.kernel(launch, kernel)], budget=0.01)
    assert len(found) >= 3
    assert sorted(found)[len(found) // 2] == pytest.approx(kernel, rel=0.02)


def test_without_the_hold_one_would_see_the_launch() -> None:
    device = StandIn(simulated=True)
    seconds, host = DeviceTimer(device, device.clock)._reading([lambda: device.kernel(8e-6, 2e-6)], 20, 0.0)
    assert seconds == pytest.approx(8e-6, rel=0.1) and host == pytest.approx(8e-6)


def test_a_hold_that_was_too_short_is_made_longer() -> None:
    device = StandIn(simulated=True)
    timer = DeviceTimer(device, device.clock)
    seconds, _ = timer._reading([lambda: device.kernel(8e-6, 2e-6)], 40, 1e-6)
    assert seconds == pytest.approx(2e-6, rel=0.02)


@pytest.mark.parametrize("seconds", [2e-6, 3e-3])
def test_what_is_timed_stands_behind_a_rest(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that follow each other draw more than a board may: behind a rest of their own time all are timed at the boost clock."""
    device, ran = StandIn(simulated=True), list[tuple[str, float]]()
    for name in ("_ROWS", "_WIDTH"):
        monkeypatch.setattr(f"executor.probes.rest.{name}", 8)
    rests = device.hold
    monkeypatch.setattr(device, "hold", lambda cycles: (ran.append(("rest", cycles / 3e9)), rests(cycles))[1])
    monkeypatch.setattr(torch, "native_layer_norm", lambda *_: (ran.append(("norm", 0.0)), device.kernel(8e-6, 5e-5)))
    timer = DeviceTimer(device, device.clock, Rest(device).hold)
    found = timer.times([lambda: (ran.append(("call", seconds)), device.kernel(8e-6, seconds))], budget=0.01)
    assert found == [pytest.approx(seconds, rel=0.02)] * len(found)
    names, rested = ([one[at] for one in ran] for at in (0, 1))
    first = names.index("rest") - 1  # after calls that warm up and tell their length
    assert names[:first].count("call") == 4
    assert names[first : first + 2] == ["norm", "rest"], "L2 is full of other data, as after a step's kernels"
    readings = "".join(name[0] for name in names[first:]).split("nr")[1:]
    assert all(set(one) <= {"c"} for one in readings)
    for at, calls in zip([at for at, name in enumerate(names) if name == "rest"], readings, strict=True):
        assert rested[at] >= 0.99 * len(calls) * seconds


def test_calls_take_turns() -> None:
    device, seen = StandIn(simulated=True), list[int]()
    calls = [lambda i=i: (seen.append(i), device.kernel(1e-6, 1e-4)) for i in range(3)]  # type: ignore[misc]
    DeviceTimer(device, device.clock).times(calls, budget=0.001)
    assert seen[:3] == [0, 1, 2], "each is warmed up"
    counts = sorted(seen.count(i) for i in range(3))
    assert len(seen) > 6 and counts[-1] < 2 * counts[0], "and each is timed"


def test_an_event_is_read_only_after_it_was_waited_for() -> None:
    device = StandIn(simulated=True)
    start, end = device.event(), device.event()
    start.record()
    device.kernel(1e-6, 1e-3)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    device.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1.001, rel=0.01)


def test_a_gpu_is_kept_busy_until_its_clocks_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device, waited = torch.device("cuda", 0), list[torch.device]()
    monkeypatch.setattr(torch, "full", lambda *_, **__: torch.ones(2, 2))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    moments = iter(n * 0.1 for n in range(99))
    wake(device, lambda: next(moments))
    assert waited == [device] * 2 and next(moments) == pytest.approx(0.4)
    wake(torch.device("cpu"), lambda: next(moments))
    assert next(moments) == pytest.approx(0.5), "a CPU is not waited for"


class _Event:
    """The device is one step behind the host."""

    now = 0

    def __init__(self) -> None:
        self.at = -1

    def record(self) -> None:
        self.at = _Event.now

    def query(self) -> bool:
        return self.at < _Event.now

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.mark.parametrize("fails", [False, True])
def test_steps_that_a_gpu_has_taken_are_kept_whatever_comes(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = alone(tmp_path, "cuda")
    monkeypatch.setattr(_Event, "now", 0)
    monkeypatch.setattr("executor.players.events.cuda_event", _Event)
    monkeypatch.setattr(world, "synchronize", lambda: setattr(_Event, "now", 99))

    def step(batches: object, number: int) -> None:
        if fails and number == 4:
            raise RuntimeError("out of memory")
        _Event.now += 1

    request: Any = SimpleNamespace(steps=5, warmup=0)
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext():
        assert stock._timed_cuda(world, SimpleNamespace(step=step), iter(()), request) == [1.0] * 5  # type: ignore[arg-type]
    assert world.beat.steps == [1.0] * (3 if fails else 5)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench that takes itself for a GPU's; what it times runs on the CPU."""
    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(Bench, "device_seconds", lambda self, work: 20.0)  # so slow a device that only small products are timed
    monkeypatch.setattr("executor.device_times._READING", 1e-9)  # one call a reading
    monkeypatch.setattr("executor.probes.rest.Rest.hold", lambda self, seconds: None)
    found = Bench(alone(tmp_path, "cuda"), True, StandIn())
    monkeypatch.setattr(found, "budget", 0.0)
    return found


@pytest.mark.timeout(120)
def test_every_table_of_a_gpu_is_filled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_device, "_BYTES", (3 << 12, 3 << 16))
    monkeypatch.setattr(probe_device, "_BLOCKS", (1, 2))
    monkeypatch.setattr(probe_device, "_ROW", 64)
    monkeypatch.setattr(probe_device, "_CONVOLUTIONS", ((1, 8, 14, 14, 8, 3, 1),))
    monkeypatch.setattr(probe_device, "Attention", _thin(probe_device.Attention))
    monkeypatch.setattr(probe_device, "_COPIES", (1 << 12, 1 << 14, 1 << 16))
    precisions: list[bool] = []
    monkeypatch.setattr(probe_device, "set_precision", precisions.append)
    for table in (probe_device.gemms, probe_device.memory_bound, probe_device.convolutions, probe_device.copies, probe_device.attention):
        table(bench)
    found: dict[str, list[Any]] = {}
    for kind, sample in bench.found:
        assert len(sample.shape) == len(SHAPES[kind]) and sample.median > 0
        found.setdefault(kind, []).append(sample)
    assert {(s.name, s.dtype) for s in found["gemm"]} == {(r, d) for r in ("fwd", "dgrad", "wgrad") for d in ("bf16", "fp32", "tf32")}
    assert {s.name for s in found["copy"]} == {"h2d.pinned", "d2h.pinned", "h2d.pageable", "d2h.pageable"}
    assert {s.dtype for s in found["memory"]} == {"bf16", "fp32"} and {s.dtype for s in found["attention"]} == {"bf16", "fp32"}
    listed = {(s.name, s.dtype): len(s.shape) for s in found["memory"] if s.name.startswith("foreach_")}
    assert {s.name for s in found["memory"] if s.name.endswith("_halves")} == {"silu_halves", "silu_backward_halves", "scale_halves"}
    assert len(listed) == 2 * 4, "a curve for each pass over lists, in bf16 and fp32"
    assert {s.name for s in found["attention"]} == {"fwd", "bwd", "fwd_full", "bwd_full"}
    assert precisions == [False, False, True, False], "bf16 and exact fp32 without TF32, TF32 with it, and off again"


def _thin(work: Any) -> Any:
    """Attention over 16 tokens, whatever is asked for: the CPU need not work through 8,192."""
    return lambda batch, heads, kv, q, k, d, **more: work(1, 1, 1, 16, 16, d, **more)


def test_launches_and_views_have_their_own_rows(bench: Bench) -> None:
    probe_device.launches(bench)
    rows = {sample.name: sample.median for kind, sample in bench.found if kind == "host"}
    assert rows.keys() == {"launch", "view"} and 1e-8 < rows["view"] < 1e-3


def test_collectives_are_timed_by_events(bench: Bench) -> None:
    calls: list[int] = []
    found, cpu = probe_comm._repeat(bench, lambda: calls.append(1), 1 << 20, dist.group.WORLD)
    assert len(found) >= 3 and len(calls) >= 15 and cpu == 0.0


def test_clocks_are_up_again_when_ranks_have_connected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a communicator takes NCCL a second and the device nothing: at a sixth of the clock its smallest messages last longest."""
    order: list[str] = []
    monkeypatch.setattr(bench.world, "group", lambda *_: order.append("connected"))
    monkeypatch.setattr(probe_comm, "wake", lambda device: order.append("awake"))
    monkeypatch.setattr(probe_comm, "_repeat", lambda *_: (order.append("timed"), ([1e-6], 0.0))[1])
    monkeypatch.setattr(bench.world, "size", 2)
    probe_comm.collectives(bench)
    probe_comm.messages(bench)
    assert order.count("connected") == 2 and all(order[at + 1] == "awake" for at, what in enumerate(order) if what == "connected")


@pytest.mark.parametrize(("launch", "kernel"), [(30e-6, 10e-6), (30e-6, 2e-3), (200e-6, 10e-6)])
def test_the_launch_of_a_collective_is_not_in_it(launch: float, kernel: float, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn(simulated=True)
    monkeypatch.setattr(bench, "cuda", device)
    found, _ = probe_comm._repeat(bench, lambda: device.kernel(launch, kernel), 1 << 20, dist.group.WORLD)
    assert found == [pytest.approx(kernel, rel=0.02)] * len(found)


def test_the_calibration_of_a_gpu_is_small_enough_to_commit() -> None:
    gemms = 3 * sum(
        len(list(probe_device.shapes(sizes, probe_device._MOST * share)))
        for sizes, share in ((probe_device.SIZES, 1.0), (probe_device.FEW, 0.1), (probe_device.FEW, 0.5))
    )
    rest = 2 * len(probe_device._BYTES) * 43 + 2 * 17 + 72 + 27 + 30 + 60
    assert gemms > 1000 and (gemms + rest) * 78 < 200_000


@pytest.mark.parametrize("stamp", [0.0, 1e-6])
def test_what_events_around_a_kernel_take_is_told(stamp: float) -> None:
    """The later stamp stands between kernel and reading, and so does the part of a kernel's start that hides behind another kernel."""
    device = StandIn(simulated=True)
    device.stamp = stamp
    assert around(device, lambda: device.kernel(3e-6, 5e-6)) == pytest.approx(stamp, rel=0.05, abs=1e-9)


def test_a_launch_is_the_mean_of_a_layers_on_a_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value stands for all kernels there: an add's alone would make every launch-bound step too short."""
    called: list[str] = []
    for name in ("linear", "layer_norm", "gelu", "scaled_dot_product_attention"):
        real = getattr(torch.nn.functional, name)
        monkeypatch.setattr(torch.nn.functional, name, lambda *a, name=name, real=real, **k: (called.append(name), real(*a, **k))[1])
    monkeypatch.setattr(bench, "times", lambda calls: [calls[0](), 29e-6][1:])
    assert probe_host._kernel(bench) == [pytest.approx(1e-6)]
    assert called == ["linear"] * 4 + ["layer_norm"] * 4 + ["gelu"] * 2 + ["scaled_dot_product_attention"] * 2


def test_a_call_of_cudnn_is_timed_beside_a_launch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("conv2d", "batch_norm"):
        real = getattr(torch.nn.functional, name)
        monkeypatch.setattr(torch.nn.functional, name, lambda *a, name=name, real=real, **k: (called.append(name), real(*a, **k))[1])
    monkeypatch.setattr(bench, "times", lambda calls: [calls[0](), 60e-6][1:])
    assert probe_host._convolution(bench) == [pytest.approx(15e-6)]
    assert called == ["conv2d", "batch_norm"], "and the convolution's two gradients"
    monkeypatch.undo()
    probe_host.dispatch(bench)
    assert {"kernel", "convolution"} < {sample.name for _, sample in bench.found}
