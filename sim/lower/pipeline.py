"""Pipelines: what each rank runs in a step, its stages' segments in the schedule's order with the messages between them.

A message has a lane for each kind and end (`comm.pp.fwd.send`, `comm.pp.bwd.recv`), so that no send queues behind a receive. As
torch's process group orders its stream, a receive starts after the kernels that were launched before it. Schedules
that block (GPipe, 1F1B) post a receive with the forward or backward that needs it, and under 1F1B compute goes on
when its send has ended (Megatron's and torch's batched send and receive); the others receive as early as the sender has sent.

A stage's gradients hold up no message: what waits for them comes after the rank's last message (Megatron's finish_grad_sync), and
without overlap they leave then (DeepSpeed's ReduceGrads instruction). torch's DDP and FSDP wait inside the last backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sim.lower.job import Job
from sim.lower.ops import blocks, collective, record, wait
from sim.lower.schedule import Action
from sim.lower.schedule.messages import sent
from sim.lower.schedule.turns import Turn, needs, turns
from sim.lower.stage import INPUT, StageSegments
from sim.program import COMPUTE, Call, Op

Segments = dict[str, tuple[Op, ...]]

CLS = "comm.pp"


def schedule_of(job: Job) -> str:
    """Interleaving one stage a rank is plain 1F1B."""
    p = job.plan.parallel
    return "1f1b" if p.schedule == "interleaved" and p.virtual_stages == 1 else p.schedule


def turns_of(job: Job, step: int) -> tuple[tuple[Turn, ...], ...]:
    """Every rank's actions and messages in a step; forwards alone where nothing is trained."""
    p = job.plan.parallel
    return turns(schedule_of(job), p.pp, job.counts[step], p.virtual_stages, job.train)


class _Calls(NamedTuple):
    """Segments that a sort of turn calls."""

    now: tuple[str, ...]
    awaits: str = ""
    """Before the next turn that computes."""
    later: str = ""
    """After the rank's last message."""
    computes: bool = False


class Pipeline:
    """One job's ranks: turns their actions into calls, and makes the segments of their messages when first needed."""

    def __init__(self, job: Job, segments: Segments) -> None:
        self._job, self._segments = job, segments
        self._awaits_sends = schedule_of(job) == "1f1b"
        self._made: dict[tuple[object, ...], _Calls] = {}
        """Of each sort of turn: the same for all stages that are alike, and for all micro-batches but the first and the last."""

    def calls(self, rank: int, stages: list[StageSegments], step: int) -> list[Call]:
        """All micro-batches of one step on pipeline rank `rank`, which holds `stages`.

        Raises `BadInput` for sizes that the schedule cannot run.
        """
        made: list[Call] = []
        awaits: list[Call] = []
        put_off: list[Call] = []
        held = {stage.stage.index: stage for stage in stages}
        known: dict[int, _Calls] = {}
        ats, before = [f"s{step}/mb{microbatch}" for microbatch in range(self._job.counts[step])], self._job.before(step)
        for turn in turns_of(self._job, step)[rank]:
            names = known.get(turn.sort)
            if names is None:
                names = known[turn.sort] = self._names(turn, held[turn.action.stage], step)
            microbatch = turn.action.microbatch
            at, index = ats[microbatch], before + microbatch
            if names.computes and awaits:
                made += awaits
                awaits = []
            for name in names.now:
                made.append(Call(name, at, index, step))
            if names.awaits:
                awaits.append(Call(names.awaits, at, index, step))
            if names.later:
                put_off.append(Call(names.later, at, index, step))
        return made + awaits + put_off

    def _names(self, turn: Turn, stage: StageSegments, step: int) -> _Calls:
        key = (stage.like, turn.action.kind, *turn[1:-1], step == 0)
        found = self._made.get(key)
        if found is None:
            # Stages that are alike share their messages' segments too.
            turn = turn._replace(action=msgspec.structs.replace(turn.action, stage=stage.like))
            found = self._made[key] = self._calls_of(turn, stage, step)
        return found

    def _calls_of(self, turn: Turn, stage: StageSegments, step: int) -> _Calls:
        action = turn.action
        if not action.computes:
            return _Calls((self._segment(action, "", _receive),))
        found = self._computes(turn, stage, step)
        later: list[Call] = []
        if turn.last and action.kind in ("B", "W") and self._job.framework.tensor != "dtensor":
            found[-1], later = self._split(found[-1])
        now, awaits = [call.segment for call in found], ""
        if turn.sends:
            now.append(self._segment(sent(action), "", _send_awaited if self._awaits_sends else _send))
            awaits = self._segment(sent(action), ".await", _sent) if self._awaits_sends else ""
        if stage.chunk.short:
            now = self._joined(now)
        return _Calls(tuple(now), awaits, "".join(call.segment for call in later), computes=True)

    def _joined(self, names: list[str]) -> list[str]:
        """Segments that follow each other as one, but for the copies of the input, beside which none is run by itself."""
        alone = [name for name in names[:1] if name == INPUT]
        parts = names[len(alone) :]
        self._segments.setdefault("+".join(parts), tuple(op for name in parts for op in self._segments[name]))
        return [*alone, "+".join(parts)]

    def _segment(self, action: Action, suffix: str, make: Callable[[Job, Action], list[Op]]) -> str:
        """The segment that `make` makes when it is first needed: one for all micro-batches."""
        name = f"pp.{_name(action)}{suffix}"
        if name not in self._segments:
            self._segments[name] = tuple(make(self._job, action))
        return name

    def _computes(self, turn: Turn, stage: StageSegments, step: int) -> list[Call]:
        """The stage's segments, after the message that the action needs."""
        action = turn.action
        found = stage.calls(action.kind, action.microbatch, step, first=turn.first, last=turn.last)
        if turn.received:
            ahead, found[0] = self._asked(found[0])
            found[:0] = [*ahead, msgspec.structs.replace(found[0], segment=self._segment(needs(action), ".wait", _taken))]
        return found

    def _asked(self, call: Call) -> tuple[list[Call], Call]:
        """What asks for parameters ahead of a message that the forward waits for, and the forward without it.

        Interleaved schedules synchronise the first chunks' parameters as the step begins, on all stages alike (config.param_sync_func in
        megatron/core/pipeline_parallel/schedules.py); without interleaving the first forward asks for them.
        """
        ops = self._segments[call.segment]
        cut = next((at for at, op in enumerate(ops) if not op.id.startswith("param/") or (op.kind == "wait" and op.lane == COMPUTE)), 0)
        if not cut or self._job.zero == 3 or schedule_of(self._job) != "interleaved":
            return [], call
        ask, take = self._halves(call, cut, ".ask", ".take")
        return [ask], take

    def _split(self, call: Call) -> tuple[Call, list[Call]]:
        """A backward that sends gradients, without its waits for them, and these by themselves; without overlap also the sending."""
        ops = self._segments[call.segment]
        cut = len(ops)
        while cut and (_waits_for_gradients(ops[cut - 1]) or (not self._job.overlap_grad and ops[cut - 1].id.startswith("grad/"))):
            cut -= 1
        if cut == len(ops):
            return call, []
        leave, arrive = self._halves(call, cut, ".leave", ".arrive")
        return leave, [arrive]

    def _halves(self, call: Call, cut: int, first: str, second: str) -> tuple[Call, Call]:
        """The call as two, of its segment's ops before `cut` and of the rest; named by the segment and these endings."""
        ops = self._segments[call.segment]
        names = call.segment + first, call.segment + second
        for name, part in zip(names, (ops[:cut], ops[cut:]), strict=True):
            self._segments.setdefault(name, part)
        before, after = (Call(name, call.at, call.index, call.step) for name in names)
        return before, after


