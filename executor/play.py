"""Plays a program on real devices: the second interpreter.

The host thread goes through its ops in order. On a CPU, compute runs inline and communication on gloo beside it
(`executor.players.lanes`); on CUDA, lanes are streams (`executor.players.streams`). For a host op the thread spins for the op's calibrated
seconds; loader threads are processes. Every op of one pass gives one span, with the same id as in the prediction.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from executor.players.player import Beside, Player, now
from executor.ranks.alone import alone_among
from executor.ranks.launch import QUEUES, STALL, launch
from executor.ranks.world import World, set_precision
from executor.repeats import together
from sim.lower.checks.verify import verify
from sim.program import HOST, SERVER, Op, Program, full_id
from sim.trace import Span, Trace, from_zero
from topologies.errors import BadInput, Refused, RunFailed

if TYPE_CHECKING:
    from executor.players.feeder import Crossing

FILE = 8 << 20
"""Bytes of the file that disk reads read from, again and again."""
WATCHED = 4
"""Passes on CUDA with events around every op, after the passes whose steps are timed; the spans come from one of them. Without other ranks,
the first of them measures ops that do not wait for the host, and takes longest."""


class Request(msgspec.Struct, frozen=True):
    """What every rank is told. `turns`: passes through the program, `file`: path of the file that disk reads use."""

    program: str
    """Where the program lies (gzipped JSON)."""
    host: dict[str, float]
    turns: int
    file: str
    plain: int = 0
    """Passes after the first one in which steps are timed but ops are not; 0: in every pass both are timed."""


class RankResult(msgspec.Struct):
    """What one rank measured: step times in seconds, and the spans of the pass with the median time."""

    step_times: list[float]
    spans: list[Span]
    backend: str
    ends: list[list[float]] = []
    """For ranks that do not wait for each other: by pass, when each step ended, in seconds from the begin of the pass. Else empty."""


class PlayResult(msgspec.Struct, kw_only=True):
    """A played run: seconds of each step on rank 0 (without warm-up, first passes and, on CUDA, watched passes), and one pass as a trace.
    If ranks do not wait for each other, `step_times` has for each pass the seconds in which they make one step each."""

    step_times: list[float]
    trace: Trace
    by_rank: list[list[float]]


def run_play(program: Program, host_seconds: dict[str, float], folder: str | Path, steps: int = 30, *, stall: float = STALL) -> PlayResult:
    """Plays `program` until `steps` of its later steps are timed (one pass through it holds `program.steps`).

    `host_seconds`: op id -> seconds of a host op, and on a GPU also of a launch; an op without an entry takes what its works state. Raises
    `BadInput` for a program that `sim.lower.checks.verify` rejects or that does not fit on this machine, `RunFailed` if a rank dies or
    hangs.
    """
    refuse_servers(program)
    verify(program)
    folder = Path(folder)
    per_turn = max(1, program.steps - 1)
    timed = -(-steps // per_turn)
    plain = timed if program.device == "cuda" else 0
    with alone_among(folder):
        stored, file = folder / "program.json.gz", folder / "read.bin"
        request = Request(str(stored.resolve()), host_seconds, 1 + timed + (WATCHED if plain else 0), str(file.resolve()), plain)
        try:
            _write(stored, gzip.compress(msgspec.json.encode(program), 1))
            _write(file, bytes(FILE))
            found = launch("executor.play:play", request, program.world, folder / "play", RankResult, stall=stall, variables=QUEUES)
        finally:
            file.unlink(missing_ok=True)
    spans = from_zero([span for rank in found for span in rank.spans])
    by_rank = [rank.step_times for rank in found]
    times = [together(ends) for ends in zip(*(rank.ends for rank in found), strict=True)] or by_rank[0]
    meta = {"program": program.name, "backend": found[0].backend}
    trace = Trace(spans, "played", program.world, program.steps, meta=meta, timed=times)
    return PlayResult(step_times=times, trace=trace, by_rank=by_rank)


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise RunFailed(f"cannot write {len(data)} bytes to {file}: {error.strerror}") from None


def refuse_servers(program: Program) -> None:
    """Raises `Refused` for a program with a parameter server on GPUs: here the data that its threads exchange would be on the device."""
    if program.device == "cuda" and _served(program):
        raise Refused(
            'the program has a parameter server, which is predicted but not played on GPUs. Use update.mode = "sync" or "local", '
            'update.aggregate = "cpu" for sums on the host, or play it on CPUs'
        )


def _served(program: Program) -> bool:
    """True if ranks update through a parameter server, so that none waits for the others."""
    return any(name.startswith(SERVER) for role in program.roles.values() for name in role.threads)


def play(world: World, request: Request) -> RankResult:
    """One rank: prepare every body and buffer, then pass through the program `turns` times."""
    from executor.players.events import wake
    from executor.players.feeder import Crossing, host_seconds, start_feeders
    from executor.ranks.clocks import align

    world.beat.phase("preparing bodies")
    program = msgspec.json.decode(gzip.decompress(Path(request.program).read_bytes()), type=Program)
    if program.device != world.kind:
        raise BadInput(f"the program is for {program.device}, this rank has a {world.kind} device: lower the plan for this machine")
    seconds: Callable[[Op], float] = lambda op: host_seconds(op, request.host)  # noqa: E731
    set_precision(any(getattr(work, "dtype", "") == "tf32" for ops in program.segments.values() for op in ops for work in op.works))
    crossing = Crossing(program, world.rank)
    feeders = start_feeders(program, world.rank, crossing, request.turns, seconds, Path(request.file))
    player = make_player(world, program, crossing, seconds, Path(request.file))
    beside: list[Beside] = [*feeders, *player.serve(request.turns)]
    host = list(program.ops(world.rank, HOST))
    passes: list[list[tuple[float, float, float]]] = []
    step_times: list[float] = []
    wake(world.device)
    world.touch_memory()
    world.barrier()
    served, apart = _served(program), list[list[float]]()
    for turn in range(request.turns):
        world.beat.phase(f"turn {turn}")
        if served:  # as in the simulation, all ranks begin a pass together, and then none waits
            world.barrier()
        marks, ends = player.run(host, turn, watched=not request.plain or turn > request.plain)
        passes.append(marks)
        if turn and served:
            apart.append([at - ends[0][1] for _, at in ends[1:]])
        if turn and (not request.plain or turn <= request.plain):
            step_times += _step_times(ends)
    world.beat.phase("collecting spans")
    lengths = {turn: marks[-1][1] - marks[0][0] for turn, marks in enumerate(passes) if marks and (turn or request.turns == 1)}
    chosen = _agreed(world, sorted(lengths, key=lambda turn: lengths[turn])[(len(lengths) - 1) // 2] if lengths else 0)
    spans = _spans(program, world.rank, HOST, passes[chosen])
    for other in beside:
        times = other.times(world.stall)[chosen]
        spans += _spans(program, world.rank, other.thread, [(start, end, start) for start, end in times])
    align(world, spans, now)
    return RankResult(step_times, spans, world.backend, apart)


def _agreed(world: World, turn: int) -> int:
    """Rank 0's `turn`, on all ranks: all show the same pass."""
    import torch
    import torch.distributed as dist

    choice = torch.tensor([turn], device=world.device)
    if world.size > 1:
        dist.broadcast(choice, 0)
    return int(choice.item())


