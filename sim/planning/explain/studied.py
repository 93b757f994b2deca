"""The steps that an explanation looks at: one, or those with and without averaging of local updates, and what output adds to them.

Together they take what `predict` says: of local updates each counts by how often it comes; the one step of asynchronous ranks, which differs
from the next, stands for their mean step. What logging and checkpoints add is no resource's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.steps import step_times
from sim.plan import Output
from sim.planning.explain.sensitivity import Sensitivity, Study
from sim.setting.bind import Setting
from sim.steady.detail import STEPS
from sim.steady.periods import evened, kinds, mean_step
from sim.steady.settled import until_settled
from sim.steady.stalls import output_seconds
from sim.timeline.metrics import critical_path


class Part(NamedTuple):
    """A simulated step that is `weight` of the mean one."""

    weight: float
    study: Study

    def again(self, pricer: Pricer) -> float:
        """Seconds of the step at other prices, by the engine that only says when steps end: the same times."""
        study = self.study
        return step_times(study.program, pricer, True, study.setting.places)[study.trace.reported].settled


class Studied:
    """All of them. `step` is their mean with output, in seconds."""

    def __init__(self, setting: Setting) -> None:
        quiet = msgspec.structs.replace(setting, plan=msgspec.structs.replace(setting.plan, output=Output()))
        self.parts = _parts(quiet)
        step = sum(part.weight * part.study.step for part in self.parts)
        self.output = output_seconds(setting, self.parts[0].study.pricer, step, True, [])
        self.step = step + self.output

    def path(self) -> tuple[tuple[str, float], ...]:
        """Seconds on the critical path by class, most first; they sum to the step."""
        sums = {"output": self.output} if self.output else {}
        for weight, study in self.parts:
            for name, seconds in critical_path(study.trace):
                sums[name] = sums.get(name, 0.0) + weight * seconds
        return tuple(sorted(sums.items(), key=lambda pair: -pair[1]))

    def of_kind(self, kind: str) -> Sensitivity:
        """Of a kind of ops."""
        return self._together([(part, part.study.of_kind(kind, part.again)) for part in self.parts])

    def of_links(self, kind: str) -> Sensitivity | None:
        """Of a kind of link; None when nothing costs less on faster ones."""
        found = [(part, part.study.of_links(kind, part.again)) for part in self.parts]
        resource = next((one.resource for _, one in found if one is not None), None)
        if resource is None:
            return None
        return self._together([(part, one or Sensitivity(resource, part.study.step, 0.0)) for part, one in found])

    def _together(self, found: list[tuple[Part, Sensitivity]]) -> Sensitivity:
        def share(of: Callable[[Sensitivity], float]) -> float:
            return sum(part.weight * part.study.step * of(one) for part, one in found) / self.step

        return Sensitivity(
            found[0][1].resource,
            sum(part.weight * one.infinitely_fast for part, one in found) + self.output,
            share(lambda one: one.ten_percent),
            share(lambda one: one.elasticity),
            share(lambda one: one.path_ten_percent),
        )


def _parts(setting: Setting) -> tuple[Part, ...]:
    if setting.plan.asynchronous:
        study = _study(setting)
        return (Part(mean_step(setting, study.pricer, STEPS).total / study.step, study),)
    studies = [(share, _study(msgspec.structs.replace(setting, plan=plan))) for plan, share in kinds(setting.plan)]
    saved = evened(setting, studies[0][1].pricer, [study.step for _, study in studies], lambda one: _study(one).step)
    shorter = 1.0 - saved / sum(share * study.step for share, study in studies)
    return tuple(Part(share * shorter, study) for share, study in studies)


def _study(setting: Setting) -> Study:
    """A settled step."""
    return until_settled(lambda steps: Study(setting, steps), STEPS)
