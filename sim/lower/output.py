"""Output: reading the loss on the host, syncs in the training loop, checkpoints.

`full`: the first rank of each data-parallel group gathers and writes its whole share, with the experts of all its group, the others wait.
`sharded`: every rank writes its own part. Where one updates for all (a server, the primary rank), it alone has the state, and writes.
`async`: the state is copied to host memory, also what is there already (training goes on with it), then a thread writes it while training
goes on; the next checkpoint waits until the one before is written, as host memory holds one (torchtitan/components/checkpoint.py: save()
begins with _async_wait()).
"""

from __future__ import annotations

from typing import NamedTuple

from sim.lower.job import Job
from sim.lower.ops import collective, order, read_back, spent
from sim.lower.optimizer.outer import kept
from sim.lower.optimizer.owned import Share, moment_width, state_width
from sim.program import COMPUTE, D2H, HOST, Call, Op

CLS = "output"
WRITER = "writer"
WRITE = "output/write"
"""Id of the op with which a rank stores its part of a checkpoint."""
BEFORE = "output/before"
"""Id of the op with which a checkpoint waits for the one before."""


def due(every: int, step: int) -> bool:
    """Whether something that happens every `every` steps (0: never) happens after this step."""
    return every > 0 and (step + 1) % every == 0


def log(job: Job) -> list[Op]:
    """`print(loss.item())`: the host waits for the device."""
    return [*read_back(job, "output/loss", CLS), spent("output/log", "log", cls=CLS)]


def item(job: Job) -> list[Op]:
    """A stray `.item()`: a host-device sync point that writes nothing."""
    return read_back(job, "output/item", CLS)


def show(job: Job) -> list[Op]:
    """`print(loss)` of a 0-dim device tensor: torch formats it through `.item()`, then the host writes the line."""
    return [*read_back(job, "output/print", CLS), spent("output/text", "log", cls=CLS)]


def sync(job: Job) -> list[Op]:
    """`torch.cuda.synchronize()`."""
    return [Op("output/sync", "sync", HOST, cls=CLS)]


class Stored(NamedTuple):
    """Bytes of a rank's parameters of one sort, dense or experts', with their optimizer state."""

    expert: bool
    held: float
    on_device: float
    """The part of these bytes that is on the device. A host that updates has the optimizer's state, and also the parameters if it has a
    master copy or keeps all parameters."""
    ways: int
    """Ranks that share one copy (ZeRO)."""


def _stored(job: Job, share: Share) -> list[Stored]:
    """The sorts of parameters (dense, experts') that this rank holds."""
    found = []
    for expert in (False, True):
        some = share.of(expert)
        parameters = some.elements * (4.0 if job.framework.precision.master and job.train else job.param_bytes)
        moments = some.states * moment_width(job.plan, state_width(job)) if job.train else 0.0
        outer = kept(job.plan, some.elements, state_width(job)) if job.train else 0.0
        state, on_device = moments + outer, parameters + moments + outer
        if job.plan.host_updates and job.train:
            elsewhere = job.framework.precision.master or job.plan.served or job.plan.parameters_offloaded
            on_device = outer + (0.0 if elsewhere else parameters)
        inside = some.own[0] * job.param_bytes + 4.0 * some.own[1] * job.train  # on the device, whoever updates all else
        parameters, on_device = parameters + inside, on_device + inside
        ways = job.size(job.mesh.shard_axis(expert)) if job.zero else 1
        if parameters:
            found.append(Stored(expert, parameters + state, on_device, ways))
    return found


def _written(job: Job, stored: Stored, size: float) -> float:
    """Bytes that this rank writes where it holds `size` of them. In sharded checkpoints, ranks that hold the same bytes share the work;
    with local updates each rank has its own parameters (between two averages) and moments, and writes all of them."""
    apart = stored.expert and job.mesh.apart
    if job.plan.output.checkpoint_mode != "full" and not job.plan.one_updates:
        if job.plan.local:
            return size
        return size * stored.ways / job.size("edp" if apart else job.data_axis)
    return size * stored.ways * (job.size("ep") / job.mesh.copies if apart else 1)


