"""Parameter counts as their makers publish them (safetensors totals on the model pages, or the papers' formula)."""

from __future__ import annotations

import pytest

from sim.framework.framework import Framework
from sim.model import Shape, describe, load_model, models

PLAIN = Framework(name="plain", source="test")


def shape_of(name: str) -> Shape:
    """One sample; Whisper's texts have at most 448 tokens, and pictures of some take more than 512."""
    return Shape(micro=1, seq=448 if name.startswith("whisper") else max(512, getattr(load_model(name), "tokens", 0)))


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
    "mistral-7b-v0.3": 7_248_023_552,  # 14,496,047,104 bytes of bf16 in its index
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
    "kimi-k2": 1_026_408_232_448,
    "deepseek-v3.2": 671_877_944_064,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "nemotron3-ultra": 549_308_993_536,
    "glm-5": 743_911_218_432,
    "glm-5.2": 743_377_019_904,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "internlm-7b": 7_321_948_160,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi3-mini": 3_821_079_552,
    "phi4-14b": 14_659_507_200,
    "phi3.5-moe": 41_873_153_344,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmoe-1b-7b": 6_919_161_856,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-160m": 162_322_944,
    "pythia-1.4b": 1_414_647_808,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "stablelm2-1.6b": 1_644_515_328,
    "command-r-35b": 34_980_831_232,
    "dbrx": 131_596_523_520,
    "starcoder-15b": 15_517_456_384,
    "starcoder2-3b": 3_030_371_328,
    "tinyllama-1.1b": 1_100_048_384,
    "llama3.3-70b": 70_553_706_496,
    "llama4-scout": 107_769_861_120,
    "llama4-maverick": 400_711_848_960,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "ministral3-3b": 3_429_006_336,
    "ministral3-8b": 8_489_553_920,
    "ministral3-14b": 13_506_073_600,
    "mistral-small4-119b": 118_972_826_624,
    "glm-4.7-flash": 29_943_393_920,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "phi3-medium": 13_960_238_080,
    "phi4-mini": 3_836_021_760,
    "olmo2-32b": 32_234_279_936,
    "olmo3-7b": 7_298_011_136,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "mamba2-2.7b": 2_702_599_680,
    "command-r-plus-104b": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "command-a-111b": 111_057_580_032,
    "glm4-32b": 32_566_081_536,
    "granite3.3-8b": 8_170_864_640,
    "granite4-h-small": 32_207_337_984,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50-32x4d": 25_028_904,
    "resnext101-32x4d": 44_177_704,
    "resnext101-32x8d": 88_791_336,
    "se-resnext101-32x4d": 48_955_416,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg16-bn": 138_365_992,
    "vgg19": 143_667_240,
    "mask-rcnn-r50-fpn": 44_401_393,
    "retinanet-resnext50": 37_060_652,  # torchvision's code with 264 classes (tests/conformance/test_detection.py)
    "cifar-cnn": 62_006,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "flan-t5-base": 247_577_856,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "codellama-34b": 33_743_970_304,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
    "internlm2-7b": 7_737_708_544,
    "internlm2-20b": 19_861_149_696,
    "baichuan2-7b": 7_505_973_248,
    "baichuan2-13b": 13_896_668_160,
    "minicpm-2.4b": 2_724_880_896,
    "deepseek-7b": 6_910_365_696,
    "deepseek-coder-33b": 33_342_991_360,
    "deepseek-moe-16b": 16_375_728_128,
    "qwen1.5-1.8b": 1_836_828_672,
    "qwen1.5-4b": 3_950_369_280,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-14b": 14_167_290_880,
    "qwen1.5-32b": 32_512_218_112,
    "qwen1.5-72b": 72_287_920_128,
    "qwen1.5-110b": 111_209_914_368,
    "mistral-large-123b": 122_610_069_504,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "gpt-neo-1.3b": 1_315_575_808,
    "gpt-neo-2.7b": 2_651_307_520,
    "stablelm-3b": 2_795_443_200,
    "flan-t5-small": 76_961_152,
    "flan-t5-large": 783_150_080,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648,
    "mt5-xxl": 12_921_057_280,
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "gnmt": 160_671_297,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
    # torchvision 0.28 (efficientnet_b0 ... v2_l, convnext_tiny ... large), timm 1.0.31 (convnext_xlarge), milesial/Pytorch-UNet (UNet(3, 2))
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
    "efficientnet-b2": 9_109_994,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b4": 19_341_616,
    "efficientnet-b5": 30_389_784,
    "efficientnet-b6": 43_040_704,
    "efficientnet-b7": 66_347_960,
    "efficientnetv2-s": 21_458_488,
    "efficientnetv2-m": 54_139_356,
    "efficientnetv2-l": 118_515_272,
    "convnext-tiny": 28_589_128,
    "convnext-small": 50_223_688,
    "convnext-base": 88_591_464,
    "convnext-large": 197_767_336,
    "convnext-xlarge": 350_196_968,
    "unet": 31_037_698,
    # facebookresearch/DiT (models.py; 33, 130, 458 and 675 million in the paper), diffusers 0.42's UNet2DConditionModel of the released configs
    "dit-s-2": 32_963_360,
    "dit-b-2": 130_512_416,
    "dit-l-2": 458_102_816,
    "dit-xl-2": 675_129_632,
    "sd-1.5": 859_520_964,
    "wav2vec2-base": 95_044_608,
    "wav2vec2-large": 317_390_592,
    "alexnet": 61_100_840,
    "inception-v3": 27_161_264,
    "sd-2-base": 865_910_724,
    "sd-2.1": 865_910_724,
    "sdxl": 2_567_463_684,
    # black-forest-labs/flux (src/flux/model.py): 12 billion
    "flux.1-dev": 11_901_408_320,
    "flux.1-schnell": 11_891_178_560,
    # Wan-Video/Wan2.1 (wan/modules/model.py) as configured, and the tensors of the released files: 1.3 and 14 billion
    "wan2.1-t2v-1.3b": 1_418_996_800,
    "wan2.1-t2v-14b": 14_288_491_584,
    # open_clip (docs/model_profile.csv: 151.28, 149.62, 427.62, 986.11, 1366.68 and 2539.57 million)
    "clip-vit-b-32": 151_277_313,
    "clip-vit-b-16": 149_620_737,
    "clip-vit-l-14": 427_616_513,
    "clip-vit-h-14": 986_109_441,
    "clip-vit-g-14": 1_366_678_273,
    "clip-vit-bigg-14": 2_539_567_105,
    # transformers' SiglipModel of the released weights, and open_clip (203.16 and 877.36 million)
    "siglip-vit-b-16": 203_155_970,
    "siglip-so400m-14": 877_360_306,
    # transformers 5.23, WhisperForConditionalGeneration: the encoder's positions count, which are not trained
    "whisper-tiny": 37_760_640,
    "whisper-base": 72_593_920,
    "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920,
    "whisper-large-v2": 1_543_304_960,
    "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": 808_878_080,
    # transformers 5.24, the classes for conditional generation of the released configs
    "llava-1.5-7b": 7_063_427_072,
    "llava-1.5-13b": 13_351_494_656,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2-vl-72b": 73_405_560_320,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3-vl-32b": 33_357_390_064,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "internvl3-2b": 2_088_957_440,
    "internvl3-8b": 7_944_373_760,
    "internvl3-14b": 15_117_256_704,
    "gemma3-4b-vision": 4_300_079_472,
    "gemma3-12b-vision": 12_187_325_040,
    "gemma3-27b-vision": 27_432_406_640,
    "paligemma-3b": 2_923_466_480,
    "pixtral-12b": 12_682_739_712,
    "llama3.2-11b-vision": 10_670_220_835,
    "llama3.2-90b-vision": 88_593_355_323,
    # facebookresearch/dlrm, dlrm_s_pytorch.py with the arguments of its Kaggle script and of MLPerf's: 33,762,577 and 187,767,399 rows and the MLPs
    "dlrm-kaggle": 540_677_217,
    "dlrm-terabyte": 24_036_595_969,
    # mlcommons/training, recommendation_v2/torchrec_dlrm: 204,184,588 rows, and in plain PyTorch (tests/conformance/test_recommender.py)
    "dlrm-dcnv2": 26_151_671_809,
}


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_published_counts(name: str, count: int) -> None:
    assert describe(load_model(name), shape_of(name), PLAIN).parameters == count


