"""Several jobs on one cluster: what they cost each other on shared links, placement by placement.

Each job is a program of its own with its own engine and its own ranks of the cluster; the engines run in one virtual time over one
`Sharing`, so that flows of all jobs share links (and CPU cores) max-min fairly, by the rule that holds inside a job. Ranks that the
machine and the other jobs leave equal are simulated once (`alike`). Jobs begin together, and each makes as many steps as it takes to stay
beside the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sim.bind import Setting, bind
from sim.cost.price import Cost, Pricer
from sim.engine.clocks import Clocks
from sim.engine.code import Assembler
from sim.engine.issue import issue
from sim.engine.meeting import Groups
from sim.engine.pricing import Pricing
from sim.engine.steps import alone, lines_of
from sim.engine.times import State
from sim.lower.step import lower
from sim.plan import Output, Plan
from sim.planning.alike import Placed, stand_ins
from sim.pricer import pricer_for
from sim.program import Op, Program
from sim.tables import Tabular
from topologies.errors import BadInput, Refused
from topologies.load import Topology, load_topology

PLACEMENTS = ("compact", "spread")
ENOUGH = 4
"""Steps of a job alone: two more than what its first steps are about."""
_MOST_STEPS = 40
"""Steps that a short job makes at most beside a long one."""
MOST_RANKS = 2048
"""Ranks that are simulated one by one: 512 of an 8-billion-parameter model take about a minute."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one placement. Seconds per step alone in these places, and beside the others."""

    job: str
    """`j0`, `j1` ... in the order of the plans."""
    plan: str
    placement: str
    ranks: tuple[int, ...]
    """Ranks of the cluster that its ranks 0, 1 ... take."""
    alone_s: float
    together_s: float

    @property
    def slowdown(self) -> float:
        """How many times its lonely step the shared one is."""
        return self.together_s / self.alone_s


