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

from sim.lower.data_parallel.gathered import copy_out, gather, hooks, keep, reshard, travelling
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.scattered import Reduced
from sim.lower.data_parallel.units import Unit, root_first
from sim.lower.job import Job
from sim.lower.ops import order
from sim.lower.passes import Pieces
from sim.lower.template import BlockOps, Ops
from sim.program import COMPUTE, Op


def forward(job: Job, blocks: list[BlockOps], units: dict[str, Unit], lines: list[Ops], tag: str) -> list[Op]:
    """Forward of a stage whose parameters are sharded when it begins. `units`: block name -> its unit; `lines`: the ops of each block."""
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
                ops += gather(job, "fwd", line[asked], _free_for(line, asked, ahead))
                asked += 1
            ops += [*hooks(job, "fwd", unit), *copy_out(job, "fwd", unit)]
            unit = units[block.name]
        ops += work
        if ahead == 0:
            ops.append(Op(f"fwd/{block.name}.done", "record", COMPUTE, event="fwd/done"))
        if frees and unit.messages and not unit.kept:
            ops += keep(job, unit) if job.keeps_among and not block.block.detached else [reshard(job, "fwd", unit)]
    return ops if job.train else ops + [reshard(job, "fwd", unit) for unit in line if unit.kept]


def _free_for(line: list[Unit], k: int, ahead: int) -> str:
    """The event after which unit k may be gathered: a copy-out that frees a buffer, or (no prefetch) the end of the block before. "":
    it waits for none."""
    if ahead == 0:
        return "fwd/done" if k else ""
    return f"fwd/{line[k - 1 - ahead].name}.out" if k > ahead else ""


def _lanes(job: Job, line: list[Unit]) -> list[str]:
    return list(dict.fromkeys(lane_of(axis) for unit in line for _, axis, _ in travelling(job, unit)))


def backward(job: Job, blocks: list[BlockOps], units: dict[str, Unit], pieces: Pieces, tag: str, sync: bool, later: bool) -> list[Op]:
    """Backward `pieces` of a stage, with all-gathers before each block and, with `sync`, the reduction of its gradients after it.
    `later`: the reduced gradients are added to those of earlier micro-batches."""
    inline = job.size("pp") == 1
    # Blocks without a backward: they are freed after forward and not needed again.
    resting = {block.name for block in blocks if block.block.detached} if job.reshard else set()
    needed = [units[block.name] for block in reversed(blocks) if block.name not in resting] if job.reshard else []
    line = [unit for unit in needed if unit.messages and not unit.root]
    ahead = job.plan.parallel.prefetch
    ops = [op for unit in line[:ahead] if not unit.kept for op in gather(job, "bwd", unit)]
    reduced = Reduced(job, blocks, units, later)
    j = 0
    for name, group in groupby((piece for piece in pieces if piece[0].block not in resting), key=lambda piece: piece[0].block):
        unit = units[name]
        if unit in line:
            if ahead == 0 and not unit.kept:
                ops.append(Op(f"bwd/{unit.name}.begin", "record", COMPUTE, event="bwd/begin"))
                ops += gather(job, "bwd", unit, "bwd/begin")
            ops += [] if unit.kept else copy_out(job, "bwd", unit)
            if ahead and j + ahead < len(line) and not line[j + ahead].kept:
                ops += gather(job, "bwd", line[j + ahead], "" if unit.kept else f"bwd/{unit.name}.out")
            j += 1
        ops += [op for _, work in group for op in work]
        if inline and unit.messages and not unit.root:
            ops += hooks(job, "bwd", unit)
            if sync:
                ops += reduced.partial(unit)
            ops.append(reshard(job, "bwd", unit))
            if sync:
                ops += reduced.reduce(unit)
    late = [unit for unit in root_first(units, blocks) if unit.root or not inline]
    for unit in late if sync else ():
        ops += reduced.late(unit, "bwd")
    return ops + reduced.finish(tag)
