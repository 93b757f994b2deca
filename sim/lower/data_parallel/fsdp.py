"""ZeRO-3 as FSDP2 does it (torch.distributed.fsdp, _fsdp_param_group.py): parameters gathered for each block.

Forward: before block k runs, its all_gather is issued on `comm.fsdp` while block k - 1 computes (implicit prefetch); it waits until
the copy-out of block k - 2 has left the buffer. Backward gathers the block before in turn, and reduce-scatters a block's
gradients while the next one computes; the copy into the next bucket waits until the last reduce_scatter has read it. The ends
are the root: gathered first, not freed after forward, reduced last; or (`DataParallel.wraps_ends`) units in their places, of which the head is
not freed after forward, as a last layer may not be (`DataParallel.keeps_last`). Both collectives use one communicator, so they share one lane.
With a pipeline, a stage gathers once a step and reduces after its last backward, the root first (torch's pipelining calls post_backward
of all units in the order of the modules); a runtime that follows its schedule's actions asks for both apart (`sim.lower.unshard`).
"""

from __future__ import annotations

from itertools import groupby

from msgspec.structs import replace

from sim.lower.accumulate import COPY
from sim.lower.data_parallel.reduced import after_message, before_message, in_place_of_message
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.sharded import CLS, replicas
from sim.lower.data_parallel.units import Sizes, Unit, root_first
from sim.lower.job import Job
from sim.lower.model_parallel.tensor import whole_gradients
from sim.lower.ops import collective, compute, host, order, record, wait
from sim.lower.passes import Pieces
from sim.lower.template import BlockOps, Ops
from sim.program import COMPUTE, Op
from sim.work import HostWork, MemoryBound


def forward(job: Job, blocks: list[BlockOps], units: dict[str, Unit], lines: list[Ops], tag: str) -> list[Op]:
    """Forward of a stage whose parameters are sharded when it begins; `units`: of each block; `lines`: each block's ops."""
    line = root_first(units, blocks)
    ahead = job.plan.parallel.prefetch
    frees = not job.train or job.reshard
    ops = [op for lane in _lanes(job, line) for op in order(job, f"{tag}{lane}.updated", COMPUTE, lane)]
    asked = 0
    opened: set[Unit] = set()
    for block, work in zip(blocks, lines, strict=True):
        unit = units[block.name]
        while unit.messages and unit not in opened:  # the root is opened before the first block
            unit = line[len(opened)]
            opened.add(unit)
            k = len(opened) - 1
            while asked < min(len(line), k + max(1, ahead)):
                ops += _gather(job, "fwd", line[asked], _free_for(line, asked, ahead))
                asked += 1
            ops += [*hooks(job, "fwd", unit), *copy_out(job, "fwd", unit)]
            unit = units[block.name]
        ops += work
        if ahead == 0:
            ops.append(Op(f"fwd/{block.name}.done", "record", COMPUTE, event="fwd/done"))
        if frees and unit.messages and not unit.kept:
            ops.append(reshard(job, "fwd", unit))
    return ops if job.train else ops + [reshard(job, "fwd", unit) for unit in line if unit.kept]


def _free_for(line: list[Unit], k: int, ahead: int) -> str:
    """The event after which unit k may be gathered: a copy-out that frees a buffer, or (no prefetch) the block before."""
    if ahead == 0:
        return "fwd/done" if k else ""
    return f"fwd/{line[k - 1 - ahead].name}.out" if k > ahead else ""


