"""Published forms of what is worth changing, and what a run takes: `explain`, `sweep`, `capacity`, `faults`, `jobs`."""

from __future__ import annotations

from typing import Literal

from sim.files.forms.prediction import Band, Fill, OnPath
from sim.files.forms.said import Said


class Sensitivity(Said, frozen=True, kw_only=True):
    """What a faster resource is worth: by which share the step changes if it is 10 % faster, and the step in seconds if it takes no time."""

    resource: str
    ten_percent: float
    infinitely_fast_s: float
    elasticity: float


class Change(Said, frozen=True, kw_only=True):
    """A change of plan as `--set` words, the step that it gives, the share of the step that it saves, and what it takes of the fullest device."""

    overrides: list[str]
    step_time_s: float
    gain: float
    memory: Fill


class Explain(Said, frozen=True, kw_only=True):
    """`steptwin explain --json`; `critical_path`: longest first."""

    step_time_s: float
    interval_s: Band | None
    fits: bool
    memory: Fill
    plan: str
    topology: str
    verdict: str
    critical_path: list[OnPath]
    sensitivities: list[Sensitivity]
    changes: list[Change]


class SweepDetail(Said, frozen=True, kw_only=True):
    """How a plan of a sweep was simulated, if it was; `breakdown`: seconds by class, where they were asked for; `fill`: what it takes of a device."""

    whole: bool = False
    breakdown: dict[str, float] | None = None
    fill: Fill | None = None


class SweepRow(Said, frozen=True, kw_only=True):
    """One plan of a sweep: peak bytes, money per million tokens (samples where `seq` is 1), model FLOPs and tokens of a sample."""

    key: str
    outcome: str
    step_time_s: float | None
    memory_bytes: int | None
    mfu: float | None
    samples_per_s: float | None
    gpus: int | None
    cost: float | None
    flops: float | None
    seq: int
    detail: SweepDetail


class Refusal(Said, frozen=True, kw_only=True):
    """Points of a space that are no plan for one reason, by one of them."""

    plans: int
    such_as: str


class Sweep(Said, frozen=True, kw_only=True):
    """`steptwin sweep --json`: plans that run, most model FLOPs per GPU and second first (with prices: for their money), those that no other of their
    machine beats, the best of each machine and number of GPUs, and why points are no plans."""

    rows: list[SweepRow]
    front: list[SweepRow]
    by_machine: list[SweepRow]
    refusals: list[Refusal]
    counts: dict[str, int]
    alike: int
    """Points that mean the same plan as another, which have no row."""
    best: str
    again: str
    """The call that predicts the best plan; empty where keys alone do not say it."""
    roomy: str
    """The best plan that leaves its devices room, where the best is nearly full (else empty), and the call that predicts it."""
    roomy_again: str
    file: str


class Capacity(Said, frozen=True, kw_only=True):
    """`steptwin capacity --json`: seconds, joules, money in the price file's unit (nothing of it for what is `unpriced`); intervals of
    80 %, of the step and of the days. `overrides`: what `--days` has changed about the plan to spread it over so many GPUs, as `--set` words. `seq`: tokens of a sample, 1 for
    models without a sequence, which have no `tokens`."""

    plan: str
    overrides: list[str]
    gpus: int
    topology: str
    samples: float
    seq: int
    sample_unit: str
    tokens: float | None
    steps: int
    step_time_s: float
    interval_s: Band
    mark: Literal["calibrated", "interpolated", "extrapolated"]
    mark_reasons: list[str]
    productive_s: float
    elapsed_s: float
    days: float
    days_interval: tuple[float, float]
    goodput: float
    failures: int
    checkpoint_interval_s: float
    checkpoint_s: float
    lost_s: dict[str, float]
    gpu_hours: float
    paid_gpu_hours: float
    energy_j: float | None
    money: float | None
    unpriced: list[str]
    fits: bool
    memory: Fill | None


class FaultRow(Said, frozen=True, kw_only=True):
    """The step with one fault, and how many times longer it is."""

    fault: str
    step_time_s: float
    slowdown: float


class Faults(Said, frozen=True, kw_only=True):
    """`steptwin faults --json`; `step_time_s` is the step without any fault."""

    plan: str
    topology: str
    step_time_s: float
    rows: list[FaultRow]
    fits: bool


class JobRow(Said, frozen=True, kw_only=True):
    """A job's step alone and beside the others, in seconds, for one placement."""

    placement: str
    job: str
    plan: str
    ranks: list[int]
    alone_s: float
    together_s: float
    slowdown: float
    fits: bool


class Jobs(Said, frozen=True, kw_only=True):
    """`steptwin jobs --json`."""

    topology: str
    rows: list[JobRow]
