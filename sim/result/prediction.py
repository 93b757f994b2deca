"""What a prediction says, as a value: text with units (`print`), the published JSON (`to_dict`), a row of figures (`to_frame`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from sim.files.fullplan import full_tree
from sim.memory.report import DoesNotFit, MemoryReport
from sim.plan import Plan
from sim.program import Program
from sim.result.uncertainty import LEVEL, Mark
from sim.tables import Tabular
from sim.timeline import metrics
from sim.timeline.syncs import SyncPoint
from sim.trace import Trace
from topologies.units import show_duration, show_flops, show_size


class Prediction(Tabular, msgspec.Struct, kw_only=True):
    """What `predict` found. Prints as a table; `to_dict()` is the JSON of `steptwin predict --json`, `to_frame()` one row of figures."""

    plan: Plan
    topology: str
    """The machine's name, as it was given."""
    gpus: int
    """Ranks of the plan."""
    step_time_s: float
    """Seconds from one optimizer step to the next, in the steady state."""
    samples_per_s: float
    """Of all GPUs together."""
    tokens_per_s: float
    """Of all GPUs together; samples where these have no tokens (`unit`)."""
    model_flops_per_gpu_per_s: float
    """Forward and backward once, without recomputation; a multiply-add is two."""
    mfu: float | None
    """`model_flops_per_gpu_per_s` over the dense peak of the plan's precision (16 bits for narrower ones), 0 to 1; None where the device states none."""
    parameters: int
    active_parameters: int
    """Of them, those that one token passes through."""
    flops_per_step: float
    """Of all GPUs together."""
    peak_memory_bytes: int
    """Of the fullest rank, allocator and context included."""
    memory: MemoryReport
    """What it is made of, in bytes."""
    numbers: str = ""
    """In which numbers weights, gradients and moments are kept, in words (`sim.memory.numbers`)."""
    fits: bool
    does_not_fit: DoesNotFit | None
    """Where it does not: bytes needed and available, and changes that would make it fit."""
    breakdown: metrics.Breakdown
    """Seconds by class, which sum to the step; the mean over ranks."""
    critical_path: list[tuple[str, float]]
    """Seconds of each class of op along it."""
    sources: dict[str, float]
    """Shares of the time that are measured, fitted and assumed."""
    warnings: list[str]
    device: Literal["cuda", "cpu"] = "cuda"
    """What ranks run on; those of a CPU host are no GPUs, whatever the names of figures say."""
    unit: str = "tokens"
    """What is counted a second: tokens, or samples by their name where these have none (images, videos, pairs ...)."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Seconds between which the step lies with probability `LEVEL`."""
    mark: Mark = "extrapolated"
    """calibrated: half of the step, or more, rests on this machine's own measurements; interpolated: on data of such devices,
    sizes and kernels; extrapolated: beyond them."""
    mark_reasons: tuple[str, ...] = ()
    clock: float = 1.0
    """Of the GPUs' matrix units over their boost clock, as far as a calibration tells what the power limit leaves of it (`sim.cost.power`)."""
    syncs: list[SyncPoint] = []
    """Where the host waits for the device, and what that costs."""
    machine: str = ""
    """The machine in words: its name, and what was changed about it."""
    rooms: dict[int, int] = {}
    """Bytes of memory that the device of each simulated rank has."""
    program: Program | None = None
    trace: Trace | None = None

    def __str__(self) -> str:
        return brief(self)

    def __repr__(self) -> str:
        return f"Prediction({(self.plan.name or self.plan.model_name)!r}, {self.topology!r}, step_time_s={self.step_time_s:.6g})"

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (DESIGN 8); plain values only."""
        per = "tokens" if self.unit == "tokens" else "samples"
        rate = self.tokens_per_s if per == "tokens" else self.samples_per_s
        return {
            "step_time_s": self.step_time_s,
            "interval_s": {"low": self.interval[0], "high": self.interval[1], "level": LEVEL},
            "mark": self.mark,
            "mark_reasons": list(self.mark_reasons),
            **({"clock": self.clock} if self.clock < 1.0 else {}),
            f"{per}_per_s": rate,
            f"{per}_per_s_per_gpu": rate / self.gpus,
            "samples_per_s": self.samples_per_s,
            "unit": self.unit,
            "model_flops_per_gpu_per_s": self.model_flops_per_gpu_per_s,
            "mfu": self.mfu,
            "device": self.device,
            "model": {
                "name": self.plan.model_name,
                "parameters": self.parameters,
                "active_parameters": self.active_parameters,
                "flops_per_step": self.flops_per_step,
            },
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory": msgspec.to_builtins(self.memory),
            "numbers": self.numbers,
            "fits": self.fits,
            "does_not_fit": msgspec.to_builtins(self.does_not_fit),
            "breakdown": asdict(self.breakdown),
            "critical_path": [{"class": name, "seconds": seconds} for name, seconds in self.critical_path],
            "syncs": [asdict(point) for point in self.syncs],
            "sources": self.sources,
            "warnings": self.warnings,
            "gpus": self.gpus,
            "topology": self.machine,
            "plan": full_tree(self.plan),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The figures of `to_dict` that are one number or word, those of the breakdown and the interval with them."""
        found = self.to_dict()
        flat = {name: value for name, value in found.items() if isinstance(value, (int, float, str)) or value is None}
        ends = {"interval_low_s": self.interval[0], "interval_high_s": self.interval[1]}
        flat.pop("does_not_fit", None)
        return [{"plan": self.plan.name, "model": self.plan.model_name, **flat, **ends, **found["breakdown"]}]


