"""Pipelines: what each rank runs in a step. That is its stages' segments in the schedule's order, with the messages between stages.

A message has a lane for each kind and end (`comm.pp.fwd.send`, `comm.pp.bwd.recv`), so that no send queues behind a receive, and on the way
back of a V, where the ends are other ranks, lanes of its own (`comm.pp.fwd.send.back`; DualPipe's code batches all messages of a rank,
whichever way they go, `_commit_and_wait_comm` in dualpipe/dualpipev.py). Where torch's runtime issues each by itself (`_batch_p2p`, pull
request 175712), a GPU has one for each neighbour (`comm.pp.next`): ProcessGroupNCCL keeps a communicator and a stream for each pair of
ranks (getKeySendRecv). As torch's process group orders its stream, a receive starts after the kernels that were launched before it.
Schedules that block (GPipe, 1F1B) post a receive with the forward or backward that needs it, and under 1F1B compute goes on when its send
has ended (Megatron's and torch's batched send and receive); the others receive as early as the sender has sent.

A stage's gradients hold up no message: what waits for them comes after the rank's last message (Megatron's finish_grad_sync), and
without overlap they leave then (DeepSpeed's ReduceGrads instruction). torch's DDP waits inside the last backward, and so did its FSDP of
2024; that of torch 2.13 leaves then too, or in turns of its own, in which whole stages are gathered as well (`sim.schedule.shards`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sim.lower.job import Job
from sim.lower.ops import blocks, collective, record, wait
from sim.lower.stage import INPUT, StageSegments
from sim.lower.unshard import whole_stage
from sim.program import COMPUTE, HOST, Op
from sim.schedule import Kind, goes_back
from sim.schedule.action import RECEIVES, SENDS, SHARDS
from sim.schedule.messages import needed, sent
from sim.schedule.shards import by_actions
from sim.schedule.turns import Line, Sort, lines
from sim.turns import Turns

Segments = dict[str, tuple[Op, ...]]

CLS = "comm.pp"


def lines_of(job: Job, step: int) -> tuple[Line, ...]:
    """Every rank's actions and messages in a step; forwards alone where nothing is trained."""
    p = job.plan.parallel
    return lines(job.schedule, p.pp, job.counts[step], p.virtual_stages, job.train, job.reduces_apart)


