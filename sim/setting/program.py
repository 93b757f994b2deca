"""Lowers the plan of a setting to a program, or another plan with the same model and split."""

from __future__ import annotations

from sim.lower.short import Shortener
from sim.lower.step import lower
from sim.plan import Plan
from sim.program import Program
from sim.setting.bind import Setting


def program_for(
    setting: Setting, steps: int, plan: Plan | None = None, *, short: Shortener | None = None, counts: tuple[int, ...] = ()
) -> Program:
    """The program of `steps` optimizer steps on every rank. `plan`: replaces the setting's own plan, from which it may differ in
    output, updates or input; None: the setting's own. `short`, `counts` and what is raised: as for `sim.lower.step.lower`."""
    return lower(plan or setting.plan, setting.network, setting.framework, setting.topology.kind, steps, short, counts)
