"""Host time that DistributedDataParallel adds, measured in groups of one rank."""

from __future__ import annotations

from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from executor.probes.bench import Bench

_ONE, _EACH = 25.0, 0.002
"""Bucket sizes in MiB: one bucket for all parameters, or one for each parameter of 4 KiB. DDP closes a bucket that has reached its size."""


class Many(nn.Module):
    """A module with `count` small parameters, each used once."""

    def __init__(self, count: int, device: torch.device, width: int = 1024) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(width, device=device)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def ddp(bench: Bench) -> None:
    """What DistributedDataParallel adds on the host, per step, bucket and parameter, in groups of one rank (no messages)."""
    bench.phase("DDP on the host")
    groups = [bench.world.group([rank]) for rank in range(bench.world.size)]
    alone = groups[bench.world.rank]
    x, sent = torch.ones(1024, device=bench.world.device), torch.ones(1024, device=bench.world.device)

    def seconds(count: int, bucket: float | None, messages: int = 0) -> float:
        """Median seconds of forward and backward. `bucket`: DDP's bucket size in MiB; None: no DDP. `messages`: all_reduces beside DDP's
        own."""
        module: nn.Module = Many(count, bench.world.device)
        if bucket is not None:
            module = DistributedDataParallel(module, process_group=alone, bucket_cap_mb=bucket)

        def step() -> None:
            module(x).sum().backward()
            module.zero_grad()
            for work in [dist.all_reduce(sent, group=alone, async_op=True) for _ in range(messages)]:
                work.wait()

        for _ in range(3):  # DDP rebuilds its buckets after the first step
            step()
        return median(bench.times([step], least=15))

    bare, more = seconds(16, None), seconds(48, None)
    single, single_more, each = seconds(16, _ONE), seconds(48, _ONE), seconds(16, _EACH)
    bucket = max(1e-7, (each - single) / 15)
    parameter = max(1e-8, ((single_more - more) - (single - bare)) / 32)
    # In a program each bucket's message is a separate collective: so the time of as many messages without DDP does not count to a bucket.
    bench.add("host", "ddp_bucket", "", (), [max(1e-7, (each - seconds(16, _ONE, 15)) / 15)])
    bench.add("host", "ddp_parameter", "", (), [max(1e-8, parameter - _launched(bench))])
    bench.add("host", "ddp_step", "", (), [max(1e-6, single - bare - bucket - 16 * parameter)])


def _launched(bench: Bench) -> float:
    """Seconds of launches that a program counts separately for each parameter: on a GPU those of the kernel that fills the bucket and of
    the one that copies the mean back (`sim.lower.data_parallel.replicate.copies`); 0.0 on a CPU."""
    launch = next((one.median for kind, one in bench.found if (kind, one.name) == ("host", "launch")), 0.0)
    return 2 * launch if bench.world.kind == "cuda" else 0.0