class Pipeline:
    """One job's ranks: turns their actions into what they call, and makes the segments of their messages when first needed."""

    def __init__(self, job: Job, segments: Segments) -> None:
        self._job, self._segments = job, segments
        self._made: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Names of segments by sort of turn, for the first step or later ones. Stages that are alike share them."""
        name = job.schedule
        self._awaits = name == "1f1b" or (name == "gpipe" and not job.unshards and (job.reduces_apart or not job.train))

    def turns(self, rank: int, stages: list[StageSegments], step: int) -> Turns:
        """All micro-batches of one step on pipeline rank `rank`, which holds `stages`.

        Raises `BadInput` for sizes that the schedule cannot run.
        """
        held = {stage.stage.index: stage for stage in stages}
        line = lines_of(self._job, step)[rank]
        names = [self._names(sort, held[sort.stage], step == 0) for sort in line.sorts]
        return Turns(step, self._job.before(step), names, line.turns)

    def _names(self, sort: Sort, stage: StageSegments, begins: bool) -> tuple[str, ...]:
        key = (stage.like, begins, *sort[1:])
        found = self._made.get(key)
        if found is None:
            # Stages that are alike share their messages' segments too.
            found = self._made[key] = tuple(self._segments_of(sort._replace(stage=stage.like), stage, begins))
        return found

    def _segments_of(self, sort: Sort, stage: StageSegments, begins: bool) -> list[str]:
        if sort.kind in SENDS:
            return [self._segment(sort.stage, sort.kind, ".await", _sent)]
        if sort.kind in RECEIVES:
            return [self._segment(sort.stage, sort.kind, "", _receive)]
        if sort.kind in SHARDS:
            return [self._whole(stage, sort.kind, sort.asked)]
        names, later = self._computes(sort, stage, begins), list[str]()
        if sort.late and self._job.reduces_apart:
            return [self._whole(stage, "REDUCE_GRAD")]
        if sort.last and sort.kind in ("B", "W") and self._job.framework.tensor_parallel.style != "dtensor":
            names[-1], *later = self._split(names[-1])
        if sort.late:
            return later
        if sort.sends:
            names.append(self._segment(sort.stage, sent(sort.kind), "", _send_awaited if self._awaits else _send))
        return self._joined(names) if stage.chunk.short else names

    def _joined(self, names: list[str]) -> list[str]:
        """Joins segments that follow each other into one. Those up to the input's stay apart, since its copies would keep the rest from
        being run by itself."""
        at = names.index(INPUT) + 1 if INPUT in names else 0
        name = "+".join(names[at:])
        if name not in self._segments:
            self._segments[name] = tuple(op for part in names[at:] for op in self._segments[part])
        return [*names[:at], name]

    def _whole(self, stage: StageSegments, kind: str, use: str = "") -> str:
        """The segment of what FSDP does to a stage as a whole, for the next computation on it, of kind `use`."""
        name = f"{stage.tag}{kind.lower()}{use}"
        if name not in self._segments:
            self._segments[name] = tuple(whole_stage(stage, kind, use))
        return name

    def _segment(self, stage: int, kind: Kind, suffix: str, make: Callable[[Job, int, Kind], list[Op]]) -> str:
        """The segment that `make` makes when it is first needed: one for all micro-batches."""
        name = f"pp.{stage}{kind}{suffix}"
        if name not in self._segments:
            self._segments[name] = tuple(make(self._job, stage, kind))
        return name

    def _computes(self, sort: Sort, stage: StageSegments, begins: bool) -> list[str]:
        """The stage's segments, after the message that they need."""
        found = stage.names(sort.kind, begins, sort.first, sort.last, sort.beside)
        if sort.received:
            *ahead, found[0] = self._asked(found[0])
            found[:0] = [*ahead, self._segment(sort.stage, needed(sort.kind), ".wait", _taken)]
        return [self._whole(stage, "TAKE", sort.asked), *found] if sort.asked else found

    def _asked(self, name: str) -> tuple[str, ...]:
        """Splits a forward that waits for a message: the part that asks for parameters comes before the wait, the rest after it. Other
        forwards stay whole.

        Interleaved schedules synchronise the first chunks' parameters as the step begins, on all stages alike (config.param_sync_func in
        megatron/core/pipeline_parallel/schedules.py); without interleaving the first forward asks for them.
        """
        ops = self._segments[name]
        cut = next((at for at, op in enumerate(ops) if not op.id.startswith("param/") or (op.kind == "wait" and op.lane == COMPUTE)), 0)
        if not cut or self._job.zero == 3 or self._job.schedule != "interleaved":
            return (name,)
        return self._halves(name, cut, ".ask", ".take")

    def _split(self, name: str) -> tuple[str, ...]:
        """Splits a backward that sends gradients: the backward, and its waits for these messages; without overlap the sends are in the
        second part, too."""
        ops = self._segments[name]
        cut = len(ops)
        while cut and (_waits_for_gradients(ops[cut - 1]) or (not self._job.overlap_grad and ops[cut - 1].id.startswith("grad/"))):
            cut -= 1
        return (name,) if cut == len(ops) else self._halves(name, cut, ".leave", ".arrive")

    def _halves(self, name: str, cut: int, first: str, second: str) -> tuple[str, str]:
        """Makes two segments of one: its ops before `cut`, and the rest. Their names are its name with these endings."""
        ops = self._segments[name]
        self._segments.setdefault(name + first, ops[:cut])
        self._segments.setdefault(name + second, ops[cut:])
        return name + first, name + second


def _waits_for_gradients(op: Op) -> bool:
    """Whether the op belongs to the tail of a backward that sends gradients: a wait for a message, or DDP's copy back."""
    return op.lane == COMPUTE and op.id.startswith("grad/") and (op.kind == "wait" or op.id.endswith(".back"))


