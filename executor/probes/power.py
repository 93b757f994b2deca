"""The power that a GPU draws in steady loops, and how much longer a large GEMM takes in them than at the boost clock; `sim.cost.power`
reads it.

The loops go from the lightest to the heaviest: waiting, attention, passes over memory, a large GEMM together with passes (two mixtures),
and the GEMM alone. A clock falls within some hundredths of a second but takes most of a second to rise; in this order each loop begins at
its own clock or a higher one. All take some four seconds.
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
"""Side of the GEMM's square matrices: 1.1 TFLOP, 1.3 ms on an H100."""
_BYTES = 128 << 20
"""Bytes of each of the three arrays of a pass; no L2 holds one."""
_ATTENDED = Attention(4, 16, 16, 2048, 2048, 128)
_SHARES = (0.6, 0.35)
"""Shares of the time that passes take in the mixtures with GEMMs."""
_SETTLING, _MEASURED = 0.3, 0.5
"""Seconds of a loop until its clock is steady, and seconds that are measured after that."""
_BATCH = 0.01
"""Seconds of work that are launched together; one such batch is always queued ahead of the device."""
_MOST_CALLS = 200
"""Kernels in a batch."""
Calls = Sequence[Callable[[], object]]


def power(bench: Bench) -> None:
    """Power draws over the board's limit, and seconds of GEMMs and passes. Without NVML a single rank raises `LookupError`; of several
    ranks, where an error would end the whole probe, nothing is measured."""
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
    """Repeats `calls`, which take `seconds` together at the boost clock, until the clock is steady; then measures power and times."""
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
    """Launches `turns` rounds of the calls. Returns for each round the events before, between and after its calls."""
    events = [[bench.cuda.event() for _ in range(len(calls) + 1)] for _ in range(turns)]
    for one in events:
        one[0].record()
        for call, event in zip(calls, one[1:], strict=True):
            call()
            event.record()
    bench.world.beat.touch()
    return events


def _read(events: list[list[torch.cuda.Event]]) -> list[list[float]]:
    """Waits for the events. Returns the seconds of each call of each round."""
    events[-1][-1].synchronize()
    return [[start.elapsed_time(end) * 1e-3 for start, end in pairwise(one)] for one in events]
