"""Why a step takes as long as it does, and what would change it: the critical path, faster resources (`sensitivity`), and other plans."""

from __future__ import annotations

from typing import Any

import msgspec

from sim.bind import Setting, bind
from sim.figures import figures_of_memory
from sim.plan import Plan
from sim.planning.neighbours import neighbours
from sim.planning.progress import Progress, Say
from sim.planning.scaled import COLLECTIVES, HOST, INPUT, KINDS, MEMORY, MESSAGES, link_kinds
from sim.planning.sensitivity import Sensitivity
from sim.planning.studied import Studied
from sim.predict import predict_setting
from sim.tables import Tabular
from topologies.errors import SteptwinError

_LEAST = 1e-3
"""Of the step: a change of plan that gains less is none."""


class Change(msgspec.Struct, frozen=True):
    """A change of plan and what it gains."""

    overrides: tuple[str, ...]
    step_time_s: float
    gain: float


class Explanation(Tabular, msgspec.Struct, frozen=True):
    """Where the step goes and what would change it. `path`: seconds on the critical path by class. Prints as text."""

    step_time_s: float
    """As `predict` says it."""
    verdict: str
    path: tuple[tuple[str, float], ...]
    sensitivities: tuple[Sensitivity, ...]
    """Of the kinds of ops, and of the kinds of links that anything depends on; what would shorten the step most comes first."""
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        step = self.step_time_s
        lines = [f"step {step * 1e3:,.3f} ms, {self.verdict}", "", "critical path"]
        lines += [f"  {name:<22} {seconds * 1e3:12,.3f} ms  {seconds / step:6.1%}" for name, seconds in self.path[:_SHOWN]]
        lines += ["", f"  {'resource':<22} {'without limit':>15}  elasticity  +10 %: path  simulated"]
        for one in self.sensitivities:
            lines.append(
                f"  {one.resource:<22} {one.infinitely_fast * 1e3:12,.3f} ms  {one.elasticity:10.3f}  {one.path_ten_percent:11.2%}  {one.ten_percent:9.2%}"
            )
        if self.changes:
            lines += ["", "changes of plan"]
            lines += [f"  {' '.join(one.overrides):<48} {one.step_time_s * 1e3:12,.3f} ms  {-one.gain:6.1%}" for one in self.changes]
        return "\n".join(lines)

    def _rows(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(one) for one in self.sensitivities]


_SHOWN = 10


def explain(setting: Setting, tries: int = 12, say: Say | None = None) -> Explanation:
    """Critical path, sensitivities, a verdict and the best changes of plan. `say` is told how far it is."""
    if say:
        say("simulating the step, for its critical path")
    studied = Studied(setting)
    links = link_kinds(setting.topology)
    progress = Progress(len(KINDS) + len(links), "resources made faster", say)
    found: list[Sensitivity] = []
    for kind in KINDS:
        found.append(studied.of_kind(kind))
        progress.more()
    verdict = _verdict(sorted(found, key=lambda s: s.infinitely_fast), studied.step)
    for kind in links:
        one = studied.of_links(kind)
        found += [one] if one is not None else []
        progress.more()
    found.sort(key=lambda s: s.infinitely_fast)
    changes = tuple(best_changes(setting, studied.step, tries, say))
    return Explanation(studied.step, verdict, studied.path(), tuple(found), changes)


_BOUND = {
    MEMORY: "memory-bound",
    COLLECTIVES: "communication-bound",
    MESSAGES: "communication-bound",
    HOST: "host-bound",
    INPUT: "data-bound",
}


def _verdict(found: list[Sensitivity], step: float) -> str:
    """The resource without which the step would be shortest."""
    best = found[0]
    bound = _BOUND.get(best.resource, "compute-bound")
    return f"{bound}: with infinitely fast {best.resource} the step would take {best.infinitely_fast / step:.0%} of its time"


def best_changes(setting: Setting, step: float, tries: int = 12, say: Say | None = None) -> list[Change]:
    """The three single changes of plan that gain most (only those that can run, fit and gain), of the first `tries` that fit."""
    found: list[Change] = []
    near = neighbours(setting.plan)
    progress = Progress(min(tries, len(near)), "changes of plan tried", say)
    for overrides, plan in near:
        if tries == 0:
            break
        seconds = _seconds(plan, setting)
        if seconds is None:
            continue
        tries -= 1
        progress.more()
        if seconds < step * (1.0 - _LEAST):
            found.append(Change(overrides, seconds, 1.0 - seconds / step))
    return sorted(found, key=lambda change: change.step_time_s)[:3]


def _seconds(plan: Plan, setting: Setting) -> float | None:
    """The plan's step on the same machine; None where it cannot run there: layers that do not split so, memory that is too small."""
    try:
        near = bind(plan, setting.topology)
        if figures_of_memory(near, remedies=False)[1] is not None:
            return None
        return predict_setting(near, detail=False).step_time_s
    except SteptwinError:
        return None
