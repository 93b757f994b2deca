"""Timing the thread that pins batches: real loader processes; without a device torch's DataLoader leaves the thread itself out."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.probes import input as probes
from executor.probes.bench import Bench
from sim.cost.calibration import Sample
from tests.gloo.gpu_standin import alone

MIB = 1 << 20


def timed(folder: Path, monkeypatch: pytest.MonkeyPatch, room: int | None, cores: int, ranks: int = 1) -> dict[tuple[str, int], Sample]:
    """What the probe finds where a machine has so much shared memory and so many cores, by name and bytes."""
    monkeypatch.setattr(probes, "shared_room", lambda: room)
    monkeypatch.setattr(probes, "cores", lambda: cores)
    world = alone(folder)
    world.local_size = ranks
    bench = Bench(world, quick=False)
    probes.pinned(bench)
    return {(sample.name, sum(sample.shape)): sample for _, sample in bench.found}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_batches_of_all_sizes_that_shared_memory_holds_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PINNED", (1 << 10, MIB, 2 * MIB, 4 * MIB))
    monkeypatch.setattr(probes, "_PROCESSES", 5)
    found = timed(tmp_path, monkeypatch, 12 * MIB - 1, 16)
    assert list(found) == [("pin", 1 << 10), ("pin", MIB), ("take_pinned", 0)], "no four processes make batches of 2 MiB there"
    assert found["pin", MIB].n == 2 and found["take_pinned", 0].median > 0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("cores", "ranks"), [(4, 1), (16, 4)])
def test_too_few_cores_for_loader_processes_time_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int
) -> None:
    assert [name for name, _ in timed(tmp_path, monkeypatch, None, cores, ranks)] == ["take_pinned"]
