"""The player's CUDA branch on a stand-in: its order of streams and events, its copies, and the spans that it gives. No GPU, no timing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from executor import play
from executor.players.communication import pairs
from executor.players.feeder import Crossing, host_seconds, start_feeders
from executor.players.streams import POOL, StreamPlayer, refuse_aliases
from executor.validation.gpu_plans import node
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.program import HOST, Program
from sim.setting.bind import network_of
from tests.gloo.gpu_standin import StandIn, StandInEvent, alone
from topologies.errors import Refused

TINY = {"family": "decoder", "name": "two", "layers": 2, "hidden": 32, "heads": 2, "vocab": 64, "norm": "layernorm", "activation": "gelu"}
BASE: dict[str, Any] = {"model": TINY, "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}}
CASES: dict[str, dict[str, Any]] = {
    "plain": BASE,
    "pageable": BASE | {"data": {"pinned": False}},
    "in line": BASE | {"data": {"stream": "compute"}},
    "synchronised": BASE | {"data": {"handover": "synchronize"}},
    "made on the CPU": BASE | {"data": {"create": "cpu"}},
    "lying there": BASE | {"data": {"source": "device"}},
    "loaders": BASE | {"data": {"source": "disk", "workers": 2, "sample": "4 KiB"}},
    "output": BASE | {"output": {"item_every": 1, "log_every": 1, "sync_every": 1, "print_every": 1}},
    "saved": BASE | {"output": {"checkpoint_every": 1, "checkpoint_mode": "full"}},
    "offload": BASE | {"memory": {"offload": "activations"}},
    "parameters": BASE | {"parallel": {"zero": 3}, "memory": {"offload": "parameters"}, "batch": {"global": 4, "micro": 2}},
    "accumulated": BASE | {"batch": {"micro": 1, "global": 3}},
    "vision": {"model": {"family": "cnn", "arch": "cifar"}, "precision": "fp32", "batch": {"micro": 1}},
}


def _program(tree: dict[str, Any]) -> Program:
    plan = load_plan(tree)
    habits = framework_of(plan)
    return lower(plan, network_of(plan, habits), habits, "cuda", 2)


def _play(tree: dict[str, Any], folder: Path) -> tuple[StreamPlayer, StandIn, list[Any], Any, Any]:
    played, _ = _play_beside(tree, folder, {})
    return played


def _play_beside(
    tree: dict[str, Any], folder: Path, spent: dict[str, float]
) -> tuple[tuple[StreamPlayer, StandIn, list[Any], Any, Any], dict[str, list[Any]]]:
    """Two passes; and per other thread, of every op in the second one, its id and when it ended."""
    program, world, cuda = _program(tree), alone(folder), StandIn()
    file = folder / "read.bin"
    file.write_bytes(bytes(1 << 16))
    crossing = Crossing(program, 0)
    seconds = lambda op: host_seconds(op, spent)  # noqa: E731
    feeders = start_feeders(program, 0, crossing, 2, seconds, file)
    player = StreamPlayer(world, program, crossing, seconds, file, cuda)
    ops = list(program.ops(0, HOST))
    player.run(ops, 0)
    found, ends = player.run(ops, 1)
    beside = {}
    for feeder in feeders:
        _, second = feeder.times(20.0)
        fed = [op for _, op in program.ops(0, feeder.thread)]
        beside[feeder.thread] = [(op.id, end) for op, (_, end) in zip(fed, second, strict=True)]
    return (player, cuda, ops, found, ends), beside


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CASES)
def test_every_op_has_a_span_and_every_step_an_end(name: str, tmp_path: Path) -> None:
    player, cuda, ops, found, ends = _play(CASES[name], tmp_path)
    assert len(found) == len(ops)
    assert all(start <= end for start, end, _ in found)
    assert [step for step, _ in ends] == [-1, 0, 1]
    assert ends[0][1] <= ends[1][1] <= ends[2][1]
    assert not list(tmp_path.glob("written*")), "what was written is dropped"
    lanes = {op.lane for _, op in ops if op.lane != HOST}
    assert set(player._streams) == lanes and cuda.used[-1] == 0, "other work finds the default stream again"


@pytest.mark.timeout(60)
def test_a_step_waits_for_the_thread_that_pins(tmp_path: Path) -> None:
    (_, _, ops, found, _), beside = _play_beside(CASES["loaders"], tmp_path, {"data/pin": 0.3})
    pinned = [end for op, end in beside["pinner"] if op == "data/pin"]
    waited = [end for (_, op), (_, end, _) in zip(ops, found, strict=True) if op.id == "data/wait"]
    assert len(pinned) == len(waited) == 2
    assert all(at <= through for at, through in zip(pinned, waited, strict=True)), "no step begins before its batch lies in pinned memory"
    # How long a step takes says nothing: beside a thread that burns a core its own kernels may take as long as the next batch does.


def test_copies_go_the_way_that_their_lane_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    real = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda self, other, non_blocking=False: (seen.append((self.numel(), non_blocking)), real(self, other))[1]
    )
    for pinned in (True, False):
        seen.clear()
        _, _, ops, _, _ = _play(BASE | {"data": {"pinned": pinned}, "output": {"item_every": 1}}, tmp_path)
        sizes = {op.bytes: op.how for _, op in ops if op.kind == "copy"}
        assert sizes.keys() >= {4} and "pageable" in sizes[4], ".item() reads into pageable memory"
        assert all(beside == (sizes[size] == "pinned") for size, beside in seen if size in sizes), "only pinned copies run beside the host"
        assert any(beside for _, beside in seen) is pinned


def test_output_is_written_and_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr("executor.players.disk.save_bytes", lambda path, size: written.append(size))
    _, _, ops, _, _ = _play(CASES["saved"], tmp_path)
    wanted = [op.bytes for _, op in ops if op.kind == "copy" and op.how == "disk" and op.cls == "output"]
    assert wanted and written == wanted * 2


def test_more_lanes_than_torch_has_streams_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = {op.lane for _, op in _program(BASE).ops(0, HOST)} - {HOST}
    monkeypatch.setattr("executor.players.streams.POOL", len(lanes) + 1)
    _play(BASE, tmp_path)
    monkeypatch.setattr("executor.players.streams.POOL", len(lanes))
    with pytest.raises(Refused, match=rf"{len(lanes)} lanes and 1 communicators"):
        _play(BASE, tmp_path)


def test_each_group_takes_a_stream() -> None:
    groups: Any = {(f"comm.{at}", "dp"): (object() if at % 2 else None, (0, 1)) for at in range(20)}
    refuse_aliases({f"lane {at}" for at in range(21)}, groups)
    with pytest.raises(Refused, match="22 lanes and 11 communicators"):
        refuse_aliases({f"lane {at}" for at in range(22)}, groups)


def test_every_plan_of_the_table_has_streams_enough() -> None:
    for gpus in (2, 4, 8):
        for name, (_, tree) in node(gpus).items():
            program = _program(tree)
            for rank in range(program.world):
                lanes = {op.lane for _, op in program.ops(rank, HOST)} - {HOST}
                own = {(lane, axis) for lane in lanes for _, op in program.ops(rank, HOST) if (axis := op.group) and op.lane == lane}
                ways = sum(rank in (source, target) for _, source, target in pairs(program))
                assert len(lanes) + len(own) + ways + 1 <= POOL, name


def test_changing_streams_only_where_the_lane_changes(tmp_path: Path) -> None:
    _, cuda, ops, _, _ = _play(BASE, tmp_path)
    assert all(one != other for one, other in zip(cuda.used, cuda.used[1:], strict=False))
    assert len(cuda.used) < len(ops)


def test_steps_are_timed_without_events_around_ops(tmp_path: Path) -> None:
    player, cuda, ops, _, _ = _play(CASES["output"], tmp_path)
    recorded: list[bool] = []
    real = StandInEvent.record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandInEvent, "record", lambda self, stream=None: (recorded.append(self._timing), real(self, stream))[1])
        found, ends = player.run(ops, 2, watched=False)
    assert found == [] and [step for step, _ in ends] == [-1, 0, 1] and ends[0][1] <= ends[1][1] <= ends[2][1]
    assert recorded.count(True) == 3, "the pass's beginning and the ends of its steps"
    assert not cuda.unread, "all has ended"


def test_what_events_around_an_op_take_is_no_part_of_its_span(tmp_path: Path) -> None:
    player, _, ops, _, _ = _play(BASE, tmp_path)
    player._around = 0.0
    before, _ = player.run(ops, 2)
    player._around = 10.0
    after, _ = player.run(ops, 3)
    queued = [id(op) in player._queued for _, op in ops]
    assert any(end > start for (start, end, _), on in zip(before, queued, strict=True) if on)
    assert all(end == start for (start, end, _), on in zip(after, queued, strict=True) if on), "never before its beginning"


def test_what_events_take_is_read_at_the_clock_of_the_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing takes seconds of the host, in which the device falls to its idle clock: what is taken off each span would be too much."""
    order: list[str] = []
    monkeypatch.setattr("executor.players.streams.wake", lambda device: order.append("awake"))
    monkeypatch.setattr("executor.players.streams.around", lambda cuda, run: order.append("read") or 0.0)
    _play(BASE, tmp_path)
    assert order == ["awake", "read"]


