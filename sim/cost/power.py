"""The clock at which a step runs under the board's power limit, from the power that a calibration has measured.

A GPU lowers its clock until its mean draw meets the limit, over some tens of milliseconds: a step's kernels share one clock. Matrix units draw most
by far; memory-bound kernels less, and at the boost clock; a GPU that waits for its host a sixth of the limit. So an H200 multiplies large matrices
at 1,530 MHz when it does nothing else, at 1,700 beside passes over memory that take 60 % of the time, and at 1,980 in a step that waits.

    draw(clock) = (matrix seconds x matrix x clock^n + attention seconds x attention x clock^n + memory seconds x memory + waiting seconds x waiting) / step

Draws are shares of the power limit, clocks shares of the boost clock. The part of a GEMM's seconds that its matrix units would not need at their best
rate draws as waiting does: energy is proportional to FLOPs. n is 1 where the voltage is at its minimum and 3 where it falls with the clock; it is
fitted to the same loops.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter

import msgspec

from sim.cost.calibration import Calibration
from sim.cost.kernel import own_part
from sim.cost.price import Pricer
from sim.program import HOST, Op, Program
from sim.work import EXACT, Attention, HostWork, MemoryBound
from topologies.graph import Topology
from topologies.hardware import Gpu

_AT_LIMIT = 0.985
"""A clock below this is limited by power: timing noise and differences between boards are smaller."""
_LEAST, _MOST = 1.0, 3.0
"""Bounds of the exponent n."""
Turn = tuple[int, ...]
"""Numbers of GEMMs, memory passes and attentions in one turn of a steady loop: the shape of a row in the table of power."""
WAITING, PASSES, ATTENTION = (0, 0, 0), (0, 1, 0), (0, 0, 1)


class Spent(msgspec.Struct, frozen=True):
    """Seconds of a step by kind of work, the mean over ranks, at the clock with which it was simulated."""

    matrix: float
    attention: float
    memory: float
    waiting: float


class Draws(msgspec.Struct, frozen=True):
    """Power of a board while it does one kind of work alone at the boost clock, as a share of its power limit."""

    matrix: float
    exponent: float
    """n: the draw of matrix units and attention is proportional to clock^n."""
    attention: float
    memory: float
    waiting: float
    limit: float = 1.0
    """Mean draw at which the board lowers its clock: NVML reads a percent or two less than the limit."""

    def mean(self, spent: Spent, at: float, clock: float) -> float:
        """Mean draw, as a share of the limit, of a step that was simulated at the clock `at` and runs at `clock`: matrix units take longer at a lower
        clock, all else takes as long as before."""
        matrix, falls = spent.matrix * at / clock, math.pow(clock, self.exponent)
        drawn = (
            falls * (matrix * self.matrix + spent.attention * self.attention) + spent.memory * self.memory + spent.waiting * self.waiting
        )
        return drawn / (matrix + spent.attention + spent.memory + spent.waiting)

    def clock(self, spent: Spent, at: float = 1.0) -> float:
        """The highest clock at which the mean draw is within the limit: 1 at most, and no less than that of matrix units alone, which draw most."""
        low, high = min(1.0, math.pow(self.limit / self.matrix, 1.0 / self.exponent)), 1.0
        if self.mean(spent, at, high) <= self.limit:
            return 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if self.mean(spent, at, middle) <= self.limit else (low, middle)
        return low


def draws_of(calibration: Calibration) -> Draws | None:
    """The draws that fit the table of power; None where it lacks rows, or where kernels were timed at the clock under load."""
    rows = {name: {s.shape: s.median for s in calibration.rows("power", name)} for name in ("watts", "product", "pass")}
    watts, product, passes = rows["watts"], rows["product"], rows["pass"]
    loops = [turn for turn in watts if turn in product and turn[0]]
    if calibration.loaded or not loops or WAITING not in product or not {WAITING, PASSES} <= watts.keys():
        return None
    clocks = {turn: product[WAITING] / product[turn] for turn in loops}
    held = [turn for turn in loops if clocks[turn] < _AT_LIMIT]
    limit = statistics.fmean(watts[turn] for turn in held) if held else 1.0
    points = []
    for turn in held or loops:
        alone, beside = turn[0] * product[turn], turn[1] * passes.get(turn, 0.0)
        rest = beside / (alone + beside)
        drawn = (limit if held else watts[turn]) - rest * watts[PASSES]
        if drawn > 0:
            points.append((math.log(clocks[turn]), math.log(drawn / (1.0 - rest))))
    if not points:
        return None
    exponent = _slope(points)
    matrix = math.exp(statistics.fmean(y - exponent * x for x, y in points))
    return Draws(matrix, exponent, watts.get(ATTENTION, watts[PASSES]), watts[PASSES], watts[WAITING], limit)


def _slope(points: list[tuple[float, float]]) -> float:
    """The exponent n from points (log clock, log draw); the middle of its bounds where the clocks differ too little to fit it."""
    xs, ys = zip(*points, strict=True)
    if max(xs) - min(xs) < 1.0 - _AT_LIMIT:
        return (_LEAST + _MOST) / 2
    return min(_MOST, max(_LEAST, statistics.linear_regression(xs, ys).slope))


def spent_on(program: Program, pricer: Pricer, topology: Topology, step: float, clock: float) -> Spent:
    """How the last step of `program`, which takes `step` seconds at `clock`, is spent, the mean over ranks. Collectives count as waiting."""
    sums = [0.0, 0.0, 0.0]
    for name, ranks in Counter(program.role_of).items():
        rank = program.role_of.index(name)
        gpu = topology.device(rank)
        assert isinstance(gpu, Gpu)
        calls = program.threads(rank)[HOST]
        last = max(call.step for call in calls)
        for segment, times in Counter(call.segment for call in calls if call.step == last).items():
            for op in program.segments[segment]:
                if op.kind == "compute":
                    for at, seconds in enumerate(_kinds(op, pricer.local(op, rank).seconds, gpu, clock)):
                        sums[at] += ranks * times * seconds
    matrix, attention, memory = (total / program.world for total in sums)
    return Spent(matrix, attention, memory, max(0.0, step - matrix - attention - memory))


def _kinds(op: Op, seconds: float, gpu: Gpu, clock: float) -> tuple[float, float, float]:
    """(seconds of matrix units, of attention, of memory) in a compute op of `seconds`; what is left of a GEMM counts as waiting. Products in exact dtypes,
    which run without matrix units, draw as memory passes do (assumed; no measurement shows that they reach the limit: `vector_clock`)."""
    if any(isinstance(work, Attention) for work in op.works):
        return 0.0, seconds, 0.0
    products = [work for work in op.works if not isinstance(work, (Attention, HostWork, MemoryBound)) and work.dtype not in EXACT]
    matrix = min(seconds, sum(own_part(work, gpu, math.inf) for work in products) / clock)
    return matrix, 0.0, seconds - matrix if len(products) < len(op.works) else 0.0
