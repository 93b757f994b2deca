"""How wide the interval of a prediction must be: the figures of `sim.result.uncertainty`, fitted on published steps.

    python -m sim.accuracy.intervals [/path/to/training.csv [workers]]

prints `uncertainty.toml` and how many measurements the 80 % interval holds: in sample, and with the source or the GPU left
out whose rows are then looked at. The fit takes the figures with the least mean interval score (Gneiting and Raftery 2007,
eq. 43): the width, plus 2 / (1 - level) times by how much a measurement lies outside. It is least where the interval
is as narrow as it can be while it holds `level` of the measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

import msgspec

from sim.result.uncertainty import KINDS, LEVEL, Figures, Shares, Z, figures, relative_error

_LEAST, _MOST = 0.03, 0.69
"""Range of the relative standard errors in a fit. None is smaller than the difference between boards of one kind (3 %, assumed); none is
larger than a factor of two (ln 2)."""


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """One published step: the error of its prediction, and the kinds of costs that the prediction rests on."""

    row_id: str
    source_id: str
    gpu: str
    family: str
    miss: float
    """ln(measured / predicted)."""
    shares: Shares
    beyond: bool

    def holds(self, known: Figures) -> bool:
        return abs(self.miss) <= self.reach(known)

    def reach(self, known: Figures) -> float:
        """Half the interval's width, in logarithms."""
        return Z * relative_error(self.shares, known) * (known.width["beyond"] if self.beyond else 1.0)


def fit(rows: Sequence[Residual], start: Figures | None = None) -> Figures:
    """The figures with the least mean interval score over `rows`. The widths `measured` and `beyond` stay as in `start`, as few rows say
    anything about them. `start`: None for the figures that ship. Needs scipy."""
    import numpy as np
    from scipy.optimize import minimize

    start = start or figures()
    assumed, fitted = (np.array([[row.shares.get((kind, s), 0.0) for kind in KINDS] for row in rows]) for s in ("assumed", "fitted"))
    beyond = np.where([row.beyond for row in rows], start.width["beyond"], 1.0)
    miss = np.abs([row.miss for row in rows])

    def score(point: Any) -> float:
        value = np.clip(np.exp(point), _LEAST, _MOST)
        weighted = fitted + assumed * np.clip(exp(point[-1]), 1.0, 4.0)
        sigma = np.sqrt(value[0] ** 2 + ((weighted * value[1 : 1 + len(KINDS)]) ** 2).sum(axis=1))
        reach = Z * sigma * beyond
        return float(np.mean(2 * reach + 2 / (1 - LEVEL) * np.maximum(0.0, miss - reach)))

    first = [start.plan, *(start.sigma[kind] for kind in KINDS), start.width["assumed"]]
    found = minimize(score, np.log(first), method="Nelder-Mead", options={"maxiter": 6000, "maxfev": 6000, "adaptive": True})
    plan, *sigma, wide = (float(value) for value in np.exp(found.x))
    clipped = [round(min(max(value, _LEAST), _MOST), 3) for value in (plan, *sigma)]
    width = start.width | {"assumed": round(min(max(wide, 1.0), 4.0), 2)}
    return msgspec.structs.replace(start, plan=clipped[0], sigma=dict(zip(KINDS, clipped[1:], strict=True)), width=width)


def held(rows: Iterable[Residual], known: Figures) -> float:
    """Share (0 to 1) of the rows whose measurement lies in the interval; 0 without rows."""
    inside = [row.holds(known) for row in rows]
    return sum(inside) / len(inside) if inside else 0.0


def held_left_out(rows: Sequence[Residual], key: Callable[[Residual], str]) -> float:
    """The same share, but each row is judged by figures that were fitted without the rows that have the same `key` (a source, say)."""
    count = 0
    for name in sorted({key(row) for row in rows}):
        known = fit([row for row in rows if key(row) != name])
        count += sum(row.holds(known) for row in rows if key(row) == name)
    return count / len(rows)


def residuals(path: str | None, workers: int = 2, limit: int | None = None) -> list[Residual]:
    """A residual for each row that can be predicted. `path`: the table; None: the one that ships. `limit`: number of rows at most; None:
    all."""
    from sim.accuracy.training import validate_training

    result = validate_training(path, workers, limit)
    return [
        Residual(
            row_id=one.row_id,
            source_id=one.source_id,
            gpu=one.gpu,
            family=one.family,
            miss=log(one.measured_s / one.predicted_s),
            shares=result.found[one.row_id].shares,
            beyond=result.found[one.row_id].beyond,
        )
        for one in result.outcomes
    ]


def by_group(rows: Sequence[Residual], known: Figures, key: Callable[[Residual], str]) -> dict[str, tuple[int, float, float]]:
    """Group (as `key` gives it) -> (number of rows, share of measurements inside the interval, mean upper half width as a fraction)."""
    found = {}
    for name in sorted({key(row) for row in rows}):
        group = [row for row in rows if key(row) == name]
        wide = sum(exp(row.reach(known)) - 1.0 for row in group) / len(group)
        found[name] = (len(group), held(group, known), wide)
    return found


_WORDS = {
    "plan": "every step: jitter, and what a plan does not say",
    "gemm": "matrix products, convolutions, experts, where the GPU itself was measured",
    "memory": "memory-bound kernels and the optimizer",
    "links": "collectives and copies inside a node",
    "network": "collectives and messages between nodes, as far as nothing hides them",
    "host": "launches and Python, as far as the GPU waits for them",
    "measured": "assumed: half, as a calibrated machine's kernels are known and its framework is not",
    "assumed": "parameters of kin, where the device or the kind of kernel was not measured",
    "beyond": "the whole, for devices and sizes outside the published steps: the refit's error with sources left out over that in sample",
}


def text(known: Figures, notes: Mapping[str, float], rows: int) -> str:
    """The text of the parameter file. `notes` (name -> share of the measurements inside the interval) and `rows`, their number, become
    comments."""

    def table(values: Mapping[str, float]) -> list[str]:
        return [f"{name} = {value:.6g}" + (f"  # {_WORDS[name]}" if name in _WORDS else "") for name, value in values.items()]

    head = "# Relative standard errors of a step by what it is spent on, and how much wider less certain sources are (sim/result/uncertainty.py)."
    lines = [head, f"# Fitted on {rows} published steps by `python -m sim.accuracy.intervals`. Measurements inside the 80 % interval:"]
    lines += ["# " + ", ".join(f"{name} {share:.1%}" for name, share in notes.items()) + "."]
    lines += [
        *table({"plan": known.plan}),
        f"assumed_at_most = {known.assumed_at_most}  # share of the step on assumed costs in an interpolation",
    ]
    lines += ["", "[sigma]", *table(known.sigma), "", "[width]", *table(known.width)]
    return "\n".join([*lines, "", "[range]  # largest among the published steps", *table(known.range)])


def main(path: str | None, workers: int) -> None:
    """Prints the parameter file, then, as comments, the share inside the interval for each source, GPU and family."""
    rows = residuals(path, workers)
    known = fit(rows)
    keys: dict[str, Callable[[Residual], str]] = {
        "source": lambda row: row.source_id,
        "GPU": lambda row: row.gpu,
        "family": lambda row: row.family,
    }
    notes = {"in sample": held(rows, known)}
    notes |= {f"{name} left out": held_left_out(rows, keys[name]) for name in ("source", "GPU")}
    print(text(known, notes, len(rows)))
    for name, key in keys.items():
        for group, (count, share, wide) in by_group(rows, known, key).items():
            print(f"# {name} {group}: {count} rows, {share:.0%} inside, mean reach {wide:.0%}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 2)