def test_a_kernel_does_not_write_where_the_one_before_has(tmp_path: Path) -> None:
    """It would find those lines in L2; in a step, as in the probe, results come to memory that was last touched long ago."""
    player, _, ops, _, _ = _play(BASE, tmp_path)
    at, op = next((call, op) for call, op in ops if id(op) in player._queued and op.kind == "compute")
    places = list[int]()

    def made() -> torch.Tensor:
        found = torch.empty(1 << 16)
        places.append(found.data_ptr())
        return found

    player._bodies[id(op)] = made
    for _ in range(40):
        player._one(at, op, 2, None)
    assert all(place not in places[max(0, number - 16) : number] for number, place in enumerate(places))


def test_watched_passes_give_spans_and_the_others_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, asked = _program(BASE), list[play.Request]()

    awake: list[torch.device] = []
    monkeypatch.setattr("executor.players.events.wake", awake.append)

    class Passes:
        def serve(self, turns: int) -> list[Any]:
            return []

        def run(self, ops: list[Any], turn: int, watched: bool = True) -> tuple[list[Any], list[Any]]:
            assert len(awake) == 1, "its clocks are up before anything is timed"
            begin = 100.0 * turn
            each = 2.0 if watched else 1.0
            return [(begin, begin + each, begin)] * len(ops) if watched else [], [(-1, begin), (0, begin + each), (1, begin + 2 * each)]

    monkeypatch.setattr(play, "launch", lambda name, request, *_, **__: asked.append(request) or [play.RankResult([1.0], [], "nccl")])
    monkeypatch.setattr(play, "make_player", lambda *_: Passes())
    play.run_play(program, {}, tmp_path, 5)
    found = play.play(alone(tmp_path, "cuda"), asked[0])
    assert found.step_times == [1.0] * 5
    assert len(found.spans) == len(list(program.ops(0, HOST))) and {span.end - span.start for span in found.spans} == {2.0}


