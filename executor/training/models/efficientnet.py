"""EfficientNet (Tan & Le 2019) and EfficientNetV2 (Tan & Le 2021), operator by operator as torchvision runs them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from executor.training.models.maps import DropPath, Gate, Mean, Norm, Parts, conv
from executor.training.models.parts import Dropout
from sim.model.pictures.efficientnet import Stage, plan_of, rounded
from sim.model.specs.pictures import EfficientNet


class Bottleneck(Parts):
    """One inverted bottleneck; its input is added to the result if both have the same shape."""

    def __init__(self, spec: EfficientNet, into: int, stage: Stage) -> None:
        super().__init__()
        inner = rounded(into * stage.expand)
        if stage.fused and inner == into:  # a single convolution
            activated(self, "conv", into, stage.out, stage.kernel, stage.stride)
        else:
            if stage.fused:
                activated(self, "expand", into, inner, stage.kernel, stage.stride)
            else:
                if inner != into:
                    activated(self, "expand", into, inner, 1)
                activated(self, "depthwise", inner, inner, stage.kernel, stage.stride, inner)
                self.add("se", Gate(inner, max(1, into // 4)))
            self.add("project", conv(inner, stage.out, 1))
            self.add("project.bn", Norm(stage.out, relu=False))
        self.joins = stage.stride == 1 and into == stage.out
        if self.joins:
            self.add("drop", DropPath(spec.drop_path))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + x if self.joins else y


def activated(block: Parts, name: str, into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
    """Adds a convolution, its batch norm, and swish in place to `block`."""
    block.add(name, conv(into, out, kernel, stride, groups=groups))
    block.add(f"{name}.bn", Norm(out, relu=False))
    block.add(f"{name}.act", nn.SiLU(inplace=True))


def blocks(spec: EfficientNet) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each block: stem, S0.0 ..., head."""
    stages, into, last = plan_of(spec)
    stem = Parts()
    activated(stem, "conv", spec.channels, into, 3, 2)
    yield "stem", stem
    for index, stage in enumerate(stages):
        for at in range(stage.layers):
            yield f"S{index}.{at}", Bottleneck(spec, into, stage._replace(stride=1) if at else stage)
            into = stage.out
    head = Parts()
    activated(head, "conv", into, last, 1)
    head.add("pool", Mean())
    head.add("dropout", Dropout(spec.dropout))
    head.add("fc", nn.Linear(last, spec.classes))
    yield "head", head
