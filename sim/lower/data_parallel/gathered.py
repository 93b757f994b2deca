"""The all-gather of a unit's parameters as FSDP2 does it: copied together, sent, copied out, and freed (torch 2.13, _fsdp_collectives.py
and _fsdp_param_group.py)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower import narrow
from sim.lower.accumulate import COPY
from sim.lower.data_parallel import on_host
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.sharded import CLS
from sim.lower.data_parallel.units import Sizes, Unit
from sim.lower.job import Job
from sim.lower.ops import collective, compute, host, record, wait
from sim.program import COMPUTE, Op
from sim.work import HostWork, MemoryBound, Work

KEPT = "fsdp_inner"
"""The axis along which backward gathers parameters that stayed sharded over a smaller mesh (`Parallel.kept_among`)."""


def hooks(job: Job, phase: str, unit: Unit) -> list[Op]:
    """The host's work for what FSDP2 does in Python around one pass of a unit: its states, views of its parameters, streams."""
    if not job.eager:
        return []
    works = (HostWork("fsdp_unit", len(unit.messages)), HostWork("fsdp_parameter", unit.tensors))
    return [host(f"{phase}/{unit.name}.hooks", *works)]


def gather(job: Job, phase: str, unit: Unit, after: str = "") -> list[Op]:
    """Copy-in, with the cast from the fp32 shard, and all_gather. `after`: an event that both wait for, and so does the copy of shards
    from host memory; "": none."""
    ops: list[Op] = on_host.fetch(job, phase, unit, after)
    for suffix, axis, elements in sent_in(job, phase, unit):
        name, lane, size = f"{phase}/{unit.name}{suffix}", lane_of(axis), gathered(job, unit, suffix, elements)
        if after:
            ops.append(Op(f"{name}.room.wait", "wait", lane, event=after))
        on = lane if job.device == "cuda" else COMPUTE
        if axis == KEPT:
            part = size // job.size(axis)
            copied = _copied(job, name, MemoryBound("copy", part, part, job.framework.precision.param_dtype), on)
        else:
            copied = copy_in(job, name, elements, size, axis, on)
        if job.plan.parameters_offloaded:
            ops.append(Op(f"{name}.fetched.wait", "wait", lane, event=on_host.fetched(phase, unit)))
            copied = holding(copied, free=on_host.shard_bytes(job, ((suffix, axis, elements),)))
        ops.append(copied)
        message = collective(job, f"{name}.all_gather", lane, "all_gather", size, axis, CLS)
        ops += [called(job, holding(message, alloc=size)), record(f"{name}.gathered", lane)]
    return ops


def gathered(job: Job, unit: Unit, suffix: str, elements: int) -> int:
    """Bytes of `elements` gathered parameters of a unit. Torchao casts only the shards of dense linears to 8 bits."""
    if job.framework.data_parallel.quantises_gathered == "shards":
        return job.gathered_bytes(elements, 0 if suffix else unit.narrow[0])
    return job.gathered_bytes(elements, unit.narrow[bool(suffix)])


def copy_in(job: Job, name: str, elements: int, size: int, axis: str, lane: str) -> Op:
    """Copies a rank's shard of `elements` parameters into the all-gather's buffer of `size` bytes, and casts it to the dtype that is
    sent."""
    ranks = job.size(axis)
    shard = elements // ranks
    copy = MemoryBound(
        "cast" if job.framework.precision.master else "copy",
        shard * (4 if job.framework.precision.master else int(job.param_bytes)),
        size // ranks,
        job.framework.precision.param_dtype,
    )
    return _copied(job, name, copy, lane)


def _copied(job: Job, name: str, copy: MemoryBound, lane: str) -> Op:
    return Op(f"{name}.copy_in", "compute", lane, (copy,), cls=COPY, blocking=job.device == "cpu")


def called(job: Job, op: Op) -> Op:
    """The collective as FSDP2 calls it: with async_op=False, ordered by streams alone (`async_op` in
    torch/distributed/fsdp/_fully_shard). A CPU has no streams: there the training thread waits for each."""
    return replace(op, blocking=True) if job.device == "cpu" and op.kind == "collective" else op


def holding(op: Op, alloc: int = 0, free: int = 0) -> Op:
    """The op with `alloc` bytes of device memory allocated when it starts and `free` bytes freed when it ends."""
    return replace(op, alloc=alloc, free=free)


