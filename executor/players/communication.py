"""Collectives and messages of a program as calls of torch.distributed, and the process groups that they go through.

Collectives of each (lane, mesh axis) have their own process group, so that those of different lanes never mix in one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from executor.arena import Arena
from executor.ranks.world import World
from sim.mesh import peer_of
from sim.program import MEETING, MESSAGE, Op, Program
from topologies.errors import BadInput

# torch 2.13 renames these two; earlier releases have the old names only.
all_gather: Callable[..., dist.Work | None] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Callable[..., dist.Work | None] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
Issue = Callable[[], Callable[[], dist.Work | None]]
"""The host thread calls it in program order. It returns a callable that starts the communication, at once or later on a lane's thread."""
Group = tuple[dist.ProcessGroup | None, tuple[int, ...]]

ORDERED = "gloo_in_order"
"""The backend gloo with one thread per group. torch's default is two threads, which would run two collectives of a lane at the same
time."""

MESSAGES = "messages"
"""All messages along one mesh axis share a process group: the k-th send of a pair meets the k-th receive, whatever their lanes."""


def way(source: int, target: int) -> str:
    """Name of the process group for the messages from rank `source` to rank `target`.

    If ranks pass their device to init_process_group, as here, torch runs all messages of an NCCL group on one communicator and one stream,
    in the order of issue (ProcessGroupNCCL's pointToPoint, `eagerInit_`). In a single group a pipeline's receive would wait for the send
    before it, a ring's messages would run one by one, and two ranks that both send first would deadlock. So each direction of each pair
    has its own group.
    """
    return f"{MESSAGES}.{source}.{target}"


def _in_order() -> str | None:
    """The backend of a lane's group; None: the default one, if that runs collectives in the order of issue (NCCL)."""
    if "nccl" in dist.get_backend():  # on GPUs it is "cpu:gloo,cuda:nccl", as given when the ranks joined
        return None
    _register()
    return ORDERED


@cache
def _register() -> None:
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs do not know its options

    def group(store: Any, rank: int, size: int, limit: timedelta) -> Any:
        options = gloo._Options()
        options._threads, options._timeout = 1, limit
        options._devices = [gloo.create_default_device()]
        return gloo(store, rank, size, options)

    dist.Backend.register_backend(ORDERED, group, devices=["cpu", "cuda"])


def make_groups(program: Program, world: World, apart: bool = False) -> dict[tuple[str, str], Group]:
    """(lane, mesh axis) -> (process group, its ranks), for the groups that this rank belongs to; the process group of a single rank is
    None. Every rank creates all groups in the same order. `apart`: messages have one group for each `way`, and none for the whole axis."""
    meeting = [op for ops in program.segments.values() for op in ops if op.kind in MEETING]
    found: dict[tuple[str, str], Group] = {}
    for lane, axis in sorted({(op.lane if op.kind == "collective" else MESSAGES, op.group) for op in meeting}):
        for ranks in program.mesh.groups(axis):
            alone = len(ranks) == 1 or (apart and lane == MESSAGES)
            group = None if alone else world.group(ranks, None if lane == MESSAGES else _in_order())
            if world.rank in ranks:
                found[lane, axis] = (group, ranks)
    for axis, source, target in pairs(program) if apart else ():
        group = world.group((source, target))
        if world.rank in (source, target):
            found[way(source, target), axis] = (group, (source, target))
    return found


def pairs(program: Program) -> list[tuple[str, int, int]]:
    """(mesh axis, sender, receiver) of all messages, by rank: the same list on every rank."""
    offsets = {
        (op.group, op.peer if op.kind == "send" else -op.peer) for ops in program.segments.values() for op in ops if op.kind in MESSAGE
    }
    found = {
        (axis, rank, peer_of(ranks, rank, offset))
        for axis, offset in offsets
        for ranks in program.mesh.groups(axis)
        for rank in ranks
        if offset % len(ranks)
    }
    return sorted(found)


