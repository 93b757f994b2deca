"""CLIP as it is described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product, the bytes of all other kernels, and
what is kept for backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.model import Network, describe, load_model  # noqa: E402
from sim.model.specs.clip import Clip  # noqa: E402
from sim.work import Attention, MemoryBound  # noqa: E402
from tests.conformance import clip_modules as modules  # noqa: E402
from tests.conformance.test_diffusion import PLAIN, SHAPE  # noqa: E402
from tests.conformance.test_pictures import forward_flops, hold_kept, products, works_of  # noqa: E402

APART = PLAIN.but(elementwise={"norm_kernels": "apart"})
SMALL = Clip(
    layers=2, hidden=96, heads=4, ffn=224, image=64, patch=8, text_layers=2, text_hidden=64, text_heads=2, width=48, vocab=500, text=24
)
LARGE = {"patch": 14, "layers": 24, "h": 1024, "heads": 16, "ffn": 4096, "text_h": 768, "text_heads": 12, "width": 768}
HUGE = {"patch": 14, "layers": 32, "h": 1280, "heads": 16, "ffn": 5120, "text_layers": 24, "text_h": 1024, "text_heads": 16, "width": 1024}
GIANT = {"patch": 14, "layers": 48, "h": 1664, "heads": 16, "ffn": 8192, "text_layers": 32, "text_h": 1280, "text_heads": 20, "width": 1280}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "sizes"), [("clip-vit-b-32", {}), ("clip-vit-l-14", LARGE), ("clip-vit-h-14", HUGE), ("clip-vit-bigg-14", GIANT)]
)
def test_presets_are_torch_s(name: str, sizes: dict[str, int]) -> None:
    """Whole models on the meta device, forward and backward. There attention is written out, whose backward is two forwards: a fused one makes the
    scores once more."""
    network = describe(load_model(name), SHAPE, PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = modules.Clip(**sizes)
        loss = model(torch.empty(2, 3, 224, 224))
        forward = counter.get_total_flops()
        loss.backward()
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(network) == forward
    works = works_of(network)
    once = {id(w): 0.8 for w in works if isinstance(w, Attention) and w.backward}
    total = sum(w.flops * once.get(id(w), 1.0) for w in works if not isinstance(w, MemoryBound))
    assert total == pytest.approx(counter.get_total_flops(), rel=1e-9)


@pytest.fixture(scope="module")
def both() -> tuple[Network, Network]:
    sizes = {"image": 64, "patch": 8, "layers": 2, "h": 96, "heads": 4, "ffn": 224, "text_layers": 2, "text_h": 64, "text_heads": 2, "width": 48, "vocab": 500, "tokens": 24}  # fmt: skip
    spec = capture(lambda: modules.Clip(**sizes), (Input((2, 3, 64, 64)),), name="clip")
    return describe(spec, SHAPE, PLAIN), describe(SMALL, SHAPE, APART)


@pytest.mark.no_cover
def test_each_product_is_the_captured_one(both: tuple[Network, Network]) -> None:
    captured, described = both
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
@pytest.mark.parametrize(("mine", "its", "kernel"), [("L2", "D0", 0), ("L3", "D1", 0), ("L0", "L0", 6), ("L1", "L1", 6)])
def test_layers_move_what_is_captured(both: tuple[Network, Network], mine: str, its: str, kernel: int) -> None:
    """Six copies of the pictures' gradients are those of the CPU's kernel, which returns them in another order, as the one that reads a mask does."""
    found, said = (
        sum(w.bytes for w in works_of(network, name) if isinstance(w, MemoryBound)) for network, name in zip(both, (mine, its), strict=True)
    )
    n = 2 * 65 * 96 * 4
    assert found - kernel * 2 * n == pytest.approx(said, rel=0.05)


@pytest.mark.no_cover
def test_what_is_kept_for_backward_is_what_is_captured(both: tuple[Network, Network]) -> None:
    hold_kept(*both)
