"""Changes of plan that help most: all that are one step away are looked at quickly, and the best of them as `predict` does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from sim.memory.report import Fill
from sim.plan import Plan
from sim.planning.explain.neighbours import neighbours
from sim.planning.explain.partly import partly
from sim.planning.progress import Progress, Say
from sim.planning.sweeps.screen import screened
from sim.predict import predict_setting
from sim.result.figures import fill_of, fits
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import confirmed, shortens
from sim.steady.stalls import output_seconds
from topologies.errors import SteptwinError

TRIES = 8
"""Changes of plan that are simulated in full."""
_LEAST = 1e-3
"""Of the step: a change of plan that gains less is none."""
_ROUGH = 1.02
"""What the quick simulation of a change of plan may be off by, against that of the plan itself."""
T = TypeVar("T")


class Change(msgspec.Struct, frozen=True):
    """A change of plan, what it gains, and what it takes of a device."""

    overrides: tuple[str, ...]
    step_time_s: float
    gain: float
    memory: Fill | None = None


def best_changes(setting: Setting, step: float, tries: int = TRIES, say: Say | None = None) -> list[Change]:
    """The three single changes of plan that gain most, of one key's values the best: only those that can run, fit and gain; where the plan itself does
    not fit, whatever they cost.

    All of them are put in order by a quick simulation (`sim.planning.sweeps.screen`); the first `tries` are simulated as `predict` does.
    """
    near = _ranked(setting, say) if tries > 0 else []
    progress = Progress(min(tries, len(near)), "changes of plan simulated", say)
    most = step if fits(setting) else math.inf
    found: dict[tuple[str, ...], Change] = {}
    for overrides, there in near:
        if tries == 0:
            break
        seconds = _or_none(_predicted, there)
        if seconds is None:
            continue
        tries -= 1
        progress.more()
        kind = tuple(word.partition("=")[0] for word in overrides)
        best = found[kind].step_time_s if kind in found else most
        if seconds < best - _LEAST * step:
            found[kind] = Change(overrides, seconds, 1.0 - seconds / step, fill_of(there))
    return sorted(found.values(), key=lambda change: change.step_time_s)[:3]


def _ranked(setting: Setting, say: Say | None) -> list[tuple[tuple[str, ...], Setting]]:
    """Changes that can run and fit on the same machine, what seems to gain most first. Not those that seem to lose; what concerns output, which
    the quick simulation leaves out, comes first of all."""
    near = neighbours(setting.plan, setting.topology.ranks_per_node) + (_or_none(partly, setting) or [])
    progress = Progress(len(near), "changes of plan looked at", say)
    here = (_or_none(screened, setting) or 0.0) if fits(setting) else math.inf
    found: list[tuple[float, tuple[str, ...], Setting]] = []
    for overrides, plan in near:
        progress.more()
        there = _or_none(partial(_fitting, plan), setting)
        quick = None if there is None else 0.0 if overrides[0].startswith("output.") else _or_none(screened, there)
        if there is not None and quick is not None and quick < here * _ROUGH:
            found.append((quick, overrides, there))
    return [(overrides, there) for _, overrides, there in sorted(found, key=lambda one: one[0])]


def _fitting(plan: Plan, setting: Setting) -> Setting | None:
    """The plan on the same machine; None where memory is too small."""
    there = bind(plan, setting.topology)
    return there if fits(there) else None


def _predicted(setting: Setting) -> float:
    """As `predict` says it; of many ops within 0.05 % (`sim.steady.rounds`)."""
    if not shortens(setting):
        return predict_setting(setting, detail=False).step_time_s
    step = confirmed(setting.quiet)
    return step + output_seconds(setting, pricer_for(setting), step, [])


def _or_none(find: Callable[[Setting], T], setting: Setting) -> T | None:
    """None where a plan cannot run: layers that do not split so, more ranks than there are."""
    try:
        return find(setting)
    except SteptwinError:
        return None
