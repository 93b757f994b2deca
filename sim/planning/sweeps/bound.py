"""What a plan cannot beat: a lower bound of its step, from the prices of its layers' ops alone, in a few milliseconds.

The compute lane of a rank runs the kernels, and the collectives that stand on it, of its stages one after the other, for every
micro-batch, and the pipeline has to fill before its first backward and to drain after its last: for each pipeline rank r with forward F
and backward B,

    step >= m (F_r + B_r) + sum over the ranks before r of (F + B of their first chunk)

and no less than m times what its thread spends on modules, autograd and launches. (For GPipe and 1F1B this is exact where nothing else is
exposed: Narayanan et al. 2021, section 2.2.) Schedules that split backward run some weights' gradients while the ranks before drain:
these are taken off what drains. Of asynchronous ranks, which wait for nobody, each has its own bound, and the harmonic mean of all counts,
as of their steps. Parameters that ZeRO-3 gathers hold up a forward, gradients that it scatters the end (`traffic`). All
other messages of data parallelism, the optimizer, stragglers and contention only add to it. A sweep that has a plan as fast as another's
bound need not simulate the other.

The ops are those that lowering makes of a block: what a plan exchanges with its tensor, context and expert parallel groups on the
compute lane is in them, and so is what it recomputes. They are priced on the first rank of each stage, on the device that it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from statistics import harmonic_mean
from typing import NamedTuple

from sim.cost.price import Pricer, met
from sim.lower.binding import job_of
from sim.lower.blocks import lower_block
from sim.lower.ends import late
from sim.lower.job import Job
from sim.lower.template import TEMPLATE, BlockOps
from sim.model.layers.redo import whole_again
from sim.model.parts import Block
from sim.model.stages import Blocks, held, layout
from sim.planning.sweeps.traffic import Traffic
from sim.program import COMPUTE, HOST, Op
from sim.schedule import Action, schedule, splits
from sim.setting.bind import Setting
from sim.setting.pace import board_clock
from sim.steady.shortened import layers_of
from topologies.graph import Topology


class Pass(NamedTuple):
    """What a rank spends on one pass over a block: seconds on the compute lane without what it exchanges there, seconds of the thread that
    launches it, and the exchanges."""

    kernels: float
    host: float
    exchanges: tuple[Op, ...]


class Passes(NamedTuple):
    """Forward, whole backward, and backward's two halves apart, with what is recomputed for them."""

    forward: Pass
    whole: Pass
    inputs: Pass
    weights: Pass


class Chunk(NamedTuple):
    """Seconds of one micro-batch on a chunk of layers, exchanges among them."""

    forward: float
    backward: float
    """Until the stage before can go on."""
    rest: float
    """Of backward, what nobody else waits for."""
    host: float

    @property
    def device(self) -> float:
        return self.forward + self.backward + self.rest


Known = dict[tuple[object, ...], tuple[Passes, Block, Topology]]


class Bounds:
    """Bounds of plans; equal blocks of different plans are priced once."""

    def __init__(self) -> None:
        self._blocks: Known = {}
        """By the ids of block and topology and what else sets its price; the two are kept, so that their ids stay their own."""

    def step(self, setting: Setting, pricer: Pricer) -> float:
        """Seconds that one step of the plan takes at least. Raises `BadInput` and its kinds for what cannot be lowered."""
        plan, stages = setting.plan, layout(setting.network, setting.plan)
        job = job_of(plan, setting.network, setting.framework, setting.topology.kind, 1)
        count = plan.microbatches
        alike = setting.foldable and plan.noise.even
        key = (layers_of(plan), board_clock(setting), plan.world, id(setting.topology), setting.framework)
        rank_at = partial(_Rank, self._blocks, job, pricer, setting.topology, key, alike)
        if plan.parallel.pp == 1:
            every = plan.asynchronous and not alike
            return harmonic_mean([rank_at(rank).alone(stages[0], count) for rank in range(plan.world if every else 1)])
        best = fill = drain = 0.0
        for at in range(plan.parallel.pp):
            rank, mine = rank_at(job.mesh.rank({"pp": at})), held(stages, plan, at)
            chunks, sent = [rank.chunk(blocks) for blocks in mine], [rank.traffic(blocks) for blocks in mine]
            device, host = count * sum(chunk.device for chunk in chunks), count * sum(chunk.host for chunk in chunks)
            gathers = [traffic.gathers() for traffic in sent]
            device += sum(max(0.0, gathered - chunk.forward) for gathered, chunk in zip(gathers, chunks, strict=True))
            actions = schedule(job.schedule, plan.parallel.pp, at, count, plan.parallel.virtual_stages) if splits(job.schedule) else ()
            put_off = put_off_of(actions) * max(chunk.rest for chunk in chunks)  # weights' gradients, at most
            put_off += rank.spent(late(job)) if at == plan.parallel.pp - 1 else 0.0
            best = max(best, host, fill + device + max(0.0, drain - put_off, sent[0].reduces() - put_off))
            if job.train:
                fill, drain = fill + max(chunks[0].forward, gathers[0]), drain + chunks[0].backward
        return best