def test_a_launch_takes_the_host_as_long_as_the_program_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare call is shorter than a training step's, an event or a list that Python walks may be longer: a launch-bound step is neither shorter nor
    longer for it."""
    player, _, ops, _, _ = _play(BASE, tmp_path)
    spun, clock = list[float](), [100.0]
    monkeypatch.setattr("executor.players.streams.spin", spun.append)
    monkeypatch.setattr("executor.players.streams.now", lambda: clock[0])
    player._owed, player._through = 2e-6, clock[0] - 3e-6
    player._paid(10e-6)
    assert spun == [pytest.approx(5e-6, abs=1e-9)] and player._owed == 0.0, "what is left of its time, less what was owed"
    clock[0] += 14e-6
    player._paid(10e-6)
    assert len(spun) == 1 and player._owed == pytest.approx(4e-6, abs=1e-9), "never less than nothing: what is left is taken off the next"
    assert player._through == clock[0], "what comes between two ops is the next one's"
    assert {id(op) for _, op in ops} <= player._meant.keys()


def test_what_the_host_waits_for_is_not_taken_off_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player, _, ops, _, _ = _play(CASES["output"] | CASES["pageable"], tmp_path)
    paid: list[float] = []
    monkeypatch.setattr(player, "_paid", paid.append)
    for call, op in ops:
        count, player._through = len(paid), 0.0
        player._one(call, op, 2, None)
        waits = op.kind == "sync" or op.how == "pageable" or (op.lane == HOST and op.kind != "host")
        assert (len(paid) == count) is waits, op.id
        assert player._through > 0.0 or not (waits or (op.blocking and id(op) in player._queued)), op.id


def test_lengths_are_told_where_nothing_waits_for_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first watched pass of a rank alone holds its streams now and then, and spins for no host op; the next ones begin late ops by its lengths."""
    program, cuda = _program(CASES["output"]), StandIn()
    file = tmp_path / "read.bin"
    file.write_bytes(bytes(1 << 16))
    player = StreamPlayer(alone(tmp_path), program, Crossing(program, 0), lambda op: 1e-3, file, cuda)
    ops = list(program.ops(0, HOST))
    held, spun = list[int](), list[float]()
    monkeypatch.setattr(cuda, "hold", held.append)
    monkeypatch.setattr("executor.players.streams.spin", spun.append)
    player.run(ops, 0, watched=False)
    assert not held and sum(spun) > 1e-3
    spun.clear()
    player.run(ops, 1)
    waits = sum(op.blocking or op.kind == "sync" or op.how == "pageable" for _, op in ops)
    assert waits and len(player._streams) < len(held) <= len(player._streams) * (1 + waits + len(ops) // 100)
    assert sum(spun) == 0.0 and player._lengths is not None
    assert [length is None for length in player._lengths] == [pair is None for pair in player._pairs]
    count = len(held)
    launched = player._one
    monkeypatch.setattr(player, "_one", lambda *of: launched(*of) + 1e6)  # the host is late with every op
    player._lengths, player._around = [0.0 if length is not None else None for length in player._lengths], 0.0
    found, _ = player.run(ops, 2)
    assert len(held) == count, "once"
    late = [end - start for (start, end, _), pair in zip(found, player._pairs, strict=True) if pair is not None]
    assert late and max(late) == pytest.approx(0.0, abs=1e-6)


def test_ranks_that_meet_are_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands would wait for another that waits for it."""
    player, cuda, ops, _, _ = _play(BASE, tmp_path)
    player._lengths, player._world.size = None, 2
    monkeypatch.setattr(cuda, "hold", lambda cycles: pytest.fail("held"))
    player.run(ops, 2)
    assert player._lengths is None
