"""The exchange of expert parallelism: counts go first, the host reads them, rows follow by all_to_all and are sorted by expert."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd, wait_tensor


class Way(NamedTuple):
    """What rows have come by, for their results to go back."""

    order: Tensor
    """Of the rows that came, sorted by expert."""
    sent: list[int]
    got: list[int]
    """Rows to and from each rank."""


def told(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(ranks, local experts): how many rows come from each rank for each expert here; `counts`: of this rank's rows, for all experts."""
    came: Tensor = wait_tensor(all_to_all_single(counts, None, None, group))  # type: ignore[no-untyped-call]
    return came.view(group.size(), -1)


class Exchange(nn.Module):
    """Rows to the ranks of their experts, sorted there by expert, and results back into the order in which the rows were."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def there(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Way]:
        """(rows of this rank's tokens, where each of all experts' ends) -> (rows of this rank's experts, where each one's ends, the way)."""
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        came = told(counts, self.group)
        # One read for both: the host needs the sizes of what it sends and gets.
        sent, got = torch.stack((counts.view(came.shape).sum(1), came.sum(1))).tolist()
        arrived = all_to_all_single_autograd(rows, got, sent, self.group)
        local = came.shape[1]
        expert = torch.arange(local, device=rows.device).repeat(len(got)).repeat_interleave(came.flatten(), output_size=sum(got))
        order = expert.argsort(stable=True)
        return arrived.index_select(0, order), came.sum(0).cumsum(0, dtype=torch.int32), Way(order, sent, got)

    def back(self, results: Tensor, way: Way) -> Tensor:
        """(rows of this rank's experts) -> (rows of this rank's tokens)."""
        unsorted = results.index_select(0, way.order.argsort())
        return all_to_all_single_autograd(unsorted, way.sent, way.got, self.group)
