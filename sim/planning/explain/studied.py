"""The steps that an explanation looks at: one, or those with and without averaging of local updates, and what output adds to them.

Together they take what `predict` says: of local updates each counts by how often it comes; the one step of asynchronous ranks, which differs
from the next, stands for their mean step. A step of many micro-batches is one of few and what each round more adds, where rounds are alike
(`sim.steady.rounds`): all that is asked of it (seconds on the path, what is owed to an op) grows by the same with each round, too. What logging and
checkpoints add is no resource's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.steps import step_times
from sim.plan import Plan
from sim.planning.explain.scaled import Scaled
from sim.planning.explain.sensitivity import Sensitivity, Study
from sim.program import Program
from sim.setting.bind import Setting
from sim.steady.detail import STEPS
from sim.steady.periods import evened, kinds, mean_step, over_period
from sim.steady.rounds import confirmed, shortens, told_by
from sim.steady.settled import until_settled
from sim.steady.stalls import output_seconds
from sim.timeline.metrics import mean_path

_FAST = 1e6
_MORE = 1.1
_LITTLE = 1.001
"""Factor at which the prices of links are compared: small enough for a derivative."""
_NOTHING = 1e-12
Priced = Callable[[Study, float], Pricer]
"""The prices of a step where a resource is so many times as fast."""


class Part(NamedTuple):
    """A simulated step that is `weight` of the mean one."""

    weight: float
    study: Study


class Studied:
    """All of them. `step` is their mean with output, in seconds."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting.quiet
        rounds = told_by(self._setting)
        if rounds:
            self._kinds = [Part(share, _study(self._setting, count)) for count, share in rounds]
        else:
            self._kinds = [Part(share, _study(msgspec.structs.replace(setting, plan=one))) for one, share in _sorts(self._setting.plan)]
        self._by_rounds, self._shortens = bool(rounds), shortens(self._setting)
        self._fed: Study | None = None
        self._untraced: dict[Study, float] = {}
        self.first = self._kinds[0].study
        parts = self._on_path()
        self._stretch = self._drawn_out(sum(part.weight * part.study.step for part in parts))
        self.parts = tuple(Part(weight * self._stretch, study) for weight, study in parts)
        step = sum(part.weight * part.study.step for part in self.parts)
        self.output = output_seconds(setting, self.first.pricer, step, [])
        self.step = step + self.output

    @property
    def programs(self) -> list[tuple[float, Program]]:
        """Those of the kinds of steps, and how many times each is in a mean one; any of asynchronous ranks' stands for all."""
        return [(weight, study.program) for weight, study in self._kinds]

    def _drawn_out(self, together: float) -> float:
        """By how much a mean step is longer than that of ranks which keep together, where they do not."""
        if self._setting.plan.asynchronous:
            return mean_step(self._setting, self.first.pricer, STEPS).total / together
        mean = over_period(self._setting, self.first.pricer)
        return 1.0 if mean is None else mean / together

    def _on_path(self) -> tuple[Part, ...]:
        """Those that what binds a mean step is found in."""
        if self._by_rounds:
            return tuple(self._kinds)
        studies = [study for _, study in self._kinds]
        times = [study.step for study in studies]
        weights = evened(self._setting, self.first.pricer, times, lambda one: self._stocked(one).step).weights
        if not weights:
            return tuple(self._kinds)
        studies += [self._fed] if self._fed else []
        return tuple(Part(weight, study) for weight, study in zip(weights, studies, strict=False) if weight)

    def _stocked(self, setting: Setting) -> Study:
        """Of a step without averaging whose batches are in store."""
        self._fed = self._fed or _study(setting)
        return self._fed

    @cached_property
    def _confirmed(self) -> float:
        """Of a step of many micro-batches, what the engine without a trace says at the study's own prices."""
        return confirmed(self._setting, self.first.pricer)

    def _mean(self, priced: Callable[[Study], Pricer]) -> float:
        """Seconds of a mean step at other prices, with output; by the engine that only says when steps end, as the share that it finds of the step
        at the study's own: what both say may differ by a percent (`sim.engine.condense`), more than some resources bring. Where a round of micro-batches
        takes less another may be what binds it, and come to its pace later."""
        if self._shortens:
            return (self.step - self.output) * confirmed(self._setting, priced(self.first)) / self._confirmed + self.output

        def again(study: Study) -> float:
            if study not in self._untraced:
                self._untraced[study] = _untraced(study, study.pricer)
            return study.step * _untraced(study, priced(study)) / self._untraced[study]

        times = [again(study) for _, study in self._kinds]
        saved = evened(self._setting, priced(self.first), times, lambda one: again(self._stocked(one))).saved
        together = sum(weight * seconds for (weight, _), seconds in zip(self._kinds, times, strict=True)) - saved
        return together * self._stretch + self.output

    def path(self) -> tuple[tuple[str, float], ...]:
        """Seconds on the critical path by class, most first; they sum to the step."""
        return tuple(mean_path(((weight, study.trace) for weight, study in self.parts), self.output))

    def of_kind(self, kind: str) -> Sensitivity:
        """Of a kind of ops; what does not occur in the program changes nothing."""
        owed = self._share(lambda study: study.owes(kind))
        if owed is None:
            return Sensitivity(kind, self.step, 0.0)
        return self._sensitivity(kind, lambda study, factor: Scaled(study.pricer, kind, factor), -owed, owed * (1.0 / _MORE - 1.0))

    def of_links(self, kind: str) -> Sensitivity | None:
        """Of a kind of link; None when nothing that the program exchanges or copies costs less on faster ones."""
        little = self._share(lambda study: study.on_links(kind, _LITTLE))
        more = self._share(lambda study: study.on_links(kind, _MORE))
        if little is None and more is None:
            return None
        return self._sensitivity(f"{kind} links", lambda study, by: study.on(kind, by), (little or 0.0) / (_LITTLE - 1.0), more or 0.0)

    def _share(self, of: Callable[[Study], float | None]) -> float | None:
        """Of the mean step, what is a share of each; None where it is of none."""
        found = [(part, of(part.study)) for part in self.parts]
        if all(share is None for _, share in found):
            return None
        return sum(weight * study.step * (share or 0.0) for (weight, study), share in found) / self.step

    def _sensitivity(self, resource: str, priced: Priced, elasticity: float, by_path: float) -> Sensitivity:
        more, without_limit = self._mean(lambda study: priced(study, _MORE)), self._mean(lambda study: priced(study, _FAST))
        return Sensitivity(resource, without_limit, more / self.step - 1.0, _felt(elasticity), _felt(by_path))


def _felt(share: float) -> float:
    """A share of the step, or nothing where it is what sums of equal seconds leave."""
    return share if abs(share) > _NOTHING else 0.0


def _untraced(study: Study, pricer: Pricer) -> float:
    """Seconds of the study's step at such prices."""
    return step_times(study.program, pricer, study.setting.places)[study.trace.reported].settled


def _sorts(plan: Plan) -> tuple[tuple[Plan, float], ...]:
    """Of asynchronous ranks any step: it stands for the others."""
    return ((plan, 1.0),) if plan.asynchronous else kinds(plan)


def _study(setting: Setting, count: int = 0) -> Study:
    """A settled step; `count`: of so many micro-batches, where these are not the plan's."""
    return until_settled(lambda steps: Study(setting, steps, (count,) * steps if count else ()), STEPS)
