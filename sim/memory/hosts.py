"""Bytes of host memory that a rank's offloaded optimizer and parameters take."""

from __future__ import annotations

from sim.framework.chosen import sharding_of
from sim.framework.framework import Framework
from sim.lower.optimizer.owned import moment_width, shard_width
from sim.memory.static import counts
from sim.model.parts import Network
from sim.model.stages import Blocks
from sim.plan import Plan
from sim.rules import mesh_of
from sim.work import BYTES


def host_bytes(plan: Plan, network: Network, framework: Framework, chunks: tuple[Blocks, ...]) -> int:
    """Bytes of host memory of a rank with these blocks: fp32 parameters, their moments, and gradients in the dtype in which they arrive
    (ZeRO-Offload, Ren et al. 2021, section 4.1). If parameters are offloaded, too: also frozen ones, and the 16-bit ones that are
    copied to the device, unless the device makes these from the fp32 ones."""
    mesh, (zero, _) = mesh_of(plan), sharding_of(plan, framework)
    lying = shard_width(framework, zero)
    trained = 4.0 + BYTES[framework.precision.grad_dtype] + (lying if plan.parameters_offloaded and lying < 4.0 else 0.0)
    total = 0.0
    for (expert, frozen, packed), (count, kept) in counts(network, chunks, plan.optimizer.name).items():
        share = 1.0 / max(1, mesh.size(mesh.shard_axis(expert)) if zero else 1)
        if frozen:
            total += count * share * (packed or lying) * plan.parameters_offloaded
        else:
            total += share * (count * trained + moment_width(plan, 4.0) * kept)
    return round(total)
