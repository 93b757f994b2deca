"""CLIP and SigLIP as they are described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product, the bytes of all other kernels, and
what is kept for backward."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from executor.recording.capture import Input, capture  # noqa: E402
from sim.model import Network, describe, load_model  # noqa: E402
from sim.model.specs.clip import Clip  # noqa: E402
from sim.work import MemoryBound  # noqa: E402
from tests.conformance import clip_modules as modules  # noqa: E402
from tests.conformance.test_diffusion import PLAIN, SHAPE  # noqa: E402
from tests.conformance.test_pictures import hold_kept, hold_whole, works_of  # noqa: E402

APART = PLAIN.but(elementwise={"norm_kernels": "apart"})
SMALL = Clip(
    name="clip",
    layers=2,
    hidden=96,
    heads=4,
    ffn=224,
    image=64,
    patch=8,
    text_layers=2,
    text_hidden=64,
    text_heads=2,
    width=48,
    vocab=500,
    text=24,
)
SIGMOID = Clip(
    name="siglip", loss="sigmoid", layers=2, hidden=96, heads=4, ffn=224, image=64, patch=8, text_layers=2, text_hidden=96, text_heads=4, text_ffn=224,
    width=96, vocab=500, text=24,
)  # fmt: skip
LARGE = {"patch": 14, "layers": 24, "h": 1024, "heads": 16, "ffn": 4096, "text_h": 768, "text_heads": 12, "width": 768}
HUGE = {"patch": 14, "layers": 32, "h": 1280, "heads": 16, "ffn": 5120, "text_layers": 24, "text_h": 1024, "text_heads": 16, "width": 1024}
GIANT = {"patch": 14, "layers": 48, "h": 1664, "heads": 16, "ffn": 8192, "text_layers": 32, "text_h": 1280, "text_heads": 20, "width": 1280}


WHOLE: dict[str, tuple[type[torch.nn.Module], dict[str, int]]] = {
    "clip-vit-b-32": (modules.Clip, {}),
    "clip-vit-l-14": (modules.Clip, LARGE),
    "clip-vit-h-14": (modules.Clip, HUGE),
    "clip-vit-bigg-14": (modules.Clip, GIANT),
    "siglip-vit-b-16": (modules.SigLip, {}),
    "siglip-so400m-14": (modules.SigLip, {"patch": 14, "layers": 27, "h": 1152, "heads": 16, "ffn": 4304, "tokens": 16}),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", WHOLE)
def test_presets_are_torch_s(name: str) -> None:
    build, sizes = WHOLE[name]
    hold_whole(describe(load_model(name), SHAPE, PLAIN), lambda: build(**sizes), 2, 3, 224, 224)


SIZES = {"image": 64, "patch": 8, "layers": 2, "h": 96, "heads": 4, "ffn": 224, "vocab": 500, "tokens": 24}
PAIRS = {
    "clip": (lambda: modules.Clip(**SIZES, text_layers=2, text_h=64, text_heads=2, width=48), SMALL),
    "siglip": (lambda: modules.SigLip(**SIZES), SIGMOID),
}


@pytest.fixture(scope="module", params=PAIRS)
def both(request: pytest.FixtureRequest) -> tuple[Network, Network]:
    build, spec = PAIRS[request.param]
    return describe(capture(build, (Input((2, 3, 64, 64)),), name=request.param), SHAPE, PLAIN), describe(spec, SHAPE, APART)


@pytest.mark.no_cover
def test_each_product_is_the_captured_one(both: tuple[Network, Network]) -> None:
    """But for which gradient is whose: the learned query's product has parameters on both sides."""
    captured, described = both
    mine, its = (
        Counter(
            (type(w).__name__, getattr(w, "role", "fwd") == "fwd", w.flops) for w in works_of(network) if not isinstance(w, MemoryBound)
        )
        for network in both
    )
    assert mine == its
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
def test_layers_move_what_is_captured(both: tuple[Network, Network]) -> None:
    """Where no mask is read, six copies of the gradients are those of the CPU's kernel alone, which returns them in another order."""
    captured, described = both
    clip = described.name == "clip"
    for mine, its, copies in (("L0", "L0", 6 * clip), ("L1", "L1", 6 * clip), ("L2", "D0", 6 * (not clip)), ("L3", "D1", 6 * (not clip))):
        found, said = (
            sum(w.bytes for w in works_of(network, name) if isinstance(w, MemoryBound))
            for network, name in ((captured, mine), (described, its))
        )
        copied = 2 * 4 * 2 * (65 if its.startswith("L") else 24) * 96 * copies
        assert found - copied == pytest.approx(said, rel=0.05), (mine, its, (found - copied) / said)


@pytest.mark.no_cover
def test_what_is_kept_for_backward_is_what_is_captured(both: tuple[Network, Network]) -> None:
    hold_kept(*both)
