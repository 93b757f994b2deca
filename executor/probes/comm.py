"""Collectives and messages by size and number of ranks, and the host time to issue one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from executor.players.communication import all_gather, reduce_scatter
from executor.players.events import wake
from executor.probes.bench import Bench
from executor.repeats import means
from sim.cost.collective.gloo import LONG

_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 4 << 20, 1 << 24, 1 << 26)
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def collectives(bench: Bench) -> None:
    """Every collective over 2, 4 ... all ranks, in wall seconds and in CPU seconds, which include gloo's own threads."""
    sizes = _BYTES[::2] if bench.quick else _BYTES
    for count in group_sizes(bench.world.size):
        groups = [bench.world.group(range(first, first + count)) for first in range(0, bench.world.size - count + 1, count)]
        mine = bench.world.rank // count
        group = groups[mine] if mine < len(groups) else None
        wake(bench.world.device)  # NCCL takes seconds to connect, and meanwhile the GPU's clock falls
        for name in NAMES:
            bench.phase(f"{name} over {count} ranks")
            for size in sizes:
                if group is not None:
                    call = collective_call(name, size, count, group, bench.world.device)
                    wall, cpu = _repeat(bench, call, size, group)
                    bench.add("collective", name, "", (count, size), wall, cpu)
                    if bench.world.kind == "cpu":
                        bench.add("again", name, "", (count, size), _again(bench, call, size, group))
        bench.world.barrier()


def group_sizes(world: int) -> list[int]:
    """Sizes of groups: 2, 4, 8 ... below the world size, then the world size; [] for one rank."""
    sizes = [2**i for i in range(1, 10) if 2**i < world]
    return [*sizes, world] if world > 1 else []


