"""The update on the host's cores, with its state in host memory. The device has all else, or only the parameters in use."""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import host, order
from sim.lower.optimizer.owned import Share
from sim.optimizers import OPTIMIZERS
from sim.program import COMPUTE, D2H, H2D, HOST, Op
from sim.work import HostWork

CLS = "optimizer"
_ADAMW = 4.0 * sum(OPTIMIZERS["adamw"].fused)
"""Bytes that AdamW's update moves for one parameter. Its time was measured; others are scaled by bytes."""


def offloaded(job: Job, share: Share) -> list[Op]:
    """State in host memory: gradients go down, the CPU updates, parameters come up (ZeRO-Offload, Ren et al. 2021)."""
    down = Op("optimizer/d2h", "copy", D2H, bytes=int(share.elements * job.grad_bytes), how="pinned", cls=CLS, blocking=True)
    up = Op("optimizer/h2d", "copy", H2D, bytes=int(share.elements * job.param_bytes), how="pinned", cls=CLS)
    update = host("optimizer/cpu", on_cpu(job, share), cls=CLS)
    return [*order(job, "optimizer/gradients", COMPUTE, D2H), down, update, up, *order(job, "optimizer/parameters", H2D, COMPUTE)]


def beside_gradients(job: Job, share: Share, norms: list[Op]) -> list[Op]:
    """The update where gradients and parameters are in host memory, too: gradients are unscaled and clipped there in passes of their
    own, and updated parameters stay there (FSDP2's CPUOffloadPolicy, DeepSpeed's offload_param). `norms`: the collectives that sum the
    gradients' norms; hosts run them here."""
    ops, g = list[Op](), job.grad_bytes
    if job.plan.precision == "fp16":
        ops.append(host("optimizer/unscale", pass_over(share.elements, 2 * g), cls=CLS))
    if job.framework.optimizer.clip:
        if job.fsdp2:  # DeepSpeed takes each shard's norm where it was reduced
            ops.append(host("optimizer/norm", pass_over(share.elements, g), cls=CLS))
        ops += [replace(op, lane=HOST) for op in norms]
        ops.append(host("optimizer/clip", pass_over(share.elements, 2 * g), cls=CLS))
    return [*ops, host("optimizer/cpu", on_cpu(job, share), cls=CLS)]


def on_cpu(job: Job, share: Share) -> HostWork:
    """The update on CPU cores, in one pass over host memory as DeepSpeed's CPU-Adam makes it: fp32 states, and the parameters in 16 bits, where a
    rank has some beside them. The work is counted in elements of an AdamW update, whose time was measured; other optimizers move fewer
    tensors."""
    read, written = OPTIMIZERS[job.plan.optimizer.name].fused
    narrow = job.param_bytes < 4 and not (job.plan.parameters_offloaded and job.framework.data_parallel.one_copy(job.zero))
    each = 4.0 * (read - 1 + written) + job.grad_bytes + (job.param_bytes if narrow else 0.0)
    return HostWork("cpu_optimizer", share.elements * 4.0 * (read + written) / _ADAMW, moved=share.elements * each)


def pass_over(elements: float, each: float) -> HostWork:
    """A pass over `elements` gradients that moves `each` bytes for each of them, as a fraction of an AdamW update."""
    return HostWork("cpu_optimizer", elements * each / _ADAMW, moved=elements * each)