class Jobs(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """The table: one row for each placement and job."""

    topology: str
    rows: tuple[Job, ...]

    def __str__(self) -> str:
        lines = ["placement   job  plan                  alone, ms  together, ms  slowdown"]
        lines += [
            f"{r.placement:<10}  {r.job:<3}  {r.plan:<20}  {r.alone_s * 1e3:9.3f}  {r.together_s * 1e3:12.3f}  {r.slowdown:8.3f}"
            for r in self.rows
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, each row's slowdown among them."""
        return {"topology": self.topology, "rows": self._rows()}

    def _rows(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(row) | {"slowdown": row.slowdown} for row in self.rows]


def jobs(
    plans: Sequence[Plan | str | Path | dict[str, Any]],
    topology: Topology | str | Path,
    placements: Sequence[str | Sequence[Sequence[int]]] = PLACEMENTS,
    *,
    edits: tuple[str, ...] = (),
) -> Jobs:
    """Simulates all `plans` at once on disjoint ranks of `topology` after `edits`, and each alone in the same places.

    A placement is "compact" (each job on the next free ranks), "spread" (jobs take the ranks of every node in turn), or for each job
    the ranks that it takes. Raises `BadInput` for places that do not exist, are taken twice, or do not suffice.
    """
    if len(plans) < 2:
        raise BadInput(f"a study of jobs needs two plans or more, got {len(plans)}. For one plan use predict")
    machine = load_topology(topology, edits)
    settings = [bind(plan, machine) for plan in plans]
    rows: list[Job] = []
    for placement in placements:
        places = placed([s.plan.world for s in settings], machine, placement)
        alone = [steps_beside([(s, p)], [ENOUGH])[0] for s, p in zip(settings, places, strict=True)]
        longest = max(alone)
        steps = [min(_MOST_STEPS, max(ENOUGH, math.ceil(ENOUGH * longest / one))) if one > 0 else ENOUGH for one in alone]
        together = steps_beside(list(zip(settings, places, strict=True)), steps)
        name = placement if isinstance(placement, str) else "given"
        for at, setting in enumerate(settings):
            rows.append(
                Job(
                    job=f"j{at}",
                    plan=setting.plan.model_name,
                    placement=name,
                    ranks=places[at],
                    alone_s=alone[at],
                    together_s=together[at],
                )
            )
    return Jobs(topology=machine.name, rows=tuple(rows))


def placed(worlds: Sequence[int], machine: Topology, placement: str | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """For each job the ranks of the cluster that it takes. Raises `BadInput`."""
    if sum(worlds) > machine.gpus:
        raise BadInput(
            f"the jobs need {' + '.join(map(str, worlds))} ranks, {machine.name} has {machine.gpus}. Use more machines or smaller plans"
        )
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise BadInput(f"placement {placement[:40]!r}: allowed are {', '.join(PLACEMENTS)}, or the ranks of each job")
        if placement == "spread":
            return _spread(worlds, machine)
        starts = [sum(worlds[:at]) for at in range(len(worlds))]
        return [tuple(range(start, start + world)) for start, world in zip(starts, worlds, strict=True)]
    found = [tuple(ranks) for ranks in placement]
    if [len(ranks) for ranks in found] != list(worlds):
        raise BadInput(f"the placement gives {[len(ranks) for ranks in found]} ranks to jobs that need {list(worlds)}")
    flat = [rank for ranks in found for rank in ranks]
    if len(set(flat)) != len(flat) or not all(0 <= rank < machine.gpus for rank in flat):
        raise BadInput(f"the placement must name each rank at most once, 0 to {machine.gpus - 1} on {machine.name}")
    return found


def _spread(worlds: Sequence[int], machine: Topology) -> list[tuple[int, ...]]:
    """Every job on as many nodes as it can be: ranks are dealt node by node, local place by local place; each job's in order."""
    dealt = sorted(range(machine.gpus), key=lambda rank: (machine.local(rank), machine.node(rank)))
    found, at = [], 0
    for world in worlds:
        found.append(tuple(sorted(dealt[at : at + world])))
        at += world
    return found


class _Placed:
    """A pricer that knows the job's rank r as rank `places[r]` of the cluster, and every cable of the network that a collective takes."""

    def __init__(self, inner: Pricer, places: tuple[int, ...], topology: Topology) -> None:
        self._inner, self._places, self._topology = inner, places, topology
        self._known: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[str, ...]]] = {}
        """By members: their ranks of the cluster, and the cables between these."""
        self.capacity: Mapping[str, float] = inner.capacity

    def local(self, op: Op, rank: int) -> Cost:
        return self._inner.local(op, self._places[rank])

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        known = self._known.get(members)
        if known is None:
            ranks = tuple(self._places[member] for member in members)
            known = self._known[members] = (ranks, _cables(self._topology, ranks))
        ranks, cables = known
        cost = self._inner.collective(op, ranks, siblings)
        wish = max((amount for name, amount in cost.uses if "net/" in name), default=0.0)
        if not wish:
            return cost
        inside = tuple(use for use in cost.uses if "net/" not in use[0])
        network = tuple((name, wish) for name in cables)
        return Cost(cost.seconds, cost.source, cost.latency, network + inside, cost.host, cost.ready)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self._inner.message(op, self._places[source], self._places[target], siblings)

    def slowdown(self, rank: int) -> tuple[float, float]:
        return self._inner.slowdown(self._places[rank])


def steps_beside(
    jobs_: Sequence[tuple[Setting, tuple[int, ...]]], steps: Sequence[int], calibration: str | Path | None = None
) -> list[float]:
    """Seconds per step of each (setting, ranks of the cluster that it takes) while all run in one virtual time, `steps` steps each.

    Ranks that the machine and the other jobs leave equal are simulated once (`sim.planning.alike`). Raises `Refused` for more ranks than can
    be simulated one by one.
    """
    placed_: list[Placed] = []
    for (setting, places), count in zip(jobs_, steps, strict=True):
        quiet = msgspec.structs.replace(setting.plan, output=Output())
        program = lower(quiet, setting.network, setting.framework, setting.topology.kind, count)
        placed_.append(Placed(program, _Placed(pricer_for(setting, calibration), places, setting.topology), places))
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
    return [_mean_step(found, until, run.ahead) for found, run in zip(ends, runs, strict=True)]


def _bounded(ranks: int) -> None:
    """Raises `Refused` for more ranks than can be simulated one by one."""
    if ranks > MOST_RANKS:
        raise Refused(
            f"{ranks} ranks would have to be simulated one by one (groups of theirs meet on the same cables, or no two nodes are alike); at "
            f"most {MOST_RANKS} are. Use fewer nodes: what a fault or a neighbour costs is decided on the links that they share"
        )


def _mean_step(ends: list[float], until: float, ahead: bool) -> float:
    """Mean of the steps after the second that ended while all jobs ran, or of the second alone. The first fills the input path and (DDP) has
    other buckets, whose end is not where a later step's is; the last is left out where loaders work ahead, as in `Trace.reported`."""
    ends = ends[: len(ends) - ahead]
    last = max(1, sum(end <= until * (1 + 1e-9) for end in ends) - 1)
    first = min(1, last - 1)
    return (ends[last] - ends[first]) / (last - first)


def _cables(topology: Topology, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Directed links of the network, NICs' included, that a ring over the nodes of `ranks` takes: the i-th rank of each node sends to the
    i-th of the next, as NCCL's channels do. Two channels that take the same cable name it twice."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(topology.node(rank), []).append(rank)
    rings = list(nodes.values())
    found: list[str] = []
    for here, there in zip(rings, [*rings[1:], rings[0]], strict=True):
        for a, b in zip(here, there, strict=False):
            found += [link for link in topology.path(a, b).links if "net/" in link]
    return tuple(found)


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
