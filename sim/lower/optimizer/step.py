"""The update: gradients cleared, unscaled and clipped, then the optimizer's step on this rank's share.

Bytes: a fused kernel reads parameter, gradient and states once and writes all but the gradient (Adam 28 B per fp32
parameter); foreach runs the same as separate passes (torch/optim/adamw.py, _multi_tensor_adamw: 20 fp32 moves instead of 7),
the for-loop as separate kernels for each tensor.
"""

from __future__ import annotations

from sim.lower.data_parallel.buckets import rebuilds
from sim.lower.job import Job
from sim.lower.ops import collective, compute, read_back, spent
from sim.lower.optimizer import muon
from sim.lower.optimizer.adafactor import factored_step
from sim.lower.optimizer.cpu import beside_gradients, offloaded
from sim.lower.optimizer.lists import called, over_all, passed
from sim.lower.optimizer.owned import Share, moment_width, reads_narrow, state_dtype, state_width, widens
from sim.optimizers import OPTIMIZERS
from sim.program import COMPUTE, Op
from sim.work import MemoryBound, Work

CLS = "optimizer"


def clear(job: Job, share: Share) -> list[Op]:
    """Zeroes a flat gradient buffer, whole below ZeRO-2 (Megatron's zero_grad_buffer, DeepSpeed's clear_hp_grads). torch drops its
    gradients (set_to_none), which costs nothing; before 2.0 it called a kernel for each tensor. Gradients that go to host memory
    overwrite the old ones there, so nothing is cleared."""
    if job.plan.parameters_offloaded:
        return []
    if not (job.flat_gradients or job.framework.precision.sums_apart):
        if not job.framework.optimizer.zeroes_gradients or job.zero:
            return []
        zeros = tuple(called(share, (("zero", 0, 1),), job.grad_bytes, job.framework.precision.grad_dtype))
        return [spent("optimizer/zero.host", "optimizer", share.tensors, cls=CLS), compute(job, "optimizer/zero", zeros, CLS)]
    elements = share.elements if job.zero >= 2 else share.whole
    return [
        compute(job, "optimizer/zero", (MemoryBound("zero", 0, int(elements * job.grad_bytes), job.framework.precision.grad_dtype),), CLS)
    ]


def update(job: Job, share: Share) -> list[Op]:
    """The whole update: unscale -> clip -> step. A pipeline rank that trains nothing still takes part in the sum of the gradient norm."""
    if not share.elements:
        return _sums(job, share) if job.framework.optimizer.clip else []
    read = read_back(job, "optimizer/loss.read", CLS) if job.framework.optimizer.reads_loss else []
    if job.plan.parameters_offloaded:
        return read + beside_gradients(job, share, _sums(job, share))
    looked = share.unsplit if job.zero and rebuilds(job) else share  # DDP leaves whole gradients on every rank
    ops = read + _widened(job, share) + unscale(job, looked) + clip(job, looked)
    if job.plan.host_optimizer:
        return ops + offloaded(job, share)
    return ops + step(job, share)


def _widens(job: Job) -> bool:
    return widens(job.plan, job.framework, job.zero)


def _widened(job: Job, share: Share) -> list[Op]:
    """Casts the gradients of this rank's share to fp32, which all later steps read (Megatron-Core's _copy_model_grads_to_main_grads).
    Empty where they are not cast before the update."""
    return [compute(job, "optimizer/main_grads", (_cast(job, share),), CLS)] if _widens(job) else []


def _read(job: Job) -> tuple[float, str]:
    """(bytes, dtype) of the gradients that are unscaled and clipped."""
    return (4.0, "fp32") if _widens(job) else (job.grad_bytes, job.framework.precision.grad_dtype)


def unscale(job: Job, share: Share) -> list[Op]:
    """fp16: divides gradients by the loss scale and looks for infinities; the host reads the result. Empty for other dtypes."""
    if job.plan.precision != "fp16":
        return []
    g, dtype = _read(job)
    works = (over_all(job, share, "scale_", g, g, dtype, 1),)
    return [compute(job, "optimizer/unscale", works, CLS), *read_back(job, "optimizer/found-inf", CLS)]


def clip(job: Job, share: Share) -> list[Op]:
    """Clips by the global norm: one pass for the norm, a sum of one number over all ranks that hold other parameters, one pass of
    scaling.

    Megatron reads the norm on the host (clip_grads.py, get_grad_norm_fp32); torch leaves it on the device, and sums the stacked norms of
    distributed tensors one by one (get_total_norm), those of pipeline stages as one number (torchtitan). Before its foreach kernels
    (`scripted`: of their time) torch called a kernel for each tensor and compared the norm on the host (clip_grad_norm_ of 1.6).
    """
    if not job.framework.optimizer.clip:
        return []
    g, dtype = _read(job)
    if job.framework.optimizer.implementation == "scripted":
        g, dtype = (4.0, "fp32") if job.framework.precision.master else (g, dtype)
        norm, scale = (tuple(called(share, ((what, 1, written),), g, dtype)) for what, written in (("norm", 0), ("scale_", 1)))
        return [
            compute(job, "optimizer/norm", norm, CLS),
            *read_back(job, "optimizer/norm.read", CLS),
            compute(job, "optimizer/clip", scale, CLS),
        ]
    ops = [compute(job, "optimizer/norm", (over_all(job, share, "norm", g, 0.0, dtype, 1),), CLS)]
    ops += _sums(job, share)
    if job.flat_gradients or job.framework.optimizer.reads_norm:
        ops += read_back(job, "optimizer/norm.read", CLS)
    return [*ops, compute(job, "optimizer/clip", (over_all(job, share, "scale_", g, g, dtype, 1),), CLS)]


