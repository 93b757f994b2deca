"""Costs of GPUs from a calibration of this very machine: kernels, host work, copies, collectives and messages.

A work without a point takes the fitted model's cost, times measured over modelled seconds at the nearest point (`sim.cost.nearest`). Collectives keep
the form that the model gives them (latency, links that they share with others); their seconds are multiplied by measured over modelled seconds for
the same number of ranks.

Kernels were timed at the boost clock. Where the calibration has a table of power, the clock of a step follows from its own draw (`board`, found by
`sim.predict`); else the catalog's training clock is used.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sim.cost.between import Curve
from sim.cost.calibration import Calibration
from sim.cost.gpu_pricer import PIN, kept_collective, kept_message
from sim.cost.kernel import at_clock, kernel_cost
from sim.cost.measured import Lookup, MeasuredPricer
from sim.cost.nearest import nearest
from sim.cost.power import draws_of
from sim.cost.price import Cost, Source
from sim.cost.stairs import stairs_of
from sim.cost.timed import prices
from sim.framework.framework import Framework
from sim.program import FILED, HOST, Op
from sim.work import HostWork, Work
from topologies.graph import Topology
from topologies.hardware import Gpu

HOST_WORK = (
    "kernel", "launch", "convolution", "view", "module", "autograd", "accumulate", "event", "collective", "copy", "collate", "loader", "take_pinned",
    "checkpoint", "optimizer", "cpu_optimizer", "ddp_step", "ddp_bucket", "ddp_parameter", "fsdp_unit", "fsdp_parameter", "checkpointed", "packed",
    "dtensor_linear", "dtensor_norm", "dtensor_adam", "dtensor_sgd",
)  # fmt: skip
"""Rows of the table of host work that are the cost of one unit of it. `log` and `optimizer_step` are not among them: on a GPU they contain a copy
and launches, which a program has as ops of their own."""
LOOPED = ("kernel", "launch", "convolution", "view", "module", "autograd", "accumulate", "optimizer", "dtensor_adam", "dtensor_sgd")
"""Rows that were timed in a loop of that call alone. In a step they all take `in_step` times as long, except bare launches from C++ (`launch`), which
are loops in a step too."""
_LEAST_COPY = 0.5
"""Smallest share of a pageable copy's measured seconds that its link takes (assumed): the launch, timed by itself, may be as long as a small copy."""
_SAME = {"node": "autograd"}
"""Kind of host work -> the row that stands for it: the row `autograd` was timed on the nodes of torch's own operators."""