def collective_call(name: str, size: int, count: int, group: dist.ProcessGroup, device: torch.device) -> Callable[[], object]:
    """One collective; `size` bytes are the whole array, as nccl-tests counts."""
    whole = torch.full((max(count, size // 4 // count * count),), 1e-3, device=device)
    part = torch.full((whole.numel() // count,), 1e-3, device=device)
    if name == "all_gather":
        return lambda: all_gather(whole, part, group=group)
    if name == "reduce_scatter":
        return lambda: reduce_scatter(part, whole, group=group)
    if name == "broadcast":
        return lambda: dist.broadcast(whole, group=group, group_src=0)
    if name == "all_to_all":
        other = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(other, whole, group=group)
    return lambda: dist.all_reduce(whole, group=group)


def _count(bench: Bench, size: int) -> int:
    """How often a call of `size` bytes is timed; the same on every rank."""
    return max(15, min(90, int((64 << 20) / size))) // (3 if bench.quick else 1)


def _repeat(bench: Bench, call: Callable[[], object], size: int, group: dist.ProcessGroup) -> tuple[list[float], float]:
    """(seconds of one call, many times; CPU seconds of one call). Every rank of the group makes the same number of calls: with a budget of
    time the numbers would differ, and ranks would wait forever."""
    n = _count(bench, size)
    for _ in range(3 if size < 1 << 24 else 1):
        call()
    bench.world.synchronize()
    if bench.world.kind == "cuda" and not bench.world.shared:
        return _on_device(bench, call, n), 0.0
    wall, added, processor = _added(bench, call, n)
    bench.world.beat.touch()
    # gloo's threads take turns with the ranks' own threads on the cores: a call lasts a fraction of a millisecond, or a scheduler's slice
    # of 3 to 4 ms more. A step makes tens of calls, so their mean counts; the median of such means leaves out what happens once a second.
    each = max(1, min(15, n // 3))
    spent, more = means(_together(wall, group, bench.world.crowded), each), means(_together(added, group, False), each)
    return spent if bench.world.crowded else [max(both) for both in zip(spent, more, strict=True)], processor / n


def _again(bench: Bench, call: Callable[[], object], size: int, group: dist.ProcessGroup) -> list[float]:
    """Seconds of calls in direct succession: the ranks are still in step from the call before."""
    n = max(9, _count(bench, size) // 3)
    wall = _seconds(call, n)
    bench.world.beat.touch()
    return means(_together(wall, group, bench.world.crowded), max(1, min(15, n // 3)))


def _added(bench: Bench, call: Callable[[], object], n: int) -> tuple[list[float], list[float], float]:
    """(seconds of each call, seconds by which the stretch before it and the call together take longer than a stretch without communication,
    CPU seconds of all calls)."""
    stretch = bench.stretch
    alone = statistics.median(_seconds(stretch.run, min(n, 30)))
    wall, added, processor = [], [], 0.0
    for _ in range(n):
        begin = time.perf_counter()
        stretch.run()
        start, begun = time.perf_counter(), time.process_time()
        call()
        bench.world.synchronize()
        end = time.perf_counter()
        wall.append(end - start)
        added.append(end - begin - alone)
        processor += time.process_time() - begun
    return wall, added, processor


def _seconds(run: Callable[[], object], n: int) -> list[float]:
    """Seconds of each of `n` calls in a row, on all ranks together."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _together(wall: list[float], group: dist.ProcessGroup, crowded: bool) -> list[float]:
    """Each call's seconds, as the mean over the ranks: it includes the waits of ranks that came early, since the step waits for the
    slowest.

    Ranks that take turns on the cores (`crowded`) do not come together. Predictions slow all of them equally instead, so then the time of
    the rank that came last counts, the minimum, which has no wait in it.
    """
    seconds = torch.tensor(wall, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MIN if crowded else dist.ReduceOp.SUM, group=group)
    return [float(one) / (1 if crowded else dist.get_world_size(group)) for one in seconds]


_HOLD = 4_500_000
"""Clock cycles, at least 1.5 ms: time to launch six collectives, or six messages each way, at 20-100 us of the host each. Ranks cannot
check whether it was long enough and repeat, as `DeviceTimer` does: all must make equally many calls."""


def _on_device(bench: Bench, call: Callable[[], object], n: int) -> list[float]:
    """Device seconds of one call, by events around five calls. They are queued behind a kernel that only waits, since a small call ends
    sooner than the next one is launched, and behind a first call, which brings ranks whose waits began at different times back in step."""
    wall = []
    for _ in range(max(3, n // 5)):
        start, end = bench.cuda.event(), bench.cuda.event()
        bench.cuda.hold(_HOLD)
        call()
        start.record()
        for _ in range(5):
            call()
        end.record()
        end.synchronize()
        wall.append(start.elapsed_time(end) * 1e-3 / 5)
    bench.world.beat.touch()
    return wall


def messages(bench: Bench) -> None:
    """Messages between neighbours, one way: half a round trip. If ranks share a GPU, the buffers are in host memory, as gloo sends no
    others."""
    rank, size = bench.world.rank, bench.world.size
    if size < 2:
        return
    bench.phase("send and receive")
    peer = rank ^ 1
    pairs = [bench.world.group((first, first + 1)) for first in range(0, size - 1, 2)]
    wake(bench.world.device)
    for count in _BYTES[::2] if bench.quick else _BYTES:
        if peer >= size:
            continue
        buffer = torch.full((count // 4,), 1e-3, device="cpu" if bench.world.shared else bench.world.device)

        def trip(buffer: torch.Tensor = buffer) -> None:
            if rank % 2 == 0:
                dist.send(buffer, peer)
                dist.recv(buffer, peer)
            else:
                dist.recv(buffer, peer)
                dist.send(buffer, peer)

        wall, cpu = _repeat(bench, trip, count, pairs[rank // 2])
        bench.add("collective", "send", "", (2, count), [t / 2 for t in wall], cpu / 2)


def stretch(bench: Bench) -> None:
    """Seconds of the stretch that is computed before a timed collective; only of several CPU ranks."""
    if bench.world.size > 1 and bench.world.kind == "cpu":
        bench.phase("the stretch between two meetings")
        bench.add("host", "stretch", "", (), bench.times([bench.stretch.run], least=15))


def apart(bench: Bench) -> None:
    """Seconds by which an all_reduce after long work costs more than one after a single stretch: the longer CPU ranks work without
    communication, the less they stay in step. Work without all_reduce, and work with one after many stretches and after one, take turns,
    since the machine's speed changes from one second to the next."""
    if bench.world.size < 2 or bench.world.kind != "cpu" or bench.world.crowded:
        return
    bench.phase("meetings after long work")
    whole = torch.zeros(256)

    def work(stretches: int, meet: bool) -> Callable[[], None]:
        def run() -> None:
            for _ in range(stretches):
                bench.stretch.run()
            if meet:
                dist.all_reduce(whole)

        return run

    free, long, short = list[float](), list[float](), list[float]()
    for _ in range(6 if bench.quick else 20):
        bench.world.barrier()
        free += _seconds(work(LONG, False), 2)
        long += _seconds(work(LONG, True), 2)
        short += _seconds(work(1, True), 6)
    alone, late, soon = (statistics.median(times) for times in (free, long, short))
    bench.add("host", "apart", "", (), [(late - alone) - (soon - alone / LONG)])


def issue(bench: Bench) -> None:
    """Host seconds to issue an asynchronous collective."""
    if bench.world.size < 2:
        return
    bench.phase("issuing collectives")
    tensor = torch.ones(256, device=bench.world.device)
    handed = []
    for _ in range(30):
        start = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        handed.append(time.perf_counter() - start)
        time.sleep(0.001)
        work.wait()
        bench.world.synchronize()
        tensor.fill_(1.0)
    bench.add("host", "collective", "", (), handed)
