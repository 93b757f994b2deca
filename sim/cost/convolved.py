"""Seconds of a convolution between those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from sim.cost.between import fitted, total
from sim.cost.calibration import Sample
from sim.cost.points import convolution_of, place_of
from sim.work import BYTES, Conv

_SAME = 1e-4
"""Distance between convolutions below which they are one."""
_POWER = 3.0
"""Of the distance by which a measured convolution weighs less. Far from all of them the nearest decide, not the mean of all: with each measured
one left out in turn, 3 is off by 14 % in the median, 2 by the same, 4 by 16, 6 by 17."""


class Convolutions:
    """Measured convolutions of one role and dtype.

    A call takes its FLOPs at some rate, and passes over its weights (libraries lay them out anew in every call) and over its maps at others: small
    pictures are bound by weights, wide ones of few channels by maps. The three rates are fitted to all points. By what they are off at the points
    about a convolution they are off there, in logarithms, the nearer the more (Shepard, "A two-dimensional interpolation function for
    irregularly-spaced data", 1968). FLOPs alone are off by 38 % in the median where these are off by 14.
    """

    def __init__(self, rows: Sequence[Sample]) -> None:
        works = [convolution_of(s) for s in rows]
        self._dtype = works[0].dtype
        self._rates = fitted([(_terms(work), s.median) for work, s in zip(works, rows, strict=True)])
        self._points = [(place_of(work), math.log(s.median / self._model(work))) for work, s in zip(works, rows, strict=True)]

    def at(self, work: Conv) -> tuple[float, bool]:
        """(seconds of one, whether it was measured). A `work` of another dtype is priced as one of the points'."""
        work = replace(work, dtype=self._dtype, repeat=1)
        here, weights, logs, nearest = place_of(work), 0.0, 0.0, math.inf
        for place, off in self._points:
            distance = math.dist(here, place)
            nearest = min(nearest, distance)
            weight = 1.0 / (distance + _SAME) ** _POWER
            weights += weight
            logs += weight * off
        return math.exp(logs / weights) * self._model(work), nearest < _SAME

    def _model(self, work: Conv) -> float:
        return total(self._rates, _terms(work))


def _terms(work: Conv) -> tuple[float, float, float]:
    """FLOPs, bytes of weights, bytes of maps."""
    weights = work.c_out * work.c_in // work.groups * work.kh * work.kw * BYTES[work.dtype]
    return work.flops, weights, max(0.0, work.bytes - weights)
