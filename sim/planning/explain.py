"""Why a step takes as long as it does, and what would change it.

Elasticities come from the critical path (`gradient`): what the step owes to the ops of a resource, and for a kind of link how much less
each of these would cost on faster links. They are exact for small changes. Beside them stands what re-simulation says of 10 % more, and
of a resource without limit: the two differ where another path becomes critical on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sim.bind import Setting, bind
from sim.cost.price import Cost, Pricer
from sim.detail import STEPS
from sim.engine.run import simulate
from sim.engine.steps import step_times
from sim.figures import figures_of_memory
from sim.lower.step import lower
from sim.plan import Plan
from sim.planning.gradient import Gradient, gradient
from sim.planning.neighbours import neighbours
from sim.planning.scaled import COLLECTIVES, HOST, INPUT, KINDS, MEMORY, MESSAGES, Scaled, faster_links, kind_of, link_kinds
from sim.predict import predict_setting
from sim.pricer import pricer_for
from sim.program import Op, Program, full_id
from sim.tables import Tabular
from sim.timeline.metrics import critical_path, step_time
from sim.trace import Span, Trace
from topologies.errors import SteptwinError

_FAST = 1e6
_MORE = 1.1
_LITTLE = 1.001
"""Factor at which the prices of links are compared: small enough for a derivative."""
_LEAST = 1e-3
"""Of the step: a change of plan that gains less is none."""


class Sensitivity(msgspec.Struct, frozen=True):
    """What the step gains from one faster resource. `infinitely_fast` in seconds; the others as a share of the step."""

    resource: str
    infinitely_fast: float
    ten_percent: float
    """With 10 % more of it, simulated."""
    elasticity: float = 0.0
    """Change of the step by a small change of the resource, both relative, from the critical path: -0.5 is half a percent less for each
    percent more."""
    path_ten_percent: float = 0.0
    """With 10 % more of it, as the critical path alone says."""


class Change(msgspec.Struct, frozen=True):
    """A change of plan and what it gains."""

    overrides: tuple[str, ...]
    step_time_s: float
    gain: float


class Explanation(Tabular, msgspec.Struct, frozen=True):
    """Where the step goes and what would change it. `path`: seconds on the critical path by class. Prints as text."""

    step_time_s: float
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


class Noted:
    """A pricer that remembers which collectives and messages were asked for, to price them again elsewhere."""

    def __init__(self, inner: Pricer) -> None:
        self._inner = inner
        self.capacity: Mapping[str, float] = inner.capacity
        self.collectives: dict[tuple[int, int], tuple[Op, tuple[int, ...], int]] = {}
        """By op and first member."""
        self.messages: dict[tuple[int, int, int], tuple[Op, int, int, int]] = {}
        """By bytes and both ends."""

    def local(self, op: Op, rank: int) -> Cost:
        """As the pricer says."""
        return self._inner.local(op, rank)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """As the pricer says, and noted."""
        self.collectives[id(op), members[0]] = (op, members, siblings)
        return self._inner.collective(op, members, siblings)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """As the pricer says, and noted."""
        self.messages[op.bytes, source, target] = (op, source, target, siblings)
        return self._inner.message(op, source, target, siblings)

    def slowdown(self, rank: int) -> tuple[float, float]:
        """As the pricer says."""
        return self._inner.slowdown(rank)


def explain(setting: Setting, tries: int = 12) -> Explanation:
    """Critical path, sensitivities, a verdict and the best changes of plan."""
    plan, topology = setting.plan, setting.topology
    program = lower(plan, setting.network, setting.framework, topology.kind, STEPS)
    study = Study(setting, program)

    def again(pricer: Pricer) -> float:
        # The engine that only says when steps end: the same times.
        return step_times(program, pricer, True, setting.foldable)[study.trace.reported].seconds

    found = [study.of_kind(kind, again) for kind in KINDS]
    verdict = _verdict(sorted(found, key=lambda s: s.infinitely_fast), study.step)
    found += [one for kind in link_kinds(topology) if (one := study.of_links(kind, again)) is not None]
    found.sort(key=lambda s: s.infinitely_fast)
    changes = tuple(best_changes(setting, study.step, tries))
    return Explanation(study.step, verdict, tuple(critical_path(study.trace)), tuple(found), changes)


class Study:
    """One simulated run of a program, with what its step owes to each op."""

    def __init__(self, setting: Setting, program: Program) -> None:
        self.setting, self.program = setting, program
        self.pricer = pricer_for(setting)
        self.noted = Noted(self.pricer)
        self.trace: Trace = simulate(program, self.noted, True, setting.foldable)
        self.step = step_time(self.trace)
        ranks = set(self.trace.ranks)
        self.ops: dict[str, Op] = {
            full_id(rank, call, op): op for rank in ranks for thread in program.threads(rank) for call, op in program.ops(rank, thread)
        }
        self.gradient: Gradient = gradient(self.trace, lambda rank: self.pricer.slowdown(rank)[0], self._cost_of)
        self._present = {kind_of(span) for span in self.trace.spans}

    def _cost_of(self, span: Span) -> Cost | None:
        return self.pricer.local(self.ops[span.id], span.rank) if span.kind == "compute" else None

    def owed(self) -> dict[str, float]:
        """Share of the step that rests on each resource of `KINDS`; launches are the host's."""
        found = dict.fromkeys(KINDS, 0.0)
        for index, seconds in self.gradient.spans.items():
            kind = kind_of(self.trace.spans[index])
            found[kind] = found.get(kind, 0.0) + seconds / self.step
        found[HOST] += self.gradient.launches / self.step
        return found

    def of_kind(self, kind: str, again: Callable[[Pricer], float]) -> Sensitivity:
        """Of a resource of `KINDS`; what does not occur in the program changes nothing."""
        if kind not in self._present and kind != HOST:
            return Sensitivity(kind, self.step, 0.0)
        owed = self.owed()[kind]
        more = again(Scaled(self.pricer, kind, _MORE)) / self.step - 1.0
        return Sensitivity(kind, again(Scaled(self.pricer, kind, _FAST)), more, -owed, owed * (1.0 / _MORE - 1.0))

    def of_links(self, kind: str, again: Callable[[Pricer], float]) -> Sensitivity | None:
        """Of a kind of link; None when nothing that the program exchanges or copies costs less on faster ones."""
        by_path = {factor: self.on_links(kind, factor) for factor in (_LITTLE, _MORE)}
        if all(change is None for change in by_path.values()):
            return None
        elasticity = (by_path[_LITTLE] or 0.0) / (_LITTLE - 1.0)
        more = again(self._on(kind, _MORE)) / self.step - 1.0
        return Sensitivity(f"{kind} links", again(self._on(kind, _FAST)), more, elasticity, by_path[_MORE] or 0.0)

    def _on(self, kind: str, factor: float) -> Pricer:
        return pricer_for(msgspec.structs.replace(self.setting, topology=faster_links(self.setting.topology, kind, factor)))

    def on_links(self, kind: str, factor: float) -> float | None:
        """Change of the step, as a share of it, when what is on its path costs what it does on faster links; None: nothing costs less."""
        other = self._on(kind, factor)
        ratios: dict[tuple[int, int], float] = {}
        found, any_ = 0.0, False
        for index, seconds in self.gradient.spans.items():
            span = self.trace.spans[index]
            if span.kind not in ("collective", "send", "recv", "copy"):
                continue
            op = self.ops[span.id]
            ratio = ratios.get((id(op), span.rank))
            if ratio is None:
                ratio = ratios[id(op), span.rank] = self._ratio(op, span.rank, other)
            any_ = any_ or ratio != 1.0
            found += seconds / self.step * (ratio - 1.0)
        return found if any_ or self._elsewhere(other) else None

    def _elsewhere(self, other: Pricer) -> bool:
        """Something costs less there, though it may not be on the path."""
        return any(
            other.collective(*asked).seconds != self.pricer.collective(*asked).seconds for asked in self.noted.collectives.values()
        ) or any(other.message(*asked).seconds != self.pricer.message(*asked).seconds for asked in self.noted.messages.values())

    def _ratio(self, op: Op, rank: int, other: Pricer) -> float:
        """What an op costs there, over what it costs here."""
        if op.kind == "copy":
            mine, theirs = self.pricer.local(op, rank).seconds, other.local(op, rank).seconds
        else:
            members = self.program.mesh.group(op.group, rank)
            if op.kind == "collective":
                known = self.noted.collectives.get((id(op), members[0]))
                if known is None:
                    return 1.0
                mine, theirs = self.pricer.collective(*known).seconds, other.collective(*known).seconds
            else:
                peer = members[(members.index(rank) + op.peer) % len(members)]
                ends = (rank, peer) if op.kind == "send" else (peer, rank)
                sent = self.noted.messages.get((op.bytes, *ends))
                if sent is None:
                    return 1.0
                mine, theirs = self.pricer.message(*sent).seconds, other.message(*sent).seconds
        return theirs / mine if mine > 0 else 1.0


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


def best_changes(setting: Setting, step: float, tries: int = 12) -> list[Change]:
    """The three single changes of plan that gain most (only those that fit and gain)."""
    found: list[Change] = []
    for overrides, plan in neighbours(setting.plan)[:tries]:
        near = _try(plan, setting)
        if near is None or figures_of_memory(near)[1] is not None:
            continue
        seconds = predict_setting(near, steps=2, detail=False).step_time_s
        if seconds < step * (1.0 - _LEAST):
            found.append(Change(overrides, seconds, 1.0 - seconds / step))
    return sorted(found, key=lambda change: change.step_time_s)[:3]


def _try(plan: Plan, setting: Setting) -> Setting | None:
    try:
        return bind(plan, setting.topology)
    except SteptwinError:
        return None
