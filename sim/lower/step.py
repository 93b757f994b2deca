"""Lowering: a plan becomes a program. The recipe of one step, pass by pass.

begin -> for each micro-batch: input, forward, backward (with its gradients' messages) -> finish -> update -> output
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.framework.framework import Framework
from sim.lower import ends, noise, output
from sim.lower import input as loading
from sim.lower.binding import job_of
from sim.lower.data_parallel import buffers
from sim.lower.data_parallel.sharded import gather_all
from sim.lower.job import Job
from sim.lower.microbatches import Microbatches, microbatches_of
from sim.lower.model_parallel import tensor
from sim.lower.optimizer import modes
from sim.lower.optimizer import step as optimizer
from sim.lower.optimizer.owned import Share
from sim.lower.short import Shortener
from sim.lower.stage import StageSegments, share_segments, stage_segments, stages_of
from sim.lower.template import Templates
from sim.memory.static import static_bytes
from sim.model.parts import Network
from sim.model.stages import held, layout
from sim.plan import Plan
from sim.program import HOST, Call, Op, Program, Role, server_lane
from sim.schedule.shards import ACTIVE_STAGES
from sim.turns import Line, Turns, called, single

Segments = dict[str, tuple[Op, ...]]


class Place(NamedTuple):
    """What makes ranks differ: the pipeline coordinate; whether the rank leads its data-parallel group; its number, where that matters
    (else -1); the factor on its compute time; the factor on its number of samples."""

    pp: int
    leads: bool = False
    rank: int = -1
    factor: float = 1.0
    load: float = 1.0

    @property
    def name(self) -> str:
        words = [f"pp{self.pp}", *(["lead"] if self.leads else []), *([f"r{self.rank}"] if self.rank >= 0 else [])]
        words += [f"{letter}{factor:.6g}" for letter, factor in (("x", self.factor), ("n", self.load)) if factor != 1.0]
        return ".".join(words)


def lower(
    plan: Plan,
    network: Network,
    framework: Framework,
    device: str,
    steps: int = 3,
    short: Shortener | None = None,
    counts: tuple[int, ...] = (),
) -> Program:
    """The program of `steps` optimizer steps of `plan` on every rank.

    Args:
        plan: checked (`sim.rules.check`).
        network: the model on one rank of the plan's split.
        framework: with the plan's own words applied (`sim.framework.chosen.framework_of`).
        device: "cuda" or "cpu".
        short: shortens runs of ops, where only times are asked for (`sim.lower.short`).
        counts: micro-batches of each step, where these are not the plan's.

    Raises `Refused` for combinations that are not supported, `BadInput` where the model cannot be cut as the plan says.
    """
    job = job_of(plan, network, framework, device, steps, counts)
    segments: Segments = {}
    templates: Templates = short.templates if short else {}
    stages = [stage_segments(job, stage, segments, templates, short) for stage in stages_of(job)]
    places = places_of(job)
    objects = {id(place): place for place in places}.values()  # ranks share few objects: by id first, as hashing each rank's place is slow
    kinds = list(dict.fromkeys(objects))
    for stage in stages[: job.size("pp")]:
        stage.further += [other for other in stages[job.size("pp") :] if other.stage.rank == stage.stage.rank]
    share_segments(stages)
    turns = microbatches_of(job, segments)
    names = {place: place.name for place in kinds}
    roles = {place.name: role(job, place, [s for s in stages if s.stage.rank == place.pp], segments, turns) for place in kinds}
    return Program(
        name=plan.name or plan.model_name,
        device="cpu" if device == "cpu" else "cuda",
        mesh=job.mesh,
        segments=called(segments, roles),
        roles=roles,
        role_of=tuple(names[place] for place in places) if len(kinds) > 1 else (kinds[0].name,) * len(places),
        steps=steps,
        resident={} if short else resident_bytes(job),
        notes=notes(job),
    )


def resident_bytes(job: Job) -> dict[str, int]:
    """Bytes that live through the whole step (parameters, gradients, optimizer), of the pipeline rank that holds most."""
    chunks, names = layout(job.network, job.plan), ("parameters", "gradients", "optimizer")
    ranks = (static_bytes(job.plan, job.network, job.framework, held(chunks, job.plan, rank)) for rank in range(job.size("pp")))
    return max(({name: static[name] for name in names} for static in ranks), key=lambda found: sum(found.values()))


def places_of(job: Job) -> list[Place]:
    """The place of each rank, as coarse as the plan allows: equal places are simulated once."""
    plan, stages = job.plan, job.mesh.places("pp")
    by_rank = plan.asynchronous
    led = plan.update.aggregate != "gpu" or _writes_whole(job)
    if plan.noise.even and not by_rank and not led:
        shared = [Place(stage) for stage in range(job.size("pp"))]
        return [shared[stage] for stage in stages]
    factor, load = noise.slowness(plan), noise.loads(plan)
    data = [job.mesh.places(axis) for axis in ("dp_replicate", "dp_shard", "cp")]
    return [
        Place(stage, led and not any(places[rank] for places in data), rank if by_rank else -1, factor(rank), load(rank))
        for rank, stage in enumerate(stages)
    ]


def _writes_whole(job: Job) -> bool:
    o = job.plan.output
    return o.checkpoint_mode == "full" and any(output.due(o.checkpoint_every, step) for step in range(job.steps))


def role(job: Job, place: Place, stages: list[StageSegments], segments: Segments, microbatches: Microbatches) -> Role:
    """All CPU threads of one kind of rank, with their calls."""
    blocks = [block for stage in stages for block in stage.chunk.blocks]
    share = Share(job, blocks)
    like = place._replace(pp=stages[0].like)  # ranks whose stages are alike share what they do between micro-batches
    tag = f"{like.name}." if job.size("pp") > 1 or place.leads or place.rank >= 0 else ""
    line: list[Turns] = []
    if job.train and f"{tag}update" not in segments:
        _close(job, place, share, stages, tag, segments)
    for step in range(job.steps):
        line += _known(segments, f"{tag}begin", step)
        line.append(microbatches(place.pp, stages, step))
        line += _known(segments, f"{tag}finish", step) + _known(segments, f"{tag}update", step)
        line += _end(job, place, share, stages, tag, step, segments)
    calls = Line(line)
    threads: dict[str, Sequence[Call]] = {HOST: calls if any(stage.chunk.short for stage in stages) else tuple(calls)}
    if any(stage.takes_input for stage in stages):
        segments.update(loading.loaders(job))
        threads |= loading.loader_calls(job)
    threads |= _servers(job, place, share, segments) | _writers(job, place, share, tag, segments)
    return Role(threads)


def _close(job: Job, place: Place, share: Share, stages: list[StageSegments], tag: str, segments: Segments) -> None:
    """Makes the segments with which a training step begins and ends, where they have ops."""
    begin = [*optimizer.clear(job, share), *buffers.broadcast(job, (block for stage in stages for block in stage.chunk.blocks))]
    found = {"begin": begin, "finish": finish(job, stages), "update": update_ops(job, place, share, stages)}
    segments.update({f"{tag}{name}": tuple(ops) for name, ops in found.items() if ops})


def _known(segments: Segments, name: str, step: int) -> list[Turns]:
    """A call of a segment, or nothing where there is none."""
    return [single(name, step)] if name in segments else []


def _call(segments: Segments, name: str, ops: list[Op], step: int) -> list[Turns]:
    """A call of a segment that is made here, or nothing when it is empty."""
    if not ops:
        return []
    segments.setdefault(name, tuple(ops))
    return [single(name, step)]


def _end(job: Job, place: Place, share: Share, stages: list[StageSegments], tag: str, step: int, segments: Segments) -> list[Turns]:
    """The calls that follow the update: the average of local updates, and output."""
    line = list[Turns]()
    if job.plan.local and output.due(job.plan.update.every, step):
        line += _call(segments, f"{tag}average", modes.agree(job, share), step)
    o, last = job.plan.output, any(stage.stage.last for stage in stages)
    for name, every, ops_of, here in (
        ("log", o.log_every, output.log, last),
        ("item", o.item_every, output.item, last),
        ("print", o.print_every, output.show, last),
        ("sync", o.sync_every, output.sync, True),
    ):
        if here and output.due(every, step):
            line += _call(segments, name, ops_of(job), step)
    if output.due(o.checkpoint_every, step):
        line += _call(segments, f"{tag}checkpoint", output.checkpoint(job, share, _saves(job, place)), step)
    return line


def finish(job: Job, stages: list[StageSegments]) -> list[Op]:
    """Sums gradients to which several ranks contribute: of parameters that are whole on each rank under sequence parallelism, and of a
    table that several stages read. Then come deferred weight gradients of the head."""
    parts = (part for stage in stages for block in reversed(stage.chunk.blocks) for part in reversed(block.parts))
    separate = job.zero == 3 and job.framework.tensor_parallel.style == "dtensor"  # FSDP has summed them already
    ops = [] if separate else tensor.whole_gradients(job, parts)
    for stage in stages:
        ops += ends.exchange(job, stage.stage.rank, stage.stage.sharers)
        if stage.stage.last and stage.ends[0] != stage.ends[1]:
            ops += ends.late(job)
    return ops


def update_ops(job: Job, place: Place, share: Share, stages: list[StageSegments]) -> list[Op]:
    """The update in the plan's mode, then (ZeRO-1, -2 without overlap) the parameters gathered."""
    u = job.plan.update
    if job.plan.asynchronous:
        return [*optimizer.unscale(job, share), *modes.push_pull(job, share, place.rank)]
    if u.aggregate == "cpu":
        return [*optimizer.unscale(job, share), *modes.on_host(job, share, place.leads)]
    if u.aggregate == "primary":
        return modes.through_primary(job, share, place.leads)
    ops = optimizer.update(job, share)
    if job.zero in (1, 2) and not job.gathers_ahead:
        ops += gather_all(job, [bucket for stage in stages for bucket in stage.buckets(1)])
    return ops


