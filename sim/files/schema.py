"""The published form of what the verbs print with `--json`, as JSON Schema (draft 2020-12).

A verb may print more keys than stand here; those that stand here stay, with their meaning and unit: `_s` seconds, `_bytes`
bytes, `_per_s` per second.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sim.exchange.export import Exported
from sim.exchange.replay import Replay
from sim.files import forms
from sim.files.forms import Aligned, Said
from sim.plan import Plan
from topologies.errors import BadInput, UnknownName


class Band(Said, frozen=True, kw_only=True):
    """Seconds between which a value lies with probability `level`."""

    low: float
    high: float
    level: float


class ModelFigures(Said, frozen=True, kw_only=True):
    """The model; FLOPs of one optimizer step count a multiply-add as two."""

    name: str
    parameters: int
    flops_per_step: float


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
    context: int
    stage: int


class Missing(Said, frozen=True, kw_only=True):
    """Bytes that the plan needs and that the device has, and changes that would make it fit."""

    needed: int
    available: int
    remedies: list[str]


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
    samples_per_s: float
    tokens_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """Models with sequences."""
    tokens_per_s_per_gpu: float | msgspec.UnsetType = msgspec.UNSET
    samples_per_s_per_gpu: float | msgspec.UnsetType = msgspec.UNSET
    """Models without."""
    model_flops_per_gpu_per_s: float
    mfu: float | None
    """Of the dense peak of the plan's precision; null where the device states none."""
    model: ModelFigures
    peak_memory_bytes: int
    memory: Memory
    fits: bool
    does_not_fit: Missing | None
    breakdown: Parts
    critical_path: list[dict[str, Any]]
    syncs: list[Sync]
    sources: Sources
    warnings: list[str]
    gpus: int
    topology: str
    plan: dict[str, Any]


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


class SweepRow(Said, frozen=True, kw_only=True):
    """One plan of a sweep: seconds, peak bytes, samples per second, money per million samples."""

    key: str
    outcome: str
    step_time: float | None
    memory: int | None
    mfu: float | None
    rate: float | None
    gpus: int | None
    cost: float | None


class Sweep(Said, frozen=True, kw_only=True):
    """`steptwin sweep --json`: plans that run, fastest first, and those that no other beats."""

    rows: list[SweepRow]
    front: list[SweepRow]
    counts: dict[str, int]
    best: str
    file: str


class Capacity(Said, frozen=True, kw_only=True):
    """`steptwin capacity --json`: seconds, joules, money in the price file's unit."""

    gpus: int
    topology: str
    steps: int
    step_time_s: float
    productive_s: float
    elapsed_s: float
    days: float
    goodput: float
    failures: int
    checkpoint_interval_s: float
    gpu_hours: float
    energy_j: float | None
    money: float | None
    fits: bool


class Compare(Said, frozen=True, kw_only=True):
    """`steptwin compare --json`: the prediction, and beside it each trace by its origin."""

    prediction: Predict
    runs: dict[str, Aligned]


class Twin(Said, frozen=True, kw_only=True):
    """`steptwin twin --json`: the same for what was played and trained here; `calibration` is the file that the costs rest on."""

    prediction: Predict
    runs: dict[str, Aligned]
    notes: list[str]
    calibration: str


Tables = dict[str, list[dict[str, Any]]]
"""`steptwin accuracy --json`: tables by name."""

FORMS: dict[str, Any] = {
    "predict": Predict, "compare": Compare, "twin": Twin, "run": forms.Run, "here": forms.Here, "probe": forms.Probe, "doctor": forms.Doctor,
    "study": forms.Study, "spread": forms.Spread, "explain": forms.Explain, "sweep": Sweep, "capacity": Capacity, "faults": forms.Faults,
    "jobs": forms.Jobs, "collective": Collective, "collective --calibrate": forms.CalibrateCollective, "validate": Validate,
    "validate --collectives": forms.ValidateCollectives, "accuracy": Tables, "plan list": forms.Catalog, "plan show": Plan,
    "topology list": forms.Machines, "topology show": forms.Machine, "chakra export": Exported, "chakra replay": Replay,
}  # fmt: skip
"""Verb -> the form of its JSON."""


def schema(verb: str) -> dict[str, Any]:
    """The JSON Schema of a verb's output. Raises `UnknownName` for a verb without a published form."""
    if verb not in FORMS:
        raise UnknownName("verb", verb, FORMS)
    found: dict[str, Any] = msgspec.json.schema(FORMS[verb])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"steptwin {verb} --json", **found}


def check(verb: str, text: str | bytes) -> None:
    """Raises `BadInput` with the path where a verb's output is not as published."""
    if verb not in FORMS:
        raise UnknownName("verb", verb, FORMS)
    try:
        msgspec.json.decode(text, type=FORMS[verb])
    except msgspec.MsgspecError as error:
        raise BadInput(f"the output of {verb} is not as published: {error}") from None
