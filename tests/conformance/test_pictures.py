"""EfficientNet, ConvNeXt and U-Net as they are described, against the same networks in PyTorch: parameters, FLOPs by torch's own counter, each
product and convolution one by one, bytes of all other kernels block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import ModelSpec, Network, Shape, describe, load_model  # noqa: E402
from sim.model.specs.spec import ConvNext, EfficientNet, UNet  # noqa: E402
from sim.work import Attention, Conv, MemoryBound, Work  # noqa: E402
from tests.conformance import picture_modules as modules  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    elementwise={"norm_kernels": "apart"},
)
WHOLE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "efficientnet-b0": (modules.efficientnet, 224),
    "efficientnet-b4": (lambda: modules.efficientnet(1.4, 1.8), 380),
    "efficientnetv2-s": (modules.efficientnet_v2_s, 300),
    "convnext-tiny": (modules.ConvNext, 224),
    "convnext-base": (lambda: modules.ConvNext((3, 3, 27, 3), (128, 256, 512, 1024)), 224),
    "unet": (modules.UNet, 512),
}


def forward_flops(network: Network) -> float:
    return sum(w.flops for _, b in network.blocks for part in b.parts for w in part.forward if not isinstance(w, MemoryBound))


def hold_whole(network: Network, build: Callable[[], nn.Module], *shape: int) -> None:
    """Parameters and FLOPs of a whole model on the meta device, forward and backward of its loss on an input of `shape`. There attention is written
    out, whose backward is two forwards: a fused one makes the scores once more."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = build()
        loss = model(torch.empty(*shape))
        forward = counter.get_total_flops()
        loss.backward()
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(network) == forward
    works = works_of(network)
    once = {id(w): 0.8 for w in works if isinstance(w, Attention) and w.backward}
    total = sum(w.flops * once.get(id(w), 1.0) for w in works if not isinstance(w, MemoryBound))
    assert total == pytest.approx(counter.get_total_flops(), rel=1e-9)


@pytest.mark.parametrize("name", WHOLE)
def test_presets_are_torch_s(name: str) -> None:
    """Whole models on the meta device. Forward alone: torch's counter takes the weight gradients of grouped convolutions for those of whole ones."""
    build, side = WHOLE[name]
    network = describe(load_model(name), Shape(micro=2, seq=1, precision="fp32"), PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = build()
        model(torch.empty(2, 3, side, side))
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(network) == counter.get_total_flops()
    assert network.flops_per_sample == pytest.approx(3 * counter.get_total_flops() / 2)


def test_backward_is_torch_s_where_no_convolution_is_grouped() -> None:
    network = describe(load_model("unet"), Shape(micro=1, seq=1, precision="fp32"), PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        modules.UNet()(torch.empty(1, 3, 512, 512)).backward()
    works = [w for _, b in network.blocks for p in b.parts for w in (*p.forward, *p.backward, *p.wgrad)]
    assert sum(w.flops for w in works if not isinstance(w, MemoryBound)) == counter.get_total_flops()


class Pair(NamedTuple):
    build: Callable[[], nn.Module]
    side: int
    spec: ModelSpec
    same: tuple[tuple[str, str], ...]


PAIRS = {
    "efficientnet": Pair(modules.efficientnet, 96, EfficientNet(image=96), (("L1", "S1.0"), ("L2", "S1.1"), ("L4", "S2.1"),
        ("L10", "S4.2"), ("head", "head"))),
    "efficientnetv2": Pair(modules.efficientnet_v2_s, 96, EfficientNet(variant="v2-s", image=96), (("L2", "S1.0"), ("L3", "S1.1"), ("L30", "S5.5"))),
    "convnext": Pair(lambda: modules.ConvNext((1, 2, 1), (24, 48, 96)), 64, ConvNext(depths=(1, 2, 1), widths=(24, 48, 96), image=64),
        (("L0", "S0.0"), ("L1", "D1"), ("L2", "S1.0"), ("L3", "S1.1"), ("L5", "S2.0"))),
    "unet": Pair(lambda: modules.UNet(16, 3), 64, UNet(width=16, levels=3, image=64), (("embed", "stem"), ("head", "head"))),
}  # fmt: skip


@cache
def both(name: str) -> tuple[Network, Network]:
    pair = PAIRS[name]
    spec = capture(pair.build, (Input((4, 3, pair.side, pair.side)),), name=name)
    shape = Shape(micro=4, seq=1, precision="fp32")
    return describe(spec, shape, PLAIN), describe(pair.spec, shape, PLAIN)


def works_of(network: Network, name: str = "") -> list[Work]:
    parts = [part for block, of in network.blocks if name in ("", block) for part in of.parts]
    return [work for part in parts for work in (*part.forward, *part.backward, *part.wgrad)]


def products(network: Network) -> Counter[object]:
    """Convolutions by shape; all else by its FLOPs and role."""
    found: Counter[object] = Counter()
    for w in works_of(network):
        if isinstance(w, Conv):
            found["conv", w.role, w.c_in, w.c_out, w.h, w.kh, w.stride, w.groups, w.out] += 1
        elif not isinstance(w, MemoryBound):
            found[type(w).__name__, getattr(w, "role", ""), w.flops] += 1
    return found


def hold_bytes(captured: Network, described: Network, same: Iterable[tuple[str, str]]) -> None:
    """Both move as many bytes: all in all, and in each pair of blocks that are the `same`."""
    for mine, its in (("", ""), *same):
        found, said = (sum(w.bytes for w in works_of(network, block)) for network, block in ((captured, mine), (described, its)))
        assert found == pytest.approx(said, rel=0.05), (mine, its, found / said)


def hold_kept(captured: Network, described: Network) -> None:
    """Both keep as many bytes for backward."""
    kept = [sum(part.saved for _, block in network.blocks for part in block.parts) for network in (captured, described)]
    assert kept[0] == pytest.approx(kept[1], rel=0.05)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_each_product_is_the_captured_one(name: str) -> None:
    captured, described = both(name)
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_blocks_move_what_is_captured(name: str) -> None:
    """All in all, and block by block where a block's gradients arrive inside of it."""
    hold_bytes(*both(name), PAIRS[name].same)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_kept_for_backward_is_what_is_captured(name: str) -> None:
    hold_kept(*both(name))
