"""Host time of FSDP2 and DTensor: hooks, views and dispatch, without the kernels and collectives of the same step.

All ranks form a group of torch's "fake" backend, whose collectives return at once, so that only PyTorch's own work is left.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from executor.players.communication import all_gather, reduce_scatter
from executor.probes.bench import Bench
from executor.probes.beyond import apart, beyond
from executor.probes.ddp import Many

_WIDTH = 64
_WARM, _MEETINGS = 4, 25
"""Collectives before the first timed one, and timed collectives."""
_TENSORS = (4, 20)
"""Parameters of the smaller and of the larger FSDP2 unit; a transformer's layer has 6 to 12."""


def sharded(bench: Bench) -> None:
    """Host time of FSDP2 for a unit and a parameter, of DTensor for a linear and a norm, and of an optimizer with DTensors. A single rank
    has no tensor parallelism, and only on a GPU FSDP2, over a mesh of one."""
    if bench.world.size == 1 and bench.world.kind != "cuda":
        return
    bench.phase("FSDP2 and DTensor on the host")
    mesh = _mesh(bench)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fake backend has no device of its own
        _fsdp(bench, mesh)
        if bench.world.size > 1:
            _tensor_parallel(bench, mesh)
        _optimizers(bench, mesh)


def _mesh(bench: Bench) -> DeviceMesh:
    # The import registers the backend "fake" (torch's own, for tests without devices; in every wheel).
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    group = dist.new_group(list(range(bench.world.size)), backend="fake")
    return DeviceMesh.from_group(group, bench.world.kind, mesh_dim_names=("all",))


class _Pair(nn.Module):
    """Two linears that tensor parallelism splits, and with `norm` a norm, for sequence parallelism."""

    def __init__(self, norm: bool, device: torch.device) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(_WIDTH, device=device) if norm else nn.Identity()
        self.up = nn.Linear(_WIDTH, _WIDTH, bias=False, device=device)
        self.down = nn.Linear(_WIDTH, _WIDTH, bias=False, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def _fsdp(bench: Bench, mesh: DeviceMesh) -> None:
    """Times both passes of a unit, and subtracts what lowering counts separately: two all_gathers, one reduce_scatter, and the copies into
    and out of their buffers. Over a mesh of one there are no collectives (torch 2.11, _fsdp_param_group.py), but there are copies."""
    from torch.distributed.fsdp import fully_shard

    x = torch.ones(_WIDTH, device=bench.world.device)

    def model(tensors: int, shard: bool) -> Callable[[int], nn.Sequential]:
        def make(blocks: int) -> nn.Sequential:
            units = [Many(tensors, bench.world.device, _WIDTH) for _ in range(blocks)]
            net = apart(bench, units)
            for unit in (*units, net) if shard else ():
                fully_shard(unit, mesh=mesh)
            return net

        return make

    few, many = (beyond(bench, model(n, True), model(n, False), x) for n in _TENSORS)
    parameter = max(1e-7, (many - few) / (_TENSORS[1] - _TENSORS[0]))
    part, full = torch.ones(_WIDTH, device=x.device), torch.ones(_WIDTH * mesh.size(), device=x.device)
    gather = scatter = 0.0
    if mesh.size() > 1:
        gather = _met(bench, lambda: all_gather(full, part, group=mesh.get_group()))
        scatter = _met(bench, lambda: reduce_scatter(part, full, group=mesh.get_group()))
    copies = 5 * median(bench.times([lambda: full.add_(1.0)]))
    bench.add("host", "fsdp_parameter", "", (), [parameter / 2])
    bench.add("host", "fsdp_unit", "", (), [max(1e-6, few - _TENSORS[0] * parameter - 2 * gather - scatter - copies) / 2])


def _met(bench: Bench, meet: Callable[[], object]) -> float:
    """Median seconds of one collective after other work. All ranks make the same number of calls, as otherwise one would wait forever."""
    for _ in range(_WARM):
        meet()
    found = []
    for _ in range(_MEETINGS):
        bench.cool()
        found.append(bench.once(meet))
    return median(found)


def _tensor_parallel(bench: Bench, mesh: DeviceMesh) -> None:
    """Host time of one pass of a linear, and of a norm under sequence parallelism with its resharding."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    x = torch.ones(1, 8, _WIDTH, device=bench.world.device)

    def model(norm: bool, split: bool) -> Callable[[int], nn.Sequential]:
        def make(blocks: int) -> nn.Sequential:
            pairs = [_Pair(norm, bench.world.device) for _ in range(blocks)]
            for pair in pairs if split else ():
                slices = Shard(1) if norm else None  # of the sequence; None: torch's default, whole tensors
                parallelize_module(pair.get_submodule("up"), mesh, ColwiseParallel(input_layouts=slices))
                parallelize_module(pair.get_submodule("down"), mesh, RowwiseParallel(output_layouts=slices))
                if norm:
                    parallelize_module(pair.get_submodule("norm"), mesh, SequenceParallel())
            return apart(bench, pairs)

        return make

    linears = beyond(bench, model(False, True), model(False, False), x)
    normed = beyond(bench, model(True, True), model(True, False), x)
    bench.add("host", "dtensor_linear", "", (), [max(1e-6, linears) / 4])
    bench.add("host", "dtensor_norm", "", (), [max(1e-6, normed - linears) / 2])


def _optimizers(bench: Bench, mesh: DeviceMesh) -> None:
    """How much longer an optimizer's update of one more DTensor takes than that of a plain tensor of the same size, with torch's own choice
    of for-loop or foreach."""
    from torch.distributed.tensor import DTensor, Shard

    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "dtensor_adam": lambda p: torch.optim.AdamW(p, lr=1e-6),
        "dtensor_sgd": lambda p: torch.optim.SGD(p, lr=1e-6),
    }

    def tensor(split: bool) -> torch.Tensor:
        local = torch.full((_WIDTH, _WIDTH), 0.02, device=bench.world.device)
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False) if split else local

    def seconds(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], count: int, split: bool) -> float:
        parameters = [nn.Parameter(tensor(split)) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = tensor(split)
        return median(bench.times([make(parameters).step]))

    for name, make in makers.items():
        grown = {split: seconds(make, 24, split) - seconds(make, 8, split) for split in (True, False)}
        bench.add("host", name, "", (), [max(1e-7, (grown[True] - grown[False]) / 16)])
