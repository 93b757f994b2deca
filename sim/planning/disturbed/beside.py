"""Jobs that run beside each other: seconds per step of each while all share one virtual time.

Each job is a program of its own with its own engine and its own ranks of the cluster; the engines run over one `Sharing`, so that flows
of all jobs share links (and CPU cores) max-min fairly, by the rule that holds inside a job. Ranks that the machine and the other jobs leave
equal are simulated once (`alike`). Loader processes of GPU machines, which work in their steady state, share disks, stores and cores by the same
rule, from what each job's take where it is alone (`loaders`); threads that read for themselves have what those leave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from sim.cost.price import Pricer
from sim.engine.clocks.code import Assembler
from sim.engine.clocks.issue import issue
from sim.engine.clocks.run import Clocks
from sim.engine.clocks.times import State, ends_of
from sim.engine.groups import Groups
from sim.engine.machine import LOADER
from sim.engine.pricing import Pricing
from sim.engine.steps import alone, lines_of
from sim.planning.disturbed.alike import Placed, stand_ins
from sim.planning.disturbed.loaders import shares_of
from sim.planning.disturbed.places import PlacedPricer
from sim.predict import clock_under_load
from sim.program import Program
from sim.sections import Output
from sim.setting.bind import Setting
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.periods import LONG, NEVER
from sim.steady.settled import loader_seconds, settled, stored
from sim.steady.whole import followed, warmed
from sim.timeline.asynchrony import counted
from topologies.errors import BadInput, Refused
from topologies.graph import Topology

ENOUGH = 4
"""Steps of a job alone: two more than what its first steps are about. More where they have not settled by then (`sim.steady.settled`)."""
OFTEN = 3
"""Steps after which local updates average at most: one that averages, the one after it, which its thread has begun ahead of the device, and one
that stands for all others."""
_LEAST = {"sync": 0, "local": 2 * OFTEN + 1, "async": LONG}
"""Steps that are simulated at least: of each kind one is counted after the first period, with a step for loaders that work ahead."""
MOST_RANKS = 2048
"""Ranks that are simulated one by one: 512 of an 8-billion-parameter model take about a minute."""


Placement = tuple[Setting, tuple[int, ...]]
"""A job, and the ranks of the cluster that it takes."""


class Pace(NamedTuple):
    """Seconds per step of one job."""

    step: float
    """Of a mean step."""
    simulated: float
    """Of those that were simulated: local updates average as often as `OFTEN`; of asynchronous ranks the quickest's, which ends first."""
    plain: float
    """Of a step that neither averages nor follows one that does."""
    averaging: float = 0.0
    """That averaging adds to its step and the one after it, where not each has it."""

    def averages(self, every: int) -> float:
        """The share of its time that averaging after `every` steps takes."""
        return self.averaging / (every * self.plain + self.averaging)


def paces(
    jobs_: Sequence[Placement],
    steps: Sequence[int],
    still: Container[int] = (),
    steps_alone: Sequence[float] = (),
) -> list[Pace]:
    """The pace of each job while all run in one virtual time, `steps` steps each, or as many times more as it takes all of them to settle; local
    updates average after every `OFTEN` steps at most (as often as they do where ranks drift apart), those of the jobs `still` never. `steps_alone`: seconds of their steps where each is alone.

    Ranks that the machine and the other jobs leave equal are simulated once (`sim.planning.disturbed.alike`). Raises `Refused` for more ranks than can
    be simulated one by one.
    """
    while True:
        placed_ = [_placed(*job, count, at in still) for at, (job, count) in enumerate(zip(jobs_, steps, strict=True))]
        found = _run([setting for setting, _ in jobs_], placed_, steps_alone)
        if all(settled(one.program, one.pricer, pace.step) for one, pace in zip(placed_, found, strict=True)):
            return found
        steps = [2 * count for count in steps]


def _placed(setting: Setting, places: tuple[int, ...], steps: int, still: bool) -> Placed:
    """So many steps of a job, without output."""
    update = setting.plan.update
    period = followed(setting)
    steps = max(steps, warmed(period) + period + 1) if period else max(steps, _LEAST[update.mode])
    update = msgspec.structs.replace(update, every=NEVER if still else period or min(update.every, OFTEN))
    plan = msgspec.structs.replace(setting.plan, output=Output(), update=update)
    program = program_for(setting, steps, plan)
    if program.device == "cpu":  # loaders share cores with training: they fill their store, keep it full, and it is emptied
        program = program_for(setting, steps + 3 * stored(program), plan)
    pricer = pricer_for(setting, places=places, clock=clock_under_load(setting, None))
    return Placed(program, PlacedPricer(pricer, places, setting.topology), places)


