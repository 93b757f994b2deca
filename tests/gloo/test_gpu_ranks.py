"""Which device a rank takes, and how a batch comes to it, with torch.cuda's answers given by hand. No GPU."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
import torch
import torch.distributed as dist

from executor.ranks.beat import Beat
from executor.ranks.environment import SHARED, Process, on_gpus, own_gpu, sharing
from executor.ranks.world import World, joined, set_precision
from executor.training import parallelize
from executor.training.handover import Handover
from executor.training.trainer import drop_others
from sim.files.planfile import load_plan
from sim.framework.chosen import sharded_alone
from tests.gloo.gpu_standin import alone
from topologies.errors import RunFailed


def _world(rank: int, size: int, gpus: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, list[torch.device]]:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return World(Process(rank, size, rank, size, "127.0.0.1", 0, "test"), folder, 9.0, Beat(folder / f"{rank}.beat", create=True)), taken


def test_each_rank_has_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        world, taken = _world(rank, 2, 4, tmp_path, monkeypatch)
        assert world.device == torch.device("cuda", rank) and taken == [world.device] and not world.shared


def test_too_few_gpus_are_none_unless_they_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _world(1, 2, 1, tmp_path, monkeypatch)[0].kind == "cpu"
    with sharing():
        world, taken = _world(1, 2, 1, tmp_path, monkeypatch)
        assert world.shared and world.device == torch.device("cuda", 0) and taken == [world.device]
        assert _world(1, 2, 8, tmp_path, monkeypatch)[0].device == torch.device("cuda", 0), "shared is shared, whatever else is there"
        assert _world(0, 1, 0, tmp_path, monkeypatch)[0].kind == "cpu"
    assert not _world(0, 1, 1, tmp_path, monkeypatch)[0].shared


def test_no_rank_computes_on_a_cpu_where_gpus_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that fell off the bus leaves none for the plans behind it: their rows would hold a CPU's times."""
    with on_gpus():
        assert _world(0, 1, 1, tmp_path, monkeypatch)[0].kind == "cuda"
        for gpus, size, why in ((0, 1, "finds 0 GPUs for the 1 ranks"), (1, 2, "finds 1 GPUs for the 2 ranks .* too few")):
            with pytest.raises(RunFailed, match=why):
                _world(0, size, gpus, tmp_path, monkeypatch)
        with sharing():
            assert _world(1, 2, 1, tmp_path, monkeypatch)[0].shared
    assert _world(0, 1, 0, tmp_path, monkeypatch)[0].kind == "cpu"


def test_sharing_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv(SHARED, raising=False)
    with pytest.raises(ValueError, match="x"), sharing():
        assert os.environ[SHARED] == "1"
        raise ValueError("x")
    assert SHARED not in os.environ


