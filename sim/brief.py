"""A prediction in a few lines of text, units with every figure: what `print(steptwin.predict(...))` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from sim.uncertainty import LEVEL
from topologies.units import show_duration, show_flops, show_size

if TYPE_CHECKING:
    from sim.predict import Prediction

_WORDS = {"exposed_comm": "exposed communication", "host": "host gap", "data": "data stall"}
"""Classes of a breakdown whose names are not words already."""


def brief(found: Prediction) -> str:
    """The headline figures of a prediction: a line each, then what does not fit and what it warns of."""
    device = "GPU" if found.mfu is not None else "rank"
    rate = found.tokens_per_s if found.unit == "tokens" else found.samples_per_s
    low, high = (show_duration(end) for end in found.interval)
    flops = show_flops(found.model_flops_per_gpu_per_s)
    rows = [
        ("step time", f"{show_duration(found.step_time_s)}, {LEVEL:.0%} interval {low} to {high}, {found.mark}"),
        ("throughput", f"{rate:,.0f} {found.unit}/s, {rate / found.gpus:,.0f} {found.unit}/s per {device}"),
        ("model FLOPs", f"{flops} per {device}" + ("" if found.mfu is None else f", MFU {found.mfu:.1%}")),
        ("peak memory", f"{show_size(found.peak_memory_bytes)} per {device}, {'fits' if found.fits else 'DOES NOT FIT'}"),
        ("the step", _shares({_word(name): value for name, value in asdict(found.breakdown).items()}, found.step_time_s)),
        ("costs", _shares(found.sources, 1.0)),
    ]
    if found.does_not_fit is not None:
        rows.append(("memory", str(found.does_not_fit)))
    rows += [(found.mark, reason) for reason in found.mark_reasons]
    rows += [("warning", text) for text in found.warnings]
    head = f"{found.plan.name or found.plan.model_name} on {found.topology}, {found.gpus:,} rank{'' if found.gpus == 1 else 's'}"
    return "\n".join([head, *(f"{name:<13} {text}" for name, text in rows)])


def _word(name: str) -> str:
    word = name.removesuffix("_s")
    return _WORDS.get(word, word)


def _shares(parts: dict[str, float], whole: float) -> str:
    """What is there, largest first, in percent of `whole`."""
    there = sorted(((value, name) for name, value in parts.items() if value > 0), key=lambda pair: -pair[0])
    return ", ".join(f"{name} {value / (whole or 1.0):.1%}" for value, name in there)
