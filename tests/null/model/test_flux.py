"""FLUX.1 by hand: which layers there are, what each costs, keeps and hands on, compilers, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Block, Network, Part, Shape, describe, load_model
from sim.model.specs.spec import Flux
from sim.model.stages import layout
from sim.plan import Plan
from sim.sections import Batch, Parallel
from sim.work import Attention, Gemm, MemoryBound
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
DEV = load_model("flux.1-dev")
PICTURE, TEXT, H = 4096, 512, 3072
"""Tokens of a picture of 1024 pixels and of its text, and the width."""


def of(framework: Framework = PLAIN, micro: int = 1, **changes: object) -> Network:
    return describe(replace(DEV, **changes), Shape(micro=micro, seq=1), framework)


def part(block: Block, name: str) -> Part:
    return next(p for p in block.parts if p.name == name)


def blocks(**changes: object) -> dict[str, Block]:
    return dict(of(**changes).blocks)  # type: ignore[arg-type]


def test_layers_of_two_kinds() -> None:
    found = blocks()
    assert list(found) == ["embed", *(f"L{i}" for i in range(57)), "head"]
    assert [p.name for p in found["L20"].parts] == [
        "condition.act", "condition", "attn.norm", "attn.modulate", "up", "split", "attn.split", "attn.q_norm", "attn.k_norm", "attn.rope",
        "attn.core", "mlp.act", "beside", "down", "residual",
    ]  # fmt: skip
    assert found["L19"].parts[0].name == "join"
    assert found["L19"].parts[1:] == found["L20"].parts  # the first of them joins text and picture
    assert found["L0"] is found["L18"] and found["L20"] is found["L56"]


def test_picture_and_text_attend_as_one_sequence() -> None:
    for name in ("L0", "L20"):
        work = part(blocks()[name], "attn.core").forward[-1]
        assert isinstance(work, Attention)
        assert (work.q, work.kv, work.heads, work.kv_heads, work.d, work.causal) == (PICTURE + TEXT, PICTURE + TEXT, 24, 24, 128, False)


def test_either_has_weights_of_its_own_first() -> None:
    double, single = blocks()["L0"], blocks()["L20"]
    products = {name: part(double, name).forward[0] for name in ("picture.qkv", "text.qkv", "picture.mlp.up", "text.proj")}
    assert {name: (w.m, w.n, w.k) for name, w in products.items() if isinstance(w, Gemm)} == {
        "picture.qkv": (PICTURE, 3 * H, H), "text.qkv": (TEXT, 3 * H, H), "picture.mlp.up": (PICTURE, 4 * H, H), "text.proj": (TEXT, H, H),
    }  # fmt: skip
    up, down = part(single, "up").forward[0], part(single, "down").forward[0]
    assert isinstance(up, Gemm) and isinstance(down, Gemm)
    assert (up.m, up.n, up.k, down.n, down.k) == (PICTURE + TEXT, 7 * H, H, H, 5 * H)


def test_forward_flops_by_hand() -> None:
    """Products of every layer, two FLOPs a multiply-add; attention's two products over all pairs of tokens."""
    tokens = PICTURE + TEXT
    attention = 4 * tokens**2 * H
    double = 2 * 12 * H * H * tokens + attention + 2 * 2 * H * 6 * H
    single = 2 * 12 * H * H * tokens + attention + 2 * H * 3 * H
    ends = 2 * (PICTURE * 64 * H * 2 + TEXT * 4096 * H) + 2 * (2 * 256 * H + 768 * H + 3 * H * H) + 2 * H * 2 * H
    assert of().forward_flops_per_sample == pytest.approx(19 * double + 38 * single + ends, rel=1e-12)


def test_one_more_number_steers_what_was_distilled() -> None:
    dev, schnell = of(), of(guidance=False)
    assert dev.parameters - schnell.parameters == 256 * H + H + H * H + H
    assert [p.name for p in blocks(guidance=False)["embed"].parts if p.name.startswith("guidance")] == []


def test_what_travels_between_stages() -> None:
    network = of(micro=2)
    assert network.boundary == 2 * (PICTURE + TEXT + 1) * H * 2  # both streams, and what steers the layers
    stages = layout(network, Plan(model="flux.1-dev", batch=Batch(micro=2), parallel=Parallel(pp=4)))
    assert sum(len(stage) for stage in stages) == 59


def test_slices_of_several_pictures_are_copied() -> None:
    one, two = (part(dict(of(micro=micro).blocks)["L0"], "attn.part") for micro in (1, 2))
    assert (len(one.forward), one.saved) == (0, 0)
    assert (len(two.forward), two.saved) == (1, 2 * (PICTURE + TEXT) * H * 2)


def test_a_compiler_joins_what_is_elementwise() -> None:
    def moved(network: Network) -> float:
        works = [w for _, b in network.blocks for p in b.parts for w in (*p.forward, *p.backward) if isinstance(w, MemoryBound)]
        return sum(w.bytes for w in works)

    assert moved(of(PLAIN.but(compile=True))) < 0.6 * moved(of())
    turned = part(dict(of(PLAIN.but(attention={"fused_rope": True})).blocks)["L0"], "attn.rope")
    assert [(w.read, w.written) for w in turned.forward if isinstance(w, MemoryBound)] == [(4 * (PICTURE + TEXT) * H,) * 2]


def test_smaller_pictures_are_fewer_tokens() -> None:
    small = of(image=256, text=256)
    assert isinstance(DEV, Flux) and replace(DEV, image=256).tokens == 256
    assert small.parameters == of().parameters
    assert small.sample_bytes == 4 * (16 * 32 * 32 + 256 * 4096 + 768)
    assert small.sample_unit == "images"


def test_without_layers_of_the_second_kind() -> None:
    assert [name for name, _ in of(single=0).blocks] == ["embed", *(f"L{i}" for i in range(19)), "head"]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(Refused, match=r"flux\.1-dev: a diffusion transformer is split by data or pipeline parallelism only"):
        describe(DEV, Shape(micro=1, seq=1, tp=2), PLAIN)
    with pytest.raises(BadInput, match=r"image = 200 does not make whole patches of 2 x 2 latents\. Use a multiple of 16"):
        Flux(double=1, single=1, image=200)
    with pytest.raises(BadInput, match="heads = 7 does not divide hidden = 64"):
        Flux(double=1, single=1, hidden=64, heads=7)
