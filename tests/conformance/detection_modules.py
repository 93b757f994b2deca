"""Detectors in plain PyTorch, pictures to the loss, anchors matched by a rule of the test: RetinaNet after MLPerf's reference
(single_stage_detector/ssd), SSD300 after NVIDIA's DeepLearningExamples (PyTorch/Detection/SSD)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

_WIDTH, _ANCHORS = 256, 9


class Fixed(nn.Module):
    """A batch norm of constants."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, mean, var = (b.reshape(1, -1, 1, 1) for b in self.buffers())
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 in groups, 1 x 1."""

    def __init__(
        self, into: int, planes: int, stride: int, groups: int = 1, width: int = 64, norm: Callable[[int], nn.Module] = Fixed
    ) -> None:
        super().__init__()
        inner, out = planes * width // 64 * groups, 4 * planes
        self.conv1, self.bn1 = nn.Conv2d(into, inner, 1, bias=False), norm(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False), norm(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), norm(out)
        changes = stride > 1 or into != out
        self.down = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), norm(out)) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        return F.relu(y + self.down(x), inplace=True)


class Backbone(nn.Module):
    """Stem and stages; all before the second stage is frozen."""

    def __init__(self, groups: int, width: int, counts: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), Fixed(64)
        into, self.stages = 64, nn.ModuleList()
        for at, count in enumerate(counts):
            stage = nn.Sequential()
            for index in range(count):
                stage.append(Bottleneck(into, 64 << at, 2 if at and not index else 1, groups, width))
                into = 256 << at
            self.stages.append(stage)
        self.conv1.requires_grad_(False)
        self.stages[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found[1:]


class Subnet(nn.Module):
    """Four convolutions and a last one, on each level; (pictures, anchors, numbers)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1), nn.ReLU())]
        self.conv, self.last, self.width = nn.Sequential(*layers), nn.Conv2d(_WIDTH, _ANCHORS * width, 3, padding=1), width

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        found = []
        for x in levels:
            y = self.last(self.conv(x))
            y = y.view(len(y), -1, self.width, *y.shape[-2:]).permute(0, 3, 4, 1, 2)
            found.append(y.reshape(len(y), -1, self.width))
        return torch.cat(found, 1)


def focal(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """sigmoid_focal_loss of torchvision, alpha 0.25 and gamma 2, summed."""
    p = torch.sigmoid(inputs)
    ce = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce * ((1 - p_t) ** 2)
    return ((0.25 * targets + 0.75 * (1 - targets)) * loss).sum()


class RetinaNet(nn.Module):
    """Each hundredth anchor holds an object of its class."""

    def __init__(self, groups: int = 32, width: int = 4, classes: int = 264) -> None:
        super().__init__()
        self.backbone = Backbone(groups, width)
        self.inner = nn.ModuleList(nn.Conv2d(channels, _WIDTH, 1) for channels in (512, 1024, 2048))
        self.outer = nn.ModuleList(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1) for _ in range(3))
        self.p6, self.p7 = nn.Conv2d(_WIDTH, _WIDTH, 3, 2, 1), nn.Conv2d(_WIDTH, _WIDTH, 3, 2, 1)
        self.classes, self.boxes = Subnet(classes), Subnet(4)

    def levels(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = self.backbone(x)
        last = self.inner[-1](maps[-1])
        found = [self.outer[-1](last)]
        for at in (1, 0):
            inner = self.inner[at](maps[at])
            last = inner + F.interpolate(last, size=inner.shape[-2:], mode="nearest")
            found.insert(0, self.outer[at](last))
        p6 = self.p6(found[-1])
        return [*found, p6, self.p7(F.relu(p6))]

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = self.levels(x)
        return self.classes(levels), self.boxes(levels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(*self.heads(x))

    def loss(self, scores: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=scores.device)
        for one, offsets in zip(scores, boxes, strict=True):
            matched = torch.arange(len(one), device=one.device) % 100 - 2  # -2: neither hits nor misses; then a miss, then objects
            hit = matched >= 0
            targets = torch.zeros_like(one)
            targets[hit, matched[hit]] = 1.0
            counts = matched != -2
            total = total + focal(one[counts], targets[counts])
            total = total + F.l1_loss(offsets[hit], torch.zeros_like(offsets[hit]), reduction="sum")
        return total


class Ssd300(nn.Module):
    """Six maps of 8,732 boxes; each fiftieth box holds an object of the second class."""

    def __init__(self, classes: int = 81) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        into, self.body = 64, nn.Sequential()
        for at, count in enumerate((3, 4, 6)):
            for index in range(count):
                self.body.append(Bottleneck(into, 64 << at, 2 if at == 1 and not index else 1, norm=nn.BatchNorm2d))
                into = 256 << at
        self.more, widths = nn.ModuleList(), [1024]
        for inner, out, stride in ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1)):
            one, two = nn.Conv2d(widths[-1], inner, 1, bias=False), nn.Conv2d(inner, out, 3, stride, stride - 1, bias=False)
            self.more.append(nn.Sequential(one, nn.BatchNorm2d(inner), nn.ReLU(True), two, nn.BatchNorm2d(out), nn.ReLU(True)))
            widths.append(out)
        boxes = (4, 6, 6, 6, 4, 4)
        self.places = nn.ModuleList(nn.Conv2d(width, 4 * count, 3, padding=1) for width, count in zip(widths, boxes, strict=True))
        self.scores = nn.ModuleList(nn.Conv2d(width, classes * count, 3, padding=1) for width, count in zip(widths, boxes, strict=True))

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(pictures, 4, boxes) and (pictures, classes, boxes)."""
        maps = [self.body(self.stem(x))]
        for stage in self.more:
            maps.append(stage(maps[-1]))
        found = []
        for convolutions in (self.places, self.scores):
            both = zip(convolutions, maps, (4, 6, 6, 6, 4, 4), strict=True)
            found.append(torch.cat([conv(y).reshape(len(x), conv.out_channels // count, -1) for conv, y, count in both], 2))
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places, scores = self.heads(x)
        classes = (torch.arange(places.shape[2], device=x.device) % 50 == 0).long().expand(len(x), -1)
        mask = classes > 0
        near = F.smooth_l1_loss(places, torch.zeros_like(places), reduction="none").sum(1)
        each = F.cross_entropy(scores, classes, reduction="none")
        rank = each.detach().masked_fill(mask, 0).sort(1, descending=True)[1].sort(1)[1]
        counts = mask.sum(1, keepdim=True)
        return ((mask.float() * near).sum(1) + (each * (mask.float() + (rank < 3 * counts).float())).sum(1)).mean()