class _Tensor:
    """A tensor that tells how it was copied and who uses it."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def to(self, device: object, non_blocking: bool) -> _Tensor:
        self.told.append("beside" if non_blocking else "waits")
        return self

    def record_stream(self, stream: object) -> None:
        self.told.append(("used by", stream))


class _Stream:
    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def wait_stream(self, other: object) -> None:
        self.told.append("compute waits")

    def synchronize(self) -> None:
        self.told.append("host waits")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, ["beside", "beside", "compute waits", ("used by", "c"), ("used by", "c")]),
        ({"pinned": False}, ["waits", "waits", "compute waits", ("used by", "c"), ("used by", "c")]),
        ({"handover": "synchronize"}, ["beside", "beside", "host waits", ("used by", "c"), ("used by", "c")]),
        ({"handover": "none"}, ["beside", "beside", ("used by", "c"), ("used by", "c")]),
        ({"stream": "compute"}, ["beside", "beside"]),
        ({"stream": "compute", "pinned": False}, ["waits", "waits"]),
    ],
)
def test_a_batch_comes_over_as_the_plan_says(
    data: dict[str, Any], told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    compute = _Stream(seen)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: _Stream(seen))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    plan = load_plan({"model": "gpt2-124m", "data": data})
    batch: Any = (_Tensor(seen), _Tensor(seen))
    assert Handover(plan, alone(tmp_path, "cuda"))(batch) == batch
    assert [("used by", "c") if one == ("used by", compute) else one for one in seen] == told


def test_fp32_is_exact_and_tf32_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        set_precision(True)
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
        set_precision(False)
        assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    finally:
        set_precision(False)


def test_one_rank_is_sharded_where_the_plan_says_so() -> None:
    assert sharded_alone(load_plan({"model": "gpt2-124m", "parallel": {"zero": 3}}))
    assert not sharded_alone(load_plan({"model": "gpt2-124m"}))
    assert not sharded_alone(load_plan({"model": "gpt2-124m", "parallel": {"zero": 3, "dp_shard": 2}}))


@pytest.mark.parametrize(("kind", "shared", "apart"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)])
def test_axes_of_a_mesh_have_groups_of_their_own_making(
    kind: str, shared: bool, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would split them off the world's, of which gloo's dies where a process joined before (probe, then training, under torchrun)."""
    asked: list[dict[str, Any]] = []
    limits: list[timedelta] = []

    def made(device: str, sizes: tuple[int, ...], **more: Any) -> MagicMock:
        asked.append({"device": device, "sizes": sizes, **more})
        return MagicMock()

    monkeypatch.setattr(parallelize, "init_device_mesh", made)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_set_pg_timeout", lambda limit, _: limits.append(limit))
    world = alone(tmp_path, kind)
    world.size, world.shared, world.backend = 8, shared, "nccl" if apart else "gloo"
    parallelize.device_mesh(load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 8}}), world)
    (mesh,) = asked
    assert mesh["device"] == ("cuda" if apart else "cpu") and sorted(mesh["sizes"]) == [1, 1, 1, 1, 8]
    others = set(mesh["mesh_dim_names"]) - {"dp_replicate"}
    assert mesh["backend_override"] == (dict.fromkeys(others, "cpu:gloo,cuda:nccl") if apart else None), "the whole world's is there"
    assert limits == [world.limit] * 5, "torch's own is half an hour"


def test_other_ranks_stages_take_no_memory() -> None:
    blocks = [torch.nn.Linear(3, 3) for _ in range(3)]
    drop_others(torch.nn.Sequential(*blocks), torch.nn.ModuleList([blocks[1]]))
    assert [block.weight.device.type for block in blocks] == ["meta", "cpu", "meta"]
    assert blocks[1](torch.ones(1, 3)).shape == (1, 3)


def test_a_launcher_may_show_each_rank_one_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --gpus-per-task 1`: eight ranks of a host, each sees one device, and it is another one each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    world, taken = _world(5, 8, 1, tmp_path, monkeypatch)
    assert world.device == torch.device("cuda", 0) and taken == [world.device] and not world.shared
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert _world(5, 8, 2, tmp_path, monkeypatch)[0].kind == "cpu", "too few for all, and nobody says which is whose"
    at = Process(0, 8, 0, 8, "127.0.0.1", 0, "steptwin")
    assert not own_gpu(at, {"CUDA_VISIBLE_DEVICES": "0"}), "ranks that are started here see the same one"
    assert own_gpu(msgspec.structs.replace(at, launcher="slurm"), {"CUDA_VISIBLE_DEVICES": "GPU-8d3f"})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_nccl_ends_in_order_only_where_nothing_failed(fails: bool, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending it in order takes all ranks of the host: a rank that failed would wait for the others, and its message would be lost."""
    told: list[Any] = []
    for name, value in {"is_available": lambda: True, "device_count": lambda: 2, "set_device": told.append}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(World, "barrier", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: told.append((backend, more["device_id"])))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: told.append("in order"))

    def abort() -> None:
        told.append("at once")
        raise RuntimeError("nothing was ever connected")

    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", abort)
    beat = Beat(tmp_path / "0.beat", create=True)
    with (
        pytest.raises(ValueError, match="out of memory") if fails else nullcontext(),
        joined(Process(0, ranks, 0, ranks, "127.0.0.1", 0, "steptwin"), tmp_path, 9.0, beat, tmp_path / "port"),
    ):
        if fails:
            raise ValueError("out of memory")
    gpu = torch.device("cuda", 0)
    bound = gpu if ranks > 1 else None  # one rank connects NCCL where a plan needs it, not before
    assert told == [gpu, ("cpu:gloo,cuda:nccl", bound), "at once" if fails else "in order"]