def _servers(job: Job, place: Place, share: Share, segments: Segments) -> dict[str, tuple[Call, ...]]:
    """The parameter server's threads, which run beside rank 0; none for other ranks or modes."""
    if not job.plan.asynchronous or place.rank != 0:
        return {}
    found = {}
    for worker in range(job.mesh.world):
        segments[server_lane(worker)] = tuple(modes.serve(job, share, worker))
        found[server_lane(worker)] = modes.server_calls(job, worker)
    return found


def _saves(job: Job, place: Place) -> bool:
    """Whether this rank writes a part of a checkpoint. With asynchronous updates it is the rank beside the server."""
    return place.leads or place.rank == 0 or not (job.plan.one_updates or job.plan.output.checkpoint_mode == "full")


def _writers(job: Job, place: Place, share: Share, tag: str, segments: Segments) -> dict[str, tuple[Call, ...]]:
    name = f"{tag}writer"
    calls = output.writer_calls(job, name) if _saves(job, place) else ()
    if not calls:
        return {}
    segments[name] = tuple(output.writer(job, share))
    return {output.WRITER: calls}


def notes(job: Job) -> tuple[str, ...]:
    """What lowering decided where the plan was silent."""
    found = []
    if job.zero and job.plan.parallel.zero is None:
        found.append(f"zero = {job.zero}: the framework's default for dp_shard > 1")
    if job.zero == 3 and job.size("pp") > 1 and job.train:
        many = job.unshards and job.plan.parallel.chunks > ACTIVE_STAGES
        keeps = f"have the next {ACTIVE_STAGES} of a rank's gathered, gather the others again" if many else "gather once a step, keep"
        found.append(f"with a pipeline, stages {keeps} their parameters, and sum whole gradients (torch: pipelining/stage.py)")
    if job.zero == 2 and job.size("pp") > 1:
        found.append(
            "zero = 2 with a pipeline: gradients are reduce-scattered after every micro-batch (Megatron-FSDP's optim_grads; DeepSpeed refuses)"
        )
    if job.plan.data.handover == "none" and job.plan.data.stream == "copy" and job.device != "cpu":
        found.append('data.handover = "none": compute may read a batch that has not come yet; the time is right, the results are not')
    if job.plan.asynchronous:
        found.append(f"asynchronous updates: gradients are {job.mesh.world - 1} updates old on average (equal workers)")
    return tuple(found)
