"""Activations in host memory: copied down after a block's forward, brought back one block ahead of its backward.

As torchtitan's and Megatron's CPU offloading do: pinned memory, a copy lane for each direction. The stage's last block stays, its
backward comes at once. If all other blocks' activations leave, there is room for two blocks' on the device: a third block's forward
waits until the first one's have left
(TransformerEngine's AsyncDoubleBufferGroupOffloadHandler: the compute stream waits for its copies), and nothing comes back before it has gone.
If only some blocks' leave, each has the time of several layers to do so.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.lower.job import Job
from sim.lower.ops import order, record, wait
from sim.lower.template import BlockOps
from sim.program import COMPUTE, D2H, H2D, Op

CLS = "comm.offload"


def offload(job: Job, blocks: list[BlockOps], away: Mapping[int, int]) -> list[BlockOps]:
    """The same blocks with copies of saved activations added. `away`: index of a block whose activations leave -> index of the block
    beside which they leave and come back (`sent_away`)."""
    found = list(blocks)
    for at, beside in reversed(tuple(away.items())):
        name, size = blocks[at].name, _saved(blocks[at])
        if not size:
            continue
        *parts, last = found[at].parts
        found[at] = found[at]._replace(parts=(*parts, last._replace(forward=(*last.forward, *_down(job, name, size)))))
        found[at] = found[at]._replace(prelude=(wait(job, f"bwd/{name}.fetched", COMPUTE), *found[at].prelude))
        found[beside] = found[beside]._replace(prelude=(*_up(job, name, size), *found[beside].prelude))
        if beside + 1 < len(blocks):
            first, *others = found[beside + 1].parts
            room = _gone(f"fwd/{blocks[beside + 1].name}.left.wait", name, COMPUTE)
            found[beside + 1] = found[beside + 1]._replace(parts=(first._replace(forward=(room, *first.forward)), *others))
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
    """The copy back. It begins when the backward of the block begins beside which it comes, so that no more than two blocks'
    activations are on the device."""
    copy = Op(f"bwd/{block}.fetch", "copy", H2D, bytes=size, how="pinned", cls=CLS, alloc=size)
    ready = (*order(job, f"bwd/{block}.fetch.room", COMPUTE, H2D), _gone(f"bwd/{block}.gone.wait", block, H2D))
    return (*ready, copy, record(f"bwd/{block}.fetched", H2D))
