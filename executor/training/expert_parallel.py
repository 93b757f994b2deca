"""Expert parallelism: each rank of `ep` holds some of the experts, and rows travel to theirs and back.

As torchtitan does it (torchtitan/distributed/expert_parallel.py, ExpertParallel; models/llama4/infra/parallelize.py, apply_fsdp): counts go
first, the host reads them, rows follow by all_to_all and are sorted by expert; the experts of a layer are a unit of FSDP2 over the ranks that hold the
same ones, whose gradients are divided by the number of all data ranks; units are gathered ahead by name, since the host waits for the counts.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd, wait_tensor
from torch.distributed.device_mesh import DeviceMesh

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
    from torch.distributed.fsdp import FSDPModule  # half a second that DDP does without

    blocks = [model.get_submodule(name) for name in names]
    groups = [[module for module in (block, *units_of(block)[:1]) if isinstance(module, FSDPModule)] for block in blocks]
    for here, ahead in pairwise(groups):
        if here:
            here[0].set_modules_to_forward_prefetch([*here[1:], *ahead])
        if ahead:
            ahead[0].set_modules_to_backward_prefetch(here)  # type: ignore[arg-type]


def divided_by(unit: nn.Module, ranks: int, held: DeviceMesh, ep: int) -> None:
    """Gradients averaged over all `ranks` of data parallelism, of which those that hold the same experts (`held`) are one in `ep`: the rows of all
    have come to them."""
    from torch.distributed.fsdp import FSDPModule

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


def told(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(ranks, local experts): how many rows come from each rank for each expert here; `counts`: of this rank's rows, for all experts."""
    came: Tensor = wait_tensor(all_to_all_single(counts, None, None, group))  # type: ignore[no-untyped-call]
    return came.view(group.size(), -1)


class Exchange(nn.Module):
    """Rows to the ranks of their experts, sorted there by expert, and results back into the order in which the rows were."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self._order: Tensor | None = None
        self._sizes: list[list[int]] = []

    def there(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """(rows of this rank's tokens, where each of all experts' ends) -> (rows of this rank's experts, where each one's ends)."""
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        came = told(counts, self.group)
        # One read for both: the host needs the sizes of what it sends and gets.
        self._sizes = torch.stack((counts.view(came.shape).sum(1), came.sum(1))).tolist()
        sent, got = self._sizes
        arrived = all_to_all_single_autograd(rows, got, sent, self.group)
        local = came.shape[1]
        expert = torch.arange(local, device=rows.device).repeat(len(got)).repeat_interleave(came.flatten(), output_size=sum(got))
        self._order = expert.argsort(stable=True)
        return arrived.index_select(0, self._order), came.sum(0).cumsum(0, dtype=torch.int32)

    def back(self, results: Tensor) -> Tensor:
        """(rows of this rank's experts) -> (rows of this rank's tokens)."""
        assert self._order is not None
        sent, got = self._sizes
        unsorted = results.index_select(0, self._order.argsort())
        return all_to_all_single_autograd(unsorted, sent, got, self.group)
