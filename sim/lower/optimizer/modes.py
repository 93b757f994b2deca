"""Updates that are not the plain synchronous one on the devices.

`local`: every rank updates alone; every `every` steps the parameters are averaged (torch's PeriodicModelAverager: flattened, one
all_reduce, copied back), or an outer optimizer steps (`outer`). `aggregate = "cpu"`: gradients are summed in rank 0's host memory, which
updates and broadcasts. `async`: a parameter server on rank 0's host with one thread for each worker; nobody waits for anybody else, and a
worker's gradients are older than the parameters by the updates of the others meanwhile (the staleness; with equal workers n - 1 on
average).
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import collective, compute, host, order
from sim.lower.optimizer.cpu import on_cpu
from sim.lower.optimizer.outer import outer_step
from sim.lower.optimizer.owned import Share
from sim.lower.optimizer.step import update as step_ops
from sim.program import COMPUTE, D2H, H2D, HOST, Call, Op, server_lane
from sim.work import MemoryBound

CLS = "comm.ps"


def agree(job: Job, share: Share) -> list[Op]:
    """Local updates: the ops that make the replicas' parameters equal again."""
    return outer_step(job, share) if job.plan.update.outer == "nesterov" else average(job, share)


def average(job: Job, share: Share) -> list[Op]:
    """Local updates: the replicas' parameters become their mean."""
    size = int(share.elements * job.param_bytes)
    if job.size("dp") == 1:
        return []
    flat = MemoryBound("copy", size, size, job.framework.precision.param_dtype)
    return [
        compute(job, "average/flatten", (flat,), CLS),
        collective(job, "average/all_reduce", COMPUTE, "all_reduce", size, job.data_axis, CLS),
        compute(job, "average/copy", (flat,), CLS),
    ]


def on_host(job: Job, share: Share, leader: bool) -> list[Op]:
    """Synchronous aggregation on the CPU: reduce to the leader's memory, update there, broadcast."""
    size, back = int(share.elements * job.grad_bytes), int(share.elements * job.param_bytes)
    ops = _down(job, size)
    if job.size(job.data_axis) > 1:
        ops.append(collective(job, "server/reduce", HOST, "reduce", size, job.data_axis, CLS))
    if leader:
        ops.append(_apply(job, share, HOST))
    if job.size(job.data_axis) > 1:
        ops.append(collective(job, "server/broadcast", HOST, "broadcast", back, job.data_axis, CLS))
    return ops + _up(job, back)


def through_primary(job: Job, share: Share, leader: bool) -> list[Op]:
    """The first device updates for all: gradients are reduced to it, it alone runs the update, and its parameters are broadcast.

    nn.DataParallel's own order (replicate, forward, reduce_add, step) with one process for each device; nothing overlaps backward.
    """
    size, back = share.elements * job.grad_bytes, share.elements * job.param_bytes
    alone = job.size(job.data_axis) == 1
    there = [] if alone else [collective(job, "primary/reduce", COMPUTE, "reduce", size, job.data_axis, "comm.dp")]
    here = [] if alone else [collective(job, "primary/broadcast", COMPUTE, "broadcast", back, job.data_axis, "comm.dp")]
    return [*there, *(step_ops(job, share) if leader or alone else []), *here]


def push_pull(job: Job, share: Share, rank: int) -> list[Op]:
    """Asynchronous worker: gradients to the server, its parameters back. Rank 0 is beside its server."""
    size, back = int(share.elements * job.grad_bytes), int(share.elements * job.param_bytes)
    if rank == 0:
        there = [
            Op("server/pushed", "record", HOST, event="server/pushed", shift=0),
            Op("server/pulled", "sync", HOST, event="server/pulled", shift=0, cls=CLS),
        ]
    else:
        there = [
            Op("server/push", "send", HOST, bytes=size, group=job.data_axis, peer=-rank, cls=CLS),
            Op("server/pull", "recv", HOST, bytes=back, group=job.data_axis, peer=-rank, cls=CLS),
        ]
    return [*_down(job, size), *there, *_up(job, back)]


def serve(job: Job, share: Share, worker: int) -> list[Op]:
    """The server's thread for one worker: takes its gradients, updates, answers."""
    lane = server_lane(worker)
    size, back = int(share.elements * job.grad_bytes), int(share.elements * job.param_bytes)
    if worker == 0:
        first = Op("server/gradients", "wait", lane, event="server/pushed", shift=0)
        last = Op("server/parameters", "record", lane, event="server/pulled", shift=0)
    else:
        first = Op("server/gradients", "recv", lane, bytes=size, group=job.data_axis, peer=worker, cls=CLS)
        last = Op("server/parameters", "send", lane, bytes=back, group=job.data_axis, peer=worker, cls=CLS)
    return [first, _apply(job, share, lane), last]


def server_calls(job: Job, worker: int) -> tuple[Call, ...]:
    return tuple(Call(server_lane(worker), f"s{step}/worker{worker}", step, step) for step in range(job.steps))


def _apply(job: Job, share: Share, lane: str) -> Op:
    return host("server/update", on_cpu(job, share), lane=lane, cls="optimizer")


def _down(job: Job, size: int) -> list[Op]:
    if job.device == "cpu":
        return []
    return [*order(job, "server/made", COMPUTE, D2H), Op("server/d2h", "copy", D2H, bytes=size, how="pinned", cls=CLS, blocking=True)]


def _up(job: Job, size: int) -> list[Op]:
    if job.device == "cpu":
        return []
    return [Op("server/h2d", "copy", H2D, bytes=size, how="pinned", cls=CLS), *order(job, "server/here", H2D, COMPUTE)]