class CalibratedPricer(MeasuredPricer):
    """A `MeasuredPricer` that looks into the machine's own calibration first."""

    def __init__(
        self,
        topology: Topology,
        framework: Framework,
        calibration: Calibration,
        lookups: tuple[Lookup, ...] = (),
        factor: Callable[[int], float] | None = None,
        board: float = 1.0,
    ) -> None:
        super().__init__(topology, framework, lookups, factor, board)
        self._calibration, self._table = calibration, prices(calibration)
        self.sustained = draws_of(calibration) is None
        # What was timed is eager PyTorch: compiled frameworks and those with their own modules spend other times.
        measured = {s.name: s.median for s in calibration.rows("host") if s.name in HOST_WORK} if self.host == "python" else {}
        longer, _ = calibration.host_seconds("in_step", 1.0)
        measured |= {what: longer * measured[what] for what in LOOPED if what in measured and what != "launch"}
        self._own = measured | {what: measured[as_] for what, as_ in _SAME.items() if as_ in measured}
        self._copies = {name: calibration.curve("copy", name) for name in {s.name for s in calibration.rows("copy")}}
        self._sent = {
            key: Curve((s.shape[1], s.median) for s in calibration.collectives if (s.name, s.shape[0]) == key)
            for key in {(s.name, s.shape[0]) for s in calibration.collectives}
        }
        self.saved = calibration.curve("file", "save")
        self._pins = calibration.curve("loader", PIN)
        self._factors: dict[tuple[str, int, int], tuple[float, Source]] = {}

    def _spent(self, what: str, rank: int) -> float:
        found = self._own.get(what)
        return found if found is not None else super()._spent(what, rank)

    def local(self, op: Op, rank: int) -> Cost:
        """As `GpuPricer.local`, but host work whose kinds were all timed, or stated by the plan, has the source `measured`."""
        cost = super().local(op, rank)
        if op.kind == "host" and cost.source != "measured":
            works = [work for work in op.works if isinstance(work, HostWork)]
            if works and all(work.seconds or work.what in self._own or (work.what == PIN and self._pins) for work in works):
                return replace(cost, source="measured")
        return cost

    def _pinning(self, size: float, rank: int) -> float:
        return self._pins.at(size)[0] if self._pins else super()._pinning(size, rank)

    def _looked_up(self, work: Work, gpu: Gpu) -> Cost:
        seconds, source = self._table.price(work)
        if source != "measured":
            cost = super()._looked_up(work, gpu)
            return cost if cost.source == "measured" else self._nearby(cost, work, gpu)
        seconds *= stairs_of(self._calibration, gpu, self.framework.attention.kernels).factor(work)
        if not self.sustained:
            return Cost(at_clock(work, gpu, seconds, self._board), "measured")
        # Times under load change only for the slowest board of several; times of a short benchmark also for the clock in training.
        mean = kernel_cost(work, gpu, self.framework.attention.kernels, self._calibration.loaded).seconds
        slowest = kernel_cost(work, gpu, self.framework.attention.kernels, True, self._board).seconds
        return Cost(seconds * slowest / mean if mean > 0 else seconds, "measured")

    def _nearby(self, cost: Cost, work: Work, gpu: Gpu) -> Cost:
        """The model's cost, times measured over modelled seconds at the nearest point; the model's cost alone where there is none."""
        found = nearest(work, self._calibration)
        if found is None:
            return cost
        model = kernel_cost(found[0], gpu, self.framework.attention.kernels, self._calibration.loaded).seconds
        return Cost(cost.seconds * found[1] / model, "fitted")

    def _copy(self, op: Op, rank: int) -> Cost:
        cost = super()._copy(op, rank)
        way, how = "d2h" if "d2h" in op.lane else "h2d", "pageable" if op.how == "pageable" else "pinned"
        curve = self._copies.get(f"{way}.{how}")
        if curve is None or not cost.uses or not op.bytes or op.how in FILED:
            return cost
        seconds, inside = curve.at(op.bytes)
        if how == "pageable":  # the host timed it, launch included
            seconds = max(seconds - cost.host, _LEAST_COPY * seconds)
        uses = tuple((link, min(rate, op.bytes / seconds)) for link, rate in cost.uses)
        return replace(cost, seconds=seconds, latency=min(cost.latency, seconds), uses=uses, source="measured" if inside else "fitted")

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """The model's cost, times the measured factor (`_scaled`) where NCCL chooses the algorithm and no kernels run beside it."""
        cost = super().collective(op, members, siblings)
        if op.lane == HOST or op.works or op.how not in ("", "auto"):
            return cost
        return self._scaled(cost, op.name, op.bytes, members)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """The model's cost, times the measured factor (`_scaled`) for messages between GPUs."""
        cost = super().message(op, source, target, siblings)
        return cost if op.lane == HOST else self._scaled(cost, "send", op.bytes, (source, target))

    def _scaled(self, cost: Cost, name: str, size: int, members: tuple[int, ...]) -> Cost:
        """`cost` times the measured factor, where a group of as many ranks on as many nodes was measured; else `cost`."""
        if (name, len(members)) not in self._sent or self._nodes(members) != self._nodes(tuple(range(len(members)))):
            return cost
        factor, source = self._factor_of(name, size, len(members))
        uses = tuple((link, amount / factor) for link, amount in cost.uses)
        return replace(cost, seconds=cost.seconds * factor, latency=cost.latency * factor, uses=uses, source=source)

    def _nodes(self, members: tuple[int, ...]) -> int:
        return len({self.topology.node(rank) for rank in members})

    def _factor_of(self, name: str, size: int, count: int) -> tuple[float, Source]:
        """(measured over modelled seconds of the first `count` ranks, source). Outside the measured sizes it is the factor of the nearest one. During the
        measurement the other ranks ran the same collective, in groups of `count` too."""
        found = self._factors.get((name, size, count))
        if found is None:
            curve = self._sent[name, count]
            near = round(min(max(size, curve.sizes[0]), curve.sizes[-1]))
            ranks, siblings = tuple(range(count)), max(1, self._calibration.ranks // count)
            model = kept_message(near, 0, 1, self.topology, siblings) if name == "send" else kept_collective(
                name, near, ranks, self.topology, "auto", siblings
            )  # fmt: skip
            factor = curve.at(near)[0] / model.seconds if model.seconds > 0 else 1.0
            found = self._factors[name, size, count] = factor, "measured" if near == size else "fitted"
        return found
