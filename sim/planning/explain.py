"""Why a step takes as long as it does, and what would change it.

Sensitivities come from re-simulation: a resource is made faster (by 10 %, or without limit) and the step runs again in
virtual time, so they hold whatever overlaps with what.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sim.bind import Setting, bind
from sim.cost.price import Cost, Pricer
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.metrics import critical_path, step_time
from sim.plan import Plan
from sim.planning.neighbours import neighbours
from sim.predict import STEPS, figures_of_memory, predict_setting, pricer_for
from sim.program import Op
from topologies.errors import SteptwinError

_FAST = 1e-6
KINDS = ("compute", "memory-bound kernels", "collectives", "point-to-point", "host", "input")
"""Resources that are scaled one at a time."""


class Sensitivity(msgspec.Struct, frozen=True):
    """What the step gains from one faster resource. Seconds; `ten_percent` as a share of the step."""

    resource: str
    infinitely_fast: float
    ten_percent: float


class Change(msgspec.Struct, frozen=True):
    """A change of plan and what it gains."""

    overrides: tuple[str, ...]
    step_time_s: float
    gain: float


class Explanation(msgspec.Struct, frozen=True):
    step_time_s: float
    verdict: str
    path: tuple[tuple[str, float], ...]
    sensitivities: tuple[Sensitivity, ...]
    changes: tuple[Change, ...]


class Scaled:
    """A pricer with one resource `factor` times as fast."""

    def __init__(self, inner: Pricer, kind: str, factor: float) -> None:
        self._inner, self._kind, self._factor = inner, kind, factor
        self.capacity = inner.capacity

    def _scale(self, cost: Cost, applies: bool, host: bool) -> Cost:
        device, launch = (1.0 / self._factor if applies else 1.0), (1.0 / self._factor if host else 1.0)
        seconds, spent, ready = cost.seconds * device, cost.host * launch, cost.ready
        if ready:
            # A chain of kernels ends one launch after its device time, or one kernel after its launches, whichever is the slower chain.
            by_device, by_host = seconds + (ready - cost.seconds) * launch, spent + (ready - cost.host) * device
            ready = by_device if cost.seconds >= cost.host else by_host
        uses = tuple((name, amount / device) for name, amount in cost.uses)
        return Cost(seconds, cost.source, cost.latency * device, uses, spent, ready)

    def local(self, op: Op, rank: int) -> Cost:
        cost = self._inner.local(op, rank)
        gemm = op.cls in ("gemm", "attention", "conv", "moe", "rnn")
        data = op.cls == "data" or op.lane.startswith("loader")
        applies = {
            "compute": op.kind == "compute" and gemm,
            "memory-bound kernels": op.kind == "compute" and not gemm,
            "host": op.kind == "host" and not data,
            "input": data,
        }.get(self._kind, False)
        return self._scale(cost, applies, self._kind == "host")

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self._scale(self._inner.collective(op, members, siblings), self._kind == "collectives", False)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self._scale(self._inner.message(op, source, target, siblings), self._kind == "point-to-point", False)

    def slowdown(self, rank: int) -> tuple[float, float]:
        return self._inner.slowdown(rank)


def explain(setting: Setting, tries: int = 12) -> Explanation:
    """Critical path, sensitivities, a verdict and the best changes of plan."""
    plan, topology = setting.plan, setting.topology
    program = lower(plan, setting.network, setting.framework, topology.kind, STEPS)
    pricer = pricer_for(setting)
    trace = simulate(program, pricer, True, topology.symmetric)
    step = step_time(trace)

    def scaled(kind: str, factor: float) -> float:
        return step_time(simulate(program, Scaled(pricer, kind, factor), True, topology.symmetric))

    found = [_sensitivity(kind, step, scaled) for kind in KINDS]
    found.sort(key=lambda s: s.infinitely_fast)
    return Explanation(step, _verdict(found, step), tuple(critical_path(trace)), tuple(found), tuple(best_changes(setting, step, tries)))


def _sensitivity(kind: str, step: float, scaled: Callable[[str, float], float]) -> Sensitivity:
    return Sensitivity(kind, scaled(kind, 1 / _FAST), scaled(kind, 1.1) / step - 1.0)


_BOUND = {
    "compute": "compute-bound",
    "memory-bound kernels": "memory-bound",
    "collectives": "communication-bound",
    "point-to-point": "communication-bound",
    "host": "host-bound",
    "input": "data-bound",
}


def _verdict(found: list[Sensitivity], step: float) -> str:
    """The resource without which the step would be shortest."""
    best = found[0]
    return (
        f"{_BOUND[best.resource]}: with infinitely fast {best.resource} the step would take {best.infinitely_fast / step:.0%} of its time"
    )


def best_changes(setting: Setting, step: float, tries: int = 12) -> list[Change]:
    """The three single changes of plan that gain most (only those that fit and gain)."""
    found: list[Change] = []
    for overrides, plan in neighbours(setting.plan)[:tries]:
        near = _try(plan, setting)
        if near is None or figures_of_memory(near)[1] is not None:
            continue
        seconds = predict_setting(near, steps=2, detail=False).step_time_s
        if seconds < step:
            found.append(Change(overrides, seconds, 1.0 - seconds / step))
    return sorted(found, key=lambda change: change.step_time_s)[:3]


def _try(plan: Plan, setting: Setting) -> Setting | None:
    try:
        return bind(plan, setting.topology)
    except SteptwinError:
        return None
