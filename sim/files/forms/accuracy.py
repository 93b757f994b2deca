"""Published forms of predictions beside tables of measurements: `validate`, `accuracy`, and `collective` with its calibration."""

from __future__ import annotations

from typing import Any

from sim.files.forms.said import Said


class Refused(Said, frozen=True, kw_only=True):
    """A row that cannot be predicted."""

    row_id: str
    reason: str


class Validate(Said, frozen=True, kw_only=True):
    """`steptwin validate --json`: errors are shares of the measured time; `bias` is signed (predicted over measured)."""

    rows: int
    scored: int
    refused: list[Refused]
    mape: float
    median_ape: float
    bias: float
    by_source: dict[str, Any]
    by_gpu: dict[str, Any]
    by_family: dict[str, Any]
    baseline_constant_mfu: dict[str, Any]
    rank_correlation: dict[str, float]
    rank_correlation_measured_again: dict[str, float]
    """What the measurements themselves would reach if taken once more; without plans that were measured twice: empty."""


class ValidateCollectives(Said, frozen=True, kw_only=True):
    """`steptwin validate --collectives --json`: errors are shares of the measured time, `by_gpu` their medians."""

    scored: int
    refused: list[dict[str, Any]]
    coverage: float
    mape: float
    median_ape: float
    bias: float
    rows: list[dict[str, Any]]
    by_gpu: dict[str, float]


Tables = dict[str, list[dict[str, Any]]]
"""`steptwin accuracy --json`: tables by name."""


class CollectiveRow(Said, frozen=True, kw_only=True):
    """One size; bandwidths as nccl-tests counts them."""

    bytes: int
    time_us: float
    algbw_GBps: float
    busbw_GBps: float
    algorithm: str
    protocol: str


class Collective(Said, frozen=True, kw_only=True):
    """`steptwin collective --json`."""

    collective: str
    topology: str
    ranks: int
    rows: list[CollectiveRow]


class CalibrateRow(Said, frozen=True, kw_only=True):
    """One size of nccl-tests' output: microseconds measured, predicted before the fit and after it; errors are signed."""

    bytes: int
    measured_us: float
    before_us: float
    after_us: float
    error_before: float
    error_after: float


class CalibrateCollective(Said, frozen=True, kw_only=True):
    """`steptwin collective --calibrate FILE --json`: `edits` are `--set` words; `before` and `after` mean errors (shares)."""

    rows: list[CalibrateRow]
    edits: list[str]
    before: float
    after: float
