"""A sweep: every plan of a space on every machine; memory first, then bounds, then simulation; resumable, in parallel.

What cannot fit is rejected by arithmetic. Each plan that fits has a lower bound of its step (`bound`); plans are simulated from the
most promising on, with equal ranks folded and runs of kernels fused, both exact, and a plan whose bound and memory are no better than what
another has reached is not simulated. Each is simulated in the fewest ops (`screen`); whatever is on the front then, or within
1 % of the best, is simulated whole (by rounds of micro-batches where two of them are alike). Results stream into a `Store`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from sim.files.overrides import SHORT
from sim.plan import Plan
from sim.planning.capacity.prices import price_of
from sim.planning.progress import Progress, Say
from sim.planning.sweeps.floor import Floor
from sim.planning.sweeps.front import beaten, cautious, open_questions, pareto
from sim.planning.sweeps.judge import Depth, Open, Prices, Work, anew, evaluate_chunk, priced, screen_chunk
from sim.planning.sweeps.pool import Pool, pool
from sim.planning.sweeps.space import Candidate, TooLarge, base_tree, candidates, check_values, named, size_of
from sim.planning.sweeps.store import OUTCOMES, Row, Store, default_file, forget
from sim.planning.sweeps.tables import Ranked
from sim.schedule.reading import read_rows
from sim.setting.bind import model_of
from topologies.edits import is_edit
from topologies.errors import BadInput, NoRoom
from topologies.load import load_topology

EVERY = ("", "short", "whole")
"""How plans are simulated that cannot be better than another: not at all, in the fewest ops, or whole."""
_NUMBERS = re.compile(r"[0-9.]+")
_CHUNK = 8
_WAVE = 2
"""Chunks for each worker between two looks at what need not be simulated any more."""


class Sweep(Ranked, msgspec.Struct):
    """What a sweep found. `best` fits and does most model FLOPs per GPU and second, or for its money where prices are known (`Row.worth`);
    nothing that trains the same on as many GPUs of the same machine beats the `front` (`sim.planning.sweeps.front`)."""

    rows: list[Row]
    path: str
    counts: dict[str, int]
    """Plans by outcome: done, memory, bound (cannot be better than another), refused, failed."""
    base: Plan | None = None
    """The plan whose keys were varied."""
    alike: int = 0
    """Points that mean the same plan as another one (schedules without a pipeline), which have no row."""

    def plan(self, row: Row) -> Plan:
        """The plan of a row, as `predict` and `capacity` take it, with `row.on` as its machine and `row.edits` of it. Raises `BadInput` for a row that is none."""
        assert self.base is not None
        found = named(self.base, row.key)[1]
        if isinstance(found, str):
            raise BadInput(f"{row.key} is no plan: {found}")
        return found

    @property
    def feasible(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "done"]

    @property
    def ranked(self) -> list[Row]:
        """Plans that fit, the best first."""
        return sorted(self.feasible, key=lambda row: row.worth)

    @property
    def best(self) -> Row | None:
        return next(iter(self.ranked), None)

    @property
    def roomy(self) -> Row | None:
        """The best plan that leaves its devices room, where the best of all does not."""
        found = next((row for row in self.ranked if not row.nearly_full), None)
        return found if self.best and self.best.nearly_full else None

    @property
    def by_machine(self) -> list[Row]:
        """The best plan of each machine and number of GPUs, the best of all first."""
        found: dict[tuple[str, int | None], Row] = {}
        for row in self.ranked:
            found.setdefault((row.machine, row.gpus), row)
        return list(found.values())

    @property
    def front(self) -> list[Row]:
        """Plans that no other of their kind beats, the best first."""
        return sorted(pareto(self.feasible), key=lambda row: row.worth)

    @property
    def refusals(self) -> list[tuple[int, str]]:
        """Points that are no plan, by reason: how many, and one of them."""
        kinds = by_reason(row for row in self.rows if row.outcome == "refused")
        return sorted(((len(same), same[0].reason) for same in kinds), reverse=True)

    @property
    def failure(self) -> Row | None:
        """One of the plans whose simulation failed, which is a fault of ours."""
        return next((row for row in self.rows if row.outcome == "failed"), None)


def by_reason(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one outcome and reason together; reasons that differ in their numbers alone are one."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.outcome, _NUMBERS.sub("0", row.reason)), []).append(row)
    return list(found.values())


Ask = Callable[..., Work]
"""A chunk's work, of its plans (and `depth`, `known`)."""
_APART = tuple(f"parallel.{name}" for name in ("pp", "zero", "dp_shard", "schedule", "virtual_stages"))
"""Keys of a plan that leave its layers as they are."""


