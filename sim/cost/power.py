"""The clock that a board's power limit leaves a step, from what a calibration says of its draw.

A GPU lowers its clock until its mean draw meets the limit, over some tens of milliseconds: a step's kernels share one clock. Matrix units draw most
by far; memory-bound kernels less, and at the boost clock; a GPU that waits for its host a sixth of the limit. So an H200 multiplies large matrices
at 1,530 MHz when it does nothing else, at 1,700 beside passes over memory that take 60 % of the time, and at 1,980 in a step that waits.

    draw(clock) = (matrix seconds x matrix x clock^n + attention seconds x attention x clock^n + memory seconds x memory + waiting seconds x waiting) / step

Draws are over the limit, clocks over the boost clock. What part of a product's seconds its matrix units do not fill at their best rate draws as waiting
does: energy goes by the FLOP. n is 1 where the voltage is at its least and 3 where it falls as the clock does; it is read from the same loops.
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
"""A clock below this is held down: events and boards differ by less."""
_LEAST, _MOST = 1.0, 3.0
"""Of the exponent."""
Turn = tuple[int, ...]
"""Products, passes and attentions in one turn of a loop: the shape of a row."""
WAITING, PASSES, ATTENTION = (0, 0, 0), (0, 1, 0), (0, 0, 1)


class Spent(msgspec.Struct, frozen=True):
    """Seconds of a step, at the clock that it was simulated with, the mean over ranks."""

    matrix: float
    attention: float
    memory: float
    waiting: float


class Draws(msgspec.Struct, frozen=True):
    """What a board draws over its power limit while it does one thing alone at the boost clock."""

    matrix: float
    exponent: float
    """With which the draw of matrix units and attention follows the clock."""
    attention: float
    memory: float
    waiting: float
    limit: float = 1.0
    """Mean draw at which the board holds its clock down: NVML reads a percent or two below the limit."""

    def mean(self, spent: Spent, at: float, clock: float) -> float:
        """Mean draw at `clock` of a step that was simulated `at` one: matrix units take longer where it is lower, all else as long."""
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
    """What the table of power says; None where there is none, or kernels were timed at the clock under load."""
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
    """With which the draw follows the clock; in the middle where clocks do not differ enough to tell."""
    xs, ys = zip(*points, strict=True)
    if max(xs) - min(xs) < 1.0 - _AT_LIMIT:
        return (_LEAST + _MOST) / 2
    return min(_MOST, max(_LEAST, statistics.linear_regression(xs, ys).slope))


def spent_on(program: Program, pricer: Pricer, topology: Topology, step: float, clock: float) -> Spent:
    """On what the last step of `program`, of `step` seconds at `clock`, is spent, on the mean over ranks. Collectives count as waiting."""
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
    """Matrix units', attention's and memory's part of a compute op's seconds; what the matrix units leave of a product waits. Products in exact fp32,
    which no matrix units do, draw as passes over memory (assumed; nothing tells that they reach the limit: `vector_clock`)."""
    if any(isinstance(work, Attention) for work in op.works):
        return 0.0, seconds, 0.0
    products = [work for work in op.works if not isinstance(work, (Attention, HostWork, MemoryBound)) and work.dtype not in EXACT]
    matrix = min(seconds, sum(own_part(work, gpu, math.inf) for work in products) / clock)
    return matrix, 0.0, seconds - matrix if len(products) < len(op.works) else 0.0