def _waits_for_gradients(op: Op) -> bool:
    """The tail of a backward that sends gradients: waits for its messages, and DDP's copies back."""
    return op.lane == COMPUTE and op.id.startswith("grad/") and (op.kind == "wait" or op.id.endswith(".back"))


def _name(action: Action) -> str:
    return f"{action.stage}{action.kind}"


def _lane(action: Action) -> str:
    return f"comm.pp.{'fwd' if action.kind.endswith('F') else 'bwd'}.{action.kind[:4].lower()}"


def _op(job: Job, action: Action) -> Op:
    """The message itself: activations go to the next rank, gradients to the one before; past the fold of a V the other way."""
    up = action.kind in ("SEND_F", "RECV_B")
    back = job.plan.parallel.schedule == "dualpipe" and action.stage >= job.size("pp")
    sends = action.kind.startswith("SEND")
    return Op(
        _name(action),
        "send" if sends else "recv",
        _lane(action),
        bytes=job.network.boundary // _slices(job),
        group="pp",
        peer=1 if up != back else -1,
        cls=CLS,
        alloc=0 if sends else job.network.boundary,
        free=job.network.boundary if sends else 0,
    )


def _send(job: Job, action: Action) -> list[Op]:
    """Once compute has made the tensor; its buffer lives until it has left."""
    name, lane = _name(action), _lane(action)
    made = record(f"{name}.made", COMPUTE)
    return [_holding(made, alloc=job.network.boundary), wait(job, f"{name}.made", lane), _op(job, action)]


def _send_awaited(job: Job, action: Action) -> list[Op]:
    """The same, for those that compute waits for."""
    return [*_send(job, action), record(f"{_name(action)}.sent", _lane(action))]


def _sent(job: Job, action: Action) -> list[Op]:
    """Compute goes on when the message has left."""
    return [wait(job, f"{_name(action)}.sent", COMPUTE)]


def _receive(job: Job, action: Action) -> list[Op]:
    """Into a fresh buffer. Numbered, as further receives may be posted before this one is used."""
    name, lane = _name(action), _lane(action)
    posted = [record(f"{name}.posted", COMPUTE), wait(job, f"{name}.posted", lane)] if job.device == "cuda" else []
    return [*posted, _op(job, action), Op(f"{name}.record", "record", lane, event=name, shift=0)]


def _taken(job: Job, action: Action) -> list[Op]:
    """Compute waits for the message; from here on what the stage keeps for backward counts its bytes."""
    name = _name(action)
    arrived = Op(f"{name}.wait", "wait", COMPUTE, event=name, shift=0, blocking=blocks(job, COMPUTE), free=job.network.boundary)
    if _slices(job) == 1:
        return [arrived]
    return [arrived, collective(job, f"{name}.all_gather", COMPUTE, "all_gather", job.network.boundary, "tp", CLS)]


def _slices(job: Job) -> int:
    """Parts in which the tp ranks of a stage send what they all hold."""
    whole = not job.plan.parallel.sequence_parallel
    return job.size("tp") if whole and job.framework.scatter_gather else 1


def _holding(op: Op, alloc: int) -> Op:
    return msgspec.structs.replace(op, alloc=alloc)