def backward(job: Job, blocks: list[BlockOps], units: dict[str, Unit], pieces: Pieces, tag: str, sync: bool) -> list[Op]:
    """Backward `pieces` of a stage with gathers before each block and, with `sync`, its gradients reduced after it."""
    inline = job.size("pp") == 1
    # Freed after forward, and not needed again.
    resting = {block.name for block in blocks if block.block.detached} if job.reshard else set()
    needed = [units[block.name] for block in reversed(blocks) if block.name not in resting] if job.reshard else []
    line = [unit for unit in needed if unit.messages and not unit.root]
    ahead = job.plan.parallel.prefetch
    ops = [op for unit in line[:ahead] if not unit.kept for op in _gather(job, "bwd", unit)]
    reduced: list[Unit] = []
    j = 0
    for name, group in groupby((piece for piece in pieces if piece[0].block not in resting), key=lambda piece: piece[0].block):
        unit = units[name]
        if unit in line:
            if ahead == 0 and not unit.kept:
                ops.append(Op(f"bwd/{unit.name}.begin", "record", COMPUTE, event="bwd/begin"))
                ops += _gather(job, "bwd", unit, "bwd/begin")
            ops += [] if unit.kept else copy_out(job, "bwd", unit)
            if ahead and j + ahead < len(line) and not line[j + ahead].kept:
                ops += _gather(job, "bwd", line[j + ahead], "" if unit.kept else f"bwd/{unit.name}.out")
            j += 1
        ops += [op for _, work in group for op in work]
        if inline and unit.messages and not unit.root:
            ops += hooks(job, "bwd", unit)
            if sync:
                ops += _partial(job, blocks, units, unit)
            ops.append(reshard(job, "bwd", unit))
            if sync:
                ops += _reduce(job, unit, reduced)
    late = [unit for unit in root_first(units, blocks) if unit.root or not inline]
    for unit in late if sync else ():
        ops += _reduced(job, blocks, units, unit, reduced, "bwd")
    return ops + _finish(job, reduced, tag)


def reduce_stage(job: Job, blocks: list[BlockOps], units: dict[str, Unit], tag: str) -> list[Op]:
    """All gradients of a stage, which its passes have left whole, for which compute waits (stage.py, perform_reduce_grad)."""
    reduced: list[Unit] = []
    ops = [op for unit in root_first(units, blocks) for op in _reduced(job, blocks, units, unit, reduced, "grad")]
    return ops + _finish(job, reduced, tag)


def _reduced(job: Job, blocks: list[BlockOps], units: dict[str, Unit], unit: Unit, reduced: list[Unit], phase: str) -> list[Op]:
    """One unit after the last backward of its stage: its parameters are freed, then its gradients leave."""
    return [*hooks(job, phase, unit), *_partial(job, blocks, units, unit), reshard(job, phase, unit), *_reduce(job, unit, reduced)]


def _partial(job: Job, blocks: list[BlockOps], units: dict[str, Unit], unit: Unit) -> list[Op]:
    """Under DTensor's sequence parallelism, gradients of whole parameters (norms, routers) are summed over tp before they are scattered."""
    if job.framework.tensor_parallel.style != "dtensor":
        return []
    return whole_gradients(job, [part for block in blocks if units[block.name] == unit for part in block.parts], sharded=True)


def hooks(job: Job, phase: str, unit: Unit) -> list[Op]:
    """What FSDP2 does in Python around one pass of a unit: its states, views of its parameters, streams."""
    if not job.eager:
        return []
    works = (HostWork("fsdp_unit", len(unit.messages)), HostWork("fsdp_parameter", unit.tensors))
    return [host(f"{phase}/{unit.name}.hooks", *works)]


def _gather(job: Job, phase: str, unit: Unit, after: str = "") -> list[Op]:
    """Copy-in, with the cast from the fp32 shard, and all_gather; `after` names an event that both wait for."""
    ops: list[Op] = []
    for suffix, axis, elements in travelling(job, unit):
        name, lane, size = f"{phase}/{unit.name}{suffix}", lane_of(axis), gathered(job, unit, suffix, elements)
        if after:
            ops.append(Op(f"{name}.room.wait", "wait", lane, event=after))
        ops.append(copy_in(job, name, elements, size, axis, lane if job.device == "cuda" else COMPUTE))
        message = collective(job, f"{name}.all_gather", lane, "all_gather", size, axis, CLS)
        ops += [_called(job, holding(message, alloc=size)), record(f"{name}.gathered", lane)]
    return ops