def sweep(base: Plan, space: dict[str, tuple[str, ...]], on: str, path: Path | None = None, *, workers: int = 1, backend: str = "",
          address: str = "", prices: Prices | None = None, every: str = "", edits: tuple[str, ...] = (),
          say: Say | None = None) -> Sweep:  # fmt: skip
    """Runs what `path` (default: `store.default_file`) does not hold yet, and returns all rows, fastest first. `edits` are what-ifs on every machine.

    `every`: simulate also what cannot be better than another, "short" (as a sweep ranks its plans) or "whole". `backend` "" runs on local
    processes; "dask" or "ray" through joblib on a cluster at `address`. Raises `BadInput` when nothing of the space is feasible (`NoRoom`: for
    want of memory), with what came closest.
    """
    if every not in EVERY:
        raise BadInput(f"every = {every!r}: must be {' or '.join(map(repr, EVERY))}")
    check_values(base, space, on, edits)
    header = header_of(base, space, on, prices or {}, edits)
    anew()
    path = path or default_file(base.name or base.model_name, header)
    with Store(path, header) as store, pool(workers, backend, address) as place:
        store.reprice(prices or {}, partial(priced, prices=prices or {}, edits=edits))
        ask = partial(Work, prices=prices or {}, edits=edits)
        work = _enumerate(base, space, on, store, every, edits, say)
        waiting = _screened(work, store, place, ask, say)
        _simulated(base, waiting, store, place, ask, workers, every, say)
        rows = list(store.rows())
    return concluded(base, rows, path, size_of(space) - len(rows))