ROUNDED = {
    "gpt3-125m": 125e6, "gpt3-350m": 356e6, "gpt3-760m": 760e6, "gpt3-1.3b": 1.3e9, "gpt3-2.7b": 2.7e9, "gpt3-6.7b": 6.7e9, "gpt3-13b": 13e9,
    "gpt3-175b": 175e9, "mpt-125m": 125e6, "mpt-350m": 350e6, "mpt-760m": 760e6, "mpt-1b": 1.3e9, "mpt-3b": 2.7e9, "mpt-13b": 13e9,
    "mpt-30b": 30e9, "mpt-70b": 64e9, "megatron-3.6b": 3.6e9, "megatron-7.5b": 7.5e9, "megatron-18b": 18.4e9, "megatron-39b": 39.1e9,
    "megatron-76b": 76.1e9, "megatron-310b": 310.1e9, "nemotron-8b": 8.5e9, "nemotron-15b": 15.6e9, "nemotron-22b": 21.3e9,
    "nemotron-340b": 341e9, "grok-1": 314e9, "transformer-xl-base": 192e6, "transformer-xl-large": 285e6, "transformer-base": 63e6,
    "transformer-big": 211e6, "ssd300": 22.9e6, "opt-66b": 66e9, "opt-175b": 175e9, "falcon-180b": 180e9, "glm-4.5": 355e9, "glm-4.5-air": 106e9, "minimax-m2": 229e9, "minimax-text-01": 456e9,
    "deepseek-67b": 67.4e9, "moonlight-16b-a3b": 15.96e9, "qwen2-57b-a14b": 57.41e9, "chatglm3-6b": 6.24e9, "glm4-9b": 9.4e9, "glm-130b": 130e9,
    "palm-8b": 8.63e9, "palm-62b": 62.5e9, "palm-540b": 540.35e9, "gpt3-5b": 5e9, "gpt3-20b": 20e9, "nemotron-h-8b": 8.1e9,
    "nemotron-h-47b": 46.8e9, "nemotron-h-56b": 56.3e9, "nemotron-nano-9b": 8.89e9, "nemotron-nano-12b": 12.31e9, "nemotron3-super": 120.6e9,
}  # fmt: skip
"""Makers' figures where only two or three digits are published (papers' tables, training scripts' logs)."""


