"""Wan 2.1 as it is described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product, the bytes of all other kernels,
and what is kept for backward."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from executor.recording.capture import Input, capture  # noqa: E402
from sim.model import Network, describe, load_model  # noqa: E402
from sim.model.specs.diffusion import Wan  # noqa: E402
from sim.work import Attention  # noqa: E402
from tests.conformance import wan_modules as modules  # noqa: E402
from tests.conformance.test_diffusion import PLAIN, SHAPE  # noqa: E402
from tests.conformance.test_pictures import hold_bytes, hold_kept, hold_whole, products, works_of  # noqa: E402

SMALL = Wan(layers=2, hidden=96, heads=4, ffn=224, text=11, context=80, frames=9, height=128, width=160)


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "width", "side"), [("wan2.1-t2v-1.3b", (30, 1536, 12, 8960), (60, 104)), ("wan2.1-t2v-14b", (40, 5120, 40, 13824), (90, 160))])  # fmt: skip
def test_presets_are_torch_s(name: str, width: tuple[int, int, int, int], side: tuple[int, int]) -> None:
    hold_whole(describe(load_model(name), SHAPE, PLAIN), lambda: modules.Wan(*width), 2, 16, 21, *side)


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def both(request: pytest.FixtureRequest) -> tuple[Network, Network]:
    """16 bits show the casts around what is fp32."""
    spec = capture(
        lambda: modules.Wan(2, 96, 4, 224, 16, 11, 80), (Input((2, 16, 3, 16, 20), request.param),), name="wan", precision=request.param
    )
    shape = replace(SHAPE, precision=request.param)
    return describe(spec, shape, PLAIN), describe(SMALL, shape, PLAIN)


@pytest.mark.no_cover
def test_each_product_is_the_captured_one(both: tuple[Network, Network]) -> None:
    captured, described = both
    assert products(captured) == products(described)
    assert any(isinstance(w, Attention) for w in works_of(described))
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
def test_blocks_move_what_is_captured(both: tuple[Network, Network]) -> None:
    hold_bytes(*both, (("L0", "L0"), ("L1", "L1")))


@pytest.mark.no_cover
def test_what_is_kept_for_backward_is_what_is_captured(both: tuple[Network, Network]) -> None:
    hold_kept(*both)
