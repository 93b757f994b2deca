"""What is left of a GPU's probe where one of its tables fails, or all of it ends early. No GPU, no timing."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from executor import probe as probing
from executor import twin as twins
from executor.probe import Request, completed, measure
from executor.probes.bench import Bench
from executor.ranks.launch import Interrupted
from executor.twin import calibrated
from executor.validation import gpu_calibration, gpu_measure
from executor.validation.gpu_cases import cases
from executor.validation.gpu_rows import Row
from executor.validation.gpu_site import Site
from sim.cost.calibration import Calibration, load_calibration, save_calibration
from tests.gloo.gpu_standin import alone
from topologies.errors import BadInput, RunFailed
from topologies.load import load_topology

HERE = load_topology("dgx-h200")


def first(bench: Bench) -> None:
    bench.add("gemm", "fwd", "bf16", (8, 8, 8), [1e-6])


def broken(bench: Bench) -> None:
    bench.add("attention", "fwd", "bf16", (1, 1, 8, 8), [1e-6])
    raise RuntimeError("CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")


def last(bench: Bench) -> None:
    bench.add("host", "kernel", "", (), [5e-6])


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_alone", lambda world, quick: [first, broken, last])
    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")


def test_a_table_that_fails_on_a_gpu_is_named_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precisions: list[bool] = []
    monkeypatch.setattr(probing, "set_precision", precisions.append)
    found = measure(alone(tmp_path, "cuda"), Request(True))
    assert found.missing == "broken: RuntimeError: CUDA error: an illegal memory access"
    assert [kind for kind, _ in found.samples] == ["gemm", "attention", "host"]
    assert precisions == [False, False], "it may have ended in TF32"
    assert found.versions["nccl"] == "2.28.9"


def test_on_a_cpu_and_among_several_ranks_it_ends_the_probe(tmp_path: Path) -> None:
    several = alone(tmp_path, "cuda")
    several.size = 2
    for world in (alone(tmp_path, "cpu"), several):
        with pytest.raises(RuntimeError, match="illegal"):
            measure(world, Request(True))


def test_ranks_that_outnumber_the_gpus_do_not_measure_the_cpu_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, as `steptwin probe` has unless told otherwise, on a machine with one GPU."""
    world = alone(tmp_path, "cpu")
    world.local_size = 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match=r"1 GPU here, and 2 ranks.*--ranks 1, or hide"):
        measure(world, Request(True))


BROKEN = "test_gpu_probe.broken"


def _known(**more: Any) -> Calibration:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    versions = {"torch": str(torch.__version__), "driver": "570.1"}
    return Calibration(**{"device": "cuda", "date": now, "machine": "", "cores": 2, "ranks": 1, "threads": 1, "versions": versions} | more)


def test_a_table_that_has_failed_is_measured_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, heals = tmp_path / "c.toml", list[str](), list[Request]()

    def launch(name: str, request: Request, ranks: int, folder: Path, kind: type) -> Any:
        heals.append(request)
        return [measure(alone(folder, "cuda"), request)]

    monkeypatch.setattr(probing, "launch", launch)
    monkeypatch.setattr(twins, "driver", lambda: "570.1")
    monkeypatch.setattr(probing, "driver", lambda: "570.1")
    assert calibrated(1, path, said.append, HERE).lacking == (BROKEN,)
    found = calibrated(1, path, said.append, HERE)
    assert heals[1].tables == (BROKEN,) and [s.name for s in heals[1].known] == ["kernel"], "what other tables leave out is known to it"
    assert found.missing.startswith("broken: RuntimeError") and found.lacking == (), "twice is enough"
    assert found.entries == 3 and found.rows("host", "kernel"), "points that were there stay"
    assert "lacks test_gpu_probe.broken" in said[-1] and load_calibration(path).missing == found.missing
    calibrated(1, path, said.append, HERE)
    assert len(heals) == 2


