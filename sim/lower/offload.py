"""Activations in host memory: copied down after a block's forward, brought back one block ahead of its backward.

As torchtitan's and Megatron's CPU offloading do: pinned memory, a copy lane for each direction. The stage's last block stays, its
backward comes at once.
"""

from __future__ import annotations

from sim.lower.blocks import BlockOps
from sim.lower.job import Job
from sim.lower.ops import order, record, wait
from sim.program import COMPUTE, D2H, H2D, Op
from topologies.errors import Refused

CLS = "comm.offload"


def offload(job: Job, blocks: list[BlockOps]) -> list[BlockOps]:
    """The same blocks with their saved activations moved. Raises `Refused` on a CPU, which has no memory besides."""
    if job.device == "cpu":
        raise Refused('memory.offload = "activations" moves device memory to the host; on a CPU they are the same. Use offload = "none"')
    found: list[BlockOps] = []
    for index, block in enumerate(blocks):
        size, before = _saved(block), blocks[index - 1] if index else None
        moved = block
        if index + 1 < len(blocks) and size:
            last = block.parts[-1]
            down = _down(job, block.name, size)
            moved = block._replace(parts=(*block.parts[:-1], last._replace(forward=(*last.forward, *down))))
            moved = moved._replace(prelude=(wait(job, f"bwd/{block.name}.fetched", COMPUTE), *block.prelude))
        if before is not None and _saved(before):
            moved = moved._replace(prelude=(*_up(job, before.name, _saved(before)), *moved.prelude))
        found.append(moved)
    return found


def _saved(block: BlockOps) -> int:
    return sum(op.alloc for op in block.forward)


def _down(job: Job, block: str, size: int) -> tuple[Op, ...]:
    copy = Op(f"fwd/{block}.offload", "copy", D2H, bytes=size, how="pinned", cls=CLS, free=size)
    return (*order(job, f"fwd/{block}.saved", COMPUTE, D2H), copy)


def _up(job: Job, block: str, size: int) -> tuple[Op, ...]:
    """The copy back begins when the backward of the block after begins, so that no more than two blocks are on the device."""
    copy = Op(f"bwd/{block}.fetch", "copy", H2D, bytes=size, how="pinned", cls=CLS, alloc=size)
    return (*order(job, f"bwd/{block}.fetch.room", COMPUTE, H2D), copy, record(f"bwd/{block}.fetched", H2D))
