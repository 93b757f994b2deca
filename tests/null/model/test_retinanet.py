"""RetinaNet: its sections by hand, what its levels share, what its loss keeps and reads, and how it cannot be split."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import load_framework
from sim.model import Network, Shape, describe, load_model
from sim.plan import Plan
from sim.predict import predict
from sim.sections import Batch, Data, Memory, Parallel
from sim.work import Conv, MemoryBound
from tests.null.model.test_mask_rcnn import part
from topologies.errors import Refused

FRAMEWORK = load_framework("pytorch-detection")
MODEL = load_model("retinanet-resnext50")
PLACES = 100**2 + 50**2 + 25**2 + 13**2 + 7**2


def network(micro: int = 2, precision: str = "fp16", **changes: object) -> Network:
    return describe(replace(MODEL, **changes), Shape(micro=micro, seq=1, precision=precision), FRAMEWORK)


def test_parameters_by_section() -> None:
    sizes = {name: block.params for name, block in network().blocks}
    backbone = sum(size for name, size in sizes.items() if name.startswith("S") or name == "stem")
    assert backbone == 25_028_904 - 2_049_000 - 68_224  # ResNeXt-50's, without its classifier and norms
    assert sizes["fpn"] == 256 * (512 + 1024 + 2048 + 3) + 5 * 256 * (256 * 9 + 1)
    assert sizes["classes"] == 4 * 256 * (256 * 9 + 1) + 9 * 264 * (256 * 9 + 1)
    assert sizes["boxes"] == 4 * 256 * (256 * 9 + 1) + 36 * (256 * 9 + 1)


def test_it_is_torchvision_s_on_its_backbone_and_classes() -> None:
    """retinanet_resnet50_fpn: 34,014,999, as its page of weights says."""
    assert network(groups=1, width=64, classes=91).parameters == 34_014_999


def test_the_first_stage_is_frozen_and_the_pyramid_reads_what_is_trained() -> None:
    found = network()
    for name, block in found.blocks[:4]:
        assert name in ("stem", "S0.0", "S0.1", "S0.2") and all(one.frozen and one.detached and not one.saved for one in block.parts)
    assert not part(found, "S1.0", "conv1").backward and part(found, "S1.1", "conv1").backward
    adds = [
        [getattr(work, "what", "") for work in part(found, "fpn", name).backward].count("add") for name in ("inner3", "inner4", "inner5")
    ]
    assert adds == [1, 1, 0]  # the next stage reads C3 and C4, too


def test_five_levels_read_the_same_weights() -> None:
    found = network()
    for name, out in (("classes", 9 * 264), ("boxes", 36)):
        convolutions = [work for one in dict(found.blocks)[name].parts for work in one.forward if isinstance(work, Conv)]
        assert [work.h for work in convolutions] == [side for side in (100, 50, 25, 13, 7) for _ in range(5)]
        assert [work.c_out for work in convolutions] == [256, 256, 256, 256, out] * 5
        assert part(found, name, "conv3.0").tensors and not part(found, name, "conv7.0").tensors
    assert part(found, "classes", "conv3.0").saved and not part(found, "boxes", "conv3.0").saved  # one map, read by both


@pytest.mark.parametrize(("precision", "kept"), [("fp32", 8 * 4), ("tf32", 8 * 4), ("fp16", 4 * 2 + 5 * 4)])
def test_the_loss_keeps_eight_numbers_of_each_anchor_and_class(precision: str, kept: int) -> None:
    """Autocast: p, targets, 1 - targets and alpha's in 16 bits; both inputs of cross-entropy, its result, 1 - p_t and its square in 32."""
    assert part(network(1, precision), "loss", "focal").saved == 9 * PLACES * 264 * kept


def test_a_fused_loss_keeps_its_gradient_alone() -> None:
    fused = describe(MODEL, Shape(micro=1, seq=1, precision="fp16"), FRAMEWORK.but(loss={"fused": True}))
    focal = part(fused, "loss", "focal")
    assert focal.saved == 9 * PLACES * 264 * 2
    assert sum(isinstance(work, MemoryBound) and work.read > 10**7 for work in focal.forward) == 1


def test_layouts_that_are_the_anchors_order_are_not_copied() -> None:
    rows, planar = part(network(), "classes", "joined"), describe(MODEL, Shape(micro=2, seq=1, precision="fp32"), load_framework("pytorch"))
    assert len(rows.forward) == 1 and len(part(planar, "classes", "joined").forward) == 6


def test_the_host_waits_for_what_the_data_decide() -> None:
    waits = [one.name for _, block in network().blocks for one in block.parts if one.reads]
    assert waits == ["scaled", "matched", "focal", "offsets", "losses"]


def test_photographs_are_copied_as_they_are_stored() -> None:
    assert network().sample_bytes == 12 * 1024 * 768 and network(image=512).sample_bytes == 12 * 512**2


def test_submissions_run_in_one_graph() -> None:
    """Nothing is read, scaled or matched in the step; biases, norms and ReLU are the convolutions', but at a block's end."""
    found = describe(MODEL, Shape(micro=2, seq=1, precision="fp16"), load_framework("mlperf-retinanet"))
    parts = [(name, one) for name, block in found.blocks for one in block.parts]
    assert not any(one.reads for _, one in parts) and [one.name for one in dict(found.blocks)["loss"].parts] == ["focal", "offsets"]
    for name, one in parts:
        kernels = [work for work in one.forward if isinstance(work, MemoryBound)]
        if name in ("classes", "boxes") and one.name != "joined":
            assert not kernels
        if one.cls == "norm":
            assert len(kernels) == one.name.startswith("bn3") and len(one.backward) <= 2
    assert found.parameters == network().parameters and found.flops_per_sample == network().flops_per_sample


def test_submissions_take_less_than_half_of_a_step() -> None:
    ahead = Data(workers=4, handover="none")
    plain, graphed = (predict(plan(framework=name, data=ahead), "dgx-h100") for name in ("pytorch-foreach", "mlperf-retinanet"))
    assert graphed.step_time_s < plain.step_time_s / 2 and graphed.peak_memory_bytes < plain.peak_memory_bytes / 2


def plan(**changes: object) -> Plan:
    sizes = {"model": "retinanet-resnext50", "framework": "pytorch-detection", "precision": "fp16", "batch": Batch(global_=32, micro=4)}
    return Plan(**(sizes | {"parallel": Parallel(dp_replicate=8)} | changes))  # type: ignore[arg-type]


def test_a_step_is_predicted_on_one_node_and_on_several() -> None:
    one = predict(plan(), "dgx-a100")
    four = predict(plan(batch=Batch(global_=128, micro=4), parallel=Parallel(dp_replicate=32)), "4x dgx-a100")
    assert one.fits and one.step_time_s < four.step_time_s < 1.2 * one.step_time_s
    again = predict(plan(memory=Memory(recompute="full")), "dgx-a100")
    assert again.peak_memory_bytes < one.peak_memory_bytes and again.step_time_s > one.step_time_s
    assert predict(plan(task="forward"), "dgx-a100").step_time_s < one.step_time_s
    assert predict(plan(compile=True), "dgx-a100").step_time_s < one.step_time_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel": Parallel(pp=2, dp_replicate=4)}, "no pipeline can cut it; set parallel.pp = 1"),
        ({"parallel": Parallel(tp=2, dp_replicate=4)}, "set tp = cp = ep = 1"),
        ({"cuda_graphs": True}, "set cuda_graphs = false"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words):
        predict(plan(**changes), "dgx-a100")