def copy_out(job: Job, phase: str, unit: Unit) -> list[Op]:
    """Compute waits for the all-gather and copies the parameters out of its buffer, where one buffer holds them all. Parameters that no
    other rank shares are cast and copied likewise (torch 2.13, _fsdp_param_group.py, wait_for_unshard). Where whole weights are cast to
    8 bits or less (`DataParallel.quantises_gathered`), that comes next."""
    sent = travelling(job, unit)
    ops = [wait(job, f"{phase}/{unit.name}{suffix}.gathered", COMPUTE) for suffix, _, _ in sent]
    ops += on_host.fetch_now(job, phase, unit)
    size, travelled = (sum(gathered(job, unit, suffix, elements) for suffix, _, elements in messages) for messages in (unit.messages, sent))
    if job.framework.data_parallel.shard_copies:
        dtype, own = job.framework.precision.param_dtype, size - travelled
        casts = (MemoryBound("cast", round(own * 4 / job.param_bytes), own, dtype),) if own and job.framework.precision.master else ()
        copy = MemoryBound("copy", size, size, dtype)
        ops.append(compute(job, f"{phase}/{unit.name}.copy_out", (*casts, copy), COPY, alloc=size, free=travelled))
    if narrowed := _narrowed(job, phase, unit):
        ops.append(compute(job, f"{phase}/{unit.name}.quantise", narrowed, COPY))
    alone = tuple(message for message in unit.messages if message not in sent) if job.plan.parameters_offloaded else ()
    kept = _kept_bytes(job, unit) if job.keeps_among and phase == "bwd" else 0
    return [*ops, holding(record(f"{phase}/{unit.name}.out", COMPUTE), free=on_host.shard_bytes(job, alone) + kept)]


def _narrowed(job: Job, phase: str, unit: Unit) -> tuple[Work, ...]:
    """The kernels that cast whole weights to 8 bits or less. Empty where they are not cast after the gather, or where weights that stay
    are cast in each pass."""
    if not any(unit.narrow) or job.framework.data_parallel.quantises_gathered not in ("forward", "passes") or narrow.each(job):
        return ()
    return narrow.casts(job, phase.endswith("fwd"), job.plan.memory.recompute == "full", sum(unit.narrow))


def keep(job: Job, unit: Unit) -> list[Op]:
    """Copies the part of each parameter that this rank keeps for the smaller mesh after forward, then frees the whole unit (torch 2.13,
    _fsdp_param.py, to_sharded_post_forward). Backward's gathers come after it on a stream that waits for it (_reshard_after_forward_event)."""
    held = _kept_bytes(job, unit)
    each = held // max(1, unit.tensors)
    copies = (MemoryBound("copy", each, each, job.framework.precision.param_dtype),) * unit.tensors
    copied = compute(job, f"fwd/{unit.name}.keep", copies, COPY, alloc=held)
    freed = reshard(job, "fwd", unit)
    if job.device == "cpu":  # there the thread itself copies and waits
        return [copied, freed]
    return [copied, freed, Op(f"fwd/{unit.name}.kept.wait", "wait", lane_of(KEPT), event=freed.event)]


def _kept_bytes(job: Job, unit: Unit) -> int:
    return sum(gathered(job, unit, suffix, elements) for suffix, _, elements in unit.messages) // job.size(KEPT)


def reshard(job: Job, phase: str, unit: Unit) -> Op:
    """Frees the gathered parameters once compute has come this far."""
    size = sum(gathered(job, unit, suffix, elements) for suffix, _, elements in unit.messages)
    return Op(f"{phase}/{unit.name}.reshard", "record", COMPUTE, event=f"{phase}/{unit.name}.reshard", free=size)


def sent_in(job: Job, phase: str, unit: Unit) -> Sizes:
    """The unit's all-gathers in a pass, each with its axis. Backward gathers along `KEPT` what a smaller mesh has kept."""
    sent = travelling(job, unit)
    return tuple((suffix, KEPT, elements) for suffix, _, elements in sent) if job.keeps_among and phase == "bwd" else sent


def travelling(job: Job, unit: Unit) -> Sizes:
    """The unit's messages whose axis has more than one rank."""
    return tuple(message for message in unit.messages if job.size(message[1]) > 1)
