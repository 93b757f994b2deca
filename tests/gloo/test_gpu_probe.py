"""What is left of a GPU's probe where one of its tables fails, or all of it ends early. No GPU, no timing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from executor import probe as probing
from executor.probe import Request, measure
from executor.probes.bench import Bench
from executor.ranks.launch import Interrupted
from executor.validation import gpu_calibration, gpu_measure
from executor.validation.gpu_cases import cases
from executor.validation.gpu_rows import Row
from executor.validation.gpu_site import Site
from sim.cost.calibration import load_calibration
from tests.gloo.gpu_standin import alone
from topologies.errors import RunFailed
from topologies.load import load_topology


def first(bench: Bench) -> None:
    bench.add("gemm", "fwd", "bf16", (8, 8, 8), [1e-6])


def broken(bench: Bench) -> None:
    bench.add("attention", "fwd", "bf16", (1, 1, 8, 8), [1e-6])
    raise RuntimeError("CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")


def last(bench: Bench) -> None:
    bench.add("host", "kernel", "", (), [5e-6])


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_alone", lambda world: [first, broken, last])
    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")


def test_a_table_that_fails_on_a_gpu_is_named_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precisions: list[bool] = []
    monkeypatch.setattr("executor.ranks.world.set_precision", precisions.append)
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
    site: Any = msgspec.defstruct("Site", [("folder", Path), ("quick", bool), ("say", Any), ("unprobed", str)])(tmp_path, True, print, "")
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
    (tmp_path / gpu_calibration.ONE).write_text("")
    for name in ("ddp-gpt2-124m", "ddp-gpt2-1.5b"):
        with pytest.raises(RunFailed, match="no progress for 120 s"):
            gpu_calibration.calibration_of(cases(2)[name], site)
    assert tried == [2]
