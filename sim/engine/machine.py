"""What ranks of one machine take from it together: cores, disks, buses.

Loader processes need a rule of their own. Three simulated steps are too short to show how many of them slow each other down, so each
is as slow as all of them are in the steady state: a batch takes `max(alone, demand / capacity)` over the machine's resources, where
the demand is that of all loader processes of all its ranks, and of their training threads for cores (the bottleneck law of closed queueing
networks, Denning and Buzen 1978). On CPU hosts, where training computes on the same cores, loaders and training share them moment by moment instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sim.cost.price import Cost, Pricer
from sim.program import HOST, Call, Op, Program
from sim.work import HostWork

LOADER = "loader"
"""The names of loader processes' threads begin with it."""


def neighbours(pricer: Pricer, op: Op, cost: Cost, rank: int, world: int) -> Iterator[tuple[int, Cost]]:
    """Yields (rank, cost of the op on it) for the ranks of `rank`'s machine; first `rank` itself, with this `cost`.

    Ranks of one machine have consecutive numbers: in each direction the first rank whose op uses another machine's resources ends the
    search.
    """
    yield rank, cost
    here = set(_machines(cost))
    for step in (1, -1):
        other = rank + step
        while 0 <= other < world:
            there = pricer.local(op, other)
            if here.isdisjoint(_machines(there)):
                break
            yield other, there
            other += step


def _machines(cost: Cost) -> Iterator[str]:
    """Names of the machines whose resources the cost uses: `n3` for `n3.cores` and for `n3/gpu0>n3/sw1`."""
    return (name.replace("/", ".").partition(".")[0] for name, _ in cost.uses)


def together(cost: Cost, taken: Iterable[Cost]) -> Cost:
    """The `cost` with its uses replaced by the sum of what `taken` uses of the same disks, buses and links: the op runs at the same
    time for several ranks, of which `taken` holds all costs, its own included."""
    alone: dict[str, float] = {}
    for name, amount in cost.uses:
        alone[name] = alone.get(name, 0.0) + amount
    amounts = dict.fromkeys(alone, 0.0)
    for one in taken:
        for name, amount in one.uses:
            if name in amounts:
                amounts[name] += amount
    return replace(cost, uses=tuple(amounts.items()), share=next(iter(alone.values())))


def spent(op: Op, cost: Cost) -> float:
    """Seconds for which the op keeps the training thread busy: the thread's own work, or a launch."""
    return cost.seconds if op.lane == HOST and op.kind in ("host", "compute", "copy") else cost.host


def busy(program: Program, pricer: Pricer, rank: int) -> float:
    """Seconds for which the rank's training thread is busy for each batch of its loaders, if it never waits."""
    threads = program.threads(rank)
    batches = sum(call.segment == thread for thread, calls in threads.items() if thread.startswith(LOADER) for call in calls)
    calls = Counter(call.segment for call in threads[HOST])
    each = (often * sum(spent(op, pricer.local(op, rank)) for op in program.segments[name]) for name, often in calls.items())
    return sum(each) / max(1, batches)


def crowding(batch: list[tuple[Op, Cost]], pricer: Pricer, rank: int, program: Program, shares: Mapping[str, float] | None = None) -> float:
    """The factor (1 or more) by which a `batch` of this rank takes longer in the steady state, beside all loader processes of the
    machine, than with one of them alone. `shares`: resource -> the share (0 to 1) that other programs' processes leave to these; None:
    all of it."""
    demand: dict[str, float] = {}
    for op, cost in batch:
        for name, amount in _demand(op, cost, pricer, rank, program).items():
            demand[name] = demand.get(name, 0.0) + amount
    for name, amount in _threads(batch, pricer, rank, program).items():
        demand[name] += amount
    alone = sum(cost.seconds for _, cost in batch)
    left = shares or {}
    needed = max((total / pricer.capacity[name] / left.get(name, 1.0) for name, total in demand.items()), default=0.0)
    return max(1.0, needed / alone) if alone > 0 else 1.0


def steady(ops: list[tuple[Op, Cost]], crowded: float) -> list[tuple[Op, Cost]]:
    """Ops of a loader process, slowed by the factor `crowded` where they use shared resources. They then use none any more, as the
    factor holds all sharing."""
    return [(op, replace(cost, seconds=cost.seconds * crowded, latency=0.0, uses=())) if cost.uses else (op, cost) for op, cost in ops]


class Loaded(NamedTuple):
    """What reading a program's batches takes of a resource."""

    rate: float
    """The amount that it takes per second in the steady state."""
    processes: float
    """How many processes take it."""


def loads_ahead(program: Program) -> bool:
    """Whether the program has loader processes. If not, training threads read batches themselves."""
    return any(_loads(program, rank) for rank in range(program.world))


def loaded(program: Program, pricer: Pricer, step: float) -> dict[str, Loaded]:
    """Resource -> what the program's loader processes take of it, or its training threads where these read themselves. `step`: seconds
    of a step."""
    found: dict[str, Loaded] = {}
    for rank in range(program.world):
        calls = ((thread, call) for thread, made in program.threads(rank).items() for call in made)
        made = Counter(call.segment for thread, call in calls if _full(program, thread, call))
        read = {segment: ops for segment in made if (ops := [op for op in program.segments[segment] if _reads(op)])}
        for segment, ops in read.items():
            for op in ops:
                cost = pricer.local(op, rank)
                for name, amount in cost.uses:
                    rate, processes = found.get(name, (0.0, 0.0))
                    found[name] = Loaded(
                        rate + made[segment] * amount * (cost.seconds - cost.latency) / step, processes + _processes(op) / len(read)
                    )
    return found


def _full(program: Program, thread: str, call: Call) -> bool:
    """Whether the call belongs to the last step and, if a loader makes it, reads a whole batch."""
    return call.step == program.steps - 1 and (thread == HOST or (thread.startswith(LOADER) and call.segment == thread))


def _reads(op: Op) -> bool:
    """Whether the op is a loader's, or a copy that the training thread itself makes (it reads the batch)."""
    return op.lane.startswith(LOADER) or (op.lane == HOST and op.kind == "copy")


def _demand(op: Op, cost: Cost, pricer: Pricer, rank: int, program: Program) -> dict[str, float]:
    """Resource -> what all loader processes of the machine take of it when each of them runs one such op."""
    found: dict[str, float] = {}
    for other, there in neighbours(pricer, op, cost, rank, program.world) if cost.uses else ():
        for name, amount in there.uses if _loads(program, other) else ():
            found[name] = found.get(name, 0.0) + _processes(op) * amount * (there.seconds - there.latency)
    return found


def _threads(batch: list[tuple[Op, Cost]], pricer: Pricer, rank: int, program: Program) -> dict[str, float]:
    """Core seconds that training threads take of the machine while a rank's loaders make one batch each. Empty unless training threads
    and loaders together outnumber the cores. More training threads than cores count as all cores."""
    for op, cost in batch:
        for cores, amount in (use for use in cost.uses if use[0].endswith(".cores")):
            ranks, most = [other for other, _ in neighbours(pricer, op, cost, rank, program.world)], pricer.capacity[cores]
            if len(ranks) + _processes(op) * amount * sum(_loads(program, other) for other in ranks) <= most:
                return {}
            return {cores: _processes(op) * busy(program, pricer, rank) * min(len(ranks), most)}
    return {}


def _loads(program: Program, rank: int) -> bool:
    """Whether the rank has loader processes. In a pipeline only some stages read batches."""
    return f"{LOADER}.0" in program.threads(rank)


def _processes(op: Op) -> float:
    return max((work.processes for work in op.works if isinstance(work, HostWork)), default=1.0)
