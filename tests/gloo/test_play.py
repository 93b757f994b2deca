"""Programs played on gloo: one span per op, order kept, messages matched."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from executor.play import run_play
from executor.players.disk import write_bytes
from executor.players.feeder import Crossing, start_feeders
from executor.players.lanes import Mark, ThreadLane
from sim.mesh import Mesh
from sim.program import HOST, Call, Op, Program, Role, full_id
from sim.trace import Trace
from sim.work import Attention, Conv, Gemm, GroupedGemm, HostWork, MemoryBound
from topologies.errors import BadInput, RunFailed

pytestmark = pytest.mark.usefixtures("forked")
GEMM = Gemm(64, 64, 64, "fp32")


def _program(mesh: Mesh, segments: dict[str, tuple[Op, ...]], threads: dict[str, tuple[Call, ...]], steps: int = 2) -> Program:
    return Program("test", "cpu", mesh, segments, {"all": Role(threads)}, ("all",) * mesh.world, steps)


def _whole(program: Program, trace: Trace) -> None:
    """Every op of the program has exactly one span, and lanes of a thread keep their order."""
    wanted = [
        full_id(rank, call, op)
        for rank in range(program.world)
        for thread in program.threads(rank)
        for call, op in program.ops(rank, thread)
    ]
    assert sorted(span.id for span in trace.spans) == sorted(wanted)
    assert all(span.end >= span.start >= 0 for span in trace.spans)
    assert all(span.group_size == (program.mesh.size(span.group) if span.group else 0) for span in trace.spans)


def test_every_kind_of_op_on_two_ranks(tmp_path: Path) -> None:
    ops = (
        Op("take", "wait", "host", event="batch", shift=0),
        Op("h2d", "copy", "copy.h2d", bytes=4096, how="pinned"),
        Op("python", "host", "host", (HostWork("module", 2),)),
        Op(
            "fwd",
            "compute",
            "compute",
            (GEMM, MemoryBound("add", 8192, 4096, "fp32"), Attention(1, 2, 1, 16, 16, 32, dtype="fp32")),
            cls="gemm",
            blocking=True,
        ),
        Op(
            "bwd",
            "compute",
            "compute",
            (Conv(1, 3, 8, 8, 4, 3, 3, dtype="fp32", role="wgrad"), GroupedGemm(2, 32, 16, 16, "fp32")),
            blocking=True,
        ),
        Op("ready", "record", "compute", event="grads"),
        Op("see", "wait", "comm.dp", event="grads"),
        Op("sum0", "collective", "comm.dp", name="all_reduce", bytes=1 << 16, group="dp"),
        Op("sum1", "collective", "comm.dp", name="reduce_scatter", bytes=1 << 12, group="dp"),
        Op("swap", "collective", "comm.ep", name="all_to_all", bytes=1 << 12, group="dp"),
        Op("gathered", "record", "comm.dp", event="summed"),
        Op("wait", "wait", "compute", event="summed"),
        Op("give", "send", "comm.pp.send", bytes=1 << 10, group="dp", peer=1),
        Op("get", "recv", "comm.pp.recv", bytes=1 << 10, group="dp", peer=-1),
        Op("got", "record", "comm.pp.recv", event="arrived"),
        Op("use", "wait", "comm.dp2", event="arrived"),
        Op("late", "collective", "comm.dp2", name="all_gather", bytes=1 << 10, group="dp"),
        Op("all", "sync", "host"),
        Op("alone", "collective", "comm.tp", name="all_reduce", bytes=64, group="tp"),
        Op("save", "copy", "host", bytes=1 << 12, how="disk", cls="output"),
        Op("free", "record", "host", event="slot", shift=0),
    )
    load = (
        Op("slot", "wait", "loader.0", event="slot", shift=-1),
        Op("read", "copy", "loader.0", bytes=1 << 12, how="disk"),
        Op("prepare", "host", "loader.0", (HostWork("preprocess", 2, 1e-4),)),
        Op("ready", "record", "loader.0", event="batch", shift=0),
    )
    host = tuple(Call("step", f"s{i}", i, i) for i in range(2))
    program = _program(
        Mesh({"dp_replicate": 2}),
        {"step": ops, "load": load},
        {"host": host, "loader.0": tuple(Call("load", f"s{i}/load", i, i) for i in range(2))},
    )
    result = run_play(program, {"python": 1e-3, "module": 9.0}, tmp_path, 5, stall=20)
    _whole(program, result.trace)
    assert len(result.step_times) == 5 and min(result.step_times) > 0
    spans = {span.id: span for span in result.trace.spans}
    assert spans["r0/s1/python"].seconds >= 1e-3
    for rank in range(2):
        assert spans[f"r{rank}/s1/sum1"].start >= spans[f"r{rank}/s1/sum0"].end >= spans[f"r{rank}/s1/sum0"].start
        assert spans[f"r{rank}/s1/late"].start >= spans[f"r{rank}/s1/get"].end
        assert spans[f"r{rank}/s1/fwd"].start >= spans[f"r{rank}/s1/load/prepare"].end
        assert spans[f"r{rank}/s1/load/read"].start >= spans[f"r{rank}/s0/free"].start
        assert spans[f"r{rank}/s1/get"].end >= spans[f"r{1 - rank}/s1/give"].start


def test_four_ranks_two_axes(tmp_path: Path) -> None:
    ops = (
        Op("tp", "collective", "comm.tp", name="all_reduce", bytes=1 << 12, group="tp", blocking=True),
        Op("mm", "compute", "compute", (GEMM,), blocking=True),
        Op("dp", "collective", "comm.dp", name="all_reduce", bytes=1 << 12, group="dp"),
        Op("done", "sync", "host"),
    )
    program = _program(Mesh({"dp_replicate": 2, "tp": 2}), {"step": ops}, {"host": (Call("step", "s0"),)}, steps=1)
    result = run_play(program, {}, tmp_path, 3)
    _whole(program, result.trace)
    assert len(result.step_times) >= 3 and result.trace.timed == result.step_times


def test_a_receive_that_is_posted_ahead_holds_up_nothing(tmp_path: Path) -> None:
    """Each rank asks for the other's messages first, then works, then sends: a thread that waited for what it asked for would never send."""
    ask = (
        Op("get", "recv", "comm.pp.recv", bytes=1 << 10, group="dp", peer=1),
        Op("got", "record", "comm.pp.recv", event="arrived", shift=0),
    )
    give = (
        Op("mm", "compute", "compute", (GEMM,), blocking=True),
        Op("give", "send", "comm.pp.send", bytes=1 << 10, group="dp", peer=-1),
    )
    use = (Op("use", "wait", "compute", event="arrived", shift=0, blocking=True), Op("after", "compute", "compute", (GEMM,), blocking=True))
    order = [("ask", 0), ("ask", 1), ("give", 0), ("give", 1), ("use", 0), ("use", 1)]
    calls = tuple(Call(name, f"s0/{i}", i, 0) for name, i in order)
    program = _program(Mesh({"dp_replicate": 2}), {"ask": ask, "give": give, "use": use}, {"host": calls}, steps=1)
    result = run_play(program, {}, tmp_path, 3, stall=20)
    _whole(program, result.trace)
    spans = {span.id: span for span in result.trace.spans}
    for rank in range(2):
        for i in range(2):
            arrived = spans[f"r{rank}/s0/{i}/get"].end
            assert spans[f"r{1 - rank}/s0/{i}/mm"].end <= arrived <= spans[f"r{rank}/s0/{i}/after"].start


