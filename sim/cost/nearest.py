"""The point of a calibration that is nearest to a work which no point covers: the fitted model is likely to have the same relative error at both."""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec.structs import replace

from sim.cost.calibration import Calibration, Sample
from sim.cost.points import attention_name, attention_of, convolution_of, place_of, product_of
from sim.cost.sparse import of_choice
from sim.cost.variant import variant
from sim.work import Attention, Conv, Gemm, MemoryBound, Work, row_alignment

_APART = 8.0
"""Distance between GEMMs whose rows are aligned to 16 bytes and to 8, in natural logarithms of sizes: libraries take other kernels for them."""
_KINDS: dict[type, str] = {Gemm: "gemm", MemoryBound: "memory", Attention: "attention", Conv: "conv"}
Place = tuple[float, ...]


def nearest(work: Work, calibration: Calibration) -> tuple[Work, float] | None:
    """(the work that was timed at the nearest point, its seconds); None where the calibration has no point of this kind and dtype, or for sparse attention."""
    kind = _KINDS.get(type(work))
    if kind is None or of_choice(work):
        return None
    here = _place(work)
    points = _points(calibration, kind, _name(work), getattr(work, "dtype", ""))
    s, _ = min(points, key=lambda point: math.dist(here, point[1]), default=(None, here))
    return (_timed(work, s), s.median) if s is not None else None


@lru_cache(maxsize=256)
def _points(calibration: Calibration, kind: str, name: str, dtype: str) -> tuple[tuple[Sample, Place], ...]:
    return tuple((s, _place_of(kind, s)) for s in calibration.rows(kind, name, dtype))


def _name(work: Work) -> str:
    if isinstance(work, MemoryBound):
        return variant(work)
    return attention_name(work) if isinstance(work, Attention) else str(getattr(work, "role", ""))


def _place(work: Work) -> Place:
    if isinstance(work, Gemm):
        return math.log(work.m), math.log(work.n), math.log(work.k), _APART * math.log2(row_alignment(work))
    if isinstance(work, Attention):
        return math.log(work.q * work.kv) / 2, math.log(work.d)
    return place_of(work) if isinstance(work, Conv) else (math.log(max(1.0, work.bytes / work.repeat)),)


def _place_of(kind: str, s: Sample) -> Place:
    if kind == "memory":
        return (math.log(s.shape[0]),)
    return _place(convolution_of(s) if kind == "conv" else attention_of(s) if kind == "attention" else product_of(s))


def _timed(work: Work, s: Sample) -> Work:
    if isinstance(work, MemoryBound):  # the same kernel over the point's bytes: fewer rows, of the same length
        share = s.shape[0] * work.repeat / max(1.0, work.bytes)
        read, written, rows = (round(amount * share) for amount in (work.read, work.written, work.rows))
        return replace(work, read=read, written=written, rows=rows, ops=work.ops * share, repeat=1)
    return convolution_of(s) if isinstance(work, Conv) else attention_of(s) if isinstance(work, Attention) else product_of(s)