def connect(program: Program, groups: dict[tuple[str, str], Group], rank: int, device: torch.device) -> None:
    """Sends one small message over every pair, in the same order on all ranks.

    NCCL connects a pair at its first message and blocks the host thread until both ends have called. In a ring, where every rank sends
    before it receives, all ranks would deadlock; once pairs are connected, messages are only queued. All ranks must call this together.
    """
    token = torch.zeros(1, device=device)
    for axis, source, target in pairs(program):
        if rank in (source, target):
            handle = message_group(groups, axis, source, target)
            dist.send(token, target, group=handle) if rank == source else dist.recv(token, source, group=handle)


def communication(op: Op, groups: dict[tuple[str, str], Group], rank: int, arena: Arena, tags: Counter[tuple[str, str, int]]) -> Issue:
    """The `Issue` of the op's collective or message, which does not wait; its buffers are taken from `arena` now. In a group of one rank
    nothing is sent, and the started work is None.

    `tags` counts the messages of each (kind, mesh axis, peer) in the order of issue. Raises `BadInput` for an unknown collective.
    """
    handle, ranks = groups[op.lane if op.kind == "collective" else MESSAGES, op.group]
    if len(ranks) == 1:
        return lambda: _nothing
    count = len(ranks)
    whole = arena.recent(max(count, op.bytes // 4 // count * count)) if op.kind == "collective" else arena.recent(max(1, op.bytes // 4))
    if op.kind in MESSAGE:
        peer = peer_of(ranks, rank, op.peer)
        handle = message_group(groups, op.group, *((rank, peer) if op.kind == "send" else (peer, rank)))
        move = dist.isend if op.kind == "send" else dist.irecv
        key = (op.kind, op.group, peer)

        def issue() -> Callable[[], dist.Work | None]:
            tags[key] += 1
            tag = tags[key]
            return lambda: move(whole, peer, group=handle, tag=tag)

        return issue
    assert handle is not None
    call = _collective(op, whole, handle, ranks, arena)
    return lambda: call


def message_group(groups: dict[tuple[str, str], Group], axis: str, source: int, target: int) -> dist.ProcessGroup | None:
    """The process group for the messages from rank `source` to rank `target` along a mesh axis."""
    return groups.get((way(source, target), axis), groups[MESSAGES, axis])[0]


def _nothing() -> None:
    return None


def _collective(
    op: Op, whole: torch.Tensor, handle: dist.ProcessGroup, ranks: tuple[int, ...], arena: Arena
) -> Callable[[], dist.Work | None]:
    count = len(ranks)
    part = whole[: whole.numel() // count]
    # AVG where the backend has it: with SUM values would grow with every pass, and GEMMs that read this memory would draw a different
    # power.
    sums = dist.ReduceOp.AVG if "nccl" in dist.get_backend(handle) else dist.ReduceOp.SUM
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: dist.all_reduce(whole, sums, group=handle, async_op=True),
        "broadcast": lambda: dist.broadcast(whole, ranks[0], group=handle, async_op=True),
        "reduce": lambda: dist.reduce(whole, ranks[0], sums, group=handle, async_op=True),
        "barrier": lambda: dist.barrier(group=handle, async_op=True),
    }
    if op.name in ("all_gather", "reduce_scatter", "all_to_all"):
        other = arena.recent(whole.numel() if op.name == "all_to_all" else part.numel())
        calls |= {
            "all_gather": lambda: all_gather(whole, other, group=handle, async_op=True),
            "reduce_scatter": lambda: reduce_scatter(other, whole, sums, group=handle, async_op=True),
            "all_to_all": lambda: dist.all_to_all_single(other, whole, group=handle, async_op=True),
        }
    if op.name not in calls:
        raise BadInput(f"op {op.id}: unknown collective '{op.name}'. Allowed: {', '.join(sorted(calls))}")
    return calls[op.name]