def gathered(job: Job, unit: Unit, suffix: str, elements: int) -> int:
    """Bytes of so many gathered parameters: a byte for each of an 8-bit linear whose shards are cast before they travel."""
    narrow = unit.narrow if job.framework.data_parallel.quantises_gathered == "shards" and not suffix else 0
    return round((elements - narrow) * job.param_bytes + narrow)


def copy_in(job: Job, name: str, elements: int, size: int, axis: str, lane: str) -> Op:
    """A rank's shard of `elements` parameters into the buffer of `size` bytes that is gathered, in the dtype that travels."""
    ranks = job.size(axis)
    shard = elements // ranks
    copy = MemoryBound(
        "cast" if job.framework.precision.master else "copy",
        shard * (4 if job.framework.precision.master else int(job.param_bytes)),
        size // ranks,
        job.framework.precision.param_dtype,
    )
    return Op(f"{name}.copy_in", "compute", lane, (copy,), cls=COPY, blocking=job.device == "cpu")


def _called(job: Job, op: Op) -> Op:
    """As FSDP2 calls a collective: not asynchronous, ordered by streams alone (`async_op` in torch/distributed/fsdp/_fully_shard). A CPU has
    no streams: there the training thread waits for each."""
    return replace(op, blocking=True) if job.device == "cpu" and op.kind == "collective" else op


def holding(op: Op, alloc: int = 0, free: int = 0) -> Op:
    """The op with bytes of device memory that it takes and gives back."""
    return replace(op, alloc=alloc, free=free)


def copy_out(job: Job, phase: str, unit: Unit) -> list[Op]:
    """Compute waits for the gather and copies the parameters out of its buffer, where that is one for all of them; what no other rank shares is
    cast and copied likewise (torch 2.13, _fsdp_param_group.py, wait_for_unshard). What makes them narrow comes next, where that is done with
    whole weights (`DataParallel.quantises_gathered`)."""
    sent = travelling(job, unit)
    ops = [wait(job, f"{phase}/{unit.name}{suffix}.gathered", COMPUTE) for suffix, _, _ in sent]
    size, travelled = (sum(gathered(job, unit, suffix, elements) for suffix, _, elements in messages) for messages in (unit.messages, sent))
    if job.framework.data_parallel.shard_copies:
        dtype, own = job.framework.precision.param_dtype, size - travelled
        casts = (MemoryBound("cast", round(own * 4 / job.param_bytes), own, dtype),) if own and job.framework.precision.master else ()
        copy = MemoryBound("copy", size, size, dtype)
        ops.append(compute(job, f"{phase}/{unit.name}.copy_out", (*casts, copy), COPY, alloc=size, free=travelled))
    if unit.narrow and (narrowed := _quantised(job, phase, unit.narrow)):
        ops.append(compute(job, f"{phase}/{unit.name}.quantise", narrowed, COPY))
    return [*ops, record(f"{phase}/{unit.name}.out", COMPUTE)]


def _quantised(job: Job, phase: str, elements: int) -> tuple[MemoryBound, ...]:
    """What makes whole weights 8-bit in this pass, where it does. With scales of before, both ways at once; with the tensor's own, or one for each
    row or column, in the way that the pass reads them (torchao, float8_linear.py: matmul_with_hp_or_float8_args casts the weight in forward and
    once more in backward). Backward does so too with what it recomputes."""
    how, dtype = job.framework.data_parallel.quantises_gathered, job.framework.precision.param_dtype
    again, ahead = job.plan.memory.recompute == "full", phase.endswith("fwd")
    if how not in ("forward", "passes") or (how == "forward" and not (ahead or again)):
        return ()
    cast, largest = MemoryBound("cast", 2 * elements, elements, dtype), MemoryBound("reduce", 2 * elements, 0, dtype)
    scaling = job.framework.linears.fp8_scaling
    if scaling in ("delayed", "shared"):
        return (MemoryBound("cast_transpose", 2 * elements, 2 * elements, dtype),)
    forward = (cast,) if scaling == "rowwise" else (largest, cast)
    return forward if ahead else (*(forward if again else ()), largest, cast)