@pytest.mark.parametrize(("name", "count"), ROUNDED.items())
def test_published_figures(name: str, count: float) -> None:
    assert describe(load_model(name), Shape(micro=1, seq=512), PLAIN).parameters == pytest.approx(count, rel=0.02)


def test_every_preset_has_a_published_figure() -> None:
    again = {"llama3.1-8b", "llama3.1-70b"}  # sizes of llama3-8b and -70b
    formula = {"gpt3-40b", "megatron-1.7b", "megatron-145b", "megatron-530b", "megatron-1t"}
    few = {"nemotron-h-4b"}  # one digit
    heads = {"bert-base-squad", "bert-large-squad"}  # BERT with another head
    assert set(models()) - EXACT.keys() - ROUNDED.keys() == again | formula | few | heads


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
    [
        ("qwen3-30b-a3b", 3.3e9),
        ("qwen3-235b-a22b", 22e9),
        ("deepseek-v3", 37e9),
        ("mixtral-8x7b", 12.9e9),
        ("kimi-k2", 32e9),
        ("qwen3.5-397b-a17b", 17e9),
        ("qwen3.5-122b-a10b", 10e9),
    ],
)
def test_active_parameters_as_advertised(name: str, active: float) -> None:
    assert describe(load_model(name), Shape(micro=1, seq=2048), PLAIN).active_parameters == pytest.approx(active, rel=0.03)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", models())
def test_every_preset_is_described(name: str) -> None:
    network = describe(load_model(name), shape_of(name), PLAIN)
    assert network.parameters == sum(block.params for _, block in network.blocks)
    assert network.flops_per_sample > 0


@pytest.mark.parametrize(("name", "forward"), [("resnet50", 4.09e9), ("resnet152", 11.51e9), ("vgg16", 15.47e9), ("vit-b16", 17.56e9)])
def test_images_take_torchvision_multiply_adds(name: str, forward: float) -> None:
    """GFLOPS of torchvision's model pages, which count a multiply-add as one."""
    assert describe(load_model(name), Shape(micro=1, seq=1), PLAIN).flops_per_sample / 6 == pytest.approx(forward, rel=0.01)
