"""Pairs of ranks are connected before a program is played: NCCL holds the host thread at a pair's first message until both have come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.players import streams
from executor.players.communication import ORDERED, _in_order, connect, make_groups, pairs, way
from executor.players.feeder import Crossing
from executor.ranks.world import NCCL
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.program import HOST, MESSAGE, Program
from sim.setting.bind import network_of
from tests.gloo.gpu_standin import StandIn, alone

DENSE = {"family": "decoder", "layers": 8, "hidden": 32, "heads": 4, "vocab": 64, "ffn": 64}
CASES: dict[str, dict[str, Any]] = {
    "ring": {"cp": 4},
    "1f1b": {"pp": 4, "schedule": "1f1b"},
    "interleaved": {"pp": 4, "schedule": "interleaved", "virtual_stages": 2},
    "both": {"pp": 2, "cp": 2},
}


def _program(parallel: dict[str, Any]) -> Program:
    batch = {"micro": 1, "global": 8 if "pp" in parallel else 1}
    plan = load_plan({"model": DENSE, "seq_len": 32, "precision": "fp32", "batch": batch, "parallel": parallel})
    habits = framework_of(plan)
    return lower(plan, network_of(plan, habits), habits, "cuda", 2)


class Meetings:
    """Messages that take both ends at once, each rank a thread; `stuck` where they never come together."""

    def __init__(self, ranks: int) -> None:
        self.world, self.stuck = ranks, False
        self.done: list[tuple[str, int, int]] = []
        self._come: dict[tuple[str, int, int], threading.Barrier] = {}
        self._lock, self._own = threading.Lock(), threading.local()

    def meet(self, group: str, source: int, target: int) -> None:
        with self._lock:
            barrier = self._come.setdefault((group, source, target), threading.Barrier(2))
        try:
            if barrier.wait(3.0) == 0:
                self.done.append((group, source, target))
        except threading.BrokenBarrierError:
            self.stuck = True

    def send(self, token: torch.Tensor, target: int, group: Any) -> None:
        self.meet(group, self._own.rank, target)

    def recv(self, token: torch.Tensor, source: int, group: Any) -> None:
        self.meet(group, source, self._own.rank)

    def run(self, work: Callable[[int], None]) -> None:
        def one(rank: int) -> None:
            self._own.rank = rank
            work(rank)

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program, int], Any]:
    """Those of a GPU's rank; each handle is its ranks, and which of the groups that its rank has asked for it is."""

    def made(program: Program, rank: int) -> Any:
        asked: list[tuple[int, ...]] = []

        def new_group(ranks: Sequence[int], backend: str | None = None) -> Any:
            assert backend is None, "the world's own, which is NCCL on devices"
            asked.append(tuple(ranks))
            return tuple(ranks), len(asked)

        monkeypatch.setattr(dist, "get_backend", lambda: NCCL)
        return make_groups(program, SimpleNamespace(rank=rank, group=new_group), apart=True), asked  # type: ignore[arg-type]

    return made


@pytest.mark.parametrize("name", CASES)
def test_every_pair_meets_once_before_its_first_message(name: str, groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(CASES[name])
    meetings, made = Meetings(program.world), [groups(program, rank)[0] for rank in range(program.world)]
    monkeypatch.setattr(dist, "send", meetings.send)
    monkeypatch.setattr(dist, "recv", meetings.recv)
    meetings.run(lambda rank: connect(program, made[rank], rank, torch.device("cpu")))
    assert not meetings.stuck
    assert sorted((source, target) for _, source, target in meetings.done) == sorted((a, b) for _, a, b in pairs(program))
    assert len({group for group, _, _ in meetings.done}) == len(meetings.done), "no way shares its queue with another"
    for rank in range(program.world):
        for _, op in program.ops(rank):
            if op.kind in MESSAGE:
                ranks = program.mesh.group(op.group, rank)
                other = ranks[(ranks.index(rank) + op.peer) % len(ranks)]
                assert (op.group, *((rank, other) if op.kind == "send" else (other, rank))) in pairs(program)


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_each_pair_has_a_group_of_its_own(name: str, groups: Any) -> None:
    """NCCL runs the messages of a group one after the other, in the order of each rank: a third rank's would hold them up."""
    program = _program(CASES[name])
    both = [groups(program, rank) for rank in range(program.world)]
    assert all(asked == both[0][1] for _, asked in both), "all ranks make the same groups, in the same order"
    for axis, source, target in pairs(program):
        ends = [both[rank][0][way(source, target), axis] for rank in (source, target)]
        assert ends[0] == ends[1] and ends[0][1] == (source, target) and ends[0][0][0] == (source, target)
    named = [key for found, _ in both for key, (handle, ranks) in found.items() if handle is not None and key[0].startswith("messages")]
    assert len(named) == 2 * len(pairs(program)), "each has its two ends, and there are no others"


def test_torch_names_a_world_by_all_of_its_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `groups` takes it: ranks of GPUs that asked for the name of gloo found it, and played their collectives by way of the host."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("cpu:gloo,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.get_backend() == "cpu:gloo,cuda:gloo" and _in_order() == ORDERED
    finally:
        dist.destroy_process_group()


def test_a_ring_that_is_not_connected_would_wait_for_ever() -> None:
    """Why: every rank's first message goes out, and none has come to its receive."""
    program = _program(CASES["ring"])
    first = [next(op.kind for _, op in program.ops(rank, HOST) if op.kind in MESSAGE) for rank in range(4)]
    assert first == ["send"] * 4


def test_the_player_of_a_gpu_connects_before_it_prepares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Program, int]] = []
    monkeypatch.setattr(streams, "connect", lambda program, groups, rank, device: told.append((program, rank)))
    plan = load_plan({"model": DENSE, "seq_len": 32, "precision": "fp32", "batch": {"micro": 1}})
    habits = framework_of(plan)
    program = lower(plan, network_of(plan, habits), habits, "cuda", 2)
    streams.StreamPlayer(alone(tmp_path), program, Crossing(program, 0), lambda op: 0.0, tmp_path / "read.bin", StandIn())
    assert told == [(program, 0)]
