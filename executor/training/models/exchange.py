"""The exchange of expert parallelism: counts are sent first, the host reads them, rows follow by all_to_all and are sorted by expert."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd, wait_tensor


class Way(NamedTuple):
    """How rows came to this rank, so that their results can be sent back."""

    order: Tensor
    """Indices that sort the received rows by expert."""
    sent: list[int]
    got: list[int]
    """Rows sent to, and received from, each rank."""


def told(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """How many rows come from each rank for each expert of this rank, as (ranks, local experts). `counts`: rows of this rank for each of
    all experts."""
    came: Tensor = wait_tensor(all_to_all_single(counts, None, None, group))  # type: ignore[no-untyped-call]
    return came.view(group.size(), -1)


class Exchange(nn.Module):
    """Sends rows to the ranks of their experts, where they are sorted by expert, and sends results back into the rows' order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def there(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Way]:
        """(rows of this rank's tokens, where the rows of each of all experts end) -> (rows of this rank's experts, where those of each end,
        the way back)."""
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        came = told(counts, self.group)
        # One read by the host for both: it needs the sizes of what it sends and receives.
        sent, got = torch.stack((counts.view(came.shape).sum(1), came.sum(1))).tolist()
        arrived = all_to_all_single_autograd(rows, got, sent, self.group)
        local = came.shape[1]
        expert = torch.arange(local, device=rows.device).repeat(len(got)).repeat_interleave(came.flatten(), output_size=sum(got))
        order = expert.argsort(stable=True)
        return arrived.index_select(0, order), came.sum(0).cumsum(0, dtype=torch.int32), Way(order, sent, got)

    def back(self, results: Tensor, way: Way) -> Tensor:
        """(results of this rank's experts) -> (results of this rank's tokens)."""
        unsorted = results.index_select(0, way.order.argsort())
        return all_to_all_single_autograd(unsorted, way.sent, way.got, self.group)
