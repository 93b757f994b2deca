"""Sharded parameters that lie in host memory between their uses, and gradients that go there.

As FSDP2's CPUOffloadPolicy has it (torch 2.13, fsdp/_fully_shard): before a unit is gathered, its shard is copied to the device, tensor by tensor
and from pinned memory, on a stream of its own (_fsdp_param.py, all_gather_inputs; over a mesh of one on the stream that computes:
_fsdp_param_group.py, wait_for_unshard). A reduced shard is copied down on the stream that reduced it (_fsdp_collectives.py, foreach_reduce), and the
host waits for the last one (finalize_backward) before the optimizer runs on its cores; what joins gradients of micro-batches before is waited for at
once, and added by the host. DeepSpeed's offload_param has 16-bit shards, and adds on the device (runtime/zero/stage3.py, partition_grads).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.accumulate import COPY
from sim.lower.data_parallel.reduced import joined
from sim.lower.data_parallel.units import Sizes, Unit
from sim.lower.job import Job
from sim.lower.ops import host, order, record, spent, wait
from sim.lower.optimizer.cpu import pass_over
from sim.lower.optimizer.owned import shard_width
from sim.program import COMPUTE, D2H, H2D, HOST, Op

CLS = "comm.offload"


def shard_bytes(job: Job, messages: Sizes) -> int:
    """Bytes that one rank holds of the parameters in these messages."""
    return round(sum(elements // job.size(axis) for _, axis, elements in messages) * shard_width(job.framework, job.zero))


def fetched(phase: str, unit: Unit) -> str:
    """The event that a unit's shards have come to the device, so that they can be gathered."""
    return f"{phase}/{unit.name}.fetched"


def ahead(job: Job, unit: Unit) -> Sizes:
    """The unit's messages whose shards are copied to the device ahead of use. FSDP2 copies what no other rank shares only when it is
    needed."""
    return tuple(message for message in unit.messages if job.size(message[1]) > 1 or not job.fsdp2)


def fetch(job: Job, phase: str, unit: Unit, after: str) -> list[Op]:
    """Copies a unit's shards (`ahead`) to the device. Empty where parameters are on the device anyway. `after`: an event that the copy
    waits for; "": none."""
    messages = ahead(job, unit)
    if not messages or not job.plan.parameters_offloaded:
        return []
    name = f"{phase}/{unit.name}.fetch"
    ops = [Op(f"{name}.room.wait", "wait", H2D, event=after)] if after else []
    return [*ops, *_up(job, name, unit, messages), record(fetched(phase, unit), H2D)]


def fetch_now(job: Job, phase: str, unit: Unit) -> list[Op]:
    """Compute waits for shards that came ahead but are not gathered (their axis has one rank); all that did not come ahead is copied
    now."""
    if not job.plan.parameters_offloaded:
        return []
    before, name = ahead(job, unit), f"{phase}/{unit.name}.fetch"
    here = any(job.size(axis) == 1 for _, axis, _ in before)
    ops = [wait(job, fetched(phase, unit), COMPUTE)] if here else []
    rest = tuple(message for message in unit.messages if message not in before)
    if not rest:
        return ops
    return [
        *ops,
        *order(job, f"{name}.now", COMPUTE, H2D),
        *_up(job, f"{name}.alone", unit, rest),
        *order(job, f"{name}.here", H2D, COMPUTE),
    ]


def _up(job: Job, name: str, unit: Unit, messages: Sizes) -> list[Op]:
    size = shard_bytes(job, messages)
    copy = Op(name, "copy", H2D, bytes=size, how="pinned", cls=CLS, alloc=size)
    return [*_more_copies(job, name, unit.tensors if messages[0] == unit.messages[0] else 1), copy]


def leave(job: Job, name: str, lane: str, shard: float, tensors: int, later: bool) -> list[Op]:
    """Copies a reduced shard of gradients to host memory; `lane`, which reduced it, waits for that. `later`: the shard is added to that
    of earlier micro-batches."""
    size = round(shard * job.grad_bytes)
    down = Op(f"{name}.leave", "copy", D2H, bytes=size, how="pinned", cls=CLS)
    there, back = order(job, f"{name}.reduced", lane, D2H), order(job, f"{name}.left", D2H, lane)
    more = _more_copies(job, down.id, tensors)
    if not later:
        return [*more, *there, down, *back]
    if job.fsdp2:
        waited = replace(down, how="pageable", blocking=True)
        return [*more, *there, waited, host(f"{name}.add", pass_over(shard, 3 * job.grad_bytes), cls=COPY), *back]
    up = Op(f"{name}.return", "copy", H2D, bytes=size, how="pinned", cls=CLS)
    fetched_sum = [*order(job, f"{name}.asked", lane, H2D), up, *order(job, f"{name}.returned", H2D, lane)]
    return [*more, *fetched_sum, *joined(job, name, lane, shard, tensors), *there, down, *back]


def arrived(name: str, event: str) -> Op:
    """The host waits for `event`: gradients have come to host memory."""
    return Op(f"{name}.sync", "sync", HOST, event=event, cls=CLS)


def _more_copies(job: Job, name: str, tensors: int) -> list[Op]:
    """The host's work for the copies of all tensors but one. A program holds one copy op for all of them."""
    return [spent(f"{name}.host", "copy", tensors - 1, cls=CLS)] if job.eager and tensors > 1 else []
