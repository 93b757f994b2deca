"""A probe looks at a kernel at several moments, at rows of a power of two beside others, and at meetings equally often on all ranks."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor import probe
from executor.probes import aliased, kernels, sharded
from executor.probes.bench import Bench
from sim.work import Gemm
from tests.gloo.gpu_standin import alone


def _points(*tables: Any) -> Counter[tuple[str, str, str, tuple[int, ...]]]:
    """What tables time, how often each."""
    timed: Counter[tuple[str, str, str, tuple[int, ...]]] = Counter()

    def work(kind: str, name: str, work: object, dtype: str, shape: tuple[int, ...]) -> None:
        timed[kind, name, dtype, shape] += 1

    world = SimpleNamespace(kind="cpu")
    bench: Any = SimpleNamespace(quick=False, world=world, phase=lambda words: None, work=work, glance=nullcontext)
    for table in tables:
        table(bench)
    return timed


def test_kernels_are_timed_at_three_moments() -> None:
    tables = probe._alone(SimpleNamespace(kind="cpu"), False)  # type: ignore[arg-type]
    at = [place for place, table in enumerate(tables) if table is kernels.once_more]
    assert len(at) == 2 and at[1] - at[0] > 1, "other tables lie between"
    first = _points(kernels.gemms, kernels.memory_bound, kernels.attention, kernels.convolutions)
    again = _points(kernels.once_more)
    slow = {point for point in first if point[0] in ("attention", "conv") and point[2] == "bf16"}
    assert slow and set(again) == set(first) - slow and set(again.values()) == {1}
    for kind, quick in (("cuda", False), ("cuda", True), ("cpu", True)):
        assert kernels.once_more not in probe._alone(SimpleNamespace(kind=kind), quick)  # type: ignore[arg-type]


def test_a_glance_is_shorter_and_ends(tmp_path: Path) -> None:
    bench, called = Bench(alone(tmp_path), quick=False), 0

    def call() -> None:
        nonlocal called
        called += 1
        time.sleep(2e-3)

    def timed() -> tuple[int, int]:
        nonlocal called
        called = 0
        return len(bench.times([call] * 40)), called

    whole = timed()
    with bench.glance():
        short = timed()
    assert short[0] < whole[0] and short[1] < whole[1] and short[0] >= 2
    assert timed()[0] >= 5, "as before"


def test_a_long_call_is_not_warmed_up_and_timed_a_few_times(tmp_path: Path) -> None:
    called = 0

    def call() -> None:
        nonlocal called
        called += 1
        time.sleep(6e-2)

    found = Bench(alone(tmp_path), quick=False).times([call] * 40)
    assert len(found) == 3 and called == 5


def test_rows_of_a_power_of_two_are_compared_with_their_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seconds of one multiplication each: the neighbour is larger."""

    def seconds(work: Gemm) -> float:
        return (3.0 if 1024 in (work.m, work.n) else 1.5 if 256 in (work.m, work.n) else 1.0) * work.flops

    monkeypatch.setattr(aliased, "body", lambda work, arena: lambda: seconds(work))
    monkeypatch.setattr(aliased, "held", lambda call: call)
    monkeypatch.setattr(Bench, "once", lambda self, call: call())
    bench = Bench(alone(tmp_path), quick=True)
    aliased.aliased(bench)
    found = {(s.name, s.dtype, s.shape["mn".index(s.name[-1])]): s.median for kind, s in bench.found if kind == "aliased"}
    assert found == {
        (f"{role}.{along}", dtype, size): pytest.approx(3.0 if size == 1024 else 1.5)
        for role, along in (("dgrad", "n"), ("wgrad", "m"), ("wgrad", "n"))
        for dtype in ("fp32", "bf16")
        for size in (256, 1024)
    }


@pytest.mark.parametrize("slow", [0.0, 2e-3])
def test_ranks_meet_equally_often_however_long_each_takes(slow: float, tmp_path: Path) -> None:
    """A rank that would meet once more than another would wait for it forever."""
    met = 0

    def meet() -> None:
        nonlocal met
        met += 1
        time.sleep(slow)

    found = sharded._met(Bench(alone(tmp_path), quick=False), meet)
    assert met == sharded._WARM + sharded._MEETINGS and found >= slow
