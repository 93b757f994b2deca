"""Expert parallelism: each rank of `ep` holds some of the experts, and rows travel to theirs and back.

As torchtitan does it (torchtitan/distributed/expert_parallel.py, ExpertParallel; models/llama4/infra/parallelize.py, apply_fsdp): counts go
first, then rows (`executor.training.models.exchange`); the experts of a layer are a unit of FSDP2 over the ranks that hold the
same ones, whose gradients are divided by the number of all data ranks; units are gathered ahead by name, since the host waits for the counts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from executor.training.models.exchange import Exchange
from executor.training.models.experts import Experts, Product

HELD, EXPERTS = "efsdp", "ep"
"""Axes: the ranks of dp_shard that hold the same experts, and those that share all of them out (`sim.mesh`)."""


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leaves in each mixture the experts of this rank of `ep`, and sends rows to the others'."""
    axis = mesh[EXPERTS]
    for module in model.modules():
        if isinstance(module, Experts):
            for product in (module.up, module.down):
                _keep(product, axis.get_local_rank(), axis.size())
            module.exchange = Exchange(axis.get_group())


def _keep(product: Product, place: int, ranks: int) -> None:
    for at, weight in enumerate(product.each):
        product.each[at] = nn.Parameter(weight.detach().chunk(ranks)[place].clone())


def units_of(block: nn.Module) -> list[nn.Module]:
    """The products of a layer's experts, which are one unit of FSDP2; [] where it has none."""
    found = next((module for module in block.modules() if isinstance(module, Experts)), None)
    return [found.up, found.down] if found is not None else []


def gather_ahead(model: nn.Module, names: list[str]) -> None:
    """Each layer's unit is gathered with the one before it, its experts' behind it; in backward the other way round."""
    blocks = [model.get_submodule(name) for name in names]
    groups: list[list[Any]] = [[block, *units_of(block)[:1]] for block in blocks]
    for here, ahead in pairwise(groups):
        here[0].set_modules_to_forward_prefetch([*here[1:], *ahead])
        ahead[0].set_modules_to_backward_prefetch(here)


def divided_by(unit: nn.Module, ranks: int, held: DeviceMesh, ep: int) -> None:
    """Gradients averaged over all `ranks` of data parallelism, of which those that hold the same experts (`held`) are one in `ep`: the rows of all
    have come to them."""
    from torch.distributed.fsdp import FSDPModule  # half a second that DDP does without

    assert isinstance(unit, FSDPModule)
    if held.size() == 1:
        # Nobody to scatter to. There torch divides by a factor once where it copies, and where it must sum (gloo; fp16) again at the end
        # (2.11 to 2.13, _fsdp_collectives.py, foreach_reduce): replicas are averaged, and the rest is divided here.

        def divide(reduced: Tensor) -> None:
            reduced.div_(ep)

        unit.set_all_reduce_hook(divide)
        return
    unit.set_gradient_divide_factor(float(ranks))
    if held.device_type == "cpu":  # gloo has no sum with a factor (PREMUL_SUM)
        unit.set_force_sum_reduction_for_comms(True)


def ranks_of(model: nn.Module) -> dist.ProcessGroup:
    """The ranks that share out the experts of a model which `split_experts` has split."""
    return next(module.group for module in model.modules() if isinstance(module, Exchange))