def _lane(job: Job, stage: int, kind: Kind) -> str:
    p = job.plan.parallel
    if job.device == "cuda" and job.framework.pipeline.actions and by_actions(job.schedule, p.virtual_stages):
        return f"comm.pp.{'pair' if p.pp == 2 else 'next' if _peer(job, stage, kind) == 1 else 'prev'}"
    back = ".back" if job.schedule != "dualpipe" and goes_back(job.schedule, p.pp, stage) else ""
    return f"comm.pp.{'fwd' if kind.endswith('F') else 'bwd'}.{kind[:4].lower()}{back}"


def _peer(job: Job, stage: int, kind: Kind) -> int:
    """Activations go to the next rank, gradients to the one before; on the way back of a V the other way."""
    up = kind in ("SEND_F", "RECV_B")
    return 1 if up != goes_back(job.schedule, job.size("pp"), stage) else -1


def _size(job: Job, stage: int, kind: Kind) -> int:
    """Bytes of the whole message, summed over the tp ranks that each send a slice of it."""
    into, back = job.crossings[stage + (kind in ("SEND_F", "RECV_B"))]
    return into if kind.endswith("F") else back


def _op(job: Job, stage: int, kind: Kind) -> Op:
    """The send or receive itself."""
    sends, size = kind.startswith("SEND"), _size(job, stage, kind)
    return Op(
        f"{stage}{kind}",
        "send" if sends else "recv",
        _lane(job, stage, kind),
        bytes=size // _slices(job),
        group="pp",
        peer=_peer(job, stage, kind),
        cls=CLS,
        alloc=0 if sends else size,
        free=size if sends else 0,
    )


def _send(job: Job, stage: int, kind: Kind) -> list[Op]:
    """A send, once compute has made the tensor. The tensor's buffer lives until the send has ended."""
    name, lane = f"{stage}{kind}", _lane(job, stage, kind)
    made = record(f"{name}.made", COMPUTE)
    return [_holding(made, alloc=_size(job, stage, kind)), wait(job, f"{name}.made", lane), _op(job, stage, kind)]


def _send_awaited(job: Job, stage: int, kind: Kind) -> list[Op]:
    """A send for whose end compute will wait (`_sent`)."""
    return [*_send(job, stage, kind), record(f"{stage}{kind}.sent", _lane(job, stage, kind))]


def _sent(job: Job, stage: int, kind: Kind) -> list[Op]:
    """Compute waits for the end of a send, and so does the host where it waits for messages."""
    return [wait(job, f"{stage}{kind}.sent", COMPUTE), *_drained(job, f"{stage}{kind}")]


def _drained(job: Job, name: str) -> list[Op]:
    """The host waits for the device, where the framework does after batched messages (`syncs_host` of its [pipeline])."""
    waits = job.device == "cuda" and job.framework.pipeline.syncs_host and job.schedule == "1f1b"
    return [Op(f"{name}.sync", "sync", HOST)] if waits else []


def _receive(job: Job, stage: int, kind: Kind) -> list[Op]:
    """A receive into a new buffer. Its event is numbered, as further receives may be posted before this one is used."""
    name, lane = f"{stage}{kind}", _lane(job, stage, kind)
    posted = [record(f"{name}.posted", COMPUTE), wait(job, f"{name}.posted", lane)] if job.device == "cuda" else []
    return [*posted, _op(job, stage, kind), Op(f"{name}.record", "record", lane, event=name, shift=0)]


def _taken(job: Job, stage: int, kind: Kind) -> list[Op]:
    """Compute waits for the message; from here on what the stage keeps for backward counts its bytes."""
    name = f"{stage}{kind}"
    arrived = Op(f"{name}.wait", "wait", COMPUTE, event=name, shift=0, blocking=blocks(job, COMPUTE), free=_size(job, stage, kind))
    drained = _drained(job, name)
    if _slices(job) == 1:
        return [arrived, *drained]
    return [arrived, *drained, collective(job, f"{name}.all_gather", COMPUTE, "all_gather", _size(job, stage, kind), "tp", CLS)]


def _slices(job: Job) -> int:
    """Number of slices in which the tp ranks of a stage send a tensor that all of them hold; 1: each sends all of it."""
    whole = not job.plan.parallel.sequence_parallel
    return job.size("tp") if whole and job.framework.pipeline.scatter_gather else 1


def _holding(op: Op, alloc: int) -> Op:
    return msgspec.structs.replace(op, alloc=alloc)
