"""Pipeline stages: which blocks each holds, and the segments of ops that its micro-batches run.

A plan without a pipeline is one stage. The same segments serve every schedule, by the kinds of `sim.schedule`: F, B (whole
backward), or I (gradient of the input) and W (of the weights) apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec

from sim.lower import ends, narrow, passes
from sim.lower.accumulate import Way
from sim.lower.blocks import lower_block
from sim.lower.data_parallel import fsdp, replicate, sharded
from sim.lower.data_parallel.buckets import Bucket, buckets_of, rebuilds
from sim.lower.data_parallel.units import Unit, units_of
from sim.lower.input import take
from sim.lower.job import Job
from sim.lower.offload import offload
from sim.lower.passes import Chunk, Variant
from sim.lower.scales import with_scales
from sim.lower.short import Shortener
from sim.lower.template import TEMPLATE, BlockOps, Template, Templates, renamed
from sim.model.layers.redo import sent_away, whole_again
from sim.model.parts import Block
from sim.model.stages import layout
from sim.program import Op
from sim.schedule import placement

Named = tuple[tuple[str, Block], ...]
INPUT = "input"
"""Name of the segment that takes a batch."""


class Stage(msgspec.Struct, frozen=True):
    """One model chunk: stage `index` of `count`, held by pipeline coordinate `rank`."""

    index: int
    count: int
    rank: int
    blocks: Named
    sharers: tuple[int, ...] = ()
    """Pipeline coordinates of all ranks that hold the shared table, if the first block of this one to read it is here."""

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1


def stages_of(job: Job) -> tuple[Stage, ...]:
    """The network's stages (`sim.model.stages.layout`), with the ranks that hold them.

    Raises `BadInput` when there are fewer layers than stages.
    """
    chunks = list(layout(job.network, job.plan))
    count = len(chunks)
    ranks = [rank_of(job, i) if count > 1 else 0 for i in range(count)]
    if ranks[-1] != ranks[0]:
        name, block = chunks[-1][-1]
        chunks[-1] = (*chunks[-1][:-1], (name, ends.without_late(job, block)))
    chunks = ends.with_sums(job, chunks, ranks)
    readers = ends.readers(job, chunks, ranks)
    found = []
    for i, (rank, blocks) in enumerate(zip(ranks, chunks, strict=True)):
        if readers.get(rank) in dict(blocks):
            found.append(Stage(i, count, rank, ends.with_copy(job, blocks, readers[rank]), tuple(readers)))
        else:
            found.append(Stage(i, count, rank, blocks))
    return tuple(found)


def rank_of(job: Job, stage: int) -> int:
    """Pipeline coordinate of a stage."""
    return placement.rank_of(job.schedule, job.plan.parallel.pp, stage)


class StageSegments:
    """The segments of one stage, made when first called. `segments` collects them by name."""

    def __init__(self, stage: Stage, chunk: Chunk, segments: dict[str, tuple[Op, ...]]) -> None:
        self.job, self.stage, self.chunk = chunk.job, stage, chunk
        self._segments = segments
        self.further: list[StageSegments] = []
        """On a rank's first stage: the rank's other stages, in the order of use."""
        self._variants: dict[tuple[str, bool, bool, bool, bool], Variant] = {}
        self._buckets: dict[int, list[Bucket]] = {}
        self.like = stage.index
        """Index of the first stage that runs the same ops, whose segments this one uses; its own index where there is none before it (`share_segments`)."""

    @property
    def tag(self) -> str:
        """Prefix of the names of this stage's segments and buckets, which tells them from other stages'."""
        return f"stage{self.like}." if self.stage.count > 1 else ""

    @property
    def ends(self) -> tuple[int, int]:
        """Pipeline coordinates of the first and the last stage."""
        return rank_of(self.job, 0), rank_of(self.job, self.stage.count - 1)

    @property
    def takes_input(self) -> bool:
        """Whether the stage takes a batch. The first stage needs samples, the last one their labels; a rank that has both takes a batch
        once."""
        return self.stage.first or (self.stage.last and self.ends[0] != self.ends[1])

    def names(self, kind: str, begins: bool, first: bool, last: bool, beside: bool = False) -> list[str]:
        """The segments of one action on one micro-batch: F, B, I or W, in the step that `begins` the program or a later one. `first`,
        `last`: among the forwards, or among the actions that make weight gradients (B and W), of this stage in this step. A forward
        that needs a batch takes it first. `beside`: other stages' parameters are gathered at the same time; this matters only with a
        `Shortener`.
        """
        found = []
        if kind == "F" and self.takes_input:
            if INPUT not in self._segments:
                self._segments[INPUT] = tuple(take(self.job))
            found.append(INPUT)
        return [*found, self._segment(kind, begins, first, last, beside and self.chunk.short is not None)]

    def _segment(self, kind: str, begins: bool, first: bool, last: bool, beside: bool) -> str:
        """The name of the action's segment, which is made when it is first asked for."""
        key = (kind, begins, first, last, beside)
        variant = self._variants.get(key)
        if variant is None:
            variant = self._variants[key] = _variant(self.job, kind, 0 if begins else 1, first, last)._replace(beside=beside)
        name = self.tag + variant.name
        if name not in self._segments:
            blocks = (block for _, block in self.stage.blocks)
            self._segments[name] = with_scales(self.job, variant.base, _build(self.job, self, variant), blocks)
        return name

    def buckets(self, step: int) -> list[Bucket]:
        """The stage's gradients in buckets, as step number `step` sends them."""
        if step not in self._buckets:
            self._buckets[step] = buckets_of(self.job, self.chunk.blocks, step, self.tag, self.stage.first)
        return self._buckets[step]

    @cached_property
    def units(self) -> dict[str, Unit]:
        """By block name: the unit of parameters that ZeRO-3 gathers together, of which the block is a part."""
        return units_of(self.job, self.chunk.blocks, self.tag)


