"""The shares of a published row's step by kind of cost and source, from which its interval is made."""

from __future__ import annotations

from sim.accuracy.rows.plans import Case
from sim.result.uncertainty import Shares, outside, shares_of
from sim.setting.bind import bind


def shares_of_case(case: Case, seconds: float) -> tuple[Shares, tuple[str, ...]]:
    """(the shares of a row's step of `seconds` by kind of cost and source, in what the plan lies outside the published steps; empty: in
    nothing). Raises `BadInput` and its subclasses."""
    from sim.setting.pricer import pricer_for
    from sim.setting.program import program_for

    setting = bind(case.plan, case.topology, case.edits)
    program = program_for(setting, 1)
    shares = shares_of(program, pricer_for(setting), setting.topology, setting.plan, seconds)
    return shares, outside(setting.plan, setting.topology, setting.network.parameters)