def put_off_of(actions: tuple[Action, ...]) -> int:
    """Weights' gradients, each of one micro-batch and chunk, that a rank of these actions runs after its last gradient of an input."""
    return next((count for count, action in enumerate(reversed(actions)) if action.kind != "W"), 0)


class _Rank:
    """One rank, by what its layers cost there."""

    def __init__(
        self,
        blocks: Known,
        job: Job,
        pricer: Pricer,
        topology: Topology,
        key: tuple[object, ...],
        alike: bool,
        rank: int,
    ) -> None:
        self._blocks, self._job, self._pricer, self._topology = blocks, job, pricer, topology
        self._rank = rank
        self._key = key if alike else (*key, rank)
        self._groups: dict[str, tuple[int, ...]] = {}
        self._seconds: dict[tuple[object, ...], float] = {}
        self._known: dict[tuple[int, bool], Chunk] = {}

    def chunk(self, blocks: Blocks) -> Chunk:
        """One micro-batch on a chunk of layers."""
        times: dict[Chunk, int] = {}
        for (_, block), again in zip(blocks, whole_again(self._job.plan.memory, blocks), strict=True):
            kind = id(block), self._job.train and again
            one = self._known.get(kind)
            if one is None:
                one = self._known[kind] = self._one(self._passes(block, kind[1]))
            times[one] = times.get(one, 0) + 1
        return Chunk(*(sum(count * one[at] for one, count in times.items()) for at in range(4)))

    def alone(self, blocks: Blocks, microbatches: int) -> float:
        """Seconds of a step without a pipeline."""
        chunk = self.chunk(blocks)
        return max(microbatches * chunk.device, microbatches * chunk.host, self.traffic(blocks).passes(microbatches))

    def spent(self, ops: Iterable[Op]) -> float:
        return sum(self._pricer.local(op, self._rank).seconds for op in ops)

    def traffic(self, blocks: Blocks) -> Traffic:
        """What data parallelism sends of a chunk."""
        return Traffic(self._job, blocks, self._exchanged)

    def _one(self, passes: Passes) -> Chunk:
        forward, whole, inputs, weights = (self._device(one) for one in passes)
        hosts = passes.forward.host + min(passes.whole.host, passes.inputs.host + passes.weights.host)
        if self._job.plan.parallel.pp == 1 or not splits(self._job.schedule):
            return Chunk(forward, whole, 0.0, passes.forward.host + passes.whole.host)
        both = min(whole, inputs + weights)
        return Chunk(forward, min(both, inputs), both - min(both, inputs), hosts)

    def _device(self, one: Pass) -> float:
        return one.kernels + sum(self._exchanged(op) for op in one.exchanges)

    def _exchanged(self, op: Op) -> float:
        key = (op.name, op.group, op.bytes, op.how, op.works)
        seconds = self._seconds.get(key)
        if seconds is None:
            members = self._groups.get(op.group)
            if members is None:
                members = self._groups[op.group] = self._job.mesh.group(op.group, self._rank)
            seconds = self._seconds[key] = met(self._pricer.collective(op, members, 1), 0.0).seconds
        return seconds

    def _passes(self, block: Block, again: bool) -> Passes:
        first = block is self._job.network.blocks[0][1]
        key = (id(block), again, first, *self._key)
        known = self._blocks.get(key)
        if known is None:
            made = lower_block(self._job, TEMPLATE, block, first=first, again=again)
            known = self._blocks[key] = (self._priced(made), block, self._topology)
        return known[0]

    def _priced(self, made: BlockOps) -> Passes:
        parts = made.parts if self._job.train else ()
        return Passes(
            self._pass(made.forward),
            self._pass([*made.prelude, *(op for part in parts for op in part.joint)]),
            self._pass([*made.prelude, *(op for part in parts for op in part.backward)]),
            self._pass([op for part in parts for op in part.wgrad]),
        )

    def _pass(self, ops: Iterable[Op]) -> Pass:
        kernels = host = 0.0
        exchanges = []
        for op in ops:
            if op.kind == "collective" and op.lane == COMPUTE:
                exchanges.append(op)
            cost = self._pricer.local(op, self._rank)
            kernels += cost.seconds if op.lane == COMPUTE else 0.0
            host += cost.seconds if op.lane == HOST else cost.host
        return Pass(kernels, host, tuple(exchanges))
