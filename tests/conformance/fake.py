"""Stock training of a plan on one rank of any world, in one process: torch's `fake` process group answers at once.

The trainer is the executor's own (`executor.training.trainer`), so that what is compared is what `run --how stock` runs. A dispatch
mode writes down each collective: kind, ranks, bytes of the whole array. DDP asserts under `fake` unless a
communication hook answers for it; the hook writes down the buckets. The only file that touches these private parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from sim.plan import Plan

Message = tuple[str, tuple[int, ...], int]
"""(collective, its ranks, bytes), or (send | recv, the peer, bytes)"""

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    _RESOLVE = dist.distributed_c10d._resolve_process_group
    _UNBOX = dist.ProcessGroup.unbox
    from torch.distributed.pipelining.stage import PipelineStage
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache as _FORGET

    _VOTES = PipelineStage._warmup_forward_vote, PipelineStage._warmup_backward_result

    _MOVED = ""
except (ImportError, AttributeError) as error:
    _MOVED = f"torch's fake process group has moved: {error!r}. Adapt tests/conformance/fake.py"
    TorchDispatchMode = object

_KINDS = {
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "allgather_": "all_gather_list",
    "send": "send",
    "recv_": "recv",
}
_SILENT = ("wait_tensor", "_wrap_tensor_autograd")


def need_fake() -> None:
    """Skips the test, loudly, when torch's private API is not where it was."""
    if _MOVED:
        pytest.skip(_MOVED)


class Log(TorchDispatchMode):
    """Writes down the collectives that local tensors go through."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor comes back with its local tensors
        out = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        if space in ("c10d", "_c10d_functional") and name not in _SILENT:
            ranks = _ranks(args)
            if name in ("send", "recv_"):  # (tensors, group, peer's place in it, tag)
                ranks = (ranks[args[2]],)
            self.messages.append((_KINDS[name], ranks, _bytes(_KINDS[name], args, out)))
        return out


def _ranks(args: Any) -> tuple[int, ...]:
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return tuple(sorted(dist.get_process_group_ranks(_UNBOX(arg))))
        if isinstance(arg, str) and arg not in ("sum", "avg", "max", "min", "product"):
            return tuple(sorted(dist.get_process_group_ranks(_RESOLVE(arg))))
    raise AssertionError(f"no process group in {args}")


def _bytes(kind: str, args: Any, out: Any) -> int:
    """The largest tensor that goes in or comes out: the whole array."""
    sizes = [t.numel() * t.element_size() for t in _tensors((args, out))]
    return max(sizes, default=0)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[Any]:
    """A world of `size` ranks of which this process is one, as the executor's functions are given it."""
    torch.set_num_threads(1)  # tensors are tiny, and threads wait for each other
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with _agreed():
            yield _world(rank, size)
    finally:
        dist.destroy_process_group()
        _FORGET()  # DTensor's caches keep the meshes, whose groups are gone


@contextmanager
def _agreed() -> Iterator[None]:
    """Pipeline stages vote on whether their static shapes hold; here nobody answers, so the vote is cast for them. What DDP's hooks wait for
    is answered by what they sent."""
    from executor.training.models import exchange

    yes = torch.ones(1, dtype=torch.int32)
    with (
        mock.patch.object(dist, "all_reduce", partial(_answered, dist.all_reduce)),
        mock.patch.object(exchange, "told", partial(_told, exchange.told)),
        mock.patch.object(PipelineStage, "_warmup_forward_vote", lambda *_, **__: yes),
        mock.patch.object(PipelineStage, "_warmup_backward_result", lambda *_, **__: yes),
    ):
        yield


def _answered(send: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """all_reduce, whose work has a future with the tensor in it, as NCCL's and gloo's have."""
    if send(tensor, *args, **kwargs) is None:
        return None
    future: Any = torch.futures.Future()
    future.set_result([tensor])
    return SimpleNamespace(get_future=lambda: future, wait=lambda: True, is_completed=lambda: True)


def _told(send: Any, counts: Any, group: Any) -> Any:
    """Counts of rows: all ranks send the same to this one, as routing is balanced."""
    send(counts, group)
    return counts.view(group.size(), -1)[group.rank()].expand(group.size(), -1)


def _world(rank: int, size: int) -> Any:
    beat = SimpleNamespace(phase=lambda *_: None, touch=lambda: None, step=lambda *_: None)
    return SimpleNamespace(
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        backend="gloo",
        kind="cpu",
        shared=False,
        device=torch.device("cpu"),
        beat=beat,
        folder=Path(),
        limit=timedelta(seconds=45),
        barrier=lambda: None,
    )


def stock_messages(plan: Plan, rank: int, steps: int = 2) -> list[list[Message]]:
    """The collectives of each step of stock training on `rank`.

    What the new buckets hold, which DDP broadcasts once, is left out.
    """
    from executor.training.trainer import Trainer

    with fake_world(rank, plan.world) as world:
        trainer = Trainer(world, plan, Path(), steps)
        log = Log()
        for model in (trainer.model, *trainer.model.children()):
            if isinstance(model, DistributedDataParallel) and not model._comm_hooks:
                model.register_comm_hook((log, tuple(sorted(dist.get_process_group_ranks(model.process_group)))), _bucket)
        batches = trainer.batches()
        found = []
        with log:
            for step in range(steps):
                trainer.step(batches, step)
                found.append(_without_rebuilding(log.messages, trainer) if step else list(log.messages))
                log.messages = []
    return found


def _without_rebuilding(messages: list[Message], trainer: Any) -> list[Message]:
    """The first rank's order of parameters with their number, and how many each bucket has, go to all in int32 (reducer.cpp, rebuild_buckets)."""
    replicas = [model for model in (trainer.model, *trainer.model.children()) if isinstance(model, DistributedDataParallel)]
    counts = {4 * (len([p for p in model.parameters() if p.requires_grad]) + 1) for model in replicas}
    found = list(messages)
    for index, (kind, _, size) in reversed(list(enumerate(messages))):
        if kind == "broadcast" and size in counts and index + 1 < len(messages) and messages[index + 1][0] == "broadcast":
            del found[index : index + 2]
    return found


def _bucket(state: tuple[Log, tuple[int, ...]], bucket: Any) -> Any:
    """DDP's bucket: written down as the all_reduce that it stands for, and answered."""
    log, ranks = state
    tensor = bucket.buffer()
    log.messages.append(("all_reduce", ranks, tensor.numel() * tensor.element_size()))
    future: Any = torch.futures.Future()
    future.set_result(tensor)
    return future


if not _MOVED:  # DDP reads the hook's annotations
    _bucket.__annotations__ |= {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
