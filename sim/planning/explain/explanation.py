"""Why a step takes as long as it does, and what would change it: the critical path, faster resources (`sensitivity`), and other plans."""

from __future__ import annotations

from typing import Any

import msgspec

from sim.arguments import check_whole
from sim.files.machinefile import machine_words
from sim.memory.report import UNFIT, Fill
from sim.planning.explain.changes import TRIES, Change, best_changes
from sim.planning.explain.scaled import COLLECTIVES, HOST, INPUT, KINDS, MEMORY, MESSAGES, link_kinds
from sim.planning.explain.sensitivity import Sensitivity
from sim.planning.explain.studied import Studied
from sim.planning.progress import Progress, Say
from sim.result import uncertainty
from sim.result.figures import fill_of, fits
from sim.setting.bind import Setting
from sim.tables import Tabular

UNFIT_YET = f"{UNFIT}; only changes that do are proposed"
SHOWN = 10
"""Classes of the critical path that are printed."""


class Explanation(Tabular, msgspec.Struct, frozen=True):
    """Where the step goes and what would change it. `path`: seconds on the critical path by class. Prints as text."""

    step_time_s: float
    """As `predict` says it."""
    verdict: str
    path: tuple[tuple[str, float], ...]
    sensitivities: tuple[Sensitivity, ...]
    """Of the kinds of ops, and of the kinds of links that anything depends on; what would shorten the step most comes first."""
    changes: tuple[Change, ...]
    interval: tuple[float, float] | None = None
    """80 % interval of the step, in seconds."""
    fits: bool = True
    """Whether the plan's memory is enough; the figures are what it would take if it were."""
    plan: str = ""
    topology: str = ""
    """With what was changed about it."""
    memory: Fill | None = None

    @property
    def room(self) -> str:
        """What the plan takes of a device, in words."""
        return f"{self.memory or ''}" if self.fits else UNFIT_YET

    def __str__(self) -> str:
        step = self.step_time_s
        head = [f"{self.plan} on {self.topology}"] if self.plan else []
        lines = [*head, f"step {step * 1e3:,.3f} ms, {self.verdict}", f"memory {self.room}", "", "critical path"]
        lines += [f"  {name:<22} {seconds * 1e3:12,.3f} ms  {seconds / step:6.1%}" for name, seconds in self.path[:SHOWN]]
        lines += ["", f"  {'resource':<22} {'without limit':>15}  elasticity  +10 %: path  simulated"]
        for one in self.sensitivities:
            lines.append(
                f"  {one.resource:<22} {one.infinitely_fast * 1e3:12,.3f} ms  {one.elasticity:10.3f}  {one.path_ten_percent:11.2%}  {one.ten_percent:9.2%}"
            )
        if self.changes:
            lines += ["", "changes of plan"]
            lines += [
                f"  {' '.join(one.overrides):<48} {one.step_time_s * 1e3:12,.3f} ms  {-one.gain:6.1%}  {one.memory or ''}"
                for one in self.changes
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (`sim.files.forms.planning`); plain values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        found["critical_path"] = [{"class": name, "seconds": seconds} for name, seconds in found.pop("path")]
        ends = found.pop("interval")
        found["interval_s"] = ends and {"low": ends[0], "high": ends[1], "level": uncertainty.LEVEL}
        for one in found["sensitivities"]:
            one["infinitely_fast_s"] = one.pop("infinitely_fast")
        return found

    def _rows(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(one) for one in self.sensitivities]


def explain(setting: Setting, tries: int = TRIES, say: Say | None = None) -> Explanation:
    """Critical path, sensitivities, a verdict and the best changes of plan. `say` is told how far it is."""
    check_whole("tries", tries, "changes of plan to simulate", least=0)
    links = link_kinds(setting.topology)
    if say:
        say(
            f"simulating the step, for its critical path; then with each of {len(KINDS) + len(links)} resources faster and up to {tries} changes of plan"
        )
    studied = Studied(setting)
    progress = Progress(len(KINDS) + len(links), "resources made faster", say)
    found: list[Sensitivity] = []
    for kind in KINDS:
        found.append(studied.of_kind(kind))
        progress.more()
    verdict = _verdict(sorted(found, key=lambda s: s.infinitely_fast), studied)
    for kind in links:
        one = studied.of_links(kind)
        if one is None and kind == "net" and setting.topology.nodes_of(setting.plan.world) > 1:
            one = Sensitivity("net links", studied.step, 0.0)  # that a network of several nodes changes nothing is an answer, too
        found += [one] if one is not None else []
        progress.more()
    found.sort(key=lambda s: s.infinitely_fast)
    changes = tuple(best_changes(setting, studied.step, tries, say))
    name, on = setting.plan.name or setting.plan.model_name, machine_words(setting.topology)
    room = fits(setting), name, on, fill_of(setting)
    return Explanation(studied.step, verdict, studied.path(), tuple(found), changes, _interval(setting, studied), *room)


def _interval(setting: Setting, studied: Studied) -> tuple[float, float]:
    """As `predict` finds it."""
    plan, topology = setting.plan, setting.topology
    shares = uncertainty.mean_shares(studied.programs, studied.first.pricer, topology, plan, studied.step - studied.output)
    found = uncertainty.interval(studied.step, shares, uncertainty.outside(plan, topology, setting.network.parameters))
    return found.low, found.high


_BOUND = {
    MEMORY: "memory-bound",
    COLLECTIVES: "communication-bound",
    MESSAGES: "communication-bound",
    HOST: "host-bound",
    INPUT: "data-bound",
}


_NEAR = 0.05
"""Of the step: resources whose absence shortens it as much within this are named together."""


def _verdict(found: list[Sensitivity], studied: Studied) -> str:
    """The resource without which the step would be shortest (the first of `found`) and those that come near it, or output, where the step gains more
    without that."""
    step, quiet, best = studied.step, studied.step - studied.output, found[0]
    if quiet < best.infinitely_fast:
        return f"output-bound: without logging, syncs and checkpoints the step would take {quiet / step:.0%} of its time"
    bound = _BOUND.get(best.resource, "compute-bound")
    most = min(step * (1 - _NEAR), best.infinitely_fast + _NEAR * step)
    near = ", ".join(f"{one.resource} {one.infinitely_fast / step:.0%}" for one in found[1:] if one.infinitely_fast < most)
    return f"{bound}: with infinitely fast {best.resource} the step would take {best.infinitely_fast / step:.0%} of its time" + (
        near and f"; next: {near}"
    )
