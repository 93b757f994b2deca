"""Activations in host memory: copied down after a block's forward, brought back one block ahead of its backward.

As torchtitan's and Megatron's CPU offloading do: pinned memory, a copy lane for each direction. The stage's last block stays, its
backward comes at once. Two blocks have room on the device: a third one's forward waits until the first has left (TransformerEngine's
AsyncDoubleBufferGroupOffloadHandler: the compute stream waits for its copies), and nothing comes back before it has gone.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import order, record, wait
from sim.lower.template import BlockOps
from sim.program import COMPUTE, D2H, H2D, Op

CLS = "comm.offload"


def offload(job: Job, blocks: list[BlockOps]) -> list[BlockOps]:
    """The same blocks with their saved activations moved."""
    found: list[BlockOps] = []
    sizes = [_saved(block) for block in blocks[:-1]]
    for index, block in enumerate(blocks):
        moved, size = block, sizes[index] if index < len(sizes) else 0
        if index > 1 and sizes[index - 2]:
            first = block.parts[0]
            room = _gone(f"fwd/{block.name}.left.wait", blocks[index - 2].name, COMPUTE)
            moved = moved._replace(parts=(first._replace(forward=(room, *first.forward)), *moved.parts[1:]))
        if size:
            last = moved.parts[-1]
            down = _down(job, block.name, size)
            moved = moved._replace(parts=(*moved.parts[:-1], last._replace(forward=(*last.forward, *down))))
            moved = moved._replace(prelude=(wait(job, f"bwd/{block.name}.fetched", COMPUTE), *block.prelude))
        if index and sizes[index - 1]:
            moved = moved._replace(prelude=(*_up(job, blocks[index - 1].name, sizes[index - 1]), *moved.prelude))
        found.append(moved)
    return found


def _saved(block: BlockOps) -> int:
    return sum(op.alloc for op in block.forward)


def _down(job: Job, block: str, size: int) -> tuple[Op, ...]:
    copy = Op(f"fwd/{block}.offload", "copy", D2H, bytes=size, how="pinned", cls=CLS, free=size)
    gone = Op(f"fwd/{block}.gone.record", "record", D2H, event=f"fwd/{block}.gone", shift=0)
    return (*order(job, f"fwd/{block}.saved", COMPUTE, D2H), copy, gone)


def _gone(id: str, block: str, lane: str) -> Op:
    """Waits until the same micro-batch's activations of `block` are in host memory."""
    return Op(id, "wait", lane, event=f"fwd/{block}.gone", shift=0)


def _up(job: Job, block: str, size: int) -> tuple[Op, ...]:
    """The copy back begins when the backward of the block after begins, so that no more than two blocks are on the device."""
    copy = Op(f"bwd/{block}.fetch", "copy", H2D, bytes=size, how="pinned", cls=CLS, alloc=size)
    ready = (*order(job, f"bwd/{block}.fetch.room", COMPUTE, H2D), _gone(f"bwd/{block}.gone.wait", block, H2D))
    return (*ready, copy, record(f"bwd/{block}.fetched", H2D))
