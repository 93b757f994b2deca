"""torch.distributed.pipelining's schedules without a process group. The only file that touches this private API.

`get_schedule_ops` wants mocks of stages. zb-h1 with one stage a rank is refused there, and plain 1F1B cannot be given messages
(its list already holds REDUCE_GRAD): these are taken from the same classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sim.schedule import Action, Kind, rank_of
from sim.schedule.action import WHOLE

_CLASSES = {
    "gpipe": ("ScheduleGPipe", ""),
    "looped-bfs": ("ScheduleLoopedBFS", "ScheduleLoopedBFS"),
    "1f1b": ("Schedule1F1B", ""),
    "interleaved": ("Schedule1F1B", "ScheduleInterleaved1F1B"),
    "zb-h1": ("ScheduleInterleavedZeroBubble", "ScheduleInterleavedZeroBubble"),
    "zb-v": ("", "ScheduleZBVZeroBubble"),
    "dualpipe": ("", "ScheduleDualPipeV"),
}
_SHARDS = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
"""What FSDP adds to a schedule."""
_WAITS = "WAIT_"
"""How the kinds of torch 2.15's waits begin: for a message or a reduction to have left, before its buffer is given back."""

try:
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.stage import PipelineStage

    _RUNTIME = schedules._PipelineScheduleRuntime
    _ADD_MESSAGES = schedules._add_send_recv
    _MOVED = ""
except (ImportError, AttributeError) as error:
    _MOVED = f"torch.distributed.pipelining has moved: {error!r}. Adapt tests/conformance/torch_schedules.py"


def need_torch_schedules() -> None:
    """Skips the test, loudly, when torch's private API is not where it was."""
    if _MOVED:
        pytest.skip(_MOVED)


def torch_schedule(name: str, pp: int, microbatches: int, chunks: int) -> list[list[Action]]:
    """The compute actions of every rank, overlapped pairs one after the other."""
    cls = getattr(schedules, _CLASSES[name][chunks > 1])
    if cls is schedules.Schedule1F1B:
        return [[action for action in torch_run(name, pp, microbatches, rank) if action.computes] for rank in range(pp)]
    if name in ("zb-h1", "looped-bfs") and chunks == 1:
        order = _instance(cls, pp, microbatches, chunks).pipeline_order
        return [_flat(order[rank]) for rank in range(pp)]
    return [_flat(rank) for rank in get_schedule_ops(cls, pp, microbatches, chunks)]


def torch_messages(name: str, pp: int, microbatches: int, chunks: int) -> list[list[Action]]:
    """The same with sends and receives as early as they can be, by `_add_send_recv`."""
    computes = torch_schedule(name, pp, microbatches, chunks)
    order = {rank: [schedules._Action.from_str(str(action)) for action in actions] for rank, actions in enumerate(computes)}
    made = _ADD_MESSAGES(order, stage_to_rank=lambda stage: rank_of(name, pp, stage), num_stages=pp * chunks)
    return [_flat(made[rank]) for rank in range(pp)]


def torch_with_comms(name: str, pp: int, microbatches: int, chunks: int, shards: bool = False) -> list[list[Action]]:
    """What the runtime of multi-stage schedules gets; FSDP's actions, dropped without `shards`, have moved its receives a little."""
    cls = getattr(schedules, _CLASSES[name][1])
    if chunks == 1:
        made = _instance(cls, pp, microbatches, chunks).pipeline_order_with_comms
        return [_flat(made[rank], shards) for rank in range(pp)]
    return [_flat(rank, shards) for rank in get_schedule_ops(cls, pp, microbatches, chunks, with_comms=True)]


def torch_written(name: str, pp: int, microbatches: int, chunks: int, path: Path) -> None:
    """Writes the schedule as torch does, computations alone."""
    _instance(getattr(schedules, _CLASSES[name][1]), pp, microbatches, chunks)._dump_csv(str(path), format="compute_only")


def torch_read(path: Path, pp: int, microbatches: int, chunks: int, shards: bool = False) -> list[list[Action]]:
    """What torch's runtime makes of a file of computations: with all messages."""
    runtime = _instance(_RUNTIME, pp, microbatches, chunks)
    runtime._load_csv(str(path))
    return [_flat(runtime.pipeline_order_with_comms[rank], shards) for rank in range(pp)]


def torch_run(name: str, pp: int, microbatches: int, rank: int) -> list[Action]:
    """What `ScheduleGPipe` and `Schedule1F1B` really do: their step, run on a stage that only takes notes.

    (The list that Schedule1F1B prints is wrong on the last rank: its forwards count from 1.)
    """
    stage = _Notes(rank, pp)
    run = getattr(schedules, _CLASSES[name][0])(stage, microbatches)
    quiet = {"_initialize_stage": lambda *_: None, "_maybe_compute_loss": lambda *_: None, "_maybe_get_loss": lambda *_: None}
    for attribute, nothing in quiet.items():
        setattr(run, attribute, nothing)
    sorted_batch = mock.patch.object(schedules, "_sorted_batch_p2p", lambda ops, desc=None: {0: stage.fire(ops)})
    with mock.patch.object(schedules, "_batch_p2p", lambda ops, desc=None: stage.fire(ops)), sorted_batch:
        run._step_microbatches([()] * microbatches, [{}] * microbatches)
    return stage.log


class _Notes:
    """Stands in for a pipeline stage and writes down what is asked of it; messages when they are fired."""

    def __init__(self, rank: int, pp: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank, self.submod = rank, pp, pp, rank, None
        self.is_first, self.is_last = rank == 0, rank == pp - 1
        self.log: list[Action] = []

    def _ops(self, kind: Kind, there: bool, microbatch: int) -> list[Action]:
        return [Action(self.stage_index, kind, microbatch)] if there else []

    def get_fwd_recv_ops(self, microbatch: int) -> list[Action]:
        return self._ops("RECV_F", not self.is_first, microbatch)

    def get_fwd_send_ops(self, microbatch: int) -> list[Action]:
        return self._ops("SEND_F", not self.is_last, microbatch)

    def get_bwd_recv_ops(self, microbatch: int) -> list[Action]:
        return self._ops("RECV_B", not self.is_last, microbatch)

    def get_bwd_send_ops(self, microbatch: int) -> list[Action]:
        return self._ops("SEND_B", not self.is_first, microbatch)

    def forward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.log.append(Action(self.stage_index, "F", microbatch))

    def backward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.log.append(Action(self.stage_index, "B", microbatch))

    def perform_reduce_grad(self, *_: object) -> None:
        pass

    def release_fwd_send_outputs(self, microbatch: int) -> None:
        """Asked of stages from torch 2.15 on, when a message has left."""

    def fire(self, ops: list[Action]) -> list[Any]:
        self.log += ops
        return []


def _instance(cls: Any, pp: int, microbatches: int, chunks: int) -> Any:
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, pp, None, pp * chunks
    return cls([stage] * chunks, microbatches)


def _flat(actions: list[Any], shards: bool = False) -> list[Action]:
    found: list[Action] = []
    for action in actions:
        if action is None:
            continue
        for part in action.sub_actions or (action,):
            kind: Kind = part.computation_type.value
            if not kind.startswith(_WAITS) and (shards or kind not in _SHARDS):
                found.append(Action(part.stage_index, kind, WHOLE if kind in _SHARDS else part.microbatch_index))
    return found


def torch_text(action: Action) -> str:
    """How torch prints (and reads) the action."""
    return repr(schedules._Action.from_str(str(action)))
