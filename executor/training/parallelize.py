"""Applies a plan that `executor.training.limits` accepts to a model, axis by axis, with PyTorch's own tools.

The order: tensor parallel (DTensor) -> recomputation -> sharded (FSDP2, HSDP) or replicated (DDP) data parallel. Pipelines cut the
model first and apply the same steps to each stage (`executor.training.pipeline`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from executor.kernels.bodies import dtype_of
from executor.ranks.world import NCCL, World
from executor.training.expert_parallel import EXPERTS, HELD, divided_by, gather_ahead, ranks_of, split_experts, units_of
from executor.training.hooks import reduced_in
from executor.training.models.experts import Product
from executor.training.models.names import ends_of
from executor.training.unfilled import filled, unfilled
from sim.framework.chosen import sharded_alone, zero_of
from sim.framework.framework import Framework
from sim.plan import Plan
from sim.rules import mesh_of

if TYPE_CHECKING:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ParallelStyle


def device_mesh(plan: Plan, world: World) -> DeviceMesh:
    """torch's mesh with the plan's axes, outermost first as `sim.mesh` orders them."""
    mesh = mesh_of(plan)
    sizes = {name: mesh.sizes.get(name, 1) for name in mesh.order}
    return _mesh(sizes, world)


def expert_mesh(plan: Plan, world: World) -> DeviceMesh | None:
    """A mesh of the same ranks with dp_shard divided into two axes: ranks that hold the same experts (`HELD`), and neighbouring ranks that
    together hold all experts (`EXPERTS`). None if ep = 1."""
    mesh, ep = mesh_of(plan), plan.parallel.ep
    if ep == 1:
        return None
    sizes: dict[str, int] = {}
    for name in mesh.order:
        size = mesh.sizes.get(name, 1)
        sizes |= {HELD: size // ep, EXPERTS: ep} if name == "dp_shard" else {name: size}
    return _mesh(sizes, world)


def _mesh(sizes: dict[str, int], world: World) -> DeviceMesh:
    # By default torch would split the groups of an axis off the default group, those of gloo too. gloo's split mistakes the process's first
    # gloo group for the default one and fails with any later one (pytorch issue 192106), as after a probe by ranks that a launcher started.
    # If an axis has its own backend, torch makes its groups one by one.
    own: dict[Any, Any] = {name: NCCL for name, size in sizes.items() if size != world.size} if world.backend == "nccl" else {}
    # Ranks that share a GPU communicate only through gloo: a mesh of "cuda" might make NCCL groups, which NCCL refuses.
    mesh = init_device_mesh(
        "cpu" if world.shared else world.kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes), backend_override=own or None
    )
    for name in sizes:  # torch has no other way to set the timeout (torchtitan/distributed/utils.py does so too)
        dist.distributed_c10d._set_pg_timeout(world.limit, mesh[name].get_group())
    return mesh


def parallelize(
    model: nn.Module, plan: Plan, world: World, habits: Framework, mesh: DeviceMesh | None, experts: DeviceMesh | None
) -> nn.Module:
    """The model as the training loop calls it; its blocks must be its direct children. `experts`: the mesh of `expert_mesh`. Without `mesh`
    (one rank) the model is only recomputed as the plan says."""
    p = plan.parallel
    model = model if unfilled(model) else model.to(world.device)
    if mesh is not None and p.tp > 1:
        tensor_parallel(model, mesh["tp"], p.sequence_parallel, local=p.pp > 1)
    if experts is not None:
        split_experts(model, experts)
    recompute(model, plan)
    if mesh is None or plan.update.mode == "local" or (plan.data_ranks == 1 and not sharded_alone(plan)):
        return filled(model, world.device)
    zero = zero_of(plan, habits) if p.dp_shard > 1 or sharded_alone(plan) else 0
    if zero >= 2:
        return filled(shard(model, plan, mesh, zero, habits, experts), world.device)
    copied = replicate(filled(model, world.device), plan, world, mesh, habits.data_parallel.broadcasts_buffers)
    return reduced_in(habits.precision.reduce_dtype, copied)


def replicate(model: nn.Module, plan: Plan, world: World, mesh: DeviceMesh, statistics: bool) -> DistributedDataParallel:
    """DDP with the plan's bucket size. `statistics`: the buffers of batch norms are broadcast from the first rank. `comm.overlap = false`
    puts all gradients into one bucket, which is reduced at the end."""
    # DDP's default sizes are 1 MiB for the first bucket and 25 MiB for others; a given size, even 25 MiB, holds for all (torch 2.13).
    bucket = None if plan.comm.bucket is None else plan.comm.bucket / 2**20
    if not plan.comm.overlap:
        bucket = float(1 << 20)
    devices = [world.device.index] if world.kind == "cuda" else None
    group = None if plan.data_ranks == world.size else mesh["dp_replicate" if plan.parallel.dp_replicate > 1 else "dp_shard"].get_group()
    more: dict[str, Any] = {} if statistics else {"broadcast_buffers": False}
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, _tables(model))  # type: ignore[no-untyped-call]
    return DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=bucket, process_group=group, **more)


def _tables(model: nn.Module) -> list[str]:
    """Names of buffers that are not in the state dict, as every rank computes the same (rotary positions)."""
    kept = model.state_dict().keys()
    return [name for name, _ in model.named_buffers() if name not in kept]


def shard(model: nn.Module, plan: Plan, mesh: DeviceMesh, zero: int, habits: Framework, experts: DeviceMesh | None = None) -> nn.Module:
    """FSDP2: every layer is a unit, and the rest (the ends, which may share a table) is the root unit; HSDP if there are replicas too. If
    `habits` say so, ends that share no table are units as well. The head's unit is not resharded after forward
    (torchtitan/distributed/fsdp.py), and with `keeps_last` neither is the last layer. `experts`: the mesh on which each layer's experts are
    a separate unit.

    In a pipeline parameters stay gathered from the first forward of a step to its last backward (torchtitan's default)."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    how = habits.precision
    policy = MixedPrecisionPolicy(param_dtype=dtype_of(how.param_dtype), reduce_dtype=dtype_of(how.reduce_dtype))
    over = mesh["dp_replicate", "dp_shard"] if plan.parallel.dp_replicate > 1 else mesh["dp_shard"]
    again = plan.parallel.reshard_after_forward if zero == 3 and plan.parallel.pp == 1 else False
    names = [name for name, _ in model.named_children()]
    outer = ends_of(names)
    ends = [set(model.get_submodule(name).parameters()) for name in outer]
    tied = sum(map(len, ends)) > len(set[nn.Parameter]().union(*ends))
    whole = outer if tied or not habits.data_parallel.wraps_ends else ()
    layers = [name for name in names if name not in outer]
    kept = {"head", *(layers[-1:] if habits.data_parallel.keeps_last else ())}
    place = placement(model, mesh["dp_shard"].size())
    for name, block in model.named_children():
        if name not in whole and any(True for _ in block.parameters()):
            again_here = again if name not in kept else False
            if experts is not None and (units := units_of(block)):
                axes = ("dp_replicate", HELD) if plan.parallel.dp_replicate > 1 else (HELD,)
                held = placement(model, experts[HELD].size())
                fully_shard(units, mesh=experts[axes], reshard_after_forward=again_here, shard_placement_fn=held, mp_policy=policy)
                divided_by(units[0], plan.data_ranks, experts[HELD], plan.parallel.ep)
            fully_shard(block, mesh=over, reshard_after_forward=again_here, shard_placement_fn=place, mp_policy=policy)
    # The root is not resharded after forward (torch's default), as backward needs it at once.
    fully_shard(model, mesh=over, reshard_after_forward=None if again else False, mp_policy=policy)
    if experts is not None:
        gather_ahead(model, layers)
    return model


def placement(model: nn.Module, ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    """FSDP2's `shard_placement_fn`: experts are sharded over `ranks` as wholes or, if `ranks` does not divide their number, by the rows of
    each (torchtitan's shard_placement_fn)."""
    from torch.distributed.tensor import Shard

    # Three dimensions alone do not make an expert's weight: a class token is (1, 1, hidden).
    experts = {id(weight) for module in model.modules() if isinstance(module, Product) for weight in module.each}

    def place(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if id(parameter) in experts and parameter.shape[0] % ranks else None

    return place


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, sequence: bool, local: bool = False) -> None:
    """Makes linears column-parallel, then row-parallel. `sequence`: norms and residuals hold a slice of the sequence. `local`: the logits
    are a plain tensor with this rank's columns, as pipeline stages exchange plain tensors."""
    from torch.distributed.tensor.parallel import parallelize_module

    for name, block in model.named_children():
        styles = _ends(block, name, sequence, local) if name in ("embed", "head") else _layer(block, sequence)
        parallelize_module(block, mesh, styles)


def _ends(block: nn.Module, name: str, sequence: bool, local: bool) -> dict[str, ParallelStyle]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    whole = Shard(1) if sequence else Replicate()
    if name == "embed":
        return {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=whole)}
    styles: dict[str, ParallelStyle] = {"logits": ColwiseParallel(input_layouts=whole, output_layouts=Shard(-1), use_local_output=local)}
    return styles | ({"norm": SequenceParallel()} if sequence else {})


def _layer(block: nn.Module, sequence: bool) -> dict[str, ParallelStyle]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

    whole = Shard(1) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {"proj": RowwiseParallel(output_layouts=whole), "down": RowwiseParallel(output_layouts=whole)}
    for part in ("qkv", "up"):
        if sequence:
            styles[part] = PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(Replicate(),))
        styles |= {f"{part}.each.{i}": ColwiseParallel() for i in range(len(getattr(block, part).each))}
    return styles | ({"norm1": SequenceParallel(), "norm2": SequenceParallel()} if sequence else {})


