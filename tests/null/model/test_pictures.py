"""EfficientNet, ConvNeXt and U-Net by hand: kernels, what is kept, autocast, compilers, and what cannot split them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Block, ModelSpec, Part, Shape, describe, load_model
from sim.model.load import model_from
from sim.model.readers.huggingface import from_config
from sim.model.readers.pictures import READERS
from sim.model.specs.spec import ConvNext, EfficientNet, UNet
from sim.model.stages import layout
from sim.plan import Plan
from sim.sections import Batch, Parallel
from sim.work import Conv, MemoryBound
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
AMP = PLAIN.but(precision={"autocast": True})
COMPILED = PLAIN.but(compile=True)


def block(spec: ModelSpec, name: str, framework: Framework = PLAIN, micro: int = 2) -> Block:
    return dict(describe(spec, Shape(micro=micro, seq=1), framework).blocks)[name]


def part(spec: ModelSpec, place: str, framework: Framework = PLAIN) -> Part:
    name, _, own = place.partition("/")
    return next(p for p in block(spec, name, framework).parts if p.name == own)


def moved(parts: tuple[Part, ...]) -> float:
    return sum(w.bytes for p in parts for w in (*p.forward, *p.backward, *p.wgrad) if isinstance(w, MemoryBound))


def test_an_inverted_bottleneck_is_its_operators() -> None:
    spec = EfficientNet()
    assert [p.name for p in block(spec, "S1.1").parts] == [
        "expand", "expand.bn", "expand.act", "depthwise", "depthwise.bn", "depthwise.act", "se.mean", "se.down", "se.act", "se.up", "se.sigmoid",
        "se.scale", "project", "project.bn", "drop", "join",
    ]  # fmt: skip
    deep = part(spec, "S1.1/depthwise").forward[0]
    assert isinstance(deep, Conv) and (deep.groups, deep.c_in, deep.c_out, deep.kh, deep.h) == (144, 144, 144, 3, 56)
    assert part(spec, "S1.1/se.down").tensors == (144 * 6, 6)  # a quarter of the block's own 24 channels
    assert "join" not in [p.name for p in block(spec, "S1.0").parts]  # the stride changes the shape
    assert "drop" not in [p.name for p in block(replace(spec, drop_path=0.0), "S1.1").parts]


def test_torch_s_module_counts_its_batches() -> None:
    """One kernel before the norm's, which autograd does not see; other frameworks, and compilers, have none."""
    one = part(EfficientNet(), "S1.1/expand.bn", AMP)
    assert [w.what for w in one.forward if isinstance(w, MemoryBound)] == ["scale_", "batchnorm"] and one.untracked == 1
    for other in (COMPILED, PLAIN.but(host="light")):
        assert not part(EfficientNet(), "S1.1/expand.bn", other).untracked
    squeezed = load_model("se-resnext101-32x4d")
    assert sum(p.untracked for p in block(squeezed, "S0.1").parts) == 3, "not the join's"


def test_swish_keeps_its_input_and_the_next_convolution_its_result() -> None:
    n = 2 * 144 * 56 * 56 * 2
    parts = {p.name: p for p in block(EfficientNet(), "S1.1").parts}
    assert [parts[name].saved for name in ("expand.act", "depthwise", "depthwise.act", "se.scale", "project")] == [n] * 5
    assert parts["expand.bn"].saved == n + 8 * 144


def test_blocks_of_a_stage_are_one() -> None:
    for spec, count in ((EfficientNet(width=2.0, depth=3.1, image=600), 57), (ConvNext(), 23)):
        blocks = describe(spec, Shape(micro=1, seq=1), PLAIN).blocks
        assert (len(blocks), len({id(b) for _, b in blocks}) < 20) == (count, True)


def test_a_compiler_has_swish_in_the_norm() -> None:
    assert not part(EfficientNet(), "S1.1/expand.act", COMPILED).forward
    for spec, name in ((EfficientNet(), "S1.1"), (ConvNext(), "S1.1")):
        assert moved(block(spec, name, COMPILED).parts) < 0.85 * moved(block(spec, name).parts)


def test_nothing_of_convnext_s_first_block_is_dropped() -> None:
    assert [any(p.name == "drop" for p in block(ConvNext(), name).parts) for name in ("S0.0", "S0.1", "S3.0")] == [False, True, True]


def test_autocast_leaves_convnext_a_stream_of_32_bits() -> None:
    """Its scales are fp32 parameters, and so is what they are multiplied with (torch's type promotion)."""
    n = 2 * 96 * 56 * 56
    assert block(ConvNext(), "S0.1", AMP).saved_input == 4 * n
    names = [p.name for p in block(ConvNext(), "S0.1", AMP).parts]
    assert names[:3] == ["cast", "depthwise", "norm"]
    assert part(ConvNext(), "S0.1/join", AMP).forward[0].bytes == 3 * 4 * n
    assert [getattr(w, "what", "") for w in part(ConvNext(), "S0.1/norm", AMP).forward] == ["cast", "layernorm"]
    assert block(ConvNext(), "S0.1").saved_input == 2 * n


def test_a_level_up_joins_its_own_on_the_way_down() -> None:
    parts = {p.name: p for p in block(UNet(image=64), "U1").parts}
    up = parts["up"].forward[0]
    assert isinstance(up, Conv) and (up.role, up.c_in, up.c_out, up.out, up.h) == ("dgrad", 512, 1024, (4, 4), 8)
    assert parts["up"].tensors == (1024 * 512 * 4, 512)
    assert parts["cat"].forward[0].bytes == 2 * 2 * 1024 * 8 * 8 * 2
    assert parts["conv1"].tensors == (1024 * 512 * 9,)


