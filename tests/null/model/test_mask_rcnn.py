"""Mask R-CNN: its parts by hand, what is frozen, what depends on the data, and how it cannot be split."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import load_framework
from sim.model import Network, Part, Shape, describe, load_model
from sim.model.network import _totals
from sim.model.specs.coco import padded
from sim.plan import Plan
from sim.predict import predict
from sim.sections import Batch, Memory, Parallel
from sim.work import Conv, Gemm, MemoryBound, Work
from topologies.errors import Refused, UnknownName

FRAMEWORK = load_framework("pytorch-detection")
MODEL = load_model("mask-rcnn-r50-fpn")


def network(micro: int = 2, precision: str = "fp16", **changes: object) -> Network:
    return describe(replace(MODEL, **changes), Shape(micro=micro, seq=1, precision=precision), FRAMEWORK)


def part(found: Network, block: str, name: str) -> Part:
    return next(part for part in dict(found.blocks)[block].parts if part.name == name)


def test_parameters_by_section() -> None:
    """A linear or convolution has out x (in x kernel + 1); the backbone's convolutions have no bias, and its norms no parameters."""
    sizes = {name: block.params for name, block in network().blocks}
    backbone = sum(size for name, size in sizes.items() if name.startswith("S") or name == "stem")
    assert backbone == 25_557_032 - 2_049_000 - 53_120  # ResNet-50's, without its classifier and norms
    assert sizes["fpn"] == 256 * (256 + 512 + 1024 + 2048 + 4) + 4 * 256 * (256 * 9 + 1)
    assert sizes["rpn"] == 256 * (256 * 9 + 1) + 15 * (256 + 1)  # shared by all levels
    assert sizes["box"] == 1024 * (256 * 49 + 1) + 1024 * 1025 + 5 * 91 * 1025
    assert sizes["mask"] == 4 * 256 * (256 * 9 + 1) + 256 * (256 * 4 + 1) + 91 * 257


def test_classes_and_depth() -> None:
    fewer = network().parameters - network(classes=81).parameters
    assert fewer == 10 * (5 * 1025 + 257)  # NVIDIA's count: 80 objects and the background
    assert network(depth=101).parameters - network().parameters == 44_549_160 - 25_557_032 - (
        105_344 - 53_120
    )  # as ResNets, less their norms
    with pytest.raises(UnknownName, match="mask-rcnn depth"):
        network(depth=18)


def test_the_first_stage_is_frozen_and_the_rest_is_trained() -> None:
    found = network()
    for name, block in found.blocks[:4]:
        assert name in ("stem", "S0.0", "S0.1", "S0.2")
        for one in block.parts:
            assert (one.frozen, one.detached, one.saved, one.backward, one.wgrad) == (True, True, 0, (), ())
    trained = sum(one.params for _, block in found.blocks for one in block.parts if not one.frozen)
    assert found.parameters - trained == 64 * 3 * 49 + 212_992  # conv1 and layer1
    opening = part(found, "S1.0", "conv1")
    assert not opening.backward and opening.wgrad and opening.saved  # its input needs no gradient
    assert part(found, "S1.1", "conv1").backward
    assert not part(found, "fpn", "inner2").backward and part(found, "fpn", "inner3").backward


def test_model_flops_count_no_gradient_of_what_is_frozen() -> None:
    found = describe(MODEL, Shape(micro=1, seq=1), FRAMEWORK)
    assert found.flops_per_sample == _totals(MODEL, 1, 1, 1, True).flops
    forward = {name: sum(w.flops for p in b.parts for w in p.forward if isinstance(w, (Conv, Gemm))) for name, b in found.blocks}
    frozen = sum(forward[name] for name in ("stem", "S0.0", "S0.1", "S0.2"))
    assert found.flops_per_sample == pytest.approx(3 * sum(forward.values()) - 2 * frozen, rel=1e-9)


