"""Program makers and a pricer by table, for tests of the engine."""

from __future__ import annotations

from collections.abc import Mapping

from sim.cost.price import Cost
from sim.mesh import Mesh
from sim.program import Call, Op, Program, Role
from sim.trace import Trace


class TablePricer:
    """Costs by op id; collectives and messages too, whose ops must differ in bytes where their costs do."""

    def __init__(self, costs: Mapping[str, Cost | float], capacity: Mapping[str, float] | None = None, slow: float = 1.0) -> None:
        self.costs, self.capacity, self.slow = costs, capacity or {}, slow

    def _of(self, op: Op) -> Cost:
        cost = self.costs.get(op.id, 0.0)
        return cost if isinstance(cost, Cost) else Cost(cost)

    def local(self, op: Op, rank: int) -> Cost:
        return Cost(0.0) if op.kind in ("collective", "send", "recv") else self._of(op)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self._of(op)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self._of(op)

    def slowdown(self, rank: int) -> float:
        return self.slow


def program(*threads: dict[str, list[Op]], mesh: Mesh | None = None, calls: int = 1, device: str = "cuda") -> Program:
    """One role per argument (rank 0, 1, ...), each thread one segment called `calls` times."""
    segments: dict[str, tuple[Op, ...]] = {}
    roles: dict[str, Role] = {}
    for rank, lanes in enumerate(threads):
        made = {}
        for thread, ops in lanes.items():
            segments[f"{rank}.{thread}"] = tuple(ops)
            made[thread] = tuple(Call(f"{rank}.{thread}", f"s{i}", i, i) for i in range(calls))
        roles[f"rank{rank}"] = Role(made)
    mesh = mesh or Mesh({"dp_replicate": len(threads)})
    return Program("test", device, mesh, segments, roles, tuple(roles), calls)  # type: ignore[arg-type]


OPS = ("compute", "copy", "collective", "send", "recv", "host", "sync")


def timeline(trace: Trace, kinds: tuple[str, ...] = OPS) -> list[tuple[str, float, float]]:
    """(id, start, end) of every op that takes time, by start."""
    spans = sorted(trace.spans, key=lambda s: (s.start, s.end, s.id))
    return [(s.id, round(s.start, 9), round(s.end, 9)) for s in spans if s.kind in kinds]
