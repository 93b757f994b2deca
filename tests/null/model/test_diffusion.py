"""DiT and Stable Diffusion's U-Net by hand: published FLOPs, kernels, autocast, compilers, what travels, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Block, ModelSpec, Network, Part, Shape, describe, load_model
from sim.model.specs.spec import DiffusionUNet, Dit
from sim.model.stages import layout
from sim.plan import Plan
from sim.sections import Batch, Parallel
from sim.work import Attention, MemoryBound
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
AMP = PLAIN.but(precision={"autocast": True})
COMPILED = PLAIN.but(compile=True)
XL = load_model("dit-xl-2")
SD = load_model("sd-1.5")


def of(spec: ModelSpec, framework: Framework = PLAIN, micro: int = 2) -> Network:
    return describe(spec, Shape(micro=micro, seq=1), framework)


def block(spec: ModelSpec, name: str, framework: Framework = PLAIN) -> Block:
    return dict(of(spec, framework).blocks)[name]


def part(spec: ModelSpec, name: str, own: str, framework: Framework = PLAIN) -> Part:
    return next(p for p in block(spec, name, framework).parts if p.name == own)


def moved(network: Network) -> float:
    parts = [p for _, b in network.blocks for p in b.parts]
    return sum(w.bytes for p in parts for w in (*p.forward, *p.backward, *p.wgrad) if isinstance(w, MemoryBound))


@pytest.mark.parametrize(("name", "giga"), [("dit-s-2", 6.06), ("dit-b-2", 23.01), ("dit-l-2", 80.71), ("dit-xl-2", 118.64)])
def test_published_flops(name: str, giga: float) -> None:
    """Peebles & Xie 2022, table 4, which counts a multiply-add as one."""
    assert of(load_model(name)).flops_per_sample / 3 / 2e9 == pytest.approx(giga, rel=3e-3)


def test_a_layer_of_dit_is_its_operators() -> None:
    assert [p.name for p in block(XL, "L0").parts] == [
        "condition.act", "condition", "attn.norm", "attn.modulate", "attn.qkv", "attn.core", "attn.proj", "attn.residual", "mlp.norm",
        "mlp.modulate", "mlp.up", "mlp.act", "mlp.down", "mlp.residual",
    ]  # fmt: skip
    n = 2 * 256 * 1152
    assert part(XL, "L0", "condition").forward[0].flops == 2 * 2 * 1152 * 6 * 1152
    assert part(XL, "L0", "attn.norm").tensors == ()
    assert [part(XL, "L0", name).saved for name in ("attn.modulate", "attn.residual")] == [2 * n, 2 * n]


def test_positions_are_kept_and_not_trained() -> None:
    positions = part(XL, "embed", "positions")
    assert (positions.tensors, positions.frozen, positions.wgrad) == ((256 * 1152,), True, ())


def test_what_conditions_the_layers_travels_between_stages() -> None:
    network = of(XL, micro=4)
    assert network.boundary == 4 * (256 + 1) * 1152 * 2
    stages = layout(network, Plan(model="dit-xl-2", batch=Batch(micro=4), parallel=Parallel(pp=4)))
    assert [len(stage) for stage in stages] == [8, 7, 7, 8]


@pytest.mark.parametrize("spec", [XL, SD], ids=["dit", "unet"])
def test_a_compiler_joins_what_is_elementwise(spec: ModelSpec) -> None:
    assert moved(of(spec, COMPILED)) < 0.75 * moved(of(spec))
    assert of(spec, COMPILED).parameters == of(spec).parameters


def test_autocast_widens_norms_and_narrows_products() -> None:
    kinds = [getattr(w, "what", "") for w in part(SD, "D0.0", "in.norm", AMP).forward]
    assert kinds == ["cast", "groupnorm"]
    n = 2 * 320 * 64 * 64
    assert part(SD, "D0.0", "in.act", AMP).saved == 4 * n
    assert part(SD, "D0.0", "conv1", AMP).saved == 2 * n
    assert part(SD, "D0.0", "join", AMP).forward[0].bytes == 3 * 2 * n
    assert part(XL, "L0", "attn.residual", AMP).forward[1].bytes == (4 + 2 + 4) * 2 * 256 * 1152


def test_places_attend_to_the_text() -> None:
    core = part(SD, "D1.0", "tr.t0.cross.core").forward[0]
    assert isinstance(core, Attention) and (core.q, core.kv, core.heads, core.d, core.causal) == (32 * 32, 77, 8, 80, False)
    keys = part(SD, "D1.0", "tr.t0.cross.kv")
    assert (keys.backward, keys.tensors) == ((), (768 * 640, 768 * 640))  # the text's encoder is not trained
    assert not any(p.name.startswith("tr.") for p in block(SD, "D3.0").parts)


def test_groups_are_read_twice() -> None:
    n = 2 * 2 * 320 * 64 * 64
    norm = part(SD, "D0.0", "in.norm")
    assert [w.bytes for w in (*norm.forward, *norm.backward)] == [3 * n, 5 * n]


def test_latents_are_smaller_than_pictures() -> None:
    assert isinstance(SD, DiffusionUNet) and isinstance(XL, Dit)
    assert (SD.side, XL.side, XL.tokens) == (64, 32, 256)
    assert of(SD).sample_bytes == 4 * (4 * 64 * 64 + 77 * 768)
    larger = of(replace(SD, image=768))
    assert (larger.parameters, larger.sample_unit) == (of(SD).parameters, "images")
    assert larger.flops_per_sample > 2.25 * of(SD).flops_per_sample  # attention grows faster than the picture


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(Refused, match="a diffusion transformer is split by data or pipeline parallelism only; set tp = cp = ep = 1"):
        describe(XL, Shape(micro=1, seq=1, tp=2), PLAIN)
    with pytest.raises(Refused, match="a diffusion U-Net is split by data parallelism only"):
        describe(SD, Shape(micro=1, seq=1, cp=2), PLAIN)
    with pytest.raises(Refused, match="so no pipeline can cut it"):
        layout(of(SD), Plan(model="sd-1.5", batch=Batch(micro=1), parallel=Parallel(pp=2)))
    with pytest.raises(BadInput, match=r"image = 200 does not make whole patches of 2 x 2 latents\. Use a multiple of 16"):
        Dit(layers=1, hidden=64, heads=4, image=200)
    with pytest.raises(BadInput, match=r"image = 96 cannot be halved 3 times\. Use a multiple of 64"):
        DiffusionUNet(image=96)
    with pytest.raises(BadInput, match=r"heads = \(8, 8\) must have a number for each of the 4 levels"):
        DiffusionUNet(heads=(8, 8))
    with pytest.raises(BadInput, match="multiples of the 32 groups"):
        DiffusionUNet(widths=(48, 96, 96, 96))


@pytest.mark.parametrize(("framework", "keeps"), [(PLAIN, False), (AMP, True)])
def test_a_map_that_norm_and_shortcut_read_is_kept_once(framework: Framework, keeps: bool) -> None:
    """Autocast's norm keeps 32 bits of it. Else torch keeps of a block that doubles the width nine maps of half of it: what both norms, both
    swishes and both convolutions read."""
    parts = block(SD, "D1.0", framework).parts
    short = next(p for p in parts if p.name == "shortcut")
    assert bool(short.saved) == keeps
    if not keeps:
        one = 2 * 320 * 32 * 32 * 2
        assert sum(p.saved for p in parts[: parts.index(short) + 1]) == pytest.approx(9 * one, rel=0.01)
