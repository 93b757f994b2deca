"""A plan's framework. The plan's own words (compile, attention, optimizer.implementation, comm.reduce_dtype ...) win over its defaults."""

from __future__ import annotations

from typing import Any

from sim.framework.framework import Framework, load_framework
from sim.mesh import Mesh
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan

_HALVES = ("bf16", "fp16")
_KEPT = ("param_dtype", "grad_dtype", "reduce_dtype")


def framework_of(plan: Plan) -> Framework:
    """The plan's framework with the plan's own words applied."""
    base = load_framework(plan.framework)
    o = plan.optimizer
    said: dict[str, Any] = {"compile": plan.compile, "cuda_graphs": plan.cuda_graphs}
    found = base.but(
        **_said(said),
        attention=_said({"implementation": plan.attention, "biased": plan.attention}),
        optimizer=_said({"implementation": o.implementation, "clip": o.clip}),
        precision=_dtypes(base, plan.precision) | (_AUTOCAST if _alone(plan, base) else {}) | _adapters(plan, base),
    )
    if found.compile and found.data_parallel.gradients_at_end:  # and the division of the sums is fused with what reads them
        found = found.but(data_parallel={"overlap_grad": False, "prescales": False})
    return found if plan.comm.reduce_dtype is None else _reducing_in(found, plan.comm.reduce_dtype)


_AUTOCAST = {"autocast": True, "param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32", "master": False}


def _alone(plan: Plan, base: Framework) -> bool:
    """Does autocast narrow what FSDP would (`Precision.autocast_alone`)?"""
    if not base.precision.autocast_alone or plan.precision in ("fp32", "tf32"):
        return False
    return plan.parallel.tp * plan.parallel.pp * plan.parallel.cp == 1 and not sharding_of(plan, base)[0]


def _adapters(plan: Plan, base: Framework) -> dict[str, Any]:
    """What is trained is fp32 where adapters alone are, and are so (`Precision.wide_adapters`)."""
    wide = base.precision.wide_adapters and plan.task == "lora" and plan.precision in _HALVES and sharding_of(plan, base)[0] < 3
    return {"wide_adapters": wide} | (dict.fromkeys(_KEPT, "fp32") if wide else {})


def _said(words: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in words.items() if value is not None}


def _dtypes(base: Framework, precision: str) -> dict[str, Any]:
    """What the plan's precision changes in the framework's dtypes: in 32 bits all are fp32, without master copies or autocast; in 16 bits its 16-bit dtypes
    become the plan's (bf16 or fp16), and its fp32 ones stay."""
    if precision in ("fp32", "tf32"):
        return {**dict.fromkeys(_KEPT, "fp32"), "master": False, "autocast": False, "sums_apart": False}
    return {field: precision for field in _KEPT if precision in _HALVES and getattr(base.precision, field) in _HALVES}


def _reducing_in(framework: Framework, dtype: str) -> Framework:
    """Gradients travel in `dtype`. Megatron's flat buffer is of that dtype itself (megatron/core/distributed/distributed_data_parallel.py,
    grad_reduce_in_fp32)."""
    return framework.but(precision={"reduce_dtype": dtype} | ({"grad_dtype": dtype} if framework.linears.accumulates else {}))


def zero_of(plan: Plan, framework: Framework) -> int:
    """The level of ZeRO that is asked for: the plan's, or the framework's default."""
    return framework.data_parallel.zero if plan.parallel.zero is None else plan.parallel.zero


def is_fsdp2(framework: Framework) -> bool:
    """Is its ZeRO-3 torch's FSDP2, which casts and divides gradients in passes of its own?"""
    return framework.precision.casts_messages and framework.data_parallel.zero2 == "layers"


def sharded_alone(plan: Plan) -> bool:
    """One rank, and the plan says `zero` all the same: FSDP2 then runs on a mesh of one, with its copies and hooks, and offloading has a block at a
    time on the device."""
    return plan.world == 1 and plan.parallel.zero in (2, 3)


def sharding_of(plan: Plan, framework: Framework) -> tuple[int, bool]:
    """(ZeRO stage that runs, whether gathered parameters are freed after forward).

    The stage is 0 where no other rank shares the parameters; exceptions are a single rank whose plan asks for FSDP2, which runs its hooks, casts and
    copies on one rank too, or offloads parameters. It is 3 where the framework implements ZeRO-2 as FSDP that keeps gathered parameters until backward.
    FSDP in a pipeline keeps them through the step (torchtitan, parallelize_llama.py)."""
    p = plan.parallel
    zero = zero_of(plan, framework) if _share(plan, framework) else 0
    layers = zero == 2 and framework.data_parallel.zero2 == "layers"
    return 3 if layers else zero, bool(p.reshard_after_forward) and not layers and p.pp == 1


def keeps_among(plan: Plan, framework: Framework) -> bool:
    """Do gathered parameters stay sharded over a few neighbours between forward and backward (reshard_after_forward = 8)?"""
    zero, reshard = sharding_of(plan, framework)
    return zero == 3 and reshard and plan.task != "forward" and plan.parallel.kept_among > 1


def _share(plan: Plan, framework: Framework) -> bool:
    """Do ranks share what ZeRO splits? Those of dp_shard and cp do (torchtitan's ParallelDims.fsdp_enabled, Megatron's dp_cp group); a plan that
    names copies alone, and no level, means DDP but for FSDP2, which has the ranks of cp share all the same."""
    p = plan.parallel
    if p.dp_shard * p.cp == 1:
        return (is_fsdp2(framework) or plan.parameters_offloaded) and sharded_alone(plan)
    return p.dp_shard > 1 or p.zero is not None or p.dp_replicate == 1 or is_fsdp2(framework)


def owns_tensors(plan: Plan, framework: Framework, zero: int) -> bool:
    """Does a rank of ZeRO-1 update whole tensors?"""
    return zero == 1 and (framework.data_parallel.zero1 != "shards" or OPTIMIZERS[plan.optimizer.name].whole_matrices)


def summing_axis(mesh: Mesh, framework: Framework, expert: bool) -> str:
    """The axis over which gradients are summed where ranks update whole tensors: all data-parallel ranks. If these are the ones that share the
    update, one group serves both (Megatron-Core: dp_cp in layer_wise_optimizer.py and for its buffers; DDP's is ZeroRedundancyOptimizer's);
    InternEvo makes one for each (ParallelMode.DATA and ZERO1)."""
    if mesh.size("dp_replicate") == 1 and framework.data_parallel.zero1 != "tensors":
        return mesh.shard_axis(expert)
    return "edp" if expert and mesh.apart else mesh.data_axis
