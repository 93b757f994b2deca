"""The program of a setting: its plan, or one that differs from it in what its model and split do not depend on, lowered."""

from __future__ import annotations

from sim.lower.short import Shortener
from sim.lower.step import lower
from sim.plan import Plan
from sim.program import Program
from sim.setting.bind import Setting


def program_for(
    setting: Setting, steps: int, plan: Plan | None = None, *, short: Shortener | None = None, counts: tuple[int, ...] = ()
) -> Program:
    """The program of `steps` optimizer steps on every rank. `plan`: in place of the setting's own one with other output, updates or input; `short`,
    `counts` and what is raised: as of `sim.lower.step.lower`."""
    return lower(plan or setting.plan, setting.network, setting.framework, setting.topology.kind, steps, short, counts)
