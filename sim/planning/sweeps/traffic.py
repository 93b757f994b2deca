"""What a rank of ZeRO-3 sends and receives of its parameters and gradients, by lane: part of a plan's bound (`sim.planning.sweeps.bound`).

Each lane runs its messages one after the other. Without a pipeline all of them travel again for each micro-batch; a stage of a pipeline
gathers with the first forward of each of its chunks, and reduces after the last backward (`sim.lower.data_parallel.fsdp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sim.lower.data_parallel.gathered import KEPT
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.sharded import CLS
from sim.lower.data_parallel.units import Unit, units_of
from sim.lower.job import Job
from sim.lower.ops import collective
from sim.lower.stage import syncs
from sim.lower.template import BlockOps
from sim.model.stages import Blocks
from sim.program import Op

Seconds = Callable[[Op], float]
"""What a collective takes on this rank."""


class Traffic:
    """The messages of one chunk of layers, in seconds."""

    def __init__(self, job: Job, blocks: Blocks, seconds: Seconds) -> None:
        self._job, self._seconds = job, seconds
        found = units_of(job, [BlockOps(name, block, ()) for name, block in blocks], "") if job.zero == 3 else {}
        self._units = list(dict.fromkeys(found.values()))

    def gathers(self) -> float:
        """All parameters, once, that a stage's first forward waits for; 0 where stages are gathered ahead (`sim.lower.unshard`)."""
        return 0.0 if self._job.unshards else max(self._gathered(self._units).values(), default=0.0)

    def reduces(self) -> float:
        """All gradients, once; 0 where nobody waits for them."""
        return max(self._reduced().values(), default=0.0) if syncs(self._job, True) else 0.0

    def passes(self, microbatches: int) -> float:
        """Everything that travels in a step without a pipeline."""
        job, lanes = self._job, dict[str, float]()
        times = [(microbatches, self._gathered(self._units))]
        if job.train and job.reshard:
            freed = (unit for unit in self._units if not unit.kept)
            times.append((microbatches, self._gathered(freed, {"fsdp": KEPT} if job.keeps_among else {})))
        if syncs(job, True):
            times.append((microbatches if syncs(job, False) else 1, self._reduced()))
        for count, by_lane in times:
            for lane, seconds in by_lane.items():
                lanes[lane] = lanes.get(lane, 0.0) + count * seconds
        return max(lanes.values(), default=0.0)

    def _gathered(self, units: Iterable[Unit], along: Mapping[str, str] | None = None) -> dict[str, float]:
        """`along`: other axes in place of the units' own."""
        return self._sum(units, "all_gather", self._job.param_bytes, along or {})

    def _reduced(self) -> dict[str, float]:
        return self._sum(self._units, "reduce_scatter", self._job.reduce_bytes, {})

    def _sum(self, units: Iterable[Unit], name: str, width: float, along: Mapping[str, str]) -> dict[str, float]:
        """By lane; a unit's message has `width` bytes for each element."""
        lanes: dict[str, float] = {}
        known: dict[tuple[str, int], float] = {}
        for unit in units:
            for _, own, elements in unit.gradients if name == "reduce_scatter" else unit.messages:
                axis = along.get(own, own)
                if (axis, elements) not in known:
                    op = collective(self._job, name, lane_of(axis), name, elements * width, axis, CLS)
                    known[axis, elements] = self._seconds(op)
                lane = lane_of(axis)
                lanes[lane] = lanes.get(lane, 0.0) + known[axis, elements]
        return lanes
