"""Parameter counts as their makers publish them (safetensors totals on the model pages, or the papers' formula)."""

from __future__ import annotations

import pytest

from sim.framework import Framework
from sim.model import Shape, describe, load_model, models

PLAIN = Framework(name="plain", source="test")

EXACT = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "nemotron3-nano": 31_577_940_288,
    "bloom-560m": 559_214_592,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "falcon-7b": 6_921_720_704,
    "tinyllama-1.1b": 1_100_048_384,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50-32x4d": 25_028_904,
    "resnext101-32x4d": 44_177_704,
    "se-resnext101-32x4d": 48_955_416,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "cifar-cnn": 62_006,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_published_counts(name: str, count: int) -> None:
    assert describe(load_model(name), Shape(micro=1, seq=512), PLAIN).parameters == count


@pytest.mark.parametrize(
    ("name", "layers", "hidden"),
    [("megatron-1.7b", 24, 2304), ("megatron-145b", 80, 12288), ("megatron-530b", 105, 20480), ("megatron-1t", 128, 25600)],
)
def test_megatron_family_follows_equation_2(name: str, layers: int, hidden: int) -> None:
    """P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)) (Narayanan et al. 2021), and the final norm's 2 h beside it."""
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    assert describe(load_model(name), Shape(micro=1, seq=2048), PLAIN).parameters == formula + 2 * hidden


@pytest.mark.parametrize(
    ("name", "active"),
    [("qwen3-30b-a3b", 3.3e9), ("qwen3-235b-a22b", 22e9), ("deepseek-v3", 37e9), ("mixtral-8x7b", 12.9e9), ("kimi-k2", 32e9)],
)
def test_active_parameters_as_advertised(name: str, active: float) -> None:
    assert describe(load_model(name), Shape(micro=1, seq=2048), PLAIN).active_parameters == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize("name", models())
def test_every_preset_is_described(name: str) -> None:
    network = describe(load_model(name), Shape(micro=1, seq=512), PLAIN)
    assert network.parameters == sum(block.params for _, block in network.blocks)
    assert network.flops_per_sample > 0


@pytest.mark.parametrize(("name", "forward"), [("resnet50", 4.09e9), ("resnet152", 11.51e9), ("vgg16", 15.47e9), ("vit-b16", 17.56e9)])
def test_images_take_torchvision_multiply_adds(name: str, forward: float) -> None:
    """GFLOPS of torchvision's model pages, which count a multiply-add as one."""
    assert describe(load_model(name), Shape(micro=1, seq=1), PLAIN).flops_per_sample / 6 == pytest.approx(forward, rel=0.01)
