"""Jobs that run beside each other: seconds per step of each while all share one virtual time.

Each job is a program of its own with its own engine and its own ranks of the cluster; the engines run over one `Sharing`, so that flows
of all jobs share links (and CPU cores) max-min fairly, by the rule that holds inside a job. Ranks that the machine and the other jobs leave
equal are simulated once (`alike`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sim.cost.price import Pricer
from sim.engine.clocks.code import Assembler
from sim.engine.clocks.issue import issue
from sim.engine.clocks.run import Clocks
from sim.engine.clocks.times import State
from sim.engine.meeting import Groups
from sim.engine.pricing import Pricing
from sim.engine.steps import alone, lines_of
from sim.lower.step import lower
from sim.plan import Output, Plan
from sim.planning.disturbed.alike import Placed, stand_ins
from sim.planning.disturbed.places import PlacedPricer
from sim.program import Program
from sim.setting.bind import Setting
from sim.setting.pricer import pricer_for
from sim.steady.periods import varies
from topologies.errors import BadInput, Refused

ENOUGH = 4
"""Steps of a job alone: two more than what its first steps are about."""
_OF_TWO = 5
"""Steps of a job whose steps are of two kinds, of which two are counted."""
MOST_RANKS = 2048
"""Ranks that are simulated one by one: 512 of an 8-billion-parameter model take about a minute."""


def steps_beside(
    jobs_: Sequence[tuple[Setting, tuple[int, ...]]], steps: Sequence[int], calibration: str | Path | None = None
) -> list[float]:
    """Seconds per step of each (setting, ranks of the cluster that it takes) while all run in one virtual time, `steps` steps each.

    Ranks that the machine and the other jobs leave equal are simulated once (`sim.planning.disturbed.alike`). Raises `Refused` for more ranks than can
    be simulated one by one.
    """
    placed_: list[Placed] = []
    for (setting, places), count in zip(jobs_, steps, strict=True):
        plan = _both_kinds(setting.plan)
        program = lower(plan, setting.network, setting.framework, setting.topology.kind, max(count, _OF_TWO) if varies(plan) else count)
        pricer = PlacedPricer(pricer_for(setting, calibration, places=places), places, setting.topology)
        placed_.append(Placed(program, pricer, places))
    stands_for = stand_ins(placed_, jobs_[0][0].topology)
    _bounded(sum(len(set(mine)) for mine in stands_for))
    runs: list[_Run] = []
    for one, mine in zip(placed_, stands_for, strict=True):
        runs.append(_Run(one.program, one.pricer, runs[0] if runs else None, mine))
    for run in runs:
        run.begin()
    runs[0].clocks.agenda.run()
    ends = [run.ends() for run in runs]
    until = min(found[-1] for found in ends)
    every = [setting.plan.update.every if setting.plan.update.mode == "local" else 1 for setting, _ in jobs_]
    return [_mean_step(found, until, run.ahead, each) for found, run, each in zip(ends, runs, every, strict=True)]


def _both_kinds(plan: Plan) -> Plan:
    """The plan without output, and of local updates with averaging after every second step: what each kind of step takes is weighted later."""
    update = plan.update
    if update.mode == "local":
        update = msgspec.structs.replace(update, every=min(update.every, 2))
    return msgspec.structs.replace(plan, output=Output(), update=update)


def _bounded(ranks: int) -> None:
    """Raises `Refused` for more ranks than can be simulated one by one."""
    if ranks > MOST_RANKS:
        raise Refused(
            f"{ranks} ranks would have to be simulated one by one (groups of theirs meet on the same cables, or no two nodes are alike); at "
            f"most {MOST_RANKS} are. Use fewer nodes: what a fault or a neighbour costs is decided on the links that they share"
        )


def _mean_step(ends: list[float], until: float, ahead: bool, every: int) -> float:
    """Mean of the steps after the second that ended while all jobs ran, or of the second alone. The first fills the input path and (DDP) has
    other buckets, whose end is not where a later step's is; the last is left out where loaders work ahead, as in `Trace.reported`.

    Of local updates those with averaging, every second of them here, count for one of `every` steps."""
    ends = ends[: len(ends) - ahead]
    last = max(1, sum(end <= until * (1 + 1e-9) for end in ends) - 1)
    if every > 1:
        last = max(last, 3)
        kinds = [[ends[at] - ends[at - 1] for at in range(first, last + 1, 2)] for first in (2, 3)]
        plain, averaging = (sum(times) / len(times) for times in kinds)
        return plain + (averaging - plain) / every
    first = min(1, last - 1)
    return (ends[last] - ends[first]) / (last - first)


class _Run:
    """One job, every rank by itself, in the virtual time and on the resources of another."""

    def __init__(self, program: Program, pricer: Pricer, beside: _Run | None, stands_for: Sequence[int]) -> None:
        self.program, self.pricer = program, pricer
        self.ahead = program.steps > 2 and any(len(role.threads) > 1 for role in program.roles.values())
        """Loaders work for steps that are not there any more while the last one runs."""
        self.states = states = {rank: State(rank, pricer.slowdown(rank)[0]) for rank in sorted(set(stands_for))}
        prices = Pricing(program, pricer, Groups(program.mesh, stands_for.__getitem__), False, alone)
        prices.shorten(states, condensed=False)
        self.clocks: Clocks = Clocks(prices, beside.clocks if beside is not None else None)
        self._assembler = Assembler(prices)
        self._threads = [
            issue(self.clocks, state, name, lines_of(prices, self._assembler, state, name))
            for state in states.values()
            for name in program.threads(state.rank)
        ]

    def begin(self) -> None:
        """Starts all ranks; time does not pass."""
        for thread in self._threads:
            thread.begin()

    def ends(self) -> list[float]:
        """When each step ended, when time has run out. Raises `BadInput` when ranks still wait."""
        stuck = [f"rank {thread.rank} {thread.name}" for thread in self._threads if not thread.done] or self._assembler.waiting()
        if stuck:
            raise BadInput(f"the program {self.program.name} deadlocks, waiting for what never comes: {', '.join(stuck[:8])}")
        found, last = [], 0.0
        for step in sorted(self.clocks.ends):
            last = max(last, self.clocks.ends[step])
            found.append(last)
        return found