def test_a_sample_is_a_picture() -> None:
    found = {name: describe(load_model(name), Shape(micro=1, seq=1), PLAIN) for name in ("efficientnet-b4", "unet")}
    assert [n.sample_unit for n in found.values()] == ["images", "images"]
    assert [n.sample_bytes for n in found.values()] == [12 * 380**2, 20 * 512**2]


def test_no_pipeline_cuts_what_is_joined_across() -> None:
    plan = Plan(model="unet", batch=Batch(micro=1), parallel=Parallel(pp=2))
    for name in ("unet", "ssd300", "mask-rcnn-r50-fpn"):
        with pytest.raises(
            Refused, match=rf"{name}: some of its blocks read the results of several earlier ones, so no pipeline can cut it"
        ):
            layout(describe(load_model(name), Shape(micro=1, seq=1), PLAIN), plan)
    stages = layout(describe(load_model("convnext-tiny"), Shape(micro=1, seq=1), PLAIN), plan)
    assert [len(stage) for stage in stages] == [12, 11]


def test_tables_that_differ_are_refused() -> None:
    assert set(READERS) == {"efficientnet", "convnext"}
    with pytest.raises(Refused, match=r"config.json: expand_ratios = \[1, 4\] of efficientnet is not supported"):
        from_config({"model_type": "efficientnet", "expand_ratios": [1, 4]}, "config.json")
    with pytest.raises(Refused, match="patch_size = 2 of convnext is not supported; leave it at 4"):
        from_config({"model_type": "convnext", "patch_size": 2}, "config.json")


def test_inception_joins_its_branches_and_has_a_second_classifier() -> None:
    """Maps of 35, 17 and 8 places a side with 288, 768 and 2048 channels (Szegedy et al. 2015, table 1); 5.7 billion multiply-adds a picture."""
    found = describe(load_model("inception-v3"), Shape(micro=1, seq=1), PLAIN)
    last = dict(found.blocks)["head"].parts[1]
    assert last.name == "fc" and last.tensors == (2048 * 1000, 1000)
    sides = [next(w for p in block.parts for w in p.forward if isinstance(w, Conv)) for name, block in found.blocks if name[0] == "M"]
    assert [(w.c_in, w.h) for w in sides] == [
        (192, 35), (256, 35), (288, 35), (288, 35), *[(768, 17)] * 5, (1280, 8), (2048, 8),
    ]  # fmt: skip
    assert [name for name, block in found.blocks if any(p.name == "aux.loss" for p in block.parts)] == ["M7"]
    assert found.flops_per_sample / 6 == pytest.approx(5.72e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "image", "words"),
    [
        ("inception-v3", 74, "aux.mean leaves nothing of a map of 2 x 2"),
        ("inception-v3", 200, "aux.conv1 leaves nothing of a map of 2 x 2"),
        ("ssd300", 224, "conv2 leaves nothing of a map of 2 x 2"),
        ("vgg16", 16, "pool leaves nothing of a map of 1 x 1"),
        ("alexnet", 48, "pool leaves nothing of a map of 2 x 2"),
        ("cifar-cnn", 12, "conv2 leaves nothing of a map of 4 x 4"),
    ],
)
def test_too_small_a_picture_is_told(name: str, image: int, words: str) -> None:
    """Not a division by zero, nor a map of -1 x -1 places, which has one place again."""
    with pytest.raises(BadInput, match=f"the picture is too small: {words}. Use a larger image"):
        describe(model_from({"base": name, "image": image}), Shape(micro=1, seq=1), PLAIN)


def test_the_second_classifier_of_inception_is_as_large_for_any_picture() -> None:
    """torchvision's InceptionAux takes the mean of what its convolutions leave (adaptive_avg_pool2d to one place)."""
    counts = {describe(model_from({"base": "inception-v3", "image": n}), Shape(micro=1, seq=1), PLAIN).parameters for n in (299, 512)}
    assert counts == {27_161_264}


def test_a_map_that_branches_read_is_kept_once() -> None:
    """Channels that the first block of Inception v3 keeps: its input once, what is between convolutions, the smoothed input, what each of
    the seven norms reads, and what ReLU left of the branches before they were joined. In all 750 MiB for eight pictures in fp32, as hooks of
    torch.autograd count torchvision's."""
    found = describe(load_model("inception-v3"), Shape(micro=1, seq=1), PLAIN)
    norms = 64 + 48 + 64 + 64 + 96 + 96 + 32
    channels = 192 + 48 + (64 + 96) + 192 + norms + 256
    assert sum(p.saved for p in dict(found.blocks)["M0"].parts) == 2 * 35**2 * channels + 8 * norms
    whole = describe(load_model("inception-v3"), Shape(micro=8, seq=1, precision="fp32"), PLAIN)
    assert sum(p.saved for _, b in whole.blocks for p in b.parts) / 2**20 == pytest.approx(750.11, rel=1e-3)


def test_alexnet_is_mostly_its_linears() -> None:
    found = describe(load_model("alexnet"), Shape(micro=1, seq=1), PLAIN)
    linears = sum(part.params for part in dict(found.blocks)["head"].parts)
    assert linears == 58_631_144 and found.flops_per_sample / 6 == pytest.approx(0.714e9, rel=0.01)
    assert [block.kind for _, block in found.blocks] == ["embed", *["layer"] * 4, "head"]
