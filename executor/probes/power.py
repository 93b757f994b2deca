"""What a GPU draws in steady loops, and how much longer a large product takes there than at the boost clock: `sim.cost.power` reads it.

Loops from the lightest to the heaviest: waiting, attention, passes over memory, a large product beside passes for two shares of the time, and alone. A clock
falls within some hundredths of a second and takes most of one to rise, so each loop finds it where it has it, or higher. Some four seconds in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import torch

from executor.device_times import FASTEST
from executor.kernels.bodies import body
from executor.nvml import Meter
from executor.probes.bench import Bench
from sim.cost.power import ATTENTION, PASSES, WAITING, Turn
from sim.work import Attention, Gemm, MemoryBound

_SIDE = 8192
"""Of the product: 1.1 TFLOP, 1.3 ms of an H100."""
_BYTES = 128 << 20
"""Of each of the three arrays of a pass: no L2 holds one."""
_ATTENDED = Attention(4, 16, 16, 2048, 2048, 128)
_SHARES = (0.6, 0.35)
"""Of the time that passes take beside products."""
_SETTLING, _MEASURED = 0.3, 0.5
"""Seconds of a loop until its clock is steady, and after that."""
_BATCH = 0.01
"""Seconds of work that are launched at once: one batch is always ahead of the device."""
_MOST_CALLS = 200
"""Kernels in a batch."""
Calls = Sequence[Callable[[], object]]


def power(bench: Bench) -> None:
    """Draws over the board's limit, and seconds of products and passes. Without NVML nothing is measured, and of one rank `LookupError` says why: that of
    several would end the whole probe."""
    try:
        meter = Meter(bench.world.device.index or 0)
    except LookupError:
        if bench.world.size > 1:
            return
        raise
    works = Gemm(_SIDE, _SIDE, _SIDE, "bf16"), MemoryBound("add", 2 * _BYTES, _BYTES, "bf16"), _ATTENDED
    with torch.no_grad():
        product, passing, attending = (body(work, bench.arena) for work in works)
        _loop(bench, meter, WAITING, [lambda: bench.cuda.hold(int(1e-3 * FASTEST))], 1.5e-3)
        rested = bench.device_times([product])
        bench.add("power", "product", "bf16", WAITING, rested)
        long, short, attended = median(rested), median(bench.device_times([passing])), median(bench.device_times([attending]))
        _loop(bench, meter, ATTENTION, [attending], attended)
        _loop(bench, meter, PASSES, [passing], short)
        for share in (*_SHARES, 0.0):
            many = round(share / (1.0 - share) * long / short)
            _loop(bench, meter, (1, many, 0), [product, *[passing] * many], long + many * short)


def _loop(bench: Bench, meter: Meter, turn: Turn, calls: Calls, seconds: float) -> None:
    """Calls in turn, of so many seconds together at the boost clock, until their clock is steady, and then timed."""
    bench.world.beat.phase(f"probe: power of {', '.join(map(str, turn))} products, passes, attentions")
    turns = max(1, min(round(_BATCH / seconds), _MOST_CALLS // len(calls)))
    quick = 0.25 if bench.quick else 1.0
    looks, found, ahead = list[tuple[float, float]](), list[list[float]](), _batch(bench, calls, turns)
    begin = time.perf_counter()
    while (now := time.perf_counter() - begin) < quick * (_SETTLING + _MEASURED) or len(looks) < 3:
        then, ahead = ahead, _batch(bench, calls, turns)
        times = _read(then)
        if now >= quick * _SETTLING:
            looks.append((time.perf_counter(), meter.joules()))
            found += times
    bench.add("power", "watts", "", turn, [meter.share(looks)])
    bench.cuda.synchronize()
    if turn[0]:
        bench.add("power", "product", "bf16", turn, [times[0] for times in found])
        if turn[1]:
            bench.add("power", "pass", "bf16", turn, [sum(times[1:]) / turn[1] for times in found])


def _batch(bench: Bench, calls: Calls, turns: int) -> list[list[torch.cuda.Event]]:
    """Turns that are launched: of each, the events before, between and after its calls."""
    events = [[bench.cuda.event() for _ in range(len(calls) + 1)] for _ in range(turns)]
    for one in events:
        one[0].record()
        for call, event in zip(calls, one[1:], strict=True):
            call()
            event.record()
    bench.world.beat.touch()
    return events


def _read(events: list[list[torch.cuda.Event]]) -> list[list[float]]:
    """Seconds of each call of each turn."""
    events[-1][-1].synchronize()
    return [[start.elapsed_time(end) * 1e-3 for start, end in pairwise(one)] for one in events]