def header_of(base: Plan, space: dict[str, tuple[str, ...]], on: str, prices: Prices, edits: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a results file is of. Raises `BadInput` for a machine without a name, or without its price where there are prices."""
    if not isinstance(on, str):
        raise BadInput(f"a sweep keeps its machines by name: give on = {getattr(on, 'name', 'a name')!r}, with changes as edits")
    machines = space.get("on", (on,))
    changes = [(*edits, f"{key}={value}") for key, values in space.items() if is_edit(key) for value in values]
    for machine, changed in product(machines if prices else (), changes or [edits]):
        price_of(prices, machine, edits=changed)  # a missing price is said before anything is simulated
    # Names may be those of files, which change between two runs.
    meant = [repr(load_topology(machine, edits).cluster) for machine in machines]
    meant += [repr(model_of(base))] if not any(key.partition(".")[0] == "model" for key in space) else []
    schedules = [value for key, values in space.items() if SHORT.get(key, key) == "parallel.schedule" for value in values]
    meant += [repr(read_rows(Path(value))) for value in schedules if value.endswith(".csv")]
    mark = hashlib.sha256("\n".join(meant).encode()).hexdigest()[:16]
    tree = {"space": {key: list(values) for key, values in space.items()}, "plan": base_tree(base), "on": on, "edits": list(edits)}
    return tree | {"machine or model": mark}


def concluded(base: Plan, rows: list[Row], path: Path, alike: int = 0) -> Sweep:
    """What was found. Raises `NoRoom` when nothing fits and `BadInput` when nothing can run, and forgets the file: a slip of the pen must not keep its name."""
    counts = {name: sum(row.outcome == name for row in rows) for name in OUTCOMES}
    found = Sweep(rows, str(path), counts, base, alike)
    if not found.feasible:
        forget(path)
        raise _closest(rows)
    return found


def _enumerate(
    base: Plan, space: dict[str, tuple[str, ...]], on: str, store: Store, every: str, edits: tuple[str, ...], say: Say | None
) -> list[tuple[Candidate, Plan]]:
    """Plans to look at; what is none, or cannot fit by a few divisions, is a row at once."""
    work: list[tuple[Candidate, Plan]] = []
    rows: list[Row] = []
    if say:
        say(f"{size_of(space):,} points of the space to look at; of those that fit each is predicted, unless another is surely better")
    progress = Progress(size_of(space), "points looked at", say)
    for candidate, plan in candidates(base, space, on, store.done(every), Floor(base, space, edits).over, progress.more):
        if isinstance(plan, Plan):
            work.append((candidate, plan))
        else:
            rows.append(rejected(candidate, plan))
    store.add(rows)
    return work


def rejected(candidate: Candidate, why: TooLarge | str) -> Row:
    """The row of a point that is no plan, or is surely too large."""
    if isinstance(why, str):
        return Row(candidate.key, "refused", why)
    reason = f"parameters, gradients and optimizer state alone take {why.needed / 2**30:.1f} GiB on a rank"
    return Row(candidate.key, "memory", reason, memory=why.needed)


def _screened(work: list[tuple[Candidate, Plan]], store: Store, place: Pool, ask: Ask, say: Say | None) -> list[Open]:
    """Plans that fit, the most promising first; the others are rows."""
    progress = Progress(len(work), "plans screened", say)
    waiting: list[Open] = []
    for rows, fits in place.map(screen_chunk, [ask(chunk) for chunk in _chunks(work)]):
        store.add(rows)
        waiting += fits
        progress.more(len(rows) + len(fits))
    return sorted(waiting, key=lambda one: (one.bound.effort, one.candidate.key))


def _simulated(base: Plan, waiting: list[Open], store: Store, place: Pool, ask: Ask, workers: int, every: str, say: Say | None) -> None:
    """Simulates wave by wave; what another plan dominates is put aside, and comes back where the whole simulation of the other does not."""
    progress = Progress(len(waiting), "plans decided", say)
    size = len(waiting) if every else _CHUNK * _WAVE * max(1, workers)
    depth: Depth = "whole" if every == "whole" else "short"
    front, fresh, aside = list[Row](), _done(store), list[Open]()
    while True:
        if not every:
            better = pareto([*front, *map(cautious, fresh)])
            if better != front:
                front = better
                waiting, beside = _open(waiting, front)
                aside += beside
                progress.more(len(beside))
        # The first wave is small: it finds plans good enough to settle most of the others.
        taken = size if front or every else _CHUNK
        wave, waiting = waiting[:taken], waiting[taken:]
        fresh = []
        known = {one.candidate.key: one.bound for one in wave}
        for rows in place.map(evaluate_chunk, [ask(chunk, depth=depth, known=known) for chunk in by_layers(wave, max(1, workers))]):
            store.add(rows)
            fresh += (row for row in rows if row.outcome == "done")
            progress.more(len(rows))
        if waiting:
            continue
        _confirmed(base, store, place, ask, say)
        front, fresh = pareto(list(map(cautious, _done(store)))), []
        waiting, aside = _open(aside, front)
        if not waiting:
            break
        progress.more(-len(waiting))
    store.add(msgspec.structs.replace(one.bound, outcome="bound", step_time=None, rate=None, reason=_why(one)) for one in aside)


def _done(store: Store) -> list[Row]:
    return [row for row in store.rows() if row.outcome == "done"]


def _open(plans: list[Open], front: list[Row]) -> tuple[list[Open], list[Open]]:
    """Plans that may be better than what was simulated, and those that cannot."""
    found: tuple[list[Open], list[Open]] = [], []
    for one in plans:
        found[beaten(one.bound, front)].append(one)
    return found


def by_layers(wave: list[Open], workers: int) -> list[list[tuple[Candidate, Plan]]]:
    """Chunks of plans that run the same layers, which one process prices once; the longest first, so that no process is left with one."""
    layers: dict[tuple[str, ...], list[tuple[Candidate, Plan]]] = {}
    for one in wave:
        layer = tuple(word for word in one.candidate.overrides if word.partition("=")[0] not in _APART)
        layers.setdefault((one.candidate.on, *one.candidate.edits, *layer), []).append((one.candidate, one.plan))
    size = max(1, min(_CHUNK, len(wave) // workers))
    chunks = [chunk for plans in layers.values() for chunk in _chunks(plans, size)]
    return sorted(chunks, key=lambda chunk: sum(_length(plan) for _, plan in chunk), reverse=True)


def _length(plan: Plan) -> int:
    """Of its simulation, roughly: each of its stages runs some rounds of micro-batches, after what costs as much as thirty passes."""
    p = plan.parallel
    return 30 + p.pp * p.pp * p.chunks


def _confirmed(base: Plan, store: Store, place: Pool, ask: Ask, say: Say | None) -> None:
    """Simulates more of what was ranked in short, until nothing is `open_questions` any more."""
    while True:
        done = _done(store)
        depths = open_questions(done)
        known = {row.key: row for row in done if row.key in depths}
        plans = [(candidate, plan) for candidate, plan in map(partial(named, base), depths) if isinstance(plan, Plan)]
        if not plans:
            return
        progress = Progress(len(plans), "plans simulated whole", say)
        for rows in place.map(evaluate_chunk, [ask([one], depth=depths[one[0].key], known=known) for one in plans]):
            store.add(rows)
            progress.more(len(rows))


def _chunks(work: list[tuple[Candidate, Plan]], size: int = _CHUNK) -> list[list[tuple[Candidate, Plan]]]:
    line = iter(work)
    return list(iter(lambda: list(islice(line, size)), []))


def _why(one: Open) -> str:
    return f"its step takes at least {one.bound.step_time or 0.0:.4g} s: another plan is as fast and needs no more memory or money"


def _closest(rows: list[Row]) -> BadInput:
    failed = next((row for row in rows if row.outcome == "failed"), None)
    if failed:
        return BadInput(f"nothing in the space has been simulated; {failed.key} failed, a fault of StepTwin: {failed.reason}")
    tight = min((row for row in rows if row.outcome == "memory" and row.memory), key=lambda row: row.memory or 0, default=None)
    if tight:
        return NoRoom(f"nothing in the space fits into memory; closest: {tight.key}: {tight.reason}")
    reason = next((row.reason for row in rows if row.outcome == "refused"), "it holds no plan")
    return BadInput(f"nothing in the space can run ({len(rows)} points): {reason}")