def _size(job: Job, stored: list[Stored]) -> int:
    """Bytes that this rank writes: parameters once, and optimizer state."""
    return round(sum(_written(job, some, some.held) for some in stored))


def checkpoint(job: Job, share: Share, writes: bool) -> list[Op]:
    """What the training thread does for a checkpoint. `writes`: this rank stores something itself."""
    mode, stored = job.plan.output.checkpoint_mode, _stored(job, share)
    size = _size(job, stored)
    before = Op(BEFORE, "sync", HOST, event="output/written", shift=-job.plan.output.checkpoint_every, cls=CLS)
    ops: list[Op] = [*([before] if mode == "async" and writes else []), spent("output/checkpoint", "checkpoint", cls=CLS)]
    group = job.data_axis
    gathered = _gather(job, stored) if mode == "full" else []
    ops += gathered
    if writes:
        on_device = size if gathered else round(sum(_written(job, some, some.on_device) for some in stored))
        copied = 0 if job.device == "cpu" else on_device
        ops += _to_host(job, copied)
        if mode == "async" and size > copied:
            ops.append(Op("output/stage", "copy", HOST, bytes=size - copied, cls=CLS, blocking=True))
        if mode != "async":
            ops.append(_write(job, size, HOST))
        else:
            ops.append(Op("output/copied", "record", HOST, event="output/copied", shift=0))
    if mode != "async" and job.size(group) > 1 and not job.plan.asynchronous:
        ops.append(collective(job, "output/barrier", HOST, "barrier", 0, group, CLS))
    return ops


def _gather(job: Job, stored: list[Stored]) -> list[Op]:
    """Gathers whole parameters and states on every rank: first from shards, then experts from the other ranks. What is in host memory
    goes the same way
    (torch's full state dicts move each tensor to the device, DTensor.full_tensor() gathers it)."""
    ops = []
    for some in stored:
        name, whole = "output/gather" + ".experts" * some.expert, round(some.held * some.ways)
        if some.ways > 1:
            ops.append(collective(job, name, COMPUTE, "all_gather", whole, job.mesh.shard_axis(some.expert), CLS))
        if some.expert and job.size("ep") > 1:
            ops.append(collective(job, "output/gather.ep", COMPUTE, "all_gather", whole * job.size("ep"), "ep", CLS))
    return ops


def _to_host(job: Job, size: int) -> list[Op]:
    if not size:
        return []
    # Into memory that is not pinned: torch.save copies each storage by itself (torch/serialization.py: storage.cpu()), so does the writer of
    # sharded checkpoints (distributed/checkpoint/filesystem.py: tensor.to("cpu")), and async_save stages so unless told (state_dict_saver.py:
    # StagingOptions(False, False, False, False)).
    return [*order(job, "output/state", COMPUTE, D2H), Op("output/d2h", "copy", D2H, bytes=size, how="pageable", cls=CLS, blocking=True)]


def _write(job: Job, size: int, lane: str) -> Op:
    return Op(WRITE, "copy", lane, bytes=size, how="disk" if job.plan.output.checkpoint_to == "disk" else "store", cls=CLS)


def writer(job: Job, share: Share) -> list[Op]:
    """The thread that stores what `async` checkpoints have copied."""
    return [
        Op("output/begin", "wait", WRITER, event="output/copied", shift=0),
        _write(job, _size(job, _stored(job, share)), WRITER),
        Op("output/end", "record", WRITER, event="output/written", shift=0),
    ]


def writer_calls(job: Job, segment: str) -> tuple[Call, ...]:
    """A call of the writer's segment for each `async` checkpoint."""
    o = job.plan.output
    steps = [step for step in range(job.steps) if due(o.checkpoint_every, step)] if o.checkpoint_mode == "async" else []
    return tuple(Call(segment, f"s{step}/save", step, step) for step in steps)
