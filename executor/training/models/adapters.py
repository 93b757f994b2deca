"""Low-rank adapters (LoRA) on a model's linears, as in PEFT: the model is frozen, only adapters are trained (Hu et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from executor.training.models.names import part_name, parts_of
from executor.training.models.parts import Linear
from sim.model.layers.lora import chosen
from sim.model.specs.lora import Lora

SCALE = 2.0
"""Factor of an adapter's result (PEFT: lora_alpha / r); its value does not matter for the time."""


class Adapter(nn.Module):
    """B A dropout(x), scaled. x is cast to the dtype of the adapter's weights, which the result has too."""

    def __init__(self, k: int, n: int, lora: Lora) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(k, lora.rank, bias=False), nn.Linear(lora.rank, n, bias=False)
        self.drop = nn.Dropout(lora.dropout) if lora.dropout else nn.Identity()
        with torch.no_grad():  # B is zero, so that an adapter adds nothing before the first update
            nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
            self.up.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(self.down(self.drop(x.to(self.down.weight.dtype)))) * SCALE
        return out


class Adapted(nn.Module):
    """A linear and its adapter; their results are added."""

    def __init__(self, base: nn.Linear, lora: Lora) -> None:
        super().__init__()
        self.base, self.lora = base, Adapter(base.in_features, base.out_features, lora)

    @property
    def in_features(self) -> int:
        """Columns of its input."""
        return self.base.in_features

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.lora(x)
        return out


def adapt(model: nn.Module, lora: Lora) -> None:
    """Freezes the model, and adds adapters to the linears that `lora` names."""
    model.requires_grad_(False)
    for name, block in model.named_children():
        for path, module in list(parts_of(block)):
            part = part_name(f"{name}.{path}").partition(".")[2]
            if isinstance(module, Linear):
                for at in chosen(part, len(module.each), lora):
                    module.each[at] = _beside(module.each[at], lora)
            elif chosen(part, 1, lora):
                block.add_module(path, _beside(module, lora))


def _beside(module: nn.Module, lora: Lora) -> Adapted:
    assert isinstance(module, nn.Linear)
    return Adapted(module, lora)


def widen(model: nn.Module) -> None:
    """Converts adapters to fp32, whatever dtype the model has."""
    for module in model.modules():
        if isinstance(module, Adapter):
            module.float()
