"""What a plan cannot beat: a lower bound of its step, from the prices of its kernels alone, in a fraction of a millisecond.

The compute lane of a rank runs the kernels and blocking collectives of its stages one after the other, for every micro-batch, and the
pipeline has to fill before its first backward and to drain after its last: for each pipeline rank r with forward F and backward B,

    step >= m (F_r + B_r) + sum over the ranks before r of (F + B of their first chunk)

and no less than m times what its thread spends on modules and autograd.

(for GPipe and 1F1B this is exact where nothing else is exposed: Narayanan et al. 2021, section 2.2). Launches, data parallel messages,
the optimizer, stragglers and contention only add to it. A sweep that has a plan as fast as another's bound need not simulate the other.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.bind import Setting
from sim.cost.price import Pricer
from sim.lower.job import EAGER
from sim.model.parts import Block, Part
from sim.model.stages import held, layout
from sim.plan import Plan
from sim.program import COMPUTE, HOST, Op
from sim.work import HostWork, Work

_FORWARD = {
    "tp.reduce": ("reduce_scatter", "all_reduce"),
    "tp.gather": ("all_gather", ""),
    "tp.embedding": ("reduce_scatter", "all_reduce"),
}
"""Collective on the compute lane in forward, with and without sequence parallelism."""


class Pass(NamedTuple):
    """Seconds of a block on the compute lane."""

    forward: float
    backward: float
    """Of the input alone, what the stage before waits for."""
    weights: float
    host: float
    """Of the thread that launches both."""

    @property
    def device(self) -> float:
        return self.forward + self.backward + self.weights


class Bounds:
    """Bounds of plans on one machine; equal blocks of different plans are priced once."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[object, ...], tuple[Pass, Block]] = {}
        """By the block's id and what else sets its price; the block is kept, so that its id stays its own."""

    def step(self, setting: Setting, pricer: Pricer) -> float:
        """Seconds that one step of the plan takes at least."""
        plan = setting.plan
        stages = layout(setting.network, plan)
        best = before = 0.0
        count = plan.microbatches
        for rank in range(plan.parallel.pp):
            chunks = [self._stage(setting, pricer, blocks) for blocks in held(stages, plan, rank)]
            device, host = sum(chunk.device for chunk in chunks), sum(chunk.host for chunk in chunks)
            best = max(best, before + count * device, count * host)
            before += chunks[0].forward + chunks[0].backward
        return best

    def _stage(self, setting: Setting, pricer: Pricer, blocks: tuple[tuple[str, Block], ...]) -> Pass:
        passes = [self._block(setting, pricer, block) for _, block in blocks]
        return Pass(*(sum(column) for column in zip(*passes, strict=True))) if passes else Pass(0.0, 0.0, 0.0, 0.0)

    def _block(self, setting: Setting, pricer: Pricer, block: Block) -> Pass:
        plan = setting.plan
        first = block is setting.network.blocks[0][1]
        key = (id(block), setting.topology.name, plan.task, plan.memory.recompute, not plan.memory.recompute_layers, setting.framework,
               plan.parallel.tp_overlap, _innermost(plan), first)  # fmt: skip
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = (self._price(setting, pricer, block, first), block)
        return found[0]

    def _price(self, setting: Setting, pricer: Pricer, block: Block, first: bool) -> Pass:
        forward = backward = weights = host = 0.0
        train = setting.plan.task != "forward"
        memory = setting.plan.memory
        full = memory.recompute == "full" and not memory.recompute_layers and block.kind == "layer"
        for part in block.parts:
            ahead = _seconds(pricer, part.forward, part.cls) + _blocking(setting, pricer, part)
            forward += ahead
            host += _spent(setting, pricer, part, train)
            if not train:
                continue
            # Frameworks stop recomputing early, or overlap a gather: only a part's own kernels surely run again.
            again = full and part is not block.parts[-1] and bool(part.forward)
            if not (first and part is block.parts[0]):  # nobody needs the gradient of the network's input
                backward += _seconds(pricer, part.backward, part.cls)
            backward += _seconds(pricer, part.forward, part.cls) if again else 0.0
            weights += _seconds(pricer, part.wgrad, part.cls) if not part.frozen else 0.0
        return Pass(forward, backward, weights, host)


def _seconds(pricer: Pricer, works: tuple[Work, ...], cls: str) -> float:
    return pricer.local(Op("bound", "compute", COMPUTE, works, cls=cls), 0).seconds if works else 0.0


def _spent(setting: Setting, pricer: Pricer, part: Part, train: bool) -> float:
    """Modules and autograd nodes of an eager framework on the host."""
    framework = setting.framework
    if framework.host not in EAGER or framework.cuda_graphs or framework.compile:
        return 0.0
    works = [HostWork("module", part.modules)] if part.modules else []
    works += [HostWork("autograd", len(part.forward))] if train and part.forward else []
    return pricer.local(Op("bound", "host", HOST, tuple(works)), 0).seconds if works else 0.0


def _blocking(setting: Setting, pricer: Pricer, part: Part) -> float:
    """A tensor parallel collective that stands on the compute lane itself."""
    plan = setting.plan
    overlapped = setting.framework.tp_overlap if plan.parallel.tp_overlap is None else plan.parallel.tp_overlap
    names = _FORWARD.get(part.seam)
    if names is None or plan.parallel.tp == 1 or overlapped:
        return 0.0
    name = names[0] if plan.parallel.sequence_parallel else names[1]
    if not name or not _innermost(plan):
        return 0.0
    op = Op("bound", "collective", COMPUTE, name=name, bytes=part.seam_bytes, group="tp")
    return pricer.collective(op, tuple(range(plan.parallel.tp)), 1).seconds


def _innermost(plan: Plan) -> bool:
    return plan.parallel.placement.replace(" ", "").startswith("tp")
