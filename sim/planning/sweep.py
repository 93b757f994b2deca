"""A sweep: every plan of a space on every machine; memory first, then bounds, then simulation; resumable, in parallel.

What cannot fit is rejected by arithmetic. Each plan that fits has a lower bound of its step (`bound`); plans are simulated from the
most promising on, with equal ranks folded and runs of kernels fused, both exact, and a plan whose bound and memory are no better than what
another has reached is not simulated. Each is simulated in the fewest ops (`screen`); whatever is on the front then, or within
1 % of the best, is simulated whole. Results stream into a `Store`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from sim.bind import bind
from sim.plan import Output, Plan
from sim.planning.bound import Bounds
from sim.planning.capacity import price_of
from sim.planning.floor import Floor
from sim.planning.pool import Pool, pool
from sim.planning.screen import screened
from sim.planning.space import Candidate, TooLarge, base_tree, candidates, named
from sim.planning.store import Row, Store, forget
from sim.planning.tables import Ranked
from sim.predict import figures_of_memory, mfu_of, predict_setting, pricer_for
from sim.steady import whole
from topologies.errors import BadInput, SteptwinError
from topologies.load import Topology, load_topology

Say = Callable[[str], None]
Prices = dict[str, float]
"""Money per GPU-hour by machine."""
_CHUNK = 16
_WAVE = 4
"""Chunks for each worker between two looks at what need not be simulated any more."""


class Sweep(Ranked, msgspec.Struct):
    """What a sweep found. `best` is the fastest per sample and GPU that fits; `front` is not dominated in time, memory and cost."""

    rows: list[Row]
    path: str
    counts: dict[str, int]
    """Plans by outcome: done, memory, bound (cannot be better than another), refused, failed."""

    @property
    def feasible(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "done"]

    @property
    def best(self) -> Row | None:
        return min(self.feasible, key=lambda row: row.effort, default=None)

    @property
    def front(self) -> list[Row]:
        return pareto(self.feasible)


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
    depth: Depth = "short"


Depth = Literal["short", "whole", "split"]
"""How a plan is simulated: in the fewest ops (`screen`), whole, or with where its step goes, by class."""

CLOSE = 1.01
"""Plans within this factor of the best are simulated whole before one is called the best; what was simulated in short is no further off."""
_FIRST = 5
"""Plans of which a report shows where their steps go."""
_APART = tuple(f"parallel.{name}" for name in ("pp", "zero", "schedule", "virtual_stages"))
"""Keys of a plan that leave its layers as they are."""


def sweep(base: Plan, space: dict[str, tuple[str, ...]], on: str, path: Path, *, workers: int = 1, backend: str = "", address: str = "",
          prices: Prices | None = None, every: bool = False, say: Say | None = None) -> Sweep:  # fmt: skip
    """Runs what `path` does not hold yet, and returns all rows, fastest first.

    `every`: simulate also what cannot be better than another. `backend` "" runs on local processes; "dask" or "ray" through
    joblib on a cluster at `address`. Raises `BadInput` when nothing of the space is feasible, with what came closest.
    """
    if not isinstance(on, str):
        raise BadInput(f"a sweep keeps its machines by name: give on = {getattr(on, 'name', 'a name')!r}, with changes in a TOML file")
    for machine in space.get("on", (on,)) if prices else ():
        price_of(prices or {}, machine)  # a missing price is said before anything is simulated
    header = {"space": {key: list(values) for key, values in space.items()}, "plan": base_tree(base), "on": on}
    with Store(path, header) as store, pool(workers, backend, address) as place:
        work = _enumerate(base, space, on, store)
        waiting = _screened(work, store, place, prices or {}, say)
        _simulated(base, waiting, store, place, prices or {}, workers, every, say)
        rows = list(store.rows())
    counts = {name: sum(row.outcome == name for row in rows) for name in ("done", "memory", "bound", "refused", "failed")}
    found = Sweep(rows, str(path), counts)
    if not found.feasible:
        if all(row.step_time is None for row in rows):
            forget(path)  # a slip of the pen must not keep the name for its own space
        raise BadInput(_closest(rows))
    return found


def _enumerate(base: Plan, space: dict[str, tuple[str, ...]], on: str, store: Store) -> list[tuple[Candidate, Plan]]:
    """Plans to look at; what is none, or cannot fit by a few divisions, is a row at once."""
    work: list[tuple[Candidate, Plan]] = []
    rows: list[Row] = []
    for candidate, plan in candidates(base, space, on, store.done(), Floor(base, space).over):
        if isinstance(plan, str):
            rows.append(Row(candidate.key, "refused", plan))
        elif isinstance(plan, TooLarge):
            reason = f"parameters, gradients and optimizer state alone take {plan.needed / 2**30:.1f} GiB on a rank"
            rows.append(Row(candidate.key, "memory", reason, memory=plan.needed))
        else:
            work.append((candidate, plan))
    store.add(rows)
    return work


def _screened(work: list[tuple[Candidate, Plan]], store: Store, place: Pool, prices: Prices, say: Say | None) -> list[Open]:
    """Plans that fit, the most promising first; the others are rows."""
    progress = _Progress(len(work), "screened", say)
    waiting: list[Open] = []
    for rows, fits in place.map(screen_chunk, [Work(chunk, prices) for chunk in _chunks(work)]):
        store.add(rows)
        waiting += fits
        progress.more(len(rows) + len(fits))
    return sorted(waiting, key=lambda one: (one.bound.effort, one.candidate.key))


def _simulated(
    base: Plan, waiting: list[Open], store: Store, place: Pool, prices: Prices, workers: int, every: bool, say: Say | None
) -> None:
    """Simulates wave by wave; what another plan dominates, whatever its whole simulation may bring, is decided without."""
    done = [row for row in store.rows() if row.outcome == "done"]
    progress = _Progress(len(waiting), "decided", say)
    size = _CHUNK * _WAVE * max(1, workers)
    while waiting:
        if not every:
            front = pareto([_cautious(row) for row in done])
            settled = [one for one in waiting if _beaten(one.bound, front)]
            store.add(msgspec.structs.replace(one.bound, outcome="bound", step_time=None, rate=None, reason=_why(one)) for one in settled)
            beaten = {one.candidate.key for one in settled}
            waiting = [one for one in waiting if one.candidate.key not in beaten]
            progress.more(len(settled))
        # The first wave is small: it finds plans good enough to settle most of the others.
        wave, waiting = waiting[: size if done or every else _CHUNK], waiting[size if done or every else _CHUNK :]
        for rows in place.map(
            evaluate_chunk, [Work(chunk, prices, "whole" if every else "short") for chunk in _alike(wave, max(1, workers))]
        ):
            store.add(rows)
            done += rows
            progress.more(len(rows))
        done = [row for row in done if row.outcome == "done"]
    _confirmed(base, store, place, prices)


def _cautious(row: Row) -> Row:
    """No slower than this is the plan when simulated whole."""
    return msgspec.structs.replace(row, rate=(row.rate or 0.0) / CLOSE)


def _alike(wave: list[Open], workers: int) -> list[list[tuple[Candidate, Plan]]]:
    """Chunks of plans that run the same layers, which one process prices once."""
    layers: dict[tuple[str, ...], list[tuple[Candidate, Plan]]] = {}
    for one in wave:
        layer = tuple(word for word in one.candidate.overrides if word.partition("=")[0] not in _APART)
        layers.setdefault((one.candidate.on, *layer), []).append((one.candidate, one.plan))
    size = max(1, min(_CHUNK, len(wave) // workers))
    return [chunk for plans in layers.values() for chunk in _chunks(plans, size)]


def _confirmed(base: Plan, store: Store, place: Pool, prices: Prices) -> None:
    """Simulates more of what was ranked in short, until nothing is `open_questions` any more."""
    while True:
        keys, depth = open_questions([row for row in store.rows() if row.outcome == "done"])
        plans = [(candidate, plan) for candidate, plan in map(partial(named, base), keys) if isinstance(plan, Plan)]
        if not plans:
            return
        for rows in place.map(evaluate_chunk, [Work(chunk, prices, depth) for chunk in _chunks(plans, 1)]):
            store.add(rows)


def open_questions(done: list[Row]) -> tuple[list[str], Depth]:
    """Plans to be simulated once more, by name, and how: the front and the best must rest on whole simulations alone; then the first
    few are split by class."""
    details = {row.key: json.loads(row.detail) for row in done}
    ranked = sorted(done, key=lambda row: row.effort)
    vital = [*pareto(done), *(row for row in ranked if row.effort <= CLOSE * ranked[0].effort)]
    short = dict.fromkeys(row.key for row in vital if not details[row.key].get("whole"))
    if short:
        return list(short), "whole"
    return [row.key for row in ranked[:_FIRST] if not details[row.key].get("breakdown")], "split"


def _chunks(work: list[tuple[Candidate, Plan]], size: int = _CHUNK) -> list[list[tuple[Candidate, Plan]]]:
    line = iter(work)
    return list(iter(lambda: list(islice(line, size)), []))


def _why(one: Open) -> str:
    return f"its step takes at least {one.bound.step_time or 0.0:.4g} s: another plan is as fast and needs no more memory or money"


class _Progress:
    """Plans done, rate and time left, told every two seconds."""

    def __init__(self, total: int, verb: str, say: Say | None) -> None:
        self._total, self._verb, self._say, self._done = total, verb, say, 0
        self._begun = self._told = time.monotonic()

    def more(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._say and self._done and now - self._told > 2:
            rate = self._done / (now - self._begun)
            self._say(f"{self._done}/{self._total} plans {self._verb}, {rate:.0f} a second, {(self._total - self._done) / rate:.0f} s left")
            self._told = now


def screen_chunk(work: Work) -> tuple[list[Row], list[Open]]:
    """Memory and bound of some plans: rows of those that do not fit or cannot be built, and those that may be simulated."""
    rows: list[Row] = []
    fits: list[Open] = []
    for candidate, plan in work.plans:
        found = _screen(candidate, plan, work.prices)
        if isinstance(found, Row):
            rows.append(found)
        else:
            fits.append(found)
    return rows, fits


def _screen(candidate: Candidate, plan: Plan, prices: Prices) -> Row | Open:
    try:
        setting = bind(plan, _machine(candidate.on))
        report, fit = figures_of_memory(setting, remedies=False)
        if fit is not None:
            return Row(candidate.key, "memory", str(fit), memory=report.peak, gpus=plan.world)
        bound = _bounds().step(setting, pricer_for(setting))
    except SteptwinError as error:
        return Row(candidate.key, "refused", str(error))
    return Open(candidate, plan, _row(candidate, plan, bound, report.peak, None, prices, "{}"))


@lru_cache(maxsize=1)
def _bounds() -> Bounds:
    """One for each process: plans share the prices of equal blocks."""
    return Bounds()


def evaluate_chunk(work: Work) -> list[Row]:
    """Rows of some plans; an error of one plan is its row, not the sweep's end."""
    return [evaluate(candidate, plan, work.prices, work.depth) for candidate, plan in work.plans]