def parallel_loss(split: bool) -> contextlib.AbstractContextManager[None]:
    """The context in which the loss reads each rank's slice of the vocabulary; without tensor parallelism (`split` = False) it does
    nothing."""
    if not split:
        return contextlib.nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


def whole(value: Tensor) -> Tensor:
    """A distributed scalar as a plain one."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def alike(model: nn.Module) -> list[list[nn.Parameter]]:
    """The trained parameters, grouped by mesh: foreach kernels take no mixture of plain and distributed tensors, nor of different
    meshes."""
    groups: dict[str, list[nn.Parameter]] = {}
    for parameter in (one for one in model.parameters() if one.requires_grad):
        groups.setdefault(str(getattr(parameter, "device_mesh", "plain")), []).append(parameter)
    return list(groups.values())


def _axes(parameter: nn.Parameter) -> tuple[str, ...] | None:
    """Names of the axes of the mesh on which the parameter is distributed; None for a plain tensor."""
    mesh: DeviceMesh | None = getattr(parameter, "device_mesh", None)
    return mesh.mesh_dim_names if mesh is not None else None


def clip(model: nn.Module, mesh: DeviceMesh | None) -> None:
    """Clips gradients to a global norm of 1; the ranks of a pipeline sum the squared norms of their stages (as in torchtitan)."""
    groups, piped = alike(model), mesh is not None and mesh["pp"].size() > 1
    if len(groups) == 1 and not piped:
        nn.utils.clip_grad_norm_(groups[0], 1.0)
        return
    norms = [whole(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups]
    for at, group in enumerate(groups):
        if HELD in (_axes(group[0]) or ()):
            squared = norms[at].square()  # other ranks hold other experts
            dist.all_reduce(squared, group=ranks_of(model))
            norms[at] = squared.sqrt()
    total = torch.stack(norms).square().sum()
    if piped:
        assert mesh is not None
        dist.all_reduce(total, group=mesh["pp"].get_group())
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total.sqrt())


def recompute(model: nn.Module, plan: Plan) -> None:
    """Wraps whole layers in activation checkpointing, the first `memory.recompute_layers` or all, if the plan recomputes."""
    if plan.memory.recompute == "none":
        return
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    blocks = dict(model.named_children())
    trained = [name for name, block in blocks.items() if any(parameter.requires_grad for parameter in block.parameters())]
    names = [name for name in trained if name not in ends_of(blocks)]
    for name in names[: plan.memory.recompute_layers or None]:
        setattr(model, name, checkpoint_wrapper(getattr(model, name)))
