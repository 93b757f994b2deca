"""How a plan is applied to a model: the recipe, axis by axis, with PyTorch's own tools."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from executor.modules import Model
from executor.world import World
from sim.framework import Framework
from sim.plan import Plan
from topologies.errors import Refused


def parallelize(model: Model, plan: Plan, world: World, habits: Framework) -> tuple[nn.Module, DeviceMesh | None]:
    """tensor parallel, then recomputation, then sharded or replicated data parallel; returns what to call."""
    p = plan.parallel
    model = model.to(world.device)
    recompute(model, plan)
    zero = p.zero if p.zero is not None else habits.zero
    if world.size == 1 or plan.update.mode == "local":
        return model, None
    if p.tp == p.pp == 1 and (p.dp_shard == 1 or zero == 0):
        return replicate(model, plan, world), None
    raise Refused(f"stock training does not do tp = {p.tp}, pp = {p.pp}, zero = {zero} yet. Use --how play")


def replicate(model: nn.Module, plan: Plan, world: World) -> DistributedDataParallel:
    """DDP with the plan's bucket size. `comm.overlap = false` puts all gradients into one bucket, sent at the end."""
    # Unsaid, DDP's limits are 1 MiB for the first bucket and 25 MiB; a size that is said holds for all (torch 2.13).
    bucket = None if plan.comm.bucket == 25 << 20 else plan.comm.bucket / 2**20
    if not plan.comm.overlap:
        bucket = float(1 << 20)
    devices = [world.local_rank] if world.kind == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=bucket)


def recompute(model: Model, plan: Plan) -> None:
    """Whole layers run again in backward. Selective recomputation is what fused attention does by itself."""
    if plan.memory.recompute == "none":
        return
    if plan.memory.recompute == "selective":
        raise Refused('stock training does not do memory.recompute = "selective". Use "none" (fused attention keeps no scores) or "full"')
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    names = [name for name, _ in model.named_children() if name.startswith("L")]
    for name in names[: plan.memory.recompute_layers or None]:
        setattr(model, name, checkpoint_wrapper(getattr(model, name)))


def device_mesh(plan: Plan, world: World) -> DeviceMesh:
    """torch's mesh with the plan's axes, outermost first as `sim.mesh` orders them."""
    from sim.planfile import mesh_of

    mesh = mesh_of(plan)
    names = tuple(mesh.order)
    return init_device_mesh(world.kind, tuple(mesh.sizes.get(name, 1) for name in names), mesh_dim_names=names)