@lru_cache(maxsize=64)
def _machine(name: str) -> Topology:
    return load_topology(name)


def evaluate(candidate: Candidate, plan: Plan, prices: Prices, depth: Depth = "split") -> Row:
    """One plan that fits."""
    split: dict[str, float] = {}
    try:
        setting = bind(plan, _machine(candidate.on))
        if depth == "short":
            step = screened(setting)
        elif depth == "whole" and plan.output == Output():
            step = whole(setting)
        else:
            found = predict_setting(setting, steps=2, detail=False)
            step, split = found.step_time_s, msgspec.structs.asdict(found.breakdown)
        report, _ = figures_of_memory(setting, remedies=False)
    except SteptwinError as error:
        return Row(candidate.key, "refused", str(error))
    detail = json.dumps({"breakdown": split, "whole": depth != "short"}, sort_keys=True)
    return _row(candidate, plan, step, report.peak, mfu_of(setting, step), prices, detail)


def _row(candidate: Candidate, plan: Plan, step: float, memory: int, mfu: float | None, prices: Prices, detail: str) -> Row:
    rate = plan.global_batch / step if step > 0 else 0.0
    cost = price_of(prices, candidate.on, plan.world) * plan.world / 3600 / rate * 1e6 if prices and rate else None
    return Row(candidate.key, "done", "", step, memory, mfu, rate, plan.world, cost, detail)


def _figures(row: Row) -> tuple[float, float, float]:
    return row.effort, float(row.memory or 0), row.cost or 0.0


def _beaten(row: Row, front: list[Row]) -> bool:
    """Another is no worse in time per sample and GPU, memory and cost."""
    mine = _figures(row)
    return any(all(a <= b for a, b in zip(_figures(other), mine, strict=True)) for other in front)


def pareto(rows: list[Row]) -> list[Row]:
    """Rows that no other beats in time per sample and GPU, memory and cost at once."""
    front: list[Row] = []
    for row in sorted(rows, key=_figures):
        if not _beaten(row, front):
            front.append(row)
    return front


def _closest(rows: list[Row]) -> str:
    tight = min((row for row in rows if row.outcome == "memory" and row.memory), key=lambda row: row.memory or 0, default=None)
    if tight:
        return f"nothing in the space fits into memory; closest: {tight.key}: {tight.reason}"
    reason = next((row.reason for row in rows if row.outcome == "refused"), "it holds no plan")
    return f"nothing in the space can run ({len(rows)} points): {reason}"
