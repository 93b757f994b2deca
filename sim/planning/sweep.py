"""A sweep: every plan of a space on every machine, memory first, then simulation; resumable, in parallel.

A plan that does not fit is rejected by arithmetic alone. The others are simulated with equal ranks folded and runs of
kernels fused, both exact. Results stream into a `Store`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from sim.bind import Setting, bind
from sim.plan import Plan
from sim.planning.space import Candidate, base_tree, candidates
from sim.planning.store import Row, Store
from sim.predict import figures_of_memory, predict_setting
from topologies.errors import BadInput, SteptwinError
from topologies.load import Topology, load_topology

Say = Callable[[str], None]
Prices = dict[str, float]
"""Money per GPU-hour by machine."""


class Sweep(msgspec.Struct):
    """What a sweep found. `best` is the fastest per sample that fits; `front` is not dominated in time, memory and cost."""

    rows: list[Row]
    path: str
    counts: dict[str, int]

    @property
    def feasible(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "done"]

    @property
    def best(self) -> Row | None:
        return max(self.feasible, key=lambda row: (row.rate or 0.0) / (row.gpus or 1), default=None)

    @property
    def front(self) -> list[Row]:
        return pareto(self.feasible)


def sweep(base: Plan, space: dict[str, tuple[str, ...]], on: str, path: Path, *, workers: int = 1, backend: str = "", address: str = "",
          prices: Prices | None = None, say: Say | None = None) -> Sweep:  # fmt: skip
    """Runs what `path` does not hold yet, and returns all rows, fastest first.

    `backend` "" runs on local processes; "dask" or "ray" through joblib on a cluster at `address`.
    Raises `BadInput` when nothing of the space is feasible, with what came closest.
    """
    header = {"space": {key: list(values) for key, values in space.items()}, "plan": base_tree(base), "on": on}
    with Store(path, header) as store:
        known = store.done()
        work: list[tuple[Candidate, Plan]] = []
        refused: list[Row] = []
        for candidate, plan in candidates(base, space, on):
            if candidate.key in known:
                continue
            if isinstance(plan, str):
                refused.append(Row(candidate.key, "refused", plan))
            else:
                work.append((candidate, plan))
        store.add(refused)
        _run(work, store, workers, backend, address, prices or {}, say)
        rows = list(store.rows())
    counts = {name: sum(row.outcome == name for row in rows) for name in ("done", "memory", "refused", "failed")}
    found = Sweep(rows, str(path), counts)
    if not found.feasible:
        raise BadInput(_closest(rows))
    return found


def _run(
    work: list[tuple[Candidate, Plan]], store: Store, workers: int, backend: str, address: str, prices: Prices, say: Say | None
) -> None:
    begun, told = time.monotonic(), time.monotonic()
    for number, rows in enumerate(_results(work, workers, backend, address, prices)):
        store.add(rows)
        now = time.monotonic()
        if say and now - told > 2:
            done = min(len(work), (number + 1) * _CHUNK)
            rate = done / (now - begun)
            say(f"{done}/{len(work)} plans, {rate:.0f} a second, {(len(work) - done) / rate:.0f} s left")
            told = now


_CHUNK = 16


def _results(work: list[tuple[Candidate, Plan]], workers: int, backend: str, address: str, prices: Prices) -> Iterator[list[Row]]:
    chunks = [work[i : i + _CHUNK] for i in range(0, len(work), _CHUNK)]
    if backend:
        from sim.planning.cluster import run_chunks

        yield from run_chunks(chunks, prices, backend, address)
    elif workers <= 1 or len(chunks) < 2:
        for chunk in chunks:
            yield evaluate_chunk(chunk, prices)
    else:
        from concurrent.futures import ProcessPoolExecutor, as_completed

        with ProcessPoolExecutor(min(workers, os.cpu_count() or 1)) as pool:
            for future in as_completed([pool.submit(evaluate_chunk, chunk, prices) for chunk in chunks]):
                yield future.result()


def evaluate_chunk(chunk: Iterable[tuple[Candidate, Plan]], prices: Prices) -> list[Row]:
    """Rows of some plans; an error of one plan is its row, not the sweep's end."""
    return [evaluate(candidate, plan, prices) for candidate, plan in chunk]


@lru_cache(maxsize=64)
def _machine(name: str) -> Topology:
    return load_topology(name)


def evaluate(candidate: Candidate, plan: Plan, prices: Prices) -> Row:
    """One plan: memory, then simulation."""
    try:
        setting: Setting = bind(plan, _machine(candidate.on))
        report, fit = figures_of_memory(setting)
        if fit is not None:
            return Row(candidate.key, "memory", str(fit), memory=report.peak, gpus=plan.world)
        found = predict_setting(setting, steps=2, detail=False)
    except SteptwinError as error:
        return Row(candidate.key, "refused", str(error))
    price = prices.get(candidate.on)
    cost = price * plan.world / 3600 / found.samples_per_s * 1e6 if price else None
    detail = json.dumps({"breakdown": msgspec.structs.asdict(found.breakdown)}, sort_keys=True)
    return Row(candidate.key, "done", "", found.step_time_s, report.peak, found.mfu, found.samples_per_s, plan.world, cost, detail)


def pareto(rows: list[Row]) -> list[Row]:
    """Rows that no other beats in time per sample and GPU, memory and cost at once."""

    def figures(row: Row) -> tuple[float, float, float]:
        return (row.gpus or 1) / (row.rate or 1e-30), float(row.memory or 0), row.cost or 0.0

    ordered = sorted(rows, key=figures)
    front: list[tuple[tuple[float, float, float], Row]] = []
    for row in ordered:
        mine = figures(row)
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other, _ in front):
            front.append((mine, row))
    return [row for _, row in front]


def _closest(rows: list[Row]) -> str:
    tight = min((row for row in rows if row.outcome == "memory" and row.memory), key=lambda row: row.memory or 0, default=None)
    if tight:
        return f"nothing in the space fits into memory; closest: {tight.key}: {tight.reason}"
    reason = next((row.reason for row in rows if row.outcome == "refused"), "it holds no plan")
    return f"nothing in the space can run ({len(rows)} points): {reason}"