def test_collectives_of_one_lane_run_one_after_the_other(tmp_path: Path) -> None:
    """Of two threads that gloo has by itself for a group, one would be through with the small ones before the other is with the large one."""
    sums = [Op(f"{lane}/{at}", "collective", f"comm.dp{lane}", name="all_reduce", bytes=size, group="dp")
            for at, size in enumerate((32 << 20, 64, 64)) for lane in ("", ".1")]  # fmt: skip
    done = [Op(f"{lane}/done", "record", f"comm.dp{lane}", event=f"sums{lane}") for lane in ("", ".1")]
    seen = [Op(f"{lane}/seen", "wait", "compute", event=f"sums{lane}") for lane in ("", ".1")]
    program = _program(
        Mesh({"dp_replicate": 2}), {"sums": (*sums, *done, *seen)}, {HOST: tuple(Call("sums", f"s{step}", step, step) for step in range(2))}
    )
    trace = run_play(program, {}, tmp_path, 2).trace
    _whole(program, trace)
    for step in range(2):
        for lane in ("comm.dp", "comm.dp.1"):
            spans = sorted(
                (s for s in trace.spans if s.kind == "collective" and (s.rank, s.step, s.lane) == (0, step, lane)), key=lambda s: s.id
            )
            assert len(spans) == 3
            assert all(before.end <= after.start for before, after in itertools.pairwise(spans)), lane


