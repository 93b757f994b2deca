"""Costs of a program's ops on CPU hosts, from a calibration where there is one, else from assumed rates."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sim.cost.calibration import Calibration
from sim.cost.collective.gloo import gloo_cost, over_hosts, wandering
from sim.cost.collective.group import GroupShape, group_shape
from sim.cost.place import Common
from sim.cost.price import Cost, Source, weakest
from sim.cost.timed import prices
from sim.program import FILED, MEETING, Op
from sim.work import HostWork, Work
from topologies.graph import Topology


def cpu_cost(work: Work, calibration: Calibration) -> Cost:
    """Cost of one work on the CPU threads of one rank."""
    seconds, source = prices(calibration).price(work)
    return Cost(seconds, source)


class CpuPricer(Common):
    """The pricer of CPU hosts: ops run on their cores, gloo moves the bytes. Points of the calibration come first, assumed rates stand in."""

    def __init__(self, topology: Topology, calibration: Calibration, factor: Callable[[int], float] | None = None) -> None:
        super().__init__(topology, factor)
        self.calibration = calibration
        self._again, self._after = self.calibration.rows("again"), self.calibration.host_seconds("stretch")[0]
        self._wander = wandering(self.calibration.host_seconds("apart")[0], self._after)
        self._shapes: dict[tuple[int, ...], GroupShape] = {}
        self.saved = calibration.curve("file", "save")
        self._reads = calibration.curve("file", "read")

    def local(self, op: Op, rank: int) -> Cost:
        if op.kind in ("compute", "host"):
            costs = [cpu_cost(work, self.calibration) for work in op.works]
            seconds = sum(cost.seconds for cost in costs) * (self.stretch(rank) if op.kind == "compute" else 1.0)
            return Cost(seconds, weakest(cost.source for cost in costs), uses=self.cores(rank))
        if op.kind == "copy":
            if op.how in FILED:
                return self._cached(op, rank) or self._disk(op, rank)
            source: Source = "measured" if self.calibration.rows("copy", "memcpy") else "assumed"
            return Cost(op.bytes / self.calibration.copy_rate, source, uses=self.cores(rank))
        if op.kind in MEETING:
            return Cost(0.0, host=prices(self.calibration).host("collective")[0])
        return Cost(0.0)

    def _cached(self, op: Op, rank: int) -> Cost | None:
        """The cost of reading files that were written before the run: from the page cache, as the probe measured it, one file after the other. None for
        other ops, or where the probe did not measure it."""
        files = sum(work.count for work in op.works if isinstance(work, HostWork))
        if op.how != "disk" or not files or not self._reads:
            return None
        seconds, inside = self._reads.at(op.bytes / files)
        return Cost(files * seconds, "measured" if inside else "fitted", uses=self.cores(rank))

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self._over(self._on(self._gloo(op.name, op.bytes, len(members)), members[0]), op.name, op.bytes, members)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self._over(self._on(self._gloo("send", op.bytes, 2), source), "send", op.bytes, (source, target))

    def _gloo(self, name: str, size: int, ranks: int) -> Cost:
        return gloo_cost(name, size, ranks, self.calibration.collectives, self._again, self._after, self._wander)

    def _on(self, cost: Cost, rank: int) -> Cost:
        """`cost` with its resource `cores` named as that of the rank's host: gloo's own threads work there."""
        uses = tuple((f"n{self.topology.node(rank)}.{name}", amount) for name, amount in cost.uses)
        return replace(cost, uses=uses)

    def _over(self, cost: Cost, name: str, size: int, members: tuple[int, ...]) -> Cost:
        """`cost`, which is of one host, for members on several hosts: the network carries what they send to each other. Unchanged on one host."""
        if len({self.topology.node(member) for member in members}) < 2:
            return cost
        shape = self._shapes.get(members)
        if shape is None:
            shape = self._shapes[members] = group_shape(self.topology, members)
        return over_hosts(cost, name, size, shape, self.topology.rates)

    def slowdown(self, rank: int) -> float:
        return 1.0
