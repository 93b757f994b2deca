"""Host time of activation checkpointing without the recomputed kernels: contexts, and hooks on each saved tensor."""

from __future__ import annotations

from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from executor.probes.bench import Bench
from executor.probes.beyond import Maker, apart, beyond

_TOKENS, _WIDTH, _HEADS = 8, 64, 4
_LAYERS = 3
"""Layers of the larger region; the smaller one has none. Both have a norm at their end, which saves its results, so that all is
recomputed."""
_REGION, _TENSOR = 2, 3
"""How often a step passes a region (forward, backward), and how often a hook runs for a saved tensor (once more, when it is unpacked)."""


class _Layer(nn.Module):
    """A small transformer layer."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH, device=device), nn.Linear(_WIDTH, _WIDTH, device=device)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH, device=device), nn.Linear(2 * _WIDTH, _WIDTH, device=device)
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH, device=device), nn.LayerNorm(_WIDTH, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return y + self.down(F.gelu(self.up(self.norm2(y))))  # type: ignore[no-any-return]


def recomputed(bench: Bench) -> None:
    """The rows `checkpointed` (one pass of a region) and `packed` (a saved tensor in one of its hooks) of the table of host work."""
    bench.phase("recomputation on the host")
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    x = torch.ones(1, _TOKENS, _WIDTH, device=bench.world.device, requires_grad=True)

    def model(layers: int, again: bool) -> Maker:
        def make(regions: int) -> nn.Module:
            whole = [_region(layers, bench) for _ in range(regions)]
            return apart(bench, [checkpoint_wrapper(region) for region in whole] if again else whole)

        return make

    def spent(layers: int) -> tuple[float, int]:
        """(host seconds of one checkpointed region without its recomputation, number of its saved tensors)."""
        region = _region(layers, bench)
        again = median(bench.times([lambda: region(x)], least=15))
        return beyond(bench, model(layers, True), model(layers, False), x) - again, _kept(region, x)

    (bare, one), (whole, many) = spent(0), spent(_LAYERS)
    tensor = max(1e-7, (whole - bare) / (many - one))
    bench.add("host", "packed", "", (), [tensor / _TENSOR])
    bench.add("host", "checkpointed", "", (), [max(1e-6, bare - one * tensor) / _REGION])


def _region(layers: int, bench: Bench) -> nn.Sequential:
    device = bench.world.device
    return nn.Sequential(*(_Layer(device) for _ in range(layers)), nn.LayerNorm(_WIDTH, device=device))


def _kept(module: nn.Module, x: torch.Tensor) -> int:
    """Number of tensors that autograd saves in one forward of the module."""
    kept = list[torch.Size]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return len(kept)
