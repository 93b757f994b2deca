"""A sweep over a space too large to enumerate: optuna proposes points, memory and simulation judge them, the same results file keeps them.

The sampler is optuna's TPE (Bergstra et al. 2011; multivariate, as Falkner et al. 2018), which learns from what was tried which values go
together; points that are no plan, or do not fit, count as worse than all others. A search that was stopped goes on where it was: what the
file holds is told to the sampler first, and nothing is simulated twice. As in a sweep, what is called best was simulated whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sim.files.overrides import SHORT
from sim.plan import Plan
from sim.planning.progress import Say
from sim.planning.sweeps.floor import Floor
from sim.planning.sweeps.front import open_questions
from sim.planning.sweeps.judge import Prices, Work, anew, evaluate_chunk, priced, screen_chunk
from sim.planning.sweeps.pool import Pool, pool
from sim.planning.sweeps.space import Candidate, check_values, looked_at, plan_at, point, settings_of
from sim.planning.sweeps.store import Row, Store, default_file
from sim.planning.sweeps.sweep import Ask, Sweep, concluded, header_of, rejected
from topologies.errors import BadInput

_BATCH = 8
"""Points for each worker between two looks of the sampler at what came of them."""
_STALE = 20
"""Batches in a row without a new point after which the space counts as exhausted."""
Point = dict[str, str]


def search(base: Plan, space: dict[str, tuple[str, ...]], on: str, path: Path | None = None, *, trials: int = 200, seed: int = 0,
           workers: int = 1, backend: str = "", address: str = "", prices: Prices | None = None, edits: tuple[str, ...] = (),
           say: Say | None = None) -> Sweep:  # fmt: skip
    """Looks at `trials` points of the space, those that `path` (default: as a sweep's) holds already among them, and returns all rows, fastest first.

    Raises `BadInput` without optuna, for a missing price, or when nothing that was looked at is feasible.
    """
    if trials < 1:
        raise BadInput(f"trials = {trials}: at least one point must be looked at")
    check_values(base, space, on, edits)
    header = header_of(base, space, on, prices or {}, edits)
    anew()
    path = path or default_file(base.name or base.model_name, header)
    study = _study(seed)
    with Store(path, header) as store, pool(workers, backend, address) as place:
        store.reprice(prices or {}, partial(priced, prices=prices or {}, edits=edits))
        hunt = _Hunt(base, space, on, store, place, partial(Work, prices=prices or {}, edits=edits), Floor(base, space, edits), study)
        size = _BATCH * max(1, workers)
        stale = 0
        while len(hunt.known) < trials and stale < _STALE:
            new = hunt.batch(min(size, trials - len(hunt.known)))
            stale = 0 if new else stale + 1
            if say:
                say(f"{len(hunt.known)}/{trials} points, {hunt.best()}")
        hunt.confirm()
        rows = list(store.rows())
    return concluded(base, rows, path)


def _minimised(row: Row) -> float:
    """What the best of a sweep has the least of (`Row.worth`), as one number."""
    return row.effort if row.cost is None else row.worth[0]


def _study(seed: int) -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError:
        raise BadInput('--trials needs optuna: pip install "steptwin[search]". Without it, sweep a space that can be enumerated') from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `multivariate` is called experimental
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=_BATCH * 2)
    return optuna.create_study(direction="minimize", sampler=sampler)


class _Hunt:
    """What has been looked at, and how to look at more."""

    def __init__(
        self, base: Plan, space: dict[str, tuple[str, ...]], on: str, store: Store, place: Pool, ask: Ask, floor: Floor, study: Any
    ) -> None:
        self._base, self._space, self._on, self._store, self._place, self._ask = base, space, on, store, place, ask
        self._study, self._over = study, floor.over
        self._kinds = {key: import_module("optuna").distributions.CategoricalDistribution(values) for key, values in space.items()}
        self.known: dict[str, Row] = {}
        for row in store.rows():
            at = self._point_of(row.key)
            if at is not None and row.outcome != "failed":
                self.known[row.key] = row
                self._teach(at, row)

    def best(self) -> str:
        """The fastest so far, in words."""
        done = [row for row in self.known.values() if row.outcome == "done"]
        return min(done, key=lambda row: row.worth).key if done else "none fits yet"

    def batch(self, size: int) -> int:
        """Looks at what the sampler proposes; returns how many points of it were new."""
        asked = [self._study.ask(self._kinds) for _ in range(size)]
        fresh: dict[str, tuple[Candidate, Point]] = {}
        for trial in asked:
            candidate = self._candidate(dict(trial.params))
            if candidate.key not in self.known:
                fresh[candidate.key] = (candidate, dict(trial.params))
        for row in self._judged(fresh):
            self.known[row.key] = row
        for trial in asked:
            self._tell(trial, self.known[self._candidate(dict(trial.params)).key])
        return len(fresh)

    def _candidate(self, at: Point) -> Candidate:
        return point({key: value for key, value in at.items() if key != "on"}, at.get("on", self._on))

    def _judged(self, fresh: dict[str, tuple[Candidate, Point]]) -> Iterator[Row]:
        """A row for each point: no plan, too large, or simulated."""
        work: list[tuple[Candidate, Plan]] = []
        for candidate, at in fresh.values():
            plan = looked_at(self._base, candidate, at, self._over)
            if isinstance(plan, Plan):
                work.append((candidate, plan))
            else:
                yield self._kept(rejected(candidate, plan))
        fits: list[tuple[Candidate, Plan]] = []
        for rows, open_ in self._place.map(screen_chunk, [self._ask([one]) for one in work]):
            yield from map(self._kept, rows)
            fits += [(one.candidate, one.plan) for one in open_]
        for rows in self._place.map(evaluate_chunk, [self._ask([one]) for one in fits]):
            yield from map(self._kept, rows)

    def _kept(self, row: Row) -> Row:
        self._store.add([row])
        return row

    def confirm(self) -> None:
        """Simulates more of what was ranked in short, until the front and the best rest on whole simulations alone."""
        while True:
            depths = open_questions([row for row in self.known.values() if row.outcome == "done"])
            work: list[tuple[Candidate, Plan]] = []
            for key in depths:
                at = self._point_of(key)
                if at is not None:
                    candidate = self._candidate(at)
                    plan = plan_at(self._base, candidate, at.get("gpus", ""))
                    work += [(candidate, plan)] if isinstance(plan, Plan) else []
            if not work:
                return
            for rows in self._place.map(evaluate_chunk, [self._ask([one], depth=depths[one[0].key]) for one in work]):
                for row in rows:
                    self.known[row.key] = self._kept(row)

    # -- the sampler's side

    def _point_of(self, key: str) -> Point | None:
        """The values that a row's name stands for; None where the space has them not."""
        said = settings_of(key)
        at = {
            name: said.get(SHORT.get(name, name), values[0]) for name, values in self._space.items()
        }  # what says nothing is not in its name
        return at if all(value in self._space[name] for name, value in at.items()) else None

    def _teach(self, at: Point, row: Row) -> None:
        trial = import_module("optuna").trial
        done = row.outcome == "done"
        state = trial.TrialState.COMPLETE if done else trial.TrialState.PRUNED
        self._study.add_trial(
            trial.create_trial(params=at, distributions=self._kinds, value=_minimised(row) if done else None, state=state)
        )

    def _tell(self, trial: Any, row: Row) -> None:
        if row.outcome == "done":
            self._study.tell(trial, _minimised(row))
        else:
            self._study.tell(trial, state=import_module("optuna").trial.TrialState.PRUNED)
