"""What one process finds out about some plans of a sweep: whether they fit, what they cannot beat, and how long their steps take."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from sim.engine.agenda import uncollected
from sim.plan import Plan
from sim.planning.capacity.prices import price_of
from sim.planning.sweeps.bound import Bounds
from sim.planning.sweeps.screen import screened
from sim.planning.sweeps.space import Candidate
from sim.planning.sweeps.store import Row
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory, fill_of, mfu_of
from sim.sections import Output
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.rooms import smallest_devices
from sim.steady.rounds import confirmed
from sim.steady.split import split_of
from sim.timeline.metrics import Breakdown
from topologies.errors import SteptwinError
from topologies.load import Topology, load_topology

Prices = dict[str, float]
"""Money per GPU-hour by machine."""
Depth = Literal["short", "whole", "split"]
"""How a plan is simulated: in the fewest ops (`screen`), whole (within 0.05 %: `sim.steady.rounds.confirmed`), or with where its step goes, by
class."""


class Open(msgspec.Struct, frozen=True):
    """A plan that fits and is not simulated yet."""

    candidate: Candidate
    plan: Plan
    bound: Row
    """What it would be if nothing but its bound counted."""


class Work(NamedTuple):
    """A chunk for one process."""

    plans: list[tuple[Candidate, Plan]]
    prices: Prices
    edits: tuple[str, ...] = ()
    """What-ifs on every machine."""
    depth: Depth = "short"
    known: dict[str, Row] = {}
    """Rows of plans by name, where their memory is known."""


def screen_chunk(work: Work) -> tuple[list[Row], list[Open]]:
    """Memory and bound of some plans: rows of those that do not fit or cannot be built, and those that may be simulated."""
    rows: list[Row] = []
    fits: list[Open] = []
    for candidate, plan in work.plans:
        found = _screen(candidate, plan, work.prices, work.edits)
        if isinstance(found, Row):
            rows.append(found)
        else:
            fits.append(found)
    return rows, fits


def _screen(candidate: Candidate, plan: Plan, prices: Prices, edits: tuple[str, ...]) -> Row | Open:
    try:
        setting = bind(plan, _machine(candidate.on, (*edits, *candidate.edits)))
        report, fit = figures_of_memory(setting, remedies=False)
        if fit is not None:
            return Row(candidate.key, "memory", str(fit), memory=report.peak, gpus=plan.world)
        bound = _bounds().step(setting, pricer_for(setting))
    except Exception as error:
        return _out(candidate, error)
    detail = _detail({"fill": msgspec.to_builtins(report.fill(smallest_devices(setting)))})
    return Open(candidate, plan, priced(_row(candidate, setting, bound, report.peak, None, detail), prices, edits))


@lru_cache(maxsize=1)
def _bounds() -> Bounds:
    """One for each process: plans share the prices of equal blocks."""
    return Bounds()


def evaluate_chunk(work: Work) -> list[Row]:
    """Rows of some plans; an error of one plan is its row, not the sweep's end."""
    with uncollected():
        return [evaluate(one, plan, work.prices, work.edits, work.depth, work.known.get(one.key)) for one, plan in work.plans]


@lru_cache(maxsize=64)
def _machine(name: str, edits: tuple[str, ...]) -> Topology:
    return load_topology(name, edits)


def anew() -> None:
    """Forgets what an earlier study in this process knew: files of machines may have changed since."""
    _machine.cache_clear()
    _bounds.cache_clear()


def evaluate(
    candidate: Candidate, plan: Plan, prices: Prices, edits: tuple[str, ...] = (), depth: Depth = "split", known: Row | None = None
) -> Row:
    """One plan that fits; `known`: a row that tells its memory."""
    split: dict[str, float] = {}
    try:
        setting = bind(plan, _machine(candidate.on, (*edits, *candidate.edits)))
        if depth == "short":
            step = screened(setting)
        elif depth == "whole" and plan.output == Output():
            step = confirmed(setting)
        else:
            classes = _classes(setting)
            step, split = classes.total, msgspec.structs.asdict(classes)
        fill = (known and known.fill) or fill_of(setting)
    except Exception as error:
        return _out(candidate, error)
    detail = _detail({"breakdown": split, "whole": depth != "short", "fill": msgspec.to_builtins(fill)})
    return priced(_row(candidate, setting, step, fill.peak, mfu_of(setting, step), detail), prices, edits)


def _detail(told: dict[str, Any]) -> str:
    return json.dumps(told, sort_keys=True)


def _out(candidate: Candidate, error: Exception) -> Row:
    """Why a plan has no figures: it is none, or simulating it failed, which must not end a sweep of thousands; a later run tries it again."""
    if isinstance(error, SteptwinError):
        return Row(candidate.key, "refused", str(error))
    return Row(candidate.key, "failed", f"{type(error).__name__}: {error}")


def _classes(setting: Setting) -> Breakdown:
    """Where the plan's step goes: by as little simulation as that needs, or as `predict` finds it."""
    found = split_of(setting) if setting.plan.output == Output() else None
    return found or predict_setting(setting, steps=2, detail=False).breakdown


def _row(candidate: Candidate, setting: Setting, step: float, memory: int, mfu: float | None, detail: str) -> Row:
    plan, flops = setting.plan, setting.flops / setting.plan.global_batch
    rate = plan.global_batch / step if step > 0 else 0.0
    return Row(candidate.key, "done", "", step, memory, mfu, rate, plan.world, None, detail, flops, setting.network.seq)


def priced(row: Row, prices: Prices, edits: tuple[str, ...] = ()) -> Row:
    """The row at these prices, `edits` on every machine, whatever it cost before: money per million tokens, or samples that are no sequences."""
    if not prices or not row.rate or not row.gpus:
        return msgspec.structs.replace(row, cost=None)
    hourly = price_of(prices, row.on, row.gpus, (*edits, *row.edits)) * row.gpus
    return msgspec.structs.replace(row, cost=hourly / 3600 / (row.rate * row.seq) * 1e6)
