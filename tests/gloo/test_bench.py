"""What a call is said to last where ranks have a core each, and where they take turns."""

from __future__ import annotations

import mmap
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executor.probes import ddp as probe_ddp
from executor.probes.bench import Bench
from executor.probes.host import _accumulate, _autograd
from executor.probes.kernels import gemms
from executor.ranks.world import World
from tests.gloo.gpu_standin import StandIn, alone


@pytest.mark.parametrize("length", [1e-4, 2e-3], ids=["timed cold", "timed in runs"])
def test_ranks_that_take_turns_count_their_own_time_on_a_core(length: float, tmp_path: Path) -> None:
    """Sleeping stands for the others' turns: it belongs to the call only where nobody else could have had the core."""
    for crowded in (False, True):
        world = alone(tmp_path)
        world.crowded = crowded
        found = sorted(Bench(world, quick=True).times([lambda: time.sleep(length)]))
        assert (found[len(found) // 2] >= length) is not crowded


def test_a_host_is_crowded_when_its_threads_outnumber_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from executor.ranks.beat import Beat
    from executor.ranks.environment import Process

    monkeypatch.setattr("executor.ranks.world.cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for ranks, crowded in ((1, False), (2, False), (3, True)):
        place = Process(0, 6, 0, ranks, "127.0.0.1", 0, "test")
        assert World(place, tmp_path, 9.0, Beat(tmp_path / f"{ranks}.beat", create=True)).crowded is crowded


def test_calls_take_turns_and_none_is_timed_first(tmp_path: Path) -> None:
    """Each has its memory, whose first touch costs more than the kernel; so many as the budget times, no more."""
    bench, called = Bench(alone(tmp_path), quick=True), list[int]()

    def call(at: int) -> Callable[[], object]:
        def run() -> None:
            called.append(at)
            time.sleep(1e-3)

        return run

    found = bench.times([call(at) for at in range(64)])
    turns = len(set(called))
    assert 5 <= turns <= 2 * bench.budget / 1e-3 + 1
    assert set(called[: len(called) - len(found)]) == set(called), "warmed up, every one of them"


@pytest.mark.parametrize("length", [0.0, 1e-3], ids=["timed cold", "timed in runs"])
@pytest.mark.parametrize("always", [False, True], ids=["some", "all"])
def test_calls_that_meet_new_pages_are_timed_again(length: float, always: bool, tmp_path: Path) -> None:
    """A step has met them long before. Where a machine gives memory back each time, the calls that meet them are all there are."""
    bench, kept, turn = Bench(alone(tmp_path), quick=True), list[mmap.mmap](), 0

    def call() -> None:
        nonlocal turn
        time.sleep(length)
        turn += 1
        if always or turn % 4 == 0:
            kept.append(mmap.mmap(-1, 64 * mmap.PAGESIZE))
            for at in range(64):
                kept[-1][at * mmap.PAGESIZE] = 1
            time.sleep(3e-2)

    found = bench.times([call])
    assert len(found) >= 5
    assert all(t >= 3e-2 for t in found) if always else max(found) < 3e-2


class _Ops(TorchDispatchMode):
    """Counts what is called, and what of it copies."""

    count = copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.copies += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def test_a_node_of_autograd_is_timed_without_the_hand_over_of_a_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's backward is run by a thread of the device, which is woken and awaited: once in a step of hundreds of nodes, not once in eight."""
    handed = 0

    def times(_: Bench, calls: list[Callable[[], object]], least: int = 5) -> list[float]:
        nonlocal handed
        handed = 0
        with _Ops() as ops:
            calls[0]()
        return [5e-6 * ops.count + 4e-5 * handed] * least

    def hand_over(*given: Any, **more: Any) -> Any:
        nonlocal handed
        handed += 1
        return real(*given, **more)

    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", hand_over)
    monkeypatch.setattr(Bench, "times", times)
    found = {kind: median(_autograd(Bench(alone(tmp_path, kind), quick=True, cuda=StandIn()))) for kind in ("cpu", "cuda")}
    assert found["cpu"] - found["cuda"] == pytest.approx(5e-6), "an eighth of the hand-over"


def test_a_gradient_is_put_into_place_on_a_gpu_without_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step's gradients are tensors of their own, which AccumulateGrad takes as they are; a copy of each is a launch."""
    copied: list[int] = []

    def times(_: Bench, calls: list[Callable[[], object]]) -> list[float]:
        with _Ops() as ops:
            calls[0]()
        copied.append(ops.copies)
        return [float(ops.count)]

    monkeypatch.setattr(Bench, "times", times)
    assert _accumulate(Bench(alone(tmp_path, "cuda"), quick=True, cuda=StandIn()), torch.ones(8, 8)) == [2.0], (
        "a view, and the gradient's own"
    )
    assert copied == [0, 0]


def test_the_probe_has_a_bucket_for_each_parameter() -> None:
    parameters = list(probe_ddp.Many(16, torch.device("cpu")).parameters())
    for size, wanted in ((probe_ddp._EACH, 16), (probe_ddp._ONE, 1)):
        buckets, _ = torch.distributed._compute_bucket_assignment_by_size(parameters, [int(size * 1024 * 1024)])
        assert len(buckets) == wanted


class _Wrapped(torch.nn.Module):
    """Spends 8 us for each parameter of what it wraps, 30 for each bucket, and 100 us besides."""

    def __init__(self, module: torch.nn.Module, made: list[Any], bucket_cap_mb: float, **_: Any) -> None:
        super().__init__()
        count = len(list(module.parameters()))
        self.spends, self.spent = 1e-4 + 8e-6 * count + 30e-6 * (count if bucket_cap_mb < 1 else 1), 0.0
        made.append(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.spent += self.spends
        return x.requires_grad_()


@pytest.mark.parametrize(("kind", "wanted", "bucket"), [("cuda", 3e-6, 10e-6), ("cpu", 8e-6, 10e-6)])
def test_a_gradients_way_into_its_bucket_is_launched_and_the_bucket_sent_once(
    kind: str, wanted: float, bucket: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a program has the copies into buckets and back as kernels, each with its launch: no part of what DDP does for a parameter. Nor is
    handing over the message, which it has as a collective, a part of what DDP does for a bucket."""
    sent = SimpleNamespace(spent=0.0, wait=lambda: None)
    made: list[Any] = [sent]

    def times(_: Bench, calls: list[Callable[[], object]], least: int = 5) -> list[float]:
        before = sum(module.spent for module in made)
        calls[0]()
        return [sum(module.spent for module in made) - before]

    monkeypatch.setattr(probe_ddp.dist, "all_reduce", lambda *_, **__: sent.__setattr__("spent", sent.spent + 20e-6) or sent)
    monkeypatch.setattr(probe_ddp, "DistributedDataParallel", lambda module, **more: _Wrapped(module, made, **more))
    monkeypatch.setattr(Bench, "times", times)
    bench = Bench(alone(tmp_path, kind), quick=True, cuda=StandIn())
    bench.add("host", "launch", "", (), [2.5e-6])
    probe_ddp.ddp(bench)
    found = {one.name: one.median for _, one in bench.found}
    assert (found["ddp_parameter"], found["ddp_step"]) == (pytest.approx(wanted), pytest.approx(1e-4, rel=2e-3))
    assert found["ddp_bucket"] == pytest.approx(bucket)


@pytest.mark.parametrize("quick", [True, False])
def test_products_are_timed_in_each_layout(quick: bool) -> None:
    """A CPU without units for bf16 multiplies in a loop of its own for each: backward of autocast was half as long as it is, Muon a third."""
    timed: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)

    def work(kind: str, role: str, work: object, dtype: str, shape: tuple[int, ...]) -> None:
        assert kind == "gemm"
        timed[dtype, role].add(shape)

    gemms(SimpleNamespace(quick=quick, phase=lambda words: None, work=work))  # type: ignore[arg-type]
    for dtype in ("fp32", "bf16"):
        forward, *backward = (timed[dtype, role] for role in ("fwd", "dgrad", "wgrad"))
        assert all(8 <= len(shapes) <= len(forward) and shapes <= forward for shapes in backward)
