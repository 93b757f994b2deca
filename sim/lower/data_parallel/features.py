"""Features of all ranks' samples, which a contrastive loss compares.

Seam `dp.features`: the features of pictures and texts are gathered before the loss and their gradients summed after it. This is
open_clip's gather_features with gather_with_grad (src/open_clip/loss.py): torch.distributed.nn.functional.all_gather for each kind of
features, whose backward is a reduce_scatter; compute waits for each.

Otherwise only features of texts travel, in rings both ways, as in SigLipLoss (`bidir`, its default): a rank gets those of both
neighbours, compares its pictures with them, and hands them on. With an even number of ranks the last exchange goes one way. Gradients
come back the same way. Compute waits for each exchange (batch_isend_irecv, then wait).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import collective, compute, host, record, wait
from sim.model.parts import Part
from sim.program import COMPUTE, Op
from sim.work import HostWork

CLS = "comm.features"
_KINDS = ("pictures", "texts")


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """The loss's forward. Both kinds of features are gathered, then `kernels` join them; or, in rings, the part's kernels run on what
    each exchange brings."""
    if part.seam == "dp.features":
        return [*_each(job, name, "all_gather", part.seam_bytes), *kernels]
    ops: list[Op] = []
    for turn, ways in enumerate(_turns(job)):
        id = f"{name}.{turn}"
        alloc = 0 if turn else kernels[0].alloc
        ops += [*_exchange(job, id, part.seam_bytes, ways), compute(job, id, part.forward * len(ways), part.cls, alloc=alloc)]
    return ops


def backward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """The loss's backward. `kernels` lay out the gradients of both kinds, which are then summed on the ranks of their samples; or, in
    rings, gradients are made exchange by exchange from the last one on, and sent back."""
    if part.seam == "dp.features":
        return [*kernels, *_each(job, f"bwd/{name}", "reduce_scatter", part.seam_bytes)]
    ops: list[Op] = []
    for turn, ways in reversed(list(enumerate(_turns(job)))):
        id = f"bwd/{name}.{turn}"
        free = 0 if turn else kernels[0].free
        nodes = [host(f"{id}.autograd", HostWork("autograd", len(part.forward) * len(ways)))] if job.eager and turn else []
        back = tuple(-way for way in ways)
        ops += [*nodes, compute(job, id, part.backward * len(ways), part.cls, free=free), *_exchange(job, id, part.seam_bytes, back)]
    return ops


def _each(job: Job, name: str, what: str, size: int) -> list[Op]:
    return [collective(job, f"{name}.{kind}.{what}", COMPUTE, what, size, "dp", CLS) for kind in _KINDS]


def _turns(job: Job) -> list[tuple[int, ...]]:
    """For each exchange the offsets of the ranks to which texts are sent: the next one (1) and the one before (-1). With an even number
    of ranks the last exchange goes to the next one alone."""
    pairs, rest = divmod(job.size("dp") - 1, 2)
    return [(1, -1)] * pairs + [(1,)] * rest


def _exchange(job: Job, id: str, size: int, ways: tuple[int, ...]) -> list[Op]:
    """One exchange: sends to the neighbours at the offsets `ways`, and receives from the opposite neighbours, all at once. Compute
    waits for all that arrives."""
    made = f"{id}.made"
    ops, here = [record(made, COMPUTE)], []
    for way in ways:
        side = "right" if way > 0 else "left"
        send, recv = f"{CLS}.{side}.send", f"{CLS}.{side}.recv"
        come = f"{id}.{side}"
        ops += [replace(wait(job, made, lane), id=f"{come}.{lane.rpartition('.')[2]}.wait") for lane in (send, recv)]
        ops.append(Op(f"{come}.send", "send", send, bytes=size, group="dp_ring", peer=way, cls=CLS))
        ops.append(Op(f"{come}.recv", "recv", recv, bytes=size, group="dp_ring", peer=-way, cls=CLS))
        ops.append(record(come, recv))
        here.append(wait(job, come, COMPUTE))
    return [*ops, *here]
