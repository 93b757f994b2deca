"""Expert parallelism: each rank of `ep` holds some of the experts; rows are sent to the ranks of their experts, and results back.

As in torchtitan (torchtitan/distributed/expert_parallel.py, ExpertParallel; models/llama4/infra/parallelize.py, apply_fsdp), counts are
sent first, then rows (`executor.training.models.exchange`). The experts of a layer are an FSDP2 unit over the ranks that hold the same
experts; their gradients are divided by the number of all data ranks. Which units to prefetch is set explicitly, since the host waits for
the counts.
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
"""Mesh axes into which dp_shard is divided: the ranks that hold the same experts, and the ranks that together hold all of them
(`sim.mesh`)."""


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Keeps in each mixture of experts only those of this rank of `ep`, and makes it exchange rows with the other ranks."""
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
    """The grouped GEMMs of a layer's experts, which form one FSDP2 unit; [] for a layer without experts."""
    found = next((module for module in block.modules() if isinstance(module, Experts)), None)
    return [found.up, found.down] if found is not None else []


def gather_ahead(model: nn.Module, names: list[str]) -> None:
    """Sets FSDP2's prefetching: while a layer runs, its experts and then the next layer with its experts are gathered; in backward the
    layer before."""
    blocks = [model.get_submodule(name) for name in names]
    groups: list[list[Any]] = [[block, *units_of(block)[:1]] for block in blocks]
    for here, ahead in pairwise(groups):
        here[0].set_modules_to_forward_prefetch([*here[1:], *ahead])
        ahead[0].set_modules_to_backward_prefetch(here)


def divided_by(unit: nn.Module, ranks: int, held: DeviceMesh, ep: int) -> None:
    """Makes an FSDP2 unit of experts divide gradients by all `ranks` of data parallelism, although it reduces only over those that hold the
    same experts (`held`, one in `ep`): their experts have seen the rows of all."""
    from torch.distributed.fsdp import FSDPModule  # here, as it takes half a second that DDP does not need

    assert isinstance(unit, FSDPModule)
    if held.size() == 1:
        # No ranks to scatter to. In this case torch divides by a factor when it copies and, if it must sum (gloo; fp16), again at the end
        # (2.11 to 2.13, _fsdp_collectives.py, foreach_reduce). So replicas are averaged, and the rest is divided here.

        def divide(reduced: Tensor) -> None:
            reduced.div_(ep)

        unit.set_all_reduce_hook(divide)
        return
    unit.set_gradient_divide_factor(float(ranks))
    if held.device_type == "cpu":  # gloo has no sum with a factor (PREMUL_SUM)
        unit.set_force_sum_reduction_for_comms(True)


def ranks_of(model: nn.Module) -> dist.ProcessGroup:
    """The process group of the ranks that together hold all experts of a model, after `split_experts`."""
    return next(module.group for module in model.modules() if isinstance(module, Exchange))
