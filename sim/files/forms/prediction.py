"""Published forms of a predicted step: `predict`, and its variants in `spread` and `study`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sim.files.forms.planform import PlanFile
from sim.files.forms.said import Said


class Band(Said, frozen=True, kw_only=True):
    """Seconds between which a value lies with probability `level`."""

    low: float
    high: float
    level: float


class ModelFigures(Said, frozen=True, kw_only=True):
    """The model; `active_parameters`: those that one token passes through; FLOPs of one optimizer step count a multiply-add as two."""

    name: str
    parameters: int
    active_parameters: int = 0
    flops_per_step: float


class OnPath(Said, frozen=True, kw_only=True):
    """Seconds of a class of op along the critical path."""

    class_: str = msgspec.field(name="class")
    seconds: float


class Parts(Said, frozen=True, kw_only=True):
    """Seconds of a step by class; they sum to the step."""

    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    host_s: float
    data_s: float
    optimizer_s: float
    output_s: float


class Sources(Said, frozen=True, kw_only=True):
    """Shares of the step by what its costs rest on; they sum to 1."""

    measured: float
    fitted: float
    assumed: float


class Memory(Said, frozen=True, kw_only=True):
    """Peak bytes of the fullest rank, by what they are; they sum to `peak_memory_bytes`. `stage`: its pipeline rank."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    gathered: int
    slack: int
    context: int
    stage: int


class Missing(Said, frozen=True, kw_only=True):
    """Bytes that the plan needs and that the device has, and changes that would make it fit."""

    needed: int
    available: int
    remedies: list[str]


class Fill(Said, frozen=True, kw_only=True):
    """Bytes of the device that a plan fills most: the peak, tensors and context alone, and what it has (0: not known). `nearly_full`: the plan fits, and
    may fail all the same."""

    peak: int
    needed: int
    available: int
    nearly_full: bool


class Sync(Said, frozen=True, kw_only=True):
    """A place where the host waits for the device: how often in a step, for how many seconds, and by how many the step is longer."""

    op: str
    where: str
    per_step: float
    seconds: float
    adds: float | None


class Predict(Said, frozen=True, kw_only=True):
    """`steptwin predict --json`."""

    step_time_s: float
    interval_s: Band
    mark: Literal["calibrated", "interpolated", "extrapolated"]
    mark_reasons: list[str]
    """Why it is extrapolated."""
    clock: float | msgspec.UnsetType = msgspec.UNSET
    """Of the GPUs over their boost clock, where their calibration tells that their power limit holds it down."""
    samples_per_s: float
    tokens_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """Models with sequences."""
    tokens_per_s_per_gpu: float | msgspec.UnsetType = msgspec.UNSET
    samples_per_s_per_gpu: float | msgspec.UnsetType = msgspec.UNSET
    """Models without."""
    unit: str
    """What is counted: tokens, or what one sample of a model without sequences is (images, videos, pairs ...)."""
    model_flops_per_gpu_per_s: float
    mfu: float | None
    """Of the dense peak of the plan's precision; null where the device states none."""
    device: Literal["cuda", "cpu"]
    """What ranks run on: `gpu` in the names of figures stands for a rank."""
    model: ModelFigures
    peak_memory_bytes: int
    memory: Memory
    numbers: str
    """In which numbers weights, gradients and moments are kept, in words."""
    fits: bool
    does_not_fit: Missing | None
    breakdown: Parts
    critical_path: list[OnPath]
    syncs: list[Sync]
    sources: Sources
    warnings: list[str]
    gpus: int
    topology: str
    plan: PlanFile


class Spread(Said, frozen=True, kw_only=True):
    """`steptwin spread --json`: seconds of a step over all draws; `without_s` is the step without noise."""

    p50_s: float
    p95_s: float
    p99_s: float
    mean_s: float
    without_s: float
    seed: int
    plan: str
    topology: str
    jitter: dict[str, float]
    samples_s: list[float]
    fits: bool


class StudyRow(Said, frozen=True, kw_only=True):
    """One variant of a study: seconds per step; `cpu_busy` is a share of all cores."""

    variant: str
    topology: str
    ranks: int
    step_s: float
    data_s: float
    exposed_comm_s: float
    comm_s: float
    output_s: float
    sync_s: float
    cpu_busy: float
    bottleneck: str
    sources: str


class Study(Said, frozen=True, kw_only=True):
    """`steptwin study NAME --json`."""

    rows: list[StudyRow]
