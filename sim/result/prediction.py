"""The result of a prediction: printed as text with units, as the published JSON (`to_dict`), or as a row of figures (`to_frame`)."""

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
    """Samples per second of all GPUs together."""
    tokens_per_s: float
    """Tokens per second of all GPUs together; samples per second where samples have no tokens (`unit`)."""
    model_flops_per_gpu_per_s: float
    """Model FLOPs of forward and backward, without recomputation; a multiply-add counts two."""
    mfu: float | None
    """`model_flops_per_gpu_per_s` over the dense peak of the plan's precision (16 bits for narrower ones), 0 to 1; None where the device states none."""
    parameters: int
    active_parameters: int
    """Parameters that one token passes through: with experts, fewer than all."""
    flops_per_step: float
    """Model FLOPs of one step, of all GPUs together."""
    peak_memory_bytes: int
    """Peak memory of the fullest rank, including the allocator and the CUDA context."""
    memory: MemoryReport
    """The parts of the peak memory, in bytes."""
    numbers: str = ""
    """Number formats of weights, gradients and optimizer states, in words (`sim.memory.numbers`)."""
    fits: bool
    does_not_fit: DoesNotFit | None
    """Bytes needed and available, and changes that would make the plan fit; None where it fits."""
    breakdown: metrics.Breakdown
    """Seconds of a step by class, the mean over ranks; they sum to the step."""
    critical_path: list[tuple[str, float]]
    """(class of ops, seconds) on the critical path, largest first."""
    sources: dict[str, float]
    """Shares of the step whose costs are measured, fitted and assumed; they sum to 1."""
    warnings: list[str]
    device: Literal["cuda", "cpu"] = "cuda"
    """Device of the ranks. On "cpu", figures with `gpu` in their names count CPU ranks."""
    unit: str = "tokens"
    """Unit of the throughput: tokens, or the name of the samples where these have no tokens (images, videos, pairs ...)."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Seconds between which the step lies with probability `LEVEL`."""
    mark: Mark = "extrapolated"
    """calibrated: the costs of at least half of the step were measured on this machine; interpolated: the data cover such devices,
    sizes and kernels; extrapolated: the plan is outside the data."""
    mark_reasons: tuple[str, ...] = ()
    clock: float = 1.0
    """Clock of the GPUs' matrix units under the power limit, as a share of the boost clock, where a calibration tells it
    (`sim.cost.power`); else 1."""
    syncs: list[SyncPoint] = []
    """Places where the host waits for the device, with their seconds."""
    machine: str = ""
    """The machine in words: its name and its edits."""
    rooms: dict[int, int] = {}
    """Rank -> bytes of memory of its device, for each simulated rank."""
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
        """One row: the figures of `to_dict` that are single numbers or words, and those of the breakdown and the interval."""
        found = self.to_dict()
        flat = {name: value for name, value in found.items() if isinstance(value, (int, float, str)) or value is None}
        ends = {"interval_low_s": self.interval[0], "interval_high_s": self.interval[1]}
        flat.pop("does_not_fit", None)
        return [{"plan": self.plan.name, "model": self.plan.model_name, **flat, **ends, **found["breakdown"]}]


_WORDS = {"exposed_comm": "exposed communication", "host": "host gap", "data": "data stall"}
"""Words for the breakdown classes whose names are abbreviations."""


def brief(found: Prediction) -> str:
    """The text of a prediction: one line for each main figure, then what does not fit, the reasons of the mark, and the warnings."""
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
    """Words for a clock below the boost clock; `clock` is a share of it."""
    return f"{clock:.1%} of the boost clock, by the board's power limit"


def _word(name: str) -> str:
    word = name.removesuffix("_s")
    return _WORDS.get(word, word)


def _shares(parts: dict[str, float], whole: float) -> str:
    """The parts above zero, largest first, in percent of `whole`."""
    there = sorted(((value, name) for name, value in parts.items() if value > 0), key=lambda pair: -pair[0])
    return ", ".join(f"{name} {value / (whole or 1.0):.1%}" for value, name in there)