def reshard(job: Job, phase: str, unit: Unit) -> Op:
    """The gathered parameters are freed when compute has passed."""
    size = sum(gathered(job, unit, suffix, elements) for suffix, _, elements in unit.messages)
    return Op(f"{phase}/{unit.name}.reshard", "record", COMPUTE, event=f"{phase}/{unit.name}.reshard", free=size)


def _reduce(job: Job, unit: Unit, reduced: list[Unit]) -> list[Op]:
    """Copy-in (in the dtype that travels) where one buffer holds all, and reduce_scatter, then with replicas the all_reduce of the shard."""
    ops: list[Op] = []
    if not unit.gradients:
        return ops
    if reduced:  # the buffer of the reduce_scatter before is free
        ops += [
            _again(job, f"grad/{unit.name}.room{suffix}.wait", f"grad/{reduced[-1].name}{suffix}.scattered")
            for suffix, _, _ in reduced[-1].gradients
        ]
    for suffix, axis, elements in unit.gradients:
        name, lane, size = f"grad/{unit.name}{suffix}", lane_of(axis), round(elements * job.reduce_bytes)
        full = [*order(job, f"{name}.full", COMPUTE, lane)]
        if job.framework.data_parallel.shard_copies:
            # A pipeline's stages have summed their micro-batches in the dtype that travels (`sim.lower.accumulate`).
            held = job.reduce_bytes if job.size("pp") > 1 else job.param_bytes
            copy = MemoryBound("copy", round(elements * held), size, job.framework.precision.reduce_dtype)
            ops.append(compute(job, f"{name}.copy_in", (copy,), COPY, alloc=size))
        else:
            full[0] = holding(full[0], alloc=size)
        ranks = job.size("grad")  # the rows of all have come to experts
        ops += [*full, *before_message(job, name, lane, elements, ranks)]
        scattered = record(f"{name}.scattered", lane)
        if job.size(axis) > 1:
            message = collective(job, f"{name}.reduce_scatter", lane, "reduce_scatter", size, axis, CLS)
            ops += [_called(job, holding(message, free=size)), scattered]
        else:
            ops += [*in_place_of_message(job, name, lane, elements), holding(scattered, free=size)]
        shared = [_called(job, op) for op in replicas(job, name, size / job.size(axis), lane)]
        end = shared[-1].lane if shared else lane
        then = after_message(job, name, end, elements / job.size(axis), ranks)
        ops += [*shared, *then, record(f"{name}.done", end)] if shared or then else []
    reduced.append(unit)
    if not job.plan.comm.overlap:
        ops += [_again(job, f"grad/{unit.name}{suffix}.here.wait", _last(job, unit, suffix)) for suffix, _, _ in unit.gradients]
    return ops


def _last(job: Job, unit: Unit, suffix: str) -> str:
    """The event after which a unit's gradients are what the optimizer reads."""
    shared = job.size("dp_replicate") > 1 or after_message(job, "", "", 1.0, job.size("grad"))
    return f"grad/{unit.name}{suffix}.{'done' if shared else 'scattered'}"


def _again(job: Job, id: str, event: str) -> Op:
    return Op(id, "wait", COMPUTE, event=event, blocking=job.device == "cpu")


def _finish(job: Job, reduced: list[Unit], tag: str) -> list[Op]:
    """The step goes on when the last message of each lane has ended."""
    last: dict[str, str] = {}
    for unit in reduced:
        for suffix, axis, _ in unit.gradients:
            end = "dp_replicate" if job.size("dp_replicate") > 1 else axis
            last[lane_of(end)] = _last(job, unit, suffix)
    return [_again(job, f"grad/{tag}end.{lane}.wait", event) for lane, event in last.items()]


def _lanes(job: Job, line: list[Unit]) -> list[str]:
    return list(dict.fromkeys(lane_of(axis) for unit in line for _, axis, _ in travelling(job, unit)))


def travelling(job: Job, unit: Unit) -> Sizes:
    """Of a unit's messages those among several ranks."""
    return tuple(message for message in unit.messages if job.size(message[1]) > 1)
