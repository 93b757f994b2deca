"""Adapters beside frozen models that are no decoders, against the same in PyTorch: each product by itself, the bytes of all other kernels, what is
trained, and what is kept for backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402
from torch import nn  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from executor.training.models.adapters import Adapted  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import ModelSpec, Network, Shape, describe  # noqa: E402
from sim.model.specs.diffusion import DiffusionUNet, Flux  # noqa: E402
from sim.model.specs.lora import Lora  # noqa: E402
from sim.model.specs.speech import Whisper  # noqa: E402
from tests.conformance import diffusion_modules, flux_modules, speech_modules, test_speech  # noqa: E402
from tests.conformance.test_diffusion import PLAIN  # noqa: E402
from tests.conformance.test_pictures import hold_bytes, hold_kept, products  # noqa: E402

ALL = ("qkv", "proj", "up", "down")
TARGETS: dict[str, tuple[str, ...]] = {
    "attention": ("qkv", "proj"),
    "all": ALL,
    "projections": ("proj", "down"),
    "inside": ("up",),
    "last": ("down",),
    "queries and values": ("q", "v"),
    "keys": ("k", "proj"),
}
LETTERS = ("queries and values", "keys")
"""Not of a linear that makes all three, as FLUX.1's."""


class Family(NamedTuple):
    build: Callable[[], nn.Module]
    spec: Any
    words: Mapping[tuple[type[nn.Module], str], str]
    """Of a linear in a module of this type: the word for it."""
    inputs: tuple[int, ...]
    same: tuple[tuple[str, str], ...] = ()
    seq: int = 1
    framework: Framework = PLAIN
    products: Callable[[Network], Any] = products


_STREAM = {(flux_modules.Stream, name): name for name in ALL}
_UNET = {
    **{(diffusion_modules.Attention, at): at for at in "qkv"},
    (diffusion_modules.Attention, "out"): "proj",
    **{(diffusion_modules.Layer, at): at for at in ("up", "down")},
}
FAMILIES = {
    "flux": Family(
        lambda: flux_modules.Flux(2, 3, 96, 4, True, 11, 80, 48),
        Flux(double=2, single=3, hidden=96, heads=4, text=11, context=80, pooled=48, guidance=True, image=128),
        _STREAM | {(flux_modules.Single, "up"): "qkv", (flux_modules.Single, "down"): "down"},
        (2, 16, 16, 16),
        (("L1", "L1"), ("L3", "L3"), ("L4", "L4")),
    ),
    "by-convolutions": Family(
        lambda: diffusion_modules.UNet((32, 64), (1, 1), (2, 4), 1, 96, False, 0, 11),
        DiffusionUNet(widths=(32, 64), transformers=(1, 1), heads=(2, 4), middle=1, context=96, text=11, image=128),
        _UNET,
        (2, 4, 16, 16),
    ),
    "by-linears": Family(
        lambda: diffusion_modules.UNet((32, 64), (0, 2), (2, 4), 2, 96, True, 48, 11),
        DiffusionUNet(
            widths=(32, 64), transformers=(0, 2), heads=(2, 4), middle=2, context=96, text=11, image=128, linear_projection=True, added=48
        ),
        _UNET,
        (2, 4, 16, 16),
    ),
    "in-the-middle": Family(
        lambda: diffusion_modules.UNet((32, 64), (0, 0), (2, 4), 1, 96, True, 0, 11),
        DiffusionUNet(widths=(32, 64), transformers=(0, 0), heads=(2, 4), middle=1, context=96, text=11, image=128, linear_projection=True),
        _UNET,
        (2, 4, 16, 16),
    ),
    "whisper": Family(
        lambda: speech_modules.Whisper(3, 64, 4, 16, 96, 32, 500, 2),
        Whisper(layers=3, decoder_layers=2, hidden=64, heads=4, mels=16, frames=96, positions=32, vocab=500),
        {(speech_modules.Attention, at): at for at in "qkv"}
        | {(speech_modules.Attention, "out"): "proj", (speech_modules.Layer, "up"): "up", (speech_modules.Layer, "down"): "down"},
        (2, 16, 96),
        (("L1", "L1"), ("L4", "D1"), ("head", "head")),
        seq=32,
        framework=test_speech.PLAIN,
        products=test_speech.products,
    ),
}  # fmt: skip
CASES = [(name, words) for name in FAMILIES for words in TARGETS if name != "flux" or words not in LETTERS]


def tuned(name: str, lora: Lora) -> nn.Module:
    """Frozen, with adapters beside the linears that `lora` names."""
    model = FAMILIES[name].build().requires_grad_(False)
    for module in list(model.modules()):
        for at, child in list(module.named_children()):
            word = FAMILIES[name].words.get((type(module), at), "")
            if word in lora.adapted or word in lora.targets:
                assert isinstance(child, nn.Linear)
                setattr(module, at, Adapted(child, lora))
    return model


@cache
def both(name: str, words: str) -> tuple[Network, Network]:
    """Captured and described."""
    family = FAMILIES[name]
    lora = family.spec.adapters(rank=4, targets=TARGETS[words], dropout=0.0)
    spec: ModelSpec = replace(family.spec, lora=lora)
    captured = capture(lambda: tuned(name, lora), (Input(family.inputs),), name=name)
    return tuple(
        describe(one, Shape(micro=2, seq=seq, precision="fp32"), family.framework) for one, seq in ((captured, 1), (spec, family.seq))
    )  # type: ignore[return-value]


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "words"), CASES)
def test_each_product_is_the_captured_one(name: str, words: str) -> None:
    """None before the first adapters is that of a gradient, nor one of a frozen weight's."""
    captured, described = both(name, words)
    count = FAMILIES[name].products
    assert count(captured) == count(described)
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "words"), CASES)
def test_adapters_alone_are_trained(name: str, words: str) -> None:
    """Each parameter that autograd has a gradient for is one of the description's, of the same size, and no other is."""
    family = FAMILIES[name]
    lora = family.spec.adapters(rank=4, targets=TARGETS[words], dropout=0.0)
    model = tuned(name, lora)
    model(torch.randn(family.inputs)).backward()
    found = sorted(p.numel() for p in model.parameters() if p.grad is not None)
    parts = [part for _, block in both(name, words)[1].blocks for part in block.parts]
    assert found == sorted(size for part in parts if not part.frozen for size in part.tensors)
    assert all(part.frozen or part.name.endswith(".lora") for part in parts if part.tensors)
    assert all(part.wgrad == () for part in parts if part.frozen)


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "words"), [case for case in CASES if case[0] != "in-the-middle"])
def test_blocks_move_what_is_captured(name: str, words: str) -> None:
    hold_bytes(*both(name, words), FAMILIES[name].same)


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "words"), CASES)
def test_what_is_kept_for_backward_is_what_is_captured(name: str, words: str) -> None:
    hold_kept(*both(name, words))