def _sums(job: Job, share: Share) -> list[Op]:
    """The all_reduces that sum the norm over all ranks that hold other parameters."""
    axes = [*(["fsdp"] if job.zero and not rebuilds(job) else []), "tp", "pp"]
    if job.size("ep") > 1 and not job.zero and job.network.has_experts:
        axes.append("ep")
    stacked = round(_read(job)[0] * share.tensors)  # as wide as the gradients
    sizes = {
        axis: stacked if job.framework.tensor_parallel.style == "dtensor" and axis != "pp" else 4 for axis in axes if job.size(axis) > 1
    }
    return [
        collective(job, f"optimizer/norm.{axis}", COMPUTE, "all_reduce", size, axis, "comm.norm") for axis, size in sizes.items() if size
    ]


def step(job: Job, share: Share) -> list[Op]:
    """The kernels of `optimizer.step()` and the host's share for each tensor."""
    name: str = job.plan.optimizer.name
    ops, plain = list[Op](), share
    if job.eager:
        ops.append(spent("optimizer/step.host", "optimizer_step", cls=CLS))
        ops.append(spent("optimizer/tensors.host", "optimizer", share.handed, cls=CLS))
        if job.framework.tensor_parallel.style == "dtensor" and (job.zero == 3 or job.size("tp") > 1):
            states = OPTIMIZERS[name].states
            kind, updates = ("dtensor_adam", 1) if states == 2 else ("dtensor_sgd", 1 + states)
            ops.append(spent("optimizer/dtensor.host", kind, share.tensors * updates, cls=CLS))
    kernels: list[Work] = []
    if name == "adafactor":
        ops += factored_step(job, share)
    else:
        if name == "muon":
            ops += muon.orthogonalized(job, share)
            name, plain = muon.BESIDE, share.rest
        kernels = _kernels(job, plain, name) if plain.elements else []
    works = (*_main_gradients(job, share), *kernels, *model_copy(job, share))
    return [*ops, *([compute(job, "optimizer/step", works, CLS)] if works else ())]


def _kernels(job: Job, share: Share, name: str) -> list[Work]:
    """The kernels of the update itself by optimizer `name`, as the framework's implementation launches them."""
    how, width, dtype, algorithm = job.framework.optimizer.implementation, state_width(job), state_dtype(job), OPTIMIZERS[name]
    if how == "fused":
        return [_fused(job, share, name)]
    if job.device == "cpu":
        return passed(job, share, algorithm.launched(how), width, dtype)
    if how == "scripted":
        return called(share, algorithm.script, width, "fp32", algorithm.script_numbers)
    if how == "graph":
        return passed(job, share, algorithm.in_graph(job.framework.compile, job.framework.optimizer.adam_operator), width, dtype)
    if not algorithm.listed:
        return called(share, algorithm.loop, width, dtype, algorithm.loop_numbers)
    written = algorithm.written if how == "for-loop" and job.framework.host == "python" and job.framework.optimizer.written_adam else ()
    return passed(job, share, written or algorithm.launched(how), width, dtype)


def _fused(job: Job, share: Share, name: str) -> Work:
    w, kept = state_width(job), OPTIMIZERS[name].states
    moments = kept * moment_width(job.plan, w)
    read, written = OPTIMIZERS[name].fused
    there, back = (read - 1 - kept) * w + moments + _gradient(job), (written - kept) * w + moments
    return over_all(job, share, name, there, back, state_dtype(job), 2 + kept)


def _gradient(job: Job) -> float:
    """Bytes of one gradient as the update reads it."""
    return 4.0 if job.framework.precision.master and not _reads_narrow(job) else job.grad_bytes


def _reads_narrow(job: Job) -> bool:
    return reads_narrow(job.plan, job.framework, job.zero)


def _main_gradients(job: Job, share: Share) -> list[Work]:
    """The cast of low-precision gradients to fp32 for an fp32 master copy, if it was not done before (`_widened`)."""
    if not job.framework.precision.master or job.grad_bytes >= 4 or _reads_narrow(job) or _widens(job):
        return []
    return [_cast(job, share)]


def _cast(job: Job, share: Share) -> Work:
    return over_all(job, share, "cast", job.grad_bytes, 4.0, "fp32")


def model_copy(job: Job, share: Share) -> list[Work]:
    """The cast of the fp32 master copy to the parameters that forward reads. Empty for FSDP, which casts when it gathers, and for
    autocast, which casts at each use."""
    if not job.framework.precision.master or job.param_bytes >= 4 or job.zero == 3 or _reads_narrow(job):
        return []
    return [over_all(job, share, "cast", 4.0, job.param_bytes, job.framework.precision.param_dtype)]
