"""When each step of a program ends: the engine without a trace, from a program and a pricer to seconds."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from sim.cost.price import Pricer
from sim.engine.clocks.code import Assembler
from sim.engine.clocks.issue import issue
from sim.engine.clocks.run import Clocks
from sim.engine.clocks.times import WORK, Code, Line, State, ends_of
from sim.engine.condense import Alone
from sim.engine.fold import Symmetry, beside, passages, representatives
from sim.engine.fuse import Priced
from sim.engine.groups import groups_of
from sim.engine.inorder.moves import Unordered
from sim.engine.inorder.run import in_order
from sim.engine.pricing import Pricing
from sim.program import COMPUTE, HOST, Program
from topologies.errors import BadInput


class Step(NamedTuple):
    """One optimizer step."""

    seconds: float
    """From the end of the step before (the first: from 0)."""
    host: float
    """Seconds for which the busiest rank's training thread works in it, without waiting."""

    @property
    def settled(self) -> float:
        """Seconds of every further step. A step can be shorter than its thread's work only because it began while the device was still
        behind; further steps then take as long as the thread."""
        return max(self)


def step_times(program: Program, pricer: Pricer, symmetry: Symmetry = True, alike: bool = False, apart: bool = False) -> list[Step]:
    """The steps of a program: the same as `metrics.step_times` of the condensed simulation.

    `alike`: all ranks price equal ops alike. `apart`: run in program order (`sim.engine.inorder`) where that can find the times; it is
    faster, and leaves out what transfers lose to others on the same links. Raises `BadInput` when the program deadlocks.
    """
    folded = symmetry is not False
    stands_for = representatives(program, symmetry)
    prices = Pricing(program, pricer, groups_of(program.mesh, stands_for), folded, alone, beside(symmetry), passages(symmetry, program))
    prices.alike = alike and folded
    if apart:
        with suppress(Unordered):
            run = in_order(prices, sorted(set(stands_for)))
            return _steps(run.ends, [run.spent])
    states = {rank: State(rank, pricer.slowdown(rank)) for rank in sorted(set(stands_for))}
    prices.shorten(states, condensed=folded)
    clocks, assembler = Clocks(prices), Assembler(prices, prices.idle)
    lines = {
        (state.rank, name): lines_of(prices, assembler, state, name) for state in states.values() for name in program.threads(state.rank)
    }
    threads = [issue(clocks, states[rank], name, calls) for (rank, name), calls in lines.items()]
    for thread in threads:
        thread.begin()
    clocks.agenda.run()
    stuck = [f"rank {thread.rank} {thread.name}" for thread in threads if not thread.done] or assembler.waiting()
    if stuck:
        raise BadInput(f"the program deadlocks, waiting for what never comes: {', '.join(stuck[:8])}")
    return _steps(ends_of(states.values()), [_spent(calls) for (_, name), calls in lines.items() if name == HOST])


def _steps(ends: dict[int, float], hosts: list[dict[int, float]]) -> list[Step]:
    """The steps, from the seconds at which each ends and the seconds for which each training thread works in it."""
    found, last = list[Step](), 0.0
    for step in sorted(ends):
        found.append(Step(max(0.0, ends[step] - last), max(host.get(step, 0.0) for host in hosts)))
        last = max(last, ends[step])
    return found


def _spent(lines: list[Line]) -> dict[int, float]:
    """Step -> seconds for which a thread itself is busy in it."""
    known: dict[int, float] = {}
    found: dict[int, float] = {}
    for step, _, code in lines:
        spent = known.get(id(code))
        if spent is None:
            spent = known[id(code)] = sum(this.seconds if this.does == WORK else this.host for this in code)
        found[step] = found.get(step, 0.0) + spent
    return found


def lines_of(prices: Pricing, assembler: Assembler, state: State, thread: str) -> list[Line]:
    """A thread's calls with their code; each segment is priced and assembled once."""
    code: dict[str, Code] = {}
    calls = prices.program.threads(state.rank)[thread]
    for name in dict.fromkeys(call.segment for call in calls):
        code[name] = assembler.code(state, thread, prices.segment(state.rank, thread, name))
    return [(call.step, call.index, code[call.segment]) for call in calls]


def alone(prices: Pricing, ops: list[Priced], rank: int, beside: bool) -> Alone:
    """Runs `ops` by themselves on an idle rank; with `beside`, next to a collective that never ends."""
    state = State(rank, prices.pricer.slowdown(rank))
    clocks = Clocks(prices)
    thread = issue(clocks, state, HOST, [(0, 0, Assembler(prices, prices.idle).code(state, HOST, ops))])
    if beside:
        state.comm = state.pending = 1
        state.settled = False
    thread.begin()
    clocks.agenda.run()
    compute = state.lane(COMPUTE)
    return Alone(compute.free, max((lane.free for lane in state.lanes.values() if lane.name != HOST), default=0.0), compute.lost)
