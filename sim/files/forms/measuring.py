"""Published forms of what was measured, alone and beside its prediction: `run`, `probe`, `here`, `here --gpu`, `compare`, `twin`, `doctor`."""

from __future__ import annotations

import msgspec

from sim.files.forms.prediction import Predict
from sim.files.forms.said import Said


class Steps(Said, frozen=True, kw_only=True):
    """Seconds of measured steps: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float
    count: int


class ClassRow(Said, frozen=True, kw_only=True):
    """Seconds per step and rank in a class of op; the error is signed and null where nothing was measured."""

    cls: str
    predicted_s: float
    measured_s: float
    ops: int
    error: float | None


class Aligned(Said, frozen=True, kw_only=True):
    """A prediction beside one measured trace; `missing` and `extra` are ids of ops that only one of them has."""

    predicted_step_s: float
    measured_step_s: Steps
    error: float
    classes: list[ClassRow]
    missing: list[str]
    extra: list[str]


class Compare(Said, frozen=True, kw_only=True):
    """`steptwin compare --json`: the prediction, and beside it each trace by its origin; `notes` doubt that both are of one plan."""

    prediction: Predict
    runs: dict[str, Aligned]
    notes: list[str]


class Twin(Said, frozen=True, kw_only=True):
    """`steptwin twin --json`: the same for what was played and trained here; `calibration` is the file that the costs rest on."""

    prediction: Predict
    runs: dict[str, Aligned]
    notes: list[str]
    calibration: str


class Run(Said, frozen=True, kw_only=True):
    """`steptwin run --json`: the steps together, and each; `warning` says from which step on the loss is not finite, or is empty."""

    how: str
    folder: str
    step_time_s: Steps
    steps_s: list[float]
    warning: str


class Probe(Said, frozen=True, kw_only=True):
    """`steptwin probe --json`: the calibration file and how many measurements it holds."""

    calibration: str
    entries: int


class HereRow(Said, frozen=True, kw_only=True):
    """One plan on this machine: seconds of a step, predicted and measured (median, p10, p90); the error is signed."""

    plan: str
    kind: str
    ranks: int
    how: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    error: float
    predicted_bound: str
    measured_bound: str
    failed: str


class Here(Said, frozen=True, kw_only=True):
    """`steptwin here --json`: `ranked` of `pairs` are in the right order, `named` of `bounds` bottlenecks are named."""

    rows: list[HereRow]
    plans: int
    failed: int
    mean_error: float
    pairs: int
    ranked: int
    bounds: int
    named: int


class GpuClass(Said, frozen=True, kw_only=True):
    """Seconds per step and rank in a class of op; null where that run has no such figure."""

    cls: str
    uncalibrated: float | None
    calibrated: float | None
    played: float | None
    stock: float | None


class GpuRow(Said, frozen=True, kw_only=True):
    """One plan on this GPU: seconds of a step and bytes of memory, predicted and measured. Where a figure is null, `failed` or `refused` says why, by
    what should have given it. `made_with`: versions; `clocks`: MHz, watts and degrees of the busy GPU, by name."""

    plan: str
    kind: str
    model: str
    ranks: int
    made_with: dict[str, str]
    uncalibrated: float | None
    calibrated: float | None
    clock: float
    mark: str
    measured_share: float
    played_predicted: float | None
    played: Steps | None
    stock: Steps | None
    ops_within: float | None
    predicted_memory: int
    stock_memory: int
    classes: list[GpuClass]
    clocks: dict[str, float]
    failed: dict[str, str]
    refused: dict[str, str]
    notes: list[str]


class GpuSummary(Said, frozen=True, kw_only=True):
    """Means of absolute errors over the rows that have the figures, null without any; `ops_within` is the share of the time in ops that is predicted
    within 10 %. A class of op stands with its seconds and its signed error, a plan that lacks a figure with the reason."""

    plans: int
    measured: int
    uncalibrated: float | None
    calibrated: float | None
    against_played: float | None
    ops_within: float | None
    classes: list[tuple[str, float, float]]
    failed: dict[str, str]


class HereGpu(Said, frozen=True, kw_only=True):
    """`steptwin here --gpu --json`, and `summary.json` of its folder: `probed` are the best rates of each calibration, `steps` the most that are timed."""

    device: dict[str, str | float | bool]
    gpus: int
    environment: dict[str, str | int | dict[str, str] | None]
    steps: int
    probed: dict[str, dict[str, float]]
    rows: list[GpuRow]
    summary: GpuSummary


class Ability(Said, frozen=True, kw_only=True):
    """What one verb needs that is missing, and the command that brings it."""

    purpose: str = msgspec.field(name="for")
    ready: bool
    missing: list[str]
    remedy: str


class Doctor(Said, frozen=True, kw_only=True):
    """`steptwin doctor --json`; `backends` are torch.distributed's, `compiler` is what torch.compile would call."""

    python: str
    platform: str
    cores: int
    devices: list[str]
    backends: list[str]
    compiler: str
    versions: dict[str, str]
    rows: list[Ability]