def test_the_backbone_is_resnet_50_on_a_larger_image() -> None:
    plain = describe(load_model("resnet50"), Shape(micro=1, seq=1), FRAMEWORK)
    large = describe(replace(MODEL, image=448), Shape(micro=1, seq=1), FRAMEWORK)

    def convolutions(found: Network) -> float:
        return sum(w.flops for n, b in found.blocks if n[0] in "sS" for p in b.parts for w in p.forward if isinstance(w, Conv))

    assert convolutions(large) == pytest.approx(4 * convolutions(plain), rel=1e-9)


def moved(works: tuple[Work, ...], *what: str) -> list[tuple[float, float]]:
    """(bytes read, bytes written) for each element of 2 x 128 x h x w, of the kernels of such names."""
    h, w = padded(0, 2)
    size = 2 * 128 * (h // 8) * (w // 8)
    return [(work.read / size, work.written / size) for work in works if isinstance(work, MemoryBound) and work.what in what]


def test_maps_between_convolutions_are_fp32_under_autocast() -> None:
    """rsqrt is fp32 there, and fp16 times fp32 is fp32: the convolution's fp16 result is scaled into fp32, and cast down before the next."""
    norm, conv = part(network(), "S1.1", "bn1"), part(network(), "S1.1", "conv2")
    assert moved(norm.forward, "scale") == [(2, 4), (4, 4), (4, 4)]  # times the scale, plus the offset, ReLU
    assert moved(norm.backward, "activation", "scale", "cast") == [(8, 4), (4, 4), (4, 2)]
    assert moved(conv.forward, "cast")[0] == (4, 2) and moved(conv.backward, "cast") == [(2, 4)]
    size = norm.saved / 4
    assert conv.saved == 2 * size  # what ReLU passed on, and its copy in 16 bits


def test_maps_of_32_bits_are_not_cast() -> None:
    norm, conv = part(network(precision="tf32"), "S1.1", "bn1"), part(network(precision="tf32"), "S1.1", "conv2")
    assert moved(norm.forward, "scale") == [(4, 4)] * 3 and moved(norm.backward, "activation", "scale", "cast") == [(8, 4), (4, 4)]
    assert norm.saved == 0 and not moved((*conv.forward, *conv.backward), "cast")
    assert all(work.channels_last for work in conv.forward if isinstance(work, Conv))


def test_the_transposed_convolution_doubles_a_map() -> None:
    up = part(network(), "mask", "fcn5")
    forward = [work for work in up.forward if isinstance(work, Conv)]
    assert [work.role for work in forward] == ["dgrad"] and forward[0].out == (14, 14)
    assert forward[0].flops == forward[0].batch * 14 * 14 * 256 * 256 * 4 * 2


@pytest.mark.parametrize(("image", "micro", "sides"), [(0, 1, (800, 1152)), (512, 4, (512, 512)), (500, 4, (512, 512))])
def test_sides_of_a_padded_batch(image: int, micro: int, sides: tuple[int, int]) -> None:
    assert padded(image, micro) == sides


def test_larger_batches_are_padded_further() -> None:
    widths = [padded(0, micro)[1] for micro in (1, 2, 4, 8, 12, 64)]
    assert widths == sorted(widths) and widths[0] < widths[-2] < widths[-1] <= 1344
    assert all(width % 32 == 0 for width in widths)


def test_positive_regions_train_the_mask_head() -> None:
    found = network(micro=4)
    conv = next(work for work in part(found, "mask", "fcn1").forward if isinstance(work, Conv))
    assert (conv.batch, conv.h, conv.w) == (4 * 36, 14, 14)  # 7.3 objects, five regions each
    fc6 = next(work for work in part(found, "box", "fc6").forward if isinstance(work, Gemm))
    assert (fc6.m, fc6.k, fc6.n) == (4 * 512, 256 * 49, 1024)


def test_proposals_wait_for_the_device_and_bring_their_overlaps_to_the_host() -> None:
    found = network(micro=3)
    some = part(found, "rpn", "rpn.proposals2")
    assert some.reads and some.detached and not some.tensors
    assert some.read_bytes == 3 * 2000 * 32 * 8  # 2,000 candidates, 32 words of 64 each
    smallest = part(found, "rpn", "rpn.proposals6")
    assert smallest.read_bytes < some.read_bytes  # not so many anchors
    waits = [one.name for _, block in found.blocks for one in block.parts if one.reads]
    assert waits[0] == "rpn.proposals2" and waits[-1] == "losses"


def test_outlines_are_picked_one_by_one_from_the_device() -> None:
    """Two reads of 16 us for each positive region, and three calls for each of its polygons: modules of 8 us."""
    one, two = part(network(micro=1), "mask", "mask.targets"), part(network(micro=2), "mask", "mask.targets")
    assert two.modules == pytest.approx(2 * one.modules, rel=0.02)
    assert one.modules == pytest.approx(36 * (2 * 2 + 1.4 * 3), rel=0.1)


def test_all_levels_share_the_weights_of_the_proposals() -> None:
    found = network()
    assert part(found, "rpn", "conv2").tensors and not part(found, "rpn", "conv3").tensors
    casts = [getattr(work, "what", "") for work in part(found, "rpn", "conv3").forward].count("cast")
    assert casts == 0
    assert getattr(part(found, "rpn", "conv3").wgrad[-1], "what", "") == "add"


def plan(**changes: object) -> Plan:
    sizes = {"model": "mask-rcnn-r50-fpn", "framework": "pytorch-detection", "precision": "fp16", "batch": Batch(global_=16, micro=2)}
    return Plan(**(sizes | {"parallel": Parallel(dp_replicate=8)} | changes))  # type: ignore[arg-type]


def test_a_step_is_predicted_and_grows_with_its_batch() -> None:
    small, large = predict(plan(), "dgx-a100"), predict(plan(batch=Batch(global_=64, micro=8)), "dgx-a100")
    assert small.fits and large.fits
    assert 2.5 < large.step_time_s / small.step_time_s < 4.5  # four times the images, and wider ones; some time is the host's
    assert 2 < large.peak_memory_bytes / small.peak_memory_bytes < 4.5
    assert small.breakdown.host_s > 0


def test_recomputation_keeps_less() -> None:
    whole, again = predict(plan(), "dgx-a100"), predict(plan(memory=Memory(recompute="full")), "dgx-a100")
    assert again.peak_memory_bytes < whole.peak_memory_bytes and again.step_time_s > whole.step_time_s


def test_forward_alone_is_shorter() -> None:
    assert predict(plan(task="forward"), "dgx-a100").step_time_s < predict(plan(), "dgx-a100").step_time_s


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"pp": 2, "dp_replicate": 4}, "no pipeline can cut it; set parallel.pp = 1"),
        ({"tp": 2, "dp_replicate": 4}, "set tp = cp = ep = 1"),
        ({"cp": 2, "dp_replicate": 4}, "set tp = cp = ep = 1"),
        ({"ep": 2, "dp_replicate": 8}, "set tp = cp = ep = 1"),
    ],
)
def test_it_is_split_by_data_alone(split: dict[str, int], words: str) -> None:
    with pytest.raises(Refused, match=words):
        predict(plan(parallel=Parallel(**split)), "dgx-a100")  # type: ignore[arg-type]


def test_no_graph_holds_what_the_data_decide() -> None:
    with pytest.raises(Refused, match="set cuda_graphs = false"):
        predict(plan(cuda_graphs=True), "dgx-a100")


def test_a_compiler_leaves_the_regions_to_python() -> None:
    eager, compiled = predict(plan(), "dgx-a100"), predict(plan(compile=True), "dgx-a100")
    floor = sum(p.modules for _, b in network().blocks for p in b.parts if p.shapeless) * 1e-6  # a microsecond a call at the least
    assert floor < compiled.step_time_s < eager.step_time_s
    assert compiled.breakdown.host_s > 0.3 * eager.breakdown.host_s
