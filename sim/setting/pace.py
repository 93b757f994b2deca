"""The clock of the board that a step waits for.

Data-parallel ranks meet in every step, so a step without a pipeline waits for the slowest of all its boards (`slowest`). In a pipeline
the stage that takes longest sets the pace of the others (Narayanan et al. 2021, section 2.2), which have time to spare: a slow board in a
light stage holds nobody up until it has lost that. The last stage, with the head and its loss, is often the longest; its boards alone
then count.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.cost.kernel import assumed, kernel_cost
from sim.cost.sustained import slowest
from sim.model.layers.redo import redone, whole_again
from sim.model.parts import Block, Network
from sim.model.stages import Blocks, held, layout
from sim.rules import mesh_of
from sim.setting.bind import Setting
from sim.work import HostWork
from topologies.hardware import Cpu, Gpu

Devices = tuple[Gpu | Cpu, ...]
_KNOWN: dict[tuple[object, ...], tuple[float, Network, Devices]] = {}
"""Clocks found so far, by all that they depend on. Network and devices are kept with them, so that their ids stay valid."""
_MOST = 1024


def board_clock(setting: Setting) -> float:
    """Clock of the board for which the plan's step waits, divided by that of the mean board; 1 on CPUs. Raises `BadInput` and its
    subclasses for layers that cannot be split into such a pipeline."""
    plan, p = setting.plan, setting.plan.parallel
    if setting.topology.kind == "cpu":
        return 1.0
    if p.pp == 1:
        return 1.0 if plan.asynchronous else slowest(plan.world)  # asynchronous ranks wait for nobody, and the step is their mean
    mesh = mesh_of(plan)
    devices = tuple(setting.topology.device(mesh.rank({"pp": at})) for at in range(p.pp))
    split = (plan.world, p.virtual_stages, p.schedule, p.actions, p.stages, plan.memory, plan.task)
    key = (id(setting.network), *map(id, devices), setting.framework.attention.kernels, assumed(), *split)
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        known = _KNOWN[key] = (pace(_loads(setting, devices), plan.world // p.pp), setting.network, devices)
    return known[0]


def pace(loads: Sequence[float], boards: int) -> float:
    """The clock, relative to the mean board's, at which the longest stage would take as long as the pipeline waits.

    `loads`: seconds of a micro-batch on each stage, at the mean board's clock. `boards`: boards of each stage. For each stage, take all
    stages that last at least as long: the slowest of their boards may be in any of them, so the pipeline waits at least for this stage
    at that board's clock. The longest of these waits counts.
    """
    longest = max(loads)
    if longest <= 0:
        return slowest(boards * len(loads))
    return min(slowest(boards * sum(other >= load for other in loads)) * (longest / load) for load in set(loads) if load > 0)


def _loads(setting: Setting, devices: Devices) -> list[float]:
    """Seconds of kernels that one micro-batch takes on each pipeline rank, on its first device: forward, backward and recomputation. What
    the ranks of a stage exchange is left out: it is much the same for all layers."""
    stages, priced = layout(setting.network, setting.plan), {id(device): _Priced(setting, device) for device in devices}
    return [sum(map(priced[id(device)].chunk, held(stages, setting.plan, at))) for at, device in enumerate(devices)]


class _Priced:
    """The times of a plan's blocks on one device."""

    def __init__(self, setting: Setting, device: Gpu | Cpu) -> None:
        assert isinstance(device, Gpu)
        self._plan, self._gpu, self._efficiency = setting.plan, device, setting.framework.attention.kernels
        self._compiled = setting.framework.compile
        self._known: dict[tuple[int, bool], float] = {}

    def chunk(self, blocks: Blocks) -> float:
        """Seconds of all blocks of a chunk, including the recomputation of those that run again as a whole."""
        known, total = self._known, 0.0
        for (_, block), whole in zip(blocks, whole_again(self._plan.memory, blocks), strict=True):
            again = whole and self._plan.task != "forward"
            seconds = known.get((id(block), again))
            if seconds is None:
                seconds = known[id(block), again] = self._seconds(block, again)
            total += seconds
        return total

    def _seconds(self, block: Block, again: bool) -> float:
        """Seconds of all kernels of one micro-batch on a block, including those that run again in backward."""
        parts = block.parts
        works = [work for part in parts for work in part.forward]
        if self._plan.task != "forward":
            works += [work for part in parts for work in (*part.backward, *part.wgrad)]
            runs = {} if again else redone(block, self._plan.memory.modules, self._compiled).runs
            some = parts if again else [part for run in runs.values() for part in run]
            works += [work for part in some for work in part.forward]
        return sum(kernel_cost(work, self._gpu, self._efficiency).seconds for work in works if not isinstance(work, HostWork))
