"""On what the step of a published row is spent, as intervals count it."""

from __future__ import annotations

from sim.accuracy.rows.plans import Case
from sim.result.uncertainty import Shares, outside, shares_of
from sim.setting.bind import bind


def shares_of_case(case: Case, seconds: float) -> tuple[Shares, tuple[str, ...]]:
    """On what a row's step of `seconds` is spent, and in what it lies beyond the data. Raises `BadInput` and its kinds."""
    from sim.setting.pricer import pricer_for
    from sim.setting.program import program_for

    setting = bind(case.plan, case.topology, case.edits)
    program = program_for(setting, 1)
    shares = shares_of(program, pricer_for(setting), setting.topology, setting.plan, seconds)
    return shares, outside(setting.plan, setting.topology, setting.network.parameters)