def make_player(world: World, program: Program, crossing: Crossing, seconds: Callable[[Op], float], file: Path) -> Player:
    """The interpreter for this rank's device."""
    if world.kind == "cuda":
        from executor.players.streams import StreamPlayer

        return StreamPlayer(world, program, crossing, seconds, file)
    from executor.players.inline import InlinePlayer

    return InlinePlayer(world, program, crossing, seconds, file)


def _step_times(ends: list[tuple[int, float]]) -> list[float]:
    """Seconds of a pass's steps without the first one, which fills the input path and, with DDP, has other buckets. If a pass has only one
    step, that counts."""
    times = [at for _, at in ends]
    return [after - before for before, after in pairwise(times[1:] if len(times) > 2 else times)]


def _spans(program: Program, rank: int, thread: str, times: list[tuple[float, float, float]]) -> list[Span]:
    """One pass of a thread: `times` are (start, end, issued) of its ops in order."""
    return [
        Span(
            rank=rank, lane=op.lane, id=full_id(rank, call, op), start=start, end=end, kind=op.kind, cls=op.cls or op.kind, step=call.step,
            issued=issued, thread=thread, name=op.name, bytes=op.bytes, flops=op.flops, group=op.group,
            group_size=program.mesh.size(op.group) if op.group else 0,
        )
        for (call, op), (start, end, issued) in zip(program.ops(rank, thread), times, strict=True)
    ]  # fmt: skip