def stage_segments(
    job: Job, stage: Stage, segments: dict[str, tuple[Op, ...]], templates: Templates, short: Shortener | None
) -> StageSegments:
    """Lowers the stage's blocks once; all its segments share their ops. `templates`: layers by kind, shared by all stages. With `short`
    equal layers share their ops too, unnamed, and runs of these are shortened."""
    offloads = job.train and job.plan.memory.offload == "activations"
    short = None if offloads else short  # the copies of offloading tie forward to backward
    found, kind = list[BlockOps](), list[Template]()
    for (name, block), whole in zip(stage.blocks, whole_again(job.plan.memory, stage.blocks), strict=True):
        again, first = job.train and whole, stage.first and not found
        own = name if block.end or first else ""
        key = (id(block), again, first, own)
        if key not in templates:
            templates[key] = lower_block(job, own or TEMPLATE, block, first=first, again=again)
        shared = short is not None and short.shares(templates[key])
        if short is not None and not shared:
            short.keep(name)
        kind.append(key if shared else (*key[:3], name))
        if own:
            found.append(templates[key])
        elif short is not None and shared:
            found.append(short.named(templates[key], name))
        else:
            found.append(renamed(templates[key], name))
    if offloads:
        found = offload(job, found, sent_away(job.plan.memory, stage.blocks))
    return StageSegments(stage, Chunk(job, found, short, tuple(kind)), segments)


def share_segments(stages: list[StageSegments]) -> None:
    """Sets `like` of every stage. Stages that run the same ops, as the same chunk of their ranks, share one set of segments where equal layers share
    their ops (with a `Shortener`)."""
    known: dict[object, int] = {}
    for stage in stages:
        if stage.chunk.short:
            turn = stage.stage.index // stage.job.size("pp")
            crossings = stage.job.crossings[stage.stage.index : stage.stage.index + 2]
            kind = (turn, stage.stage.first, stage.stage.last, crossings, stage.chunk.kind, *(other.chunk.kind for other in stage.further))
            stage.like = known.setdefault(kind, stage.stage.index)


