"""Published forms of what the planning, measuring and listing verbs print with `--json`; `sim.files.schema` makes JSON Schemas of them.

Keys end in their unit where they carry one: `_s` seconds, `_bytes` bytes; shares are of one.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb says. It may say more keys than its form names."""


class Spread(Said, frozen=True, kw_only=True):
    """`steptwin spread --json`: seconds of a step over all draws; `without` is the step without noise."""

    p50: float
    p95: float
    p99: float
    mean: float
    without: float
    seed: int
    jitter: dict[str, float]
    samples: list[float]


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


class Sensitivity(Said, frozen=True, kw_only=True):
    """What a faster resource is worth: by which share the step changes if it is 10 % faster, and the step in seconds if it takes no time."""

    resource: str
    ten_percent: float
    infinitely_fast: float
    elasticity: float


class Change(Said, frozen=True, kw_only=True):
    """A change of plan as `--set` words, the step that it gives, and the share of the step that it saves."""

    overrides: list[str]
    step_time_s: float
    gain: float


class Explain(Said, frozen=True, kw_only=True):
    """`steptwin explain --json`; `path`: (class of op, seconds) along the critical path, longest first."""

    step_time_s: float
    verdict: str
    path: list[tuple[str, float]]
    sensitivities: list[Sensitivity]
    changes: list[Change]


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


class JobRow(Said, frozen=True, kw_only=True):
    """A job's step alone and beside the others, in seconds, for one placement."""

    placement: str
    job: str
    plan: str
    ranks: list[int]
    alone_s: float
    together_s: float
    slowdown: float


class Jobs(Said, frozen=True, kw_only=True):
    """`steptwin jobs --json`."""

    topology: str
    rows: list[JobRow]


class Steps(Said, frozen=True, kw_only=True):
    """Seconds of measured steps: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float
    count: int


class ClassRow(Said, frozen=True, kw_only=True):
    """Seconds per step and rank in a class of op; the error is signed and null where nothing was measured."""

    cls: str
    predicted: float
    measured: float
    ops: int
    error: float | None


class Aligned(Said, frozen=True, kw_only=True):
    """A prediction beside one measured trace; `missing` and `extra` are ids of ops that only one of them has."""

    predicted_step: float
    measured_step: Steps
    error: float
    classes: list[ClassRow]
    missing: list[str]
    extra: list[str]


class Run(Said, frozen=True, kw_only=True):
    """`steptwin run --json`; `steps` are the seconds of each."""

    how: str
    folder: str
    step_time_s: Steps
    steps: list[float]


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
    predicted: float
    measured: float
    low: float
    high: float
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


class Ability(Said, frozen=True, kw_only=True):
    """What one verb needs that is missing, and the command that brings it."""

    purpose: str = msgspec.field(name="for")
    ready: str
    missing: str
    remedy: str


class Doctor(Said, frozen=True, kw_only=True):
    """`steptwin doctor --json`."""

    python: str
    platform: str
    cores: int
    devices: list[str]
    versions: dict[str, str]
    rows: list[Ability]


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


class Catalog(Said, frozen=True, kw_only=True):
    """`steptwin plan list --json`."""

    plans: list[str]
    models: list[str]


class Machines(Said, frozen=True, kw_only=True):
    """`steptwin topology list --json`."""

    machines: list[str]
    gpus: list[str]


class LinkRow(Said, frozen=True, kw_only=True):
    """Directed links of one kind on a node: how many, with unit the rate of one and the latency of one hop."""

    link: str
    count: int
    rate: str
    latency: str


class Machine(Said, frozen=True, kw_only=True):
    """`steptwin topology show --json`; memory and its rate are of one device, peak FLOP rates in TFLOP/s by precision."""

    name: str
    ranks: int
    nodes: int
    device: str
    memory: str
    memory_bandwidth: str = msgspec.field(name="memory bandwidth")
    sockets: int
    cores: int
    nics: dict[str, int]
    paths: dict[str, str] = msgspec.field(name="paths from rank 0")
    rows: list[LinkRow]
