"""Interpolates seconds between measured points: along one size (`Curve`), over a grid of shapes (`Grid`).

The time of a call is a sum: its bytes and its FLOPs, each at some rate, and a fixed cost. Between two points this sum grows linearly, but its
logarithm is curved: a straight line in logarithms lies 15 to 30 % above it in the middle of two points that are 16 times apart.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product

Shape = tuple[int, ...]
_ROUNDS = 500
"""Rounds of coordinate descent in `fitted`: terms that are not alike converge in some dozens."""


class Curve:
    """Seconds over one size, piecewise linear between measured points.

    Below the first point the time stays (a call's fixed cost); above the last it grows with the size.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        best = dict(points)
        self.sizes = sorted(best)
        self.seconds = [best[size] for size in self.sizes]

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def at(self, size: float) -> tuple[float, bool]:
        """(seconds, whether they count as measured). Below the smallest measured size its seconds hold, and count as measured if there are several
        sizes; above the largest the seconds grow in proportion to the size."""
        xs, ys = self.sizes, self.seconds
        if size <= xs[0]:
            return ys[0], size >= xs[0] or len(xs) > 1
        if size >= xs[-1]:
            return ys[-1] * size / xs[-1], size == xs[-1]
        i = bisect.bisect_right(xs, size)
        part = (size - xs[i - 1]) / (xs[i] - xs[i - 1])
        return (1 - part) * ys[i - 1] + part * ys[i], True


class Grid:
    """Seconds over a grid of shapes: a sum of terms at rates that are fitted to all points, times the error of that sum, interpolated between the points
    around the shape (multilinear in logarithms).

    A corner of the grid that was not measured has the error of the nearest measured shape (in logarithms): beyond the measured volume the
    efficiency stays what it was (a GEMM's time per FLOP has flattened there).
    """

    def __init__(self, points: Iterable[tuple[Shape, float]], terms: Callable[[Shape], Sequence[float]]) -> None:
        """`points`: (shape, measured seconds). `terms`: the amounts of each kind that a shape takes, e.g. FLOPs, bytes, calls."""
        measured = dict(points)
        self._terms = terms
        self._rates = fitted([(terms(shape), seconds) for shape, seconds in measured.items()])
        self._off = {shape: math.log(seconds / self._sum(shape)) for shape, seconds in measured.items()}
        self._axes = tuple(sorted(set(sizes)) for sizes in zip(*measured, strict=True))
        self._filled: dict[Shape, float] = {}

    def _sum(self, shape: Shape) -> float:
        return total(self._rates, self._terms(shape))

    def _corner(self, shape: Shape) -> float:
        found = self._filled.get(shape)
        if found is None:
            found = self._filled[shape] = self._off[shape] if shape in self._off else self._nearest(shape)
        return found

    def _nearest(self, shape: Shape) -> float:
        logs = [math.log(s) for s in shape]
        return min(self._off.items(), key=lambda item: sum((math.log(s) - at) ** 2 for s, at in zip(item[0], logs, strict=True)))[1]

    def at(self, shape: Shape) -> tuple[float, bool]:
        """(seconds, whether the shape lies between measured points)."""
        cells: list[tuple[tuple[int, float], ...]] = []
        inside = True
        for axis, size in zip(self._axes, shape, strict=True):
            i = bisect.bisect_right(axis, size)
            if i == 0 or i == len(axis):
                edge = axis[max(0, i - 1)]
                cells.append(((edge, 1.0),))
                inside &= edge == size
                continue
            part = math.log(size / axis[i - 1]) / math.log(axis[i] / axis[i - 1])
            cells.append(((axis[i - 1], 1 - part), (axis[i], part)))
        off = 0.0
        for corner in product(*cells):
            at, weight = tuple(size for size, _ in corner), math.prod(share for _, share in corner)
            if weight:
                off += weight * self._corner(at)
                inside &= at in self._off
        return math.exp(off) * self._sum(shape), inside


def fitted(rows: Sequence[tuple[Sequence[float], float]]) -> tuple[float, ...]:
    """Seconds for each unit of each term, none below 0, from rows of (terms, measured seconds): least squares of the relative errors. With a single
    row the first term explains all of its seconds."""
    shares = [[term / seconds for term in terms] for terms, seconds in rows]
    terms = range(len(shares[0]))
    gram = [[sum(row[i] * row[j] for row in shares) for j in terms] for i in terms]
    sums = [sum(row[i] for row in shares) for i in terms]
    found = [0.0 for _ in terms]
    for _ in range(_ROUNDS):
        for i in terms:
            others = sum(gram[i][j] * found[j] for j in terms if j != i)
            found[i] = max(0.0, (sums[i] - others) / gram[i][i])
    return tuple(found)


def total(rates: Sequence[float], terms: Sequence[float]) -> float:
    """Seconds of `terms` (units of each) at `rates` (seconds per unit of each)."""
    return sum(rate * term for rate, term in zip(rates, terms, strict=True))