_WORDS = {"exposed_comm": "exposed communication", "host": "host gap", "data": "data stall"}
"""Classes of a breakdown whose names are not words already."""


def brief(found: Prediction) -> str:
    """The headline figures of a prediction: a line each, then what does not fit and what it warns of."""
    device = "GPU" if found.device == "cuda" else "rank"
    rate = found.tokens_per_s if found.unit == "tokens" else found.samples_per_s
    low, high = (show_duration(end) for end in found.interval)
    flops = show_flops(found.model_flops_per_gpu_per_s)
    rows = [
        ("step time", f"{show_duration(found.step_time_s)}, {LEVEL:.0%} interval {low} to {high}, {found.mark}"),
        ("throughput", f"{rate:,.0f} {found.unit}/s, {rate / found.gpus:,.0f} {found.unit}/s per {device}"),
        ("model FLOPs", f"{flops} per {device}" + ("" if found.mfu is None else f", MFU {found.mfu:.1%}")),
        ("peak memory", f"{show_size(found.peak_memory_bytes)} per {device}, {'fits' if found.fits else 'DOES NOT FIT'}"),
        ("numbers", found.numbers),
        ("the step", _shares({_word(name): value for name, value in asdict(found.breakdown).items()}, found.step_time_s)),
        ("costs", _shares(found.sources, 1.0)),
    ]
    if found.does_not_fit is not None:
        rows.append(("memory", str(found.does_not_fit)))
    if found.clock < 1.0:
        rows.append(("clock", clock_words(found.clock)))
    rows += [(found.mark, reason) for reason in found.mark_reasons]
    rows += [("warning", text) for text in found.warnings]
    head = f"{found.plan.name or found.plan.model_name} on {found.machine}, {found.gpus:,} rank{'' if found.gpus == 1 else 's'}"
    return "\n".join([head, *(f"{name:<13} {text}" for name, text in rows)])


def clock_words(clock: float) -> str:
    """What is said of a clock below the boost clock."""
    return f"{clock:.1%} of the boost clock, by the board's power limit"


def _word(name: str) -> str:
    word = name.removesuffix("_s")
    return _WORDS.get(word, word)


def _shares(parts: dict[str, float], whole: float) -> str:
    """What is there, largest first, in percent of `whole`."""
    there = sorted(((value, name) for name, value in parts.items() if value > 0), key=lambda pair: -pair[0])
    return ", ".join(f"{name} {value / (whole or 1.0):.1%}" for value, name in there)
