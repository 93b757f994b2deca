"""The groups of ranks that a step's messages on devices use: NCCL makes a communicator for each when it is first used.

They are found from a plan that is not lowered, as memory is. Tests compare them with the groups of lowered programs.
"""

from __future__ import annotations

from sim.framework.chosen import keeps_among, owns_tensors, sharding_of, summing_axis
from sim.framework.framework import Framework
from sim.mesh import Mesh
from sim.model.parts import Network
from sim.plan import Plan
from sim.rules import mesh_of


def groups(plan: Plan, network: Network, framework: Framework) -> set[str]:
    """Mesh axes with more than one rank over which some rank sends."""
    mesh, (zero, _) = mesh_of(plan), sharding_of(plan, framework)
    has_experts = network.has_experts
    contexts = {"cp"} if mesh.ulysses == 1 else {"cp_ulysses", "cp_ring"}
    found = {"tp", "pp", *contexts, *(("ep",) if has_experts else ()), *network.compares}
    if zero == 3:
        kept = {"fsdp_inner"} if keeps_among(plan, framework) else set()
        found |= {"fsdp", *kept, *(("efsdp",) if has_experts and mesh.apart else ())}
    if plan.task != "forward":
        trained = any(part.expert and not part.frozen for block in network.kinds for part in block.parts)
        found |= _summed(plan, framework, mesh, zero, trained and mesh.apart)
    return {axis for axis in found if mesh.size(axis) > 1}


def communicators(plan: Plan, network: Network, framework: Framework) -> int:
    """Number of communicators: one for each group, and further ones whose messages are too small for a program to have them. These are:
    one of all ranks (the loss, barriers), unless some group is as large; in Megatron one of a replica's ranks (the norm of gradients,
    overflows: its model parallel group), and one of the ranks that hold a tied table."""
    mesh, p, found = mesh_of(plan), plan.parallel, groups(plan, network, framework)
    numbers = int(plan.world > max(map(mesh.size, found), default=plan.world))
    if framework.tensor_parallel.style != "dtensor" and plan.task != "forward":
        numbers += (p.tp * p.pp > 1) + (p.pp > 1 and network.ends_tied)
    return len(found) + numbers


def _summed(plan: Plan, framework: Framework, mesh: Mesh, zero: int, apart: bool) -> set[str]:
    """Axes over which gradients, or parameters in their place, are summed. What goes through host memory (a parameter server, sums on
    the CPU) uses gloo and does not count."""
    scales = {"stage"} if plan.precision == "fp8" and framework.linears.fp8_scaling == "shared" else set()
    if plan.served:
        return scales
    if not zero:
        return scales | {mesh.data_axis, *(("edp",) if apart else ())}
    owned = owns_tensors(plan, framework, zero)
    found = scales | {"fsdp", summing_axis(mesh, framework, False) if owned else "dp_replicate"}
    if apart and zero < 3:  # experts that are not sharded are summed as replicas are
        shared = mesh.size("efsdp") > 1
        found |= {"efsdp" if shared else "edp", *((summing_axis(mesh, framework, True),) if shared and owned else ())}
    return found