def test_what_cannot_be_played_is_said(tmp_path: Path) -> None:
    fp8 = (Op("mm", "compute", "compute", (Gemm(64, 64, 64, "fp8"),)),)
    program = _program(Mesh({}), {"step": fp8}, {"host": (Call("step", "s0"),)}, steps=1)
    with pytest.raises(BadInput, match="fp8 kernels cannot be played"):
        run_play(program, {}, tmp_path, 2)
    huge = (Op("mm", "compute", "compute", (Gemm(1 << 20, 1 << 20, 1 << 10, "fp32"),)),)
    program = _program(Mesh({}), {"step": huge}, {"host": (Call("step", "s0"),)}, steps=1)
    with pytest.raises(BadInput, match=r"a kernel of .* is over the"):
        run_play(program, {}, tmp_path, 2)


FULL = Path("/dev/full")
"""A disk that takes nothing."""
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


@needs_full
def test_a_full_disk_is_said_and_no_part_of_a_file_stays(tmp_path: Path) -> None:
    saved = (Op("output/write", "copy", HOST, bytes=1 << 20, how="disk", cls="output"),)
    (tmp_path / "written0").symlink_to(FULL)
    program = _program(Mesh({}), {"step": saved}, {"host": (Call("step", "s0"),)}, steps=1)
    with pytest.raises(RunFailed, match=r"cannot write 1 MiB into .*unexpected pos.*It was at: turn 0"):
        run_play(program, {}, tmp_path, 2)
    assert not list(tmp_path.glob("written*"))


def test_a_thread_beside_the_hosts_says_why_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = (Op("output/write", "copy", "writer", bytes=1 << 20, how="disk", cls="output"),)
    program = _program(Mesh({}), {"save": saved}, {HOST: (), "writer": (Call("save", "s0"),)}, steps=1)
    monkeypatch.setattr("executor.players.disk.write_bytes", lambda path, size: write_bytes(tmp_path / "no folder" / "file", size))
    crossing = Crossing(program, 0)
    (feeder,) = start_feeders(program, 0, crossing, 1, lambda op: 0.0, tmp_path / "read.bin")
    feeder.process.join(20)
    assert "writer (cannot write 1 MiB into" in crossing.alive()
    (feeder,) = start_feeders(program, 0, crossing, 1, lambda op: 0.0, tmp_path / "read.bin")
    with pytest.raises(RunFailed, match=r"writer ended before it had finished: cannot write 1 MiB into .*No such file"):
        feeder.times(20.0)


@pytest.mark.timeout(20)
def test_a_lane_that_failed_says_so_and_holds_nobody() -> None:
    """Whoever waits for what comes behind the failure would else wait until the watcher ends the run, and nobody would know why."""
    lane, issued = ThreadLane("comm.pp"), []

    def refuse() -> None:
        raise RuntimeError("the message has another length")

    lane.communicate(refuse, Mark(0.0))
    later = lane.communicate(lambda: issued.append(1), Mark(0.0))
    later.wait()
    lane.record().wait()
    with pytest.raises(RuntimeError, match="another length"):
        lane.drain()
    assert not issued
