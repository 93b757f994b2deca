"""Vision-language models as they are described, against the same in PyTorch: parameters, each product by itself, the bytes of all other kernels,
and what is kept for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import Network, Shape, describe  # noqa: E402
from sim.model.specs.decoder import Decoder  # noqa: E402
from sim.model.specs.vlm import Projector, Tower, VisionLanguage  # noqa: E402
from sim.work import Attention, Gemm, MemoryBound  # noqa: E402
from tests.conformance import sight_modules as modules  # noqa: E402
from tests.conformance.test_pictures import hold_bytes, hold_kept, works_of  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    elementwise={"norm_kernels": "apart"},
    linears={"fused_projections": False, "joins_gradients": True},
)
LLAMA = Decoder(layers=2, hidden=128, heads=4, ffn=352, vocab=1000, fused_qkv=False)


class Pair(NamedTuple):
    made: Callable[[], Any]
    inputs: tuple[Input, ...]
    said: VisionLanguage
    frozen: bool
    same: tuple[tuple[str, str], ...] = (("L0", "V0"), ("mid", "embed"))


IDS = Input((2, 64), "int64")
SIDE = {"hidden": 96, "heads": 4, "ffn": 384, "patch": 7, "fused_qkv": False}
PAIRS = {
    "llava": Pair(
        lambda: modules.Joined(modules.Clip(), modules.Mlp(96, 128), frozen=True),
        (Input((2, 3, 28, 28)), IDS),
        VisionLanguage(
            tower=Tower(layers=3, activation="quick_gelu", image=28, class_token=True, first_norm=True, last_norm="class", unread=1, **SIDE),
            decoder=LLAMA,
            frozen=("tower",),
        ),
        True,
    ),
    "gemma": Pair(
        lambda: modules.Joined(modules.Siglip(), modules.Averaged(96, 128)),
        (Input((2, 3, 56, 56)), IDS),
        VisionLanguage(
            tower=Tower(layers=2, image=56, patch_bias=True, last_norm="patches", **SIDE),
            projector=Projector(pool=4, norm="rmsnorm", layers=1, bias=False),
            decoder=LLAMA,
        ),
        False,
    ),
    "qwen": Pair(
        lambda: modules.Joined(modules.Qwen(), modules.Merger(96, 128)),
        (Input((2, 64, 294)), IDS),
        VisionLanguage(
            tower=Tower(
                layers=2, hidden=96, heads=4, ffn=256, activation="swiglu", norm="rmsnorm", fused_qkv=True, image=56, patch=7, frames=2,
                position="rope", window=16, full_every=2,
            ),
            projector=Projector(merge=2, norm="rmsnorm", inner=384),
            decoder=LLAMA,
        ),
        False,
    ),
    "qwen3": Pair(
        lambda: modules.Joined(modules.Qwen3(), modules.LastMerger(96, 128)),
        (Input((2, 64, 294)), IDS),
        VisionLanguage(
            tower=Tower(
                layers=3, hidden=96, heads=4, ffn=384, fused_qkv=True, image=56, patch=7, frames=2, patch_bias=True, position="rope", grid=6,
            ),
            projector=Projector(merge=2, norm="layernorm", inner=384, deepstack=(0, 1)),
            decoder=LLAMA,
        ),
        False,
        (("L0", "V0"), ("mid", "embed"), ("embed", "patches"), ("L1", "merger0")),
    ),
    "mllama": Pair(
        modules.Reading,
        (Input((2, 2, 3, 28, 28)), IDS),
        VisionLanguage(
            tower=Tower(
                layers=3, image=28, class_token=True, attention_bias=False, tiles=2, ratios=3, gated_layers=1, **SIDE,
            ),
            projector=Projector(layers=1, beside=(0,)),
            decoder=replace(LLAMA, layers=3, mixers="*X*", further_rows=8),
        ),
        False,
        (("embed", "patches"), ("L0", "V0"), ("mid", "middle"), ("mid+2", "L1")),
    ),
}  # fmt: skip


@cache
def both(name: str) -> tuple[Network, Network]:
    """Captured and described."""
    pair = PAIRS[name]
    spec = capture(pair.made, pair.inputs, name=name)
    return describe(spec, Shape(micro=2, seq=64, precision="fp32"), PLAIN), describe(
        pair.said, Shape(micro=2, seq=64, precision="fp32"), PLAIN
    )


def products(network: Network) -> Counter[object]:
    """By role and FLOPs; windows of one kernel count as one."""
    found: Counter[object] = Counter()
    for w in works_of(network):
        if not isinstance(w, MemoryBound):
            found["attention" if isinstance(w, Attention) else getattr(w, "role", ""), w.flops] += 1
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_each_product_is_the_captured_one(name: str) -> None:
    captured, described = both(name)
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_blocks_move_what_is_captured(name: str) -> None:
    hold_bytes(*both(name), PAIRS[name].same)


@pytest.mark.no_cover
def test_what_deepstack_adds_to_a_layer_is_what_is_captured() -> None:
    """The decoder's first layer takes a tower's layer, as the second does; of the second its norm is summed in the block after it."""
    captured, described = both("qwen3")
    found = sum(w.bytes for name in ("L5", "L6", "head") for w in works_of(captured, name))
    hold = sum(w.bytes for name in ("L0", "deepstack0", "L1", "deepstack1", "head") for w in works_of(described, name))
    assert found == pytest.approx(hold, rel=0.04)
    assert hold - sum(w.bytes for name in ("deepstack0", "deepstack1") for w in works_of(described, name)) < 0.97 * found


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_kept_for_backward_is_what_is_captured(name: str) -> None:
    hold_kept(*both(name))


def test_a_frozen_tower_has_no_backward() -> None:
    _, described = both("llava")
    tower = [block for name, block in described.blocks if name.startswith("V")]
    assert all(block.detached for block in tower) and not dict(described.blocks)["embed"].detached
    assert not any(isinstance(w, Gemm) and w.role != "fwd" and (w.k, w.n) == (384, 96) for w in works_of(described))