def syncs(job: Job, last: bool) -> bool:
    """Whether gradients are sent during or right after this micro-batch's backward. Sharded ones are sent at once, whole ones with the
    `last` micro-batch.

    With ZeRO-2 also in a pipeline (grad_reduce_every_bprop of Megatron-FSDP's fully_sharded_data_parallel.py); torch's FSDP waits there. One rank
    that shards by itself (`sharded_alone`) sends nothing, and copies all the same.
    """
    if not job.train or not job.plan.update.summed or (job.size("grad") * job.size("edp") == 1 and job.zero < 3):
        return False
    return last or job.zero == 2 or (job.zero == 3 and job.size("pp") == 1)


def _variant(job: Job, kind: str, step: int, first: bool, last: bool) -> Variant:
    """The pass that an action of `sim.schedule` runs."""
    if kind == "F":
        return Variant("fwd", gathers=first and _gathers(job, step), narrows=narrow.when(job, first))
    narrows = narrow.when(job, False) if kind in ("B", "I") else ""
    if kind == "I":
        return Variant("bwd", input_only=True, narrows=narrows)
    leave = syncs(job, last) and not job.reduces_apart
    return Variant(
        "bwd" if kind == "B" else "wgrad",
        narrows=narrows,
        how=_accumulates(job, first),
        sync="" if not leave else "sync0" if step == 0 and rebuilds(job) else "sync",
        later=job.zero == 3 and job.size("pp") == 1 and not first,
    )


def _accumulates(job: Job, first: bool) -> Way:
    """How a micro-batch's gradients are added to earlier ones (`sim.lower.accumulate.Way`). Shards of ZeRO-2 and -3 are summed as they
    arrive.

    A pipeline's FSDP keeps whole gradients until the last backward (`set_requires_gradient_sync(False)` in torch's pipelining/stage.py), in
    the dtype of the messages (to_accumulated_grad_if_needed in FSDP2's _fsdp_param.py).
    """
    if job.zero < 2:
        return "" if first else "add"
    if job.zero == 2 or job.size("pp") == 1:
        return ""
    return "more" if not first else "cast" if job.param_bytes != job.reduce_bytes else ""


def _gathers(job: Job, step: int) -> bool:
    """Whether the first forward of a step gathers parameters that the following ones reuse."""
    if job.zero == 3:
        return job.train and job.size("pp") > 1 and not job.unshards
    return job.gathers_ahead and step > 0


def _build(job: Job, stage: StageSegments, variant: Variant) -> Iterable[Op]:
    if variant.beside:
        return passes.beside(stage.chunk, variant)
    inline = job.zero == 3 and (job.size("pp") == 1 or not job.train)  # parameters are gathered in every pass
    if not inline and not variant.gathers and not variant.sync:
        return passes.alone(stage.chunk, variant)
    if variant.base == "fwd":
        return _gathering(job, stage, variant)
    if job.zero == 3:
        pieces = passes.backward(stage.chunk, variant)
        return fsdp.backward(job, stage.chunk.blocks, stage.units, pieces, stage.tag, variant.sync == "sync", variant.later)
    buckets = stage.buckets(0 if variant.sync == "sync0" else 1)
    pieces = passes.backward(stage.chunk, variant, {bucket.last for bucket in buckets})
    return replicate.reduce_gradients(job, pieces, buckets, sharded.messages if job.zero else replicate.all_reduce)


def _gathering(job: Job, stage: StageSegments, variant: Variant) -> list[Op]:
    """The ops of a forward that gathers parameters."""
    lines = passes.forward(stage.chunk, variant)
    if job.zero == 3:
        return fsdp.forward(job, stage.chunk.blocks, stage.units, lines, stage.tag)
    later = [bucket for other in stage.further for bucket in other.buckets(1)]
    return sharded.gather_ahead(job, stage.chunk.blocks, lines, stage.buckets(1), later if stage.stage.index < job.size("pp") else None)
