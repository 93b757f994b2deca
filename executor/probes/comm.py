"""Collectives and messages by size and number of ranks, and what handing one over takes."""

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
    """Every collective over 2, 4 ... all ranks; processor seconds count the communication's own threads too."""
    sizes = _BYTES[::2] if bench.quick else _BYTES
    for count in group_sizes(bench.world.size):
        groups = [bench.world.group(range(first, first + count)) for first in range(0, bench.world.size - count + 1, count)]
        mine = bench.world.rank // count
        group = groups[mine] if mine < len(groups) else None
        wake(bench.world.device)  # NCCL has taken seconds to connect, in which a GPU's clocks fall
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
    """2, 4, 8 ... below the world, then the world."""
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
    """How often a call of so many bytes is timed, on every rank alike."""
    return max(15, min(90, int((64 << 20) / size))) // (3 if bench.quick else 1)


def _repeat(bench: Bench, call: Callable[[], object], size: int, group: dist.ProcessGroup) -> tuple[list[float], float]:
    """Equal numbers of calls on every rank of the group: time budgets would differ, and ranks would wait forever."""
    n = _count(bench, size)
    for _ in range(3 if size < 1 << 24 else 1):
        call()
    bench.world.synchronize()
    if bench.world.kind == "cuda" and not bench.world.shared:
        return _on_device(bench, call, n), 0.0
    wall, added, processor = _added(bench, call, n)
    bench.world.beat.touch()
    # gloo's threads take turns with the ranks' own on the cores: a call lasts a fraction of a millisecond or a scheduler's slice of 3 to
    # 4 ms more, and a step, which makes tens of calls, lasts as long as their mean; the median of such means leaves out what comes once a second.
    each = max(1, min(15, n // 3))
    spent, more = means(_together(wall, group, bench.world.crowded), each), means(_together(added, group, False), each)
    return spent if bench.world.crowded else [max(both) for both in zip(spent, more, strict=True)], processor / n


def _again(bench: Bench, call: Callable[[], object], size: int, group: dist.ProcessGroup) -> list[float]:
    """Seconds of calls that follow each other at once: ranks that have just met are still together."""
    n = max(9, _count(bench, size) // 3)
    wall = _seconds(call, n)
    bench.world.beat.touch()
    return means(_together(wall, group, bench.world.crowded), max(1, min(15, n // 3)))


def _added(bench: Bench, call: Callable[[], object], n: int) -> tuple[list[float], list[float], float]:
    """(seconds of each call, seconds by which the stretch before it and the call take longer than the stretch without meetings, processor
    seconds of all calls)."""
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
    """Of each of `n` calls in a row, on all ranks at once."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _together(wall: list[float], group: dist.ProcessGroup, crowded: bool) -> list[float]:
    """Each call's seconds, averaged over the ranks: with what those who came early have waited, since the step waits for the slowest.

    Ranks that take turns on the cores come in turns. A prediction slows them all alike instead; there the rank that came last counts,
    which has waited for nobody.
    """
    seconds = torch.tensor(wall, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MIN if crowded else dist.ReduceOp.SUM, group=group)
    return [float(one) / (1 if crowded else dist.get_world_size(group)) for one in seconds]


_HOLD = 4_500_000
"""Cycles, 1.5 ms and more: behind so long a wait six collectives are launched, or six messages each way, at 20-100 us of the host each. No
rank may look whether it was long enough, as `DeviceTimer` does: all make equally many calls."""


def _on_device(bench: Bench, call: Callable[[], object], n: int) -> list[float]:
    """Device seconds of one call, by events around runs of five. They stand ready behind a kernel that only waits, since a small one is
    sooner done than launched, and behind a first call, in which the ranks meet whose waits began apart."""
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
    """One way between neighbours: half a round trip. Of ranks that share a GPU by way of host memory: gloo sends nothing else."""
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
    """Seconds of what is computed before a collective that is timed."""
    if bench.world.size > 1 and bench.world.kind == "cpu":
        bench.phase("the stretch between two meetings")
        bench.add("host", "stretch", "", (), bench.times([bench.stretch.run], least=15))


def apart(bench: Bench) -> None:
    """Seconds by which a meeting after much work costs more than after one stretch: the longer ranks work by themselves, the further they come
    apart. Work by itself and both kinds of meetings take turns, since the machine's speed changes from one second to the next."""
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
    """Host seconds until an asynchronous collective has been handed over."""
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
