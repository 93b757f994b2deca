"""Diffusion's networks as they are described, against the same in PyTorch: parameters, FLOPs by torch's own counter forward and backward, each
product by itself, the bytes of all other kernels, and what is kept for backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import ModelSpec, Network, Shape, describe, load_model  # noqa: E402
from sim.model.specs.spec import DiffusionUNet, Dit, Flux  # noqa: E402
from sim.work import Attention, MemoryBound  # noqa: E402
from tests.conformance import diffusion_modules as modules  # noqa: E402
from tests.conformance import flux_modules  # noqa: E402
from tests.conformance.test_pictures import forward_flops, hold_bytes, hold_kept, products, works_of  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    linears={"joins_gradients": True},
)
SHAPE = Shape(micro=2, seq=1, precision="fp32")
SDXL = {
    "widths": (320, 640, 1280),
    "depths": (0, 2, 10),
    "heads": (5, 10, 20),
    "middle": 10,
    "context": 2048,
    "by_linear": True,
    "added": 2816,
}
WHOLE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "flux.1-dev": (flux_modules.Flux, 128),
    "flux.1-schnell": (lambda: flux_modules.Flux(guidance=False, text=256), 128),
    "dit-xl-2": (modules.Dit, 32),
    "dit-b-2": (lambda: modules.Dit(12, 768, 12), 32),
    "sd-1.5": (modules.UNet, 64),
    "sd-2.1": (lambda: modules.UNet(heads=(5, 10, 20, 20), context=1024, by_linear=True), 96),
    "sdxl": (lambda: modules.UNet(**SDXL), 128),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", WHOLE)
def test_presets_are_torch_s(name: str) -> None:
    """Whole models on the meta device, forward and backward. There attention is written out, whose backward is two forwards: a fused one makes the
    scores once more, and is described with 5 / 2."""
    build, side = WHOLE[name]
    network = describe(load_model(name), SHAPE, PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = build()
        loss = model(torch.empty(2, load_model(name).channels, side, side))
        forward = counter.get_total_flops()
        loss.backward()
    works = [w for _, b in network.blocks for p in b.parts for w in (*p.forward, *p.backward, *p.wgrad)]
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(network) == forward
    once = {id(w): 0.8 for w in works if isinstance(w, Attention) and w.backward}
    total = sum(w.flops * once.get(id(w), 1.0) for w in works if not isinstance(w, MemoryBound))
    assert total == pytest.approx(counter.get_total_flops(), rel=1e-9)


class Pair(NamedTuple):
    build: Callable[[], nn.Module]
    spec: ModelSpec
    same: tuple[tuple[str, str], ...] = ()
    channels: int = 4


SMALL: dict[str, tuple[int, ...]] = {"widths": (32, 64), "heads": (2, 4)}
PAIRS = {
    "dit": Pair(lambda: modules.Dit(2, 96, 4, 16), Dit(layers=2, hidden=96, heads=4, image=128), (("L0", "L0"), ("L1", "L1"))),
    "flux": Pair(
        lambda: flux_modules.Flux(2, 3, 96, 4, True, 11, 80, 48),
        Flux(double=2, single=3, hidden=96, heads=4, text=11, context=80, pooled=48, guidance=True, image=128),
        (("L1", "L1"), ("L3", "L3"), ("L4", "L4")),
        channels=16,
    ),
    "by-convolutions": Pair(
        lambda: modules.UNet((32, 64), (1, 1), (2, 4), 1, 96, False, 0, 11),
        DiffusionUNet(widths=(32, 64), transformers=(1, 1), heads=(2, 4), middle=1, context=96, text=11, image=128),
    ),
    "by-linears": Pair(
        lambda: modules.UNet((32, 64), (0, 2), (2, 4), 2, 96, True, 48, 11),
        DiffusionUNet(
            widths=(32, 64), transformers=(0, 2), heads=(2, 4), middle=2, context=96, text=11, image=128, linear_projection=True, added=48
        ),
    ),
}


@cache
def both(name: str) -> tuple[Network, Network]:
    spec = capture(PAIRS[name].build, (Input((2, PAIRS[name].channels, 16, 16)),), name=name)
    return describe(spec, SHAPE, PLAIN), describe(PAIRS[name].spec, SHAPE, PLAIN)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_each_product_is_the_captured_one(name: str) -> None:
    captured, described = both(name)
    assert products(captured) == products(described)
    assert any(isinstance(w, Attention) for w in works_of(described))
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_blocks_move_what_is_captured(name: str) -> None:
    hold_bytes(*both(name), PAIRS[name].same)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_kept_for_backward_is_what_is_captured(name: str) -> None:
    hold_kept(*both(name))