def test_ranks_that_meet_measure_what_sharing_parameters_takes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank alone shares with nobody: the calibration of several takes it from the probe of their collectives, which stay where it fails."""
    assert [table.__name__ for table in probing._only_together()] == ["sharded"]
    several = alone(tmp_path, "cuda")
    several.size = 2
    monkeypatch.setattr(probing, "_together", lambda: [first])
    monkeypatch.setattr(probing, "_only_together", lambda: [last])
    found = measure(several, Request(True, communication=True))
    assert [sample.name for _, sample in found.samples] == ["fwd", "kernel"] and not found.missing
    monkeypatch.setattr(probing, "_only_together", lambda: [broken])
    found = measure(several, Request(True, communication=True))
    assert found.missing.startswith("broken: RuntimeError") and found.samples[0][0] == "gemm"


def test_what_was_not_reached_comes_before_what_took_all_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = list[tuple[str, ...]]()
    monkeypatch.setattr(probing, "write_atomic", lambda path, raw: left.append(msgspec.msgpack.decode(raw, type=probing.Measured).lacking))
    measure(alone(tmp_path, "cuda"), Request(True))
    names = [f"test_gpu_probe.{name}" for name in ("broken", "last")]
    assert left[0][-1] == names[0] and left[0][-2] == "comm.issue" and names[1] in left[0][:-2]
    assert left[-1] == (BROKEN,)


def test_a_table_that_hangs_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "launch", _ending(RunFailed("rank 0 of 1: no progress"), works=False))
    path, found = tmp_path / "c.toml", _known(lacking=("host.dispatch", "device.gemms"), missing="the probe came to no end: -")
    found = completed(found, path)
    assert found.lacking == ("device.gemms",) and found.missing.startswith("host.dispatch: the probe came to no end")
    assert completed(found, path).lacking == () == load_calibration(path).lacking


@pytest.mark.parametrize(("what", "here", "why"), [
    ("driver", "570.1", ""),
    ("driver", "580.65", "driver 570.1, here is 580.65"),
    ("torch", "2.99", r"torch \S+, here is 2\.99"),
])  # fmt: skip
def test_another_driver_or_torch_makes_a_calibration_stale(what: str, here: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "driver", lambda: "570.1")
    if what == "torch":
        monkeypatch.setattr(twins, "torch_version", lambda: here)
    else:
        monkeypatch.setattr(twins, "driver", lambda: here)
    assert re.search(why, twins._stale(_known())) and bool(twins._stale(_known())) == bool(why)
    assert not twins._stale(msgspec.structs.replace(_known(), device="cpu")) or what == "torch", "a CPU's asks no driver"
    assert "older than 7 days" in twins._stale(_known(date="2026-01-01T00:00:00+00:00")) or why


def _ending(error: RunFailed, works: bool = True) -> Any:
    def launch(name: str, request: Request, ranks: int, folder: Path, kind: type) -> Any:
        if works:
            measure(alone(folder, "cuda"), request)
        raise error

    return launch


def test_what_was_measured_before_the_end_is_a_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "launch", _ending(RunFailed("the time limit is over")))
    probing.probe(1, tmp_path / "c.toml", quick=True)
    found = load_calibration(tmp_path / "c.toml")
    assert found.device == "cuda" and found.entries == 3
    assert found.missing.endswith("memory access; the probe came to no end: the time limit is over")


@pytest.mark.parametrize(("error", "works"), [(Interrupted("interrupted."), True), (RunFailed("rank 0 was killed"), False)])
def test_who_interrupts_or_has_nothing_has_no_calibration(
    error: RunFailed, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "launch", _ending(error, works))
    with pytest.raises(type(error), match=f"no calibration was written: {error.cause}"):
        probing.probe(1, tmp_path / "c.toml", quick=True)
    assert not (tmp_path / "c.toml").exists()


def test_an_interrupt_ends_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted("interrupted.")

    monkeypatch.setattr(gpu_calibration, "calibrated", interrupted)
    fields = [("folder", Path), ("machine", Any), ("quick", bool), ("say", Any), ("unprobed", str)]
    site: Any = msgspec.defstruct("Site", fields)(tmp_path, HERE, True, print, "")
    with pytest.raises(Interrupted):
        gpu_calibration.probe(site)
    with pytest.raises(Interrupted):
        gpu_measure._guarded(Row(plan="", kind="", model="", ranks=1), "stock", tmp_path, interrupted)


def test_ranks_that_cannot_be_probed_are_not_probed_for_each_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def hangs(ranks: int, quick: bool) -> Any:
        tried.append(ranks)
        raise RunFailed("rank 1 of 2: no progress for 120 s")

    monkeypatch.setattr(gpu_calibration, "calibrated", lambda *_, **__: None)
    monkeypatch.setattr(gpu_calibration, "comm_probe", hangs)
    site = Site(
        folder=tmp_path,
        machine=load_topology("dgx-h200"),
        device="cuda",
        gpus=2,
        steps=5,
        quick=True,
        say=lambda _: None,
        end=0.0,
        made_with=(),
    )
    save_calibration(_known(), tmp_path / gpu_calibration.ONE)
    for name in ("ddp-gpt2-124m", "ddp-gpt2-1.5b"):
        with pytest.raises(RunFailed, match="no progress for 120 s"):
            gpu_calibration.calibration_of(cases(2)[name], site)
    assert tried == [2]
    shared = next(case for case in cases(2).values() if case.where == "shared" and case.plan.world == 2)
    with pytest.raises(RunFailed, match="no progress for 120 s"):
        gpu_calibration.calibration_of(shared, site)
    assert tried == [2, 2], "through gloo, which is another matter"