def _run(settings: Sequence[Setting], placed_: Sequence[Placed], steps_alone: Sequence[float]) -> list[Pace]:
    """All jobs in one virtual time."""
    stands_for = _stand_ins(placed_, settings[0].topology)
    runs: list[_Run] = []
    shared = shares_of(placed_, steps_alone)
    for one, mine, shares in zip(placed_, stands_for, shared.each, strict=True):
        runs.append(_Run(one.program, one.pricer, runs[0] if runs else None, mine, shares))
    runs[0].clocks.limit(shared.left)
    for run in runs:
        run.begin()
    runs[0].clocks.agenda.run()
    for run in runs:
        run.check()
    until = min(run.until(setting.plan.asynchronous) for run, setting in zip(runs, settings, strict=True))
    found = [
        run.each(until) if setting.plan.asynchronous else _pace(run.ends(), min(until, run.loaded()), setting)
        for run, setting in zip(runs, settings, strict=True)
    ]
    # Who waits for loaders has begun with none in store: a step takes no less than they do.
    loading = [loader_seconds(one.program, one.pricer, shares) for one, shares in zip(placed_, shared.each, strict=True)]
    return [pace._replace(step=max(pace.step, seconds)) for pace, seconds in zip(found, loading, strict=True)]


def _stand_ins(placed_: Sequence[Placed], topology: Topology) -> list[list[int]]:
    """`stand_ins`. Raises `Refused` for more ranks than can be simulated one by one."""
    found = stand_ins(placed_, topology)
    ranks = sum(len(set(mine)) for mine in found)
    if ranks > MOST_RANKS:
        raise Refused(
            f"{ranks} ranks would have to be simulated one by one (groups of theirs meet on the same cables, or no two nodes are alike); at "
            f"most {MOST_RANKS} are. Use fewer nodes: what a fault or a neighbour costs is decided on the links that they share"
        )
    return found


def _pace(ends: list[float], until: float, setting: Setting) -> Pace:
    """Mean of the second half of the steps that ended while all jobs ran, after the second at least, or of the second alone. The first fills the
    input path and (DDP) has other buckets, whose end is not where a later step's is; until steps have settled they are shorter.

    Of local updates each kind by itself: of `every` steps one averages and one follows it; or a whole period, where ranks drift apart."""
    first, last = counted(ends, until)
    update, whole = setting.plan.update, followed(setting)
    if whole:
        last = max(last - (last + 1) % whole, 2 * whole - 1)
        step = (ends[last] - ends[last - whole]) / whole
        return Pace(step, step, step)
    period = min(update.every, OFTEN)
    if update.mode == "local" and period > 1:
        last = max(last, 2 * period - 1)
        kinds = [[ends[at] - ends[at - 1] for at in range(period + kind, last + 1, period)] for kind in range(period)]
        times = [sum(of_kind) / len(of_kind) for of_kind in kinds]
        after, averaging, plain = times[0], times[-1], times[-2]
        adds = averaging + after - 2 * plain
        return Pace(plain + adds / update.every, sum(times) / period, plain, adds)
    first = max(first, last // 2)
    step = (ends[last] - ends[first]) / (last - first)
    return Pace(step, step, step)


class _Run:
    """One job, every rank by itself, in the virtual time and on the resources of another."""

    def __init__(
        self, program: Program, pricer: Pricer, beside: _Run | None, stands_for: Sequence[int], shares: Mapping[str, float]
    ) -> None:
        self._program = program
        self._weights = Counter(stands_for)
        ahead = program.steps > 2 and any(len(role.threads) > 1 for role in program.roles.values())
        self._steps = program.steps - ahead
        """That count: while the last one runs, loaders would work for steps that are not there any more (`Trace.reported`)."""
        states = {rank: State(rank, pricer.slowdown(rank)) for rank in sorted(set(stands_for))}
        self._states = states
        prices = Pricing(program, pricer, Groups(program.mesh, stands_for.__getitem__), False, alone)
        prices.shares = shares
        prices.shorten(states, condensed=False)
        prices.local = frozenset()  # the links that no other lane of this job takes other jobs may take
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

    def check(self) -> None:
        """Raises `BadInput` when ranks still wait after time has run out."""
        stuck = [f"rank {thread.rank} {thread.name}" for thread in self._threads if not thread.done] or self._assembler.waiting()
        if stuck:
            raise BadInput(f"the program {self._program.name} deadlocks, waiting for what never comes: {', '.join(stuck[:8])}")

    def ends(self) -> list[float]:
        """When the last rank has ended each step that counts."""
        ends = ends_of(self._states.values())
        return list(accumulate((ends[step] for step in sorted(ends)), max))[: self._steps]

    def loaded(self) -> float:
        """Until when its steps are beside loader processes that share the host's cores; infinite where none do."""
        if self._program.device != "cpu":
            return math.inf
        lanes = (lane for state in self._states.values() for name, lane in state.lanes.items() if name.startswith(LOADER))
        return min((lane.free for lane in lanes), default=math.inf)

    def until(self, apart: bool) -> float:
        """When it stops to disturb others as it does: with the end of its last step, or (`apart`: ranks wait for nobody) of its first rank's."""
        if apart:
            return min(state.ends[self._steps - 1] for state in self._states.values())
        return max(ends_of(self._states.values()).values())

    def each(self, until: float) -> Pace:
        """Of ranks that do not wait for each other: their throughputs add up (`sim.timeline.asynchrony`)."""
        own = {}
        for rank, state in self._states.items():
            ends = [state.ends[step] for step in range(self._steps)]
            first, last = counted(ends, until)
            own[rank] = (ends[last] - ends[first]) / (last - first)
        made = sum(self._weights[rank] / step for rank, step in own.items())
        step = self._weights.total() / made
        return Pace(step, min(own.values()), step)
