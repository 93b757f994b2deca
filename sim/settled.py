"""How many steps must be simulated until each further one takes as long.

Where launches bind, the device first works off what it was behind by: until then its steps are shorter than what their thread spends, as
none is that goes on for ever (the period of a max-plus system is no less than that of any of its lanes: Baccelli et al., ch. 3).
"""

from __future__ import annotations

from sim.cost.price import Pricer
from sim.program import HOST, Op, Program

MOST = 16
"""Steps that are simulated at most: by then what is left of the lead is little."""
_CLOSE = 1e-3
"""Shorter by no more than this share is as long."""


def settled(program: Program, pricer: Pricer, step: float) -> bool:
    """Is the program's last step, of `step` seconds, what every further one takes, or are there enough of them?"""
    return program.steps >= MOST or step >= host_seconds(program, pricer) * (1 - _CLOSE)


def host_seconds(program: Program, pricer: Pricer) -> float:
    """What the busiest training thread spends in the program's last step when it never waits."""
    found = 0.0
    for name, rank in {name: rank for rank, name in enumerate(program.role_of)}.items():
        calls = [call.segment for call in program.roles[name].threads[HOST] if call.step == program.steps - 1]
        spent = {segment: sum(_spent(op, pricer, rank) for op in program.segments[segment]) for segment in dict.fromkeys(calls)}
        found = max(found, sum(spent[segment] for segment in calls))
    return found


def _spent(op: Op, pricer: Pricer, rank: int) -> float:
    """Of the thread: its own work, or a launch."""
    cost = pricer.local(op, rank)
    return cost.seconds if op.lane == HOST and op.kind in ("host", "compute") else cost.host
