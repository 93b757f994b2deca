"""What has another name elsewhere, or a stated rate: models of the same layers, networks that no machine has, sharding said by a framework's name."""

from __future__ import annotations

import pytest

from sim.accuracy.architecture.kin import with_kin
from sim.accuracy.architecture.models import model_of
from sim.accuracy.architecture.names import shipped_model
from sim.accuracy.rows.eager import eager_of
from sim.accuracy.rows.machines import machine_of
from sim.accuracy.rows.networks import network_of
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.steady import step_seconds
from sim.framework.framework import load_framework
from sim.model.load import model_from
from sim.model.network import describe
from sim.model.parts import Shape
from tests.null.accuracy.test_spellings import row
from topologies.errors import Refused
from topologies.hardware import Gpu
from topologies.load import load_topology

SILENT = {
    "n_layers": None,
    "hidden": None,
    "n_heads": None,
    "n_kv_heads": None,
    "ffn_hidden": None,
    "vocab_size": None,
    "model_type": "",
    "activation": "",
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("GPT-3 XL", "gpt3-1.3b"), ("Qwen3-235B", "qwen3-235b-a22b"), ("Qwen3 30B", "qwen3-30b-a3b"), ("DeepSeek-V2.5", "deepseek-v2"),
        ("DeepSeek-Coder-V2-Lite", "deepseek-v2-lite"), ("Nemotron 3 Nano 30B-A3B", "nemotron3-nano"), ("Nemotron-3-Nano-4B", ""), ("DeepSeek-V3 671B", "deepseek-v3"), ("Grok-1 314B", "grok-1"), ("GLM-4.6", "glm-4.5"), ("NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b"), ("Nemotron-H 8B", "nemotron-h-8b"), ("Nemotron-3-Super-120B-A12B", "nemotron3-super"),
        ("GPT-NeoX", "gpt-neox-20b"), ("phi-1_5", "phi-1.5"), ("resnet50d", "resnet50"), ("RN50 v1.5", "resnet50"), ("ResNeXt-50", "resnext50-32x4d"), ("SE-ResNeXt-101", "se-resnext101-32x4d"),
        ("ConvNeXt-T", "convnext-tiny"), ("Stable Diffusion v1.5", "sd-1.5"), ("Stable Diffusion 2", "sd-2-base"), ("SD 2.1", "sd-2.1"), ("SDXL", "sdxl"), ("FLUX.1-dev", "flux.1-dev"), ("Flux1 schnell", "flux.1-schnell"), ("wav2vec 2.0 base", "wav2vec2-base"), ("HuBERT-large", "wav2vec2-large"), ("Inception V3", "inception-v3"), ("AlexNet", "alexnet"),
        ("BLOOM-7.1B", "bloom-7b1"), ("Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"), ("LLaVA 1.5 13B", "llava-1.5-13b"), ("BLOOM", "bloom-176b"), ("bloom-560m", "bloom-560m"), ("Qwen3-32B", "qwen3-32b"),
    ],
)  # fmt: skip
def test_names_of_the_same_layers(name: str, found: str) -> None:
    assert shipped_model(name) == found


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("DistilBERT", 66e6), ("ELECTRA-large", 335e6), ("DeBERTa-v3-base", 184e6), ("XLM-RoBERTa-base", 278e6), ("XLM-R XL", 3.5e9), ("ESM2 3B", 2.84e9),
        ("BioNeMo ESM2 650M", 651e6), ("Megatron BERT 3.9B", 3.9e9), ("BART-large", 406e6), ("mBART-50", 611e6), ("Pegasus-large", 568e6), ("NLLB-3.3B", 3.34e9),
        ("M2M-100 418M", 484e6), ("Marian", 74e6), ("phi-1_5", 1.42e9),
    ],
)  # fmt: skip
def test_sizes_by_name_make_the_parameters_that_makers_state(name: str, parameters: float) -> None:
    """Within what is noted: heads, positions, and attention of their own. M2M-100's 418M are without its second use of the vocabulary."""
    spec = model_from(model_of(row(**(SILENT | {"model_name": name, "framework": "TensorFlow"})), []))
    network = describe(spec, Shape(micro=1, seq=128, precision="bf16"), load_framework("pytorch"))
    assert network.parameters == pytest.approx(parameters, rel=0.06)


def test_sizes_that_are_stated_win_over_the_name() -> None:
    stated = row(model_name="DistilBERT", n_layers=4, hidden=512)
    assert with_kin(stated, []) is stated


@pytest.mark.parametrize(
    ("words", "gbits"),
    [
        ("InfiniBand HDR 200 Gb/s", 1600), ("100 GbE", 100), ("10 Gbps Ethernet", 10), ("RoCE 4 x 100 Gb", 400), ("4x HDR 200Gb/s InfiniBand", 800),
        ("50 GB/s per GPU", 3200), ("1.6 Tbps per node", 1600), ("EFA 400 Gbps", 400), ("100GE", 100),
        ("3.2 Tb/s InfiniBand", 3200), ("1600 Gbps RoCE", 1600), ("HDR InfiniBand", 1600), ("HDR100", 800), ("4x NDR200", 800), ("dual-rail EDR", 200),
        ("RoCE 4x400", 1600), ("Slingshot-11 4x200", 800), ("one HDR per node", 200), ("single 100 Gb/s IB", 100), ("800 Gbps", 800), ("one 400 Gb/s NIC per GPU", 3200),
    ],
)  # fmt: skip
def test_a_stated_network_is_the_one_that_is_used(words: str, gbits: float) -> None:
    noted: list[str] = []
    clustered = row(inter_net=words, nodes=2, gpus=16)
    edits = network_of(clustered, "2x dgx-h100:8", noted)
    nics = load_topology("2x dgx-h100:8", edits).cluster.runs[0].machine.nics.values()
    assert sum(nic.rate * 8e-9 for nic in nics) == pytest.approx(3200 if not edits else gbits)
    assert bool(edits) == bool(noted) == (gbits != 3200)


def test_networks_that_say_no_rate_or_the_machines_own_change_nothing() -> None:
    for words in ("", "ConnectX-7", "InfiniBand NDR", "NDR 400 Gb/s per GPU", "8x400G IB", "Omni-Path, 4 links per node"):
        assert network_of(row(inter_net=words), "2x dgx-h100:8", []) == ()
    assert network_of(row(inter_net="100 GbE"), "dgx-h100", []) == network_of(row(inter_net="100 Gb/s"), "2x aws-p4d:8", []) == ()


@pytest.mark.parametrize(
    ("words", "machine", "edits"),
    [
        ("100 GbE", "16x a100-pcie-x8:4", ("nic.rate=100 Gbit/s",)),  # four GPUs below one of its two adapters
        ("4 x 100 Gb/s", "16x dgx-a100:4", ("nic.rate=100 Gbit/s",)),
        ("400 Gb/s", "16x dgx-a100:4", ("nic.rate=100 Gbit/s",)),  # more than a slot of PCIe 4.0 carries
        ("4 x 200 Gb/s", "16x dgx-a100:4", ()),
        ("8 x 200 Gb/s", "16x dgx-a100:4", ()),  # half of a server's GPUs, and what all of it has
    ],
)
def test_a_stated_network_is_that_of_the_adapters_in_use(words: str, machine: str, edits: tuple[str, ...]) -> None:
    assert network_of(row(inter_net=words, gpus=64, gpus_per_node=4, nodes=16), machine, []) == edits


def test_a_slower_network_takes_longer() -> None:
    clustered = {"nodes": 2, "gpus": 16, "n_layers": 2}
    slow, fast = (case_of(row(inter_net=words, **clustered)) for words in ("25 GbE", "8x400G"))
    assert step_seconds(slow.plan, slow.topology, slow.edits)[0] > 2 * step_seconds(fast.plan, fast.topology, fast.edits)[0]


@pytest.mark.parametrize(
    ("words", "gpus", "machine", "name"),
    [
        ("Tesla K80", 8, "a100-pcie-x8", "k80"), ("P100-SXM2-16GB", 8, "dgx1-p100", "p100-sxm2"), ("Tesla P100-PCIE-16GB", 8, "a100-pcie-x8", "p100-pcie"),
        ("MI300A", 4, "alps-gh200", "mi300a"), ("AMD MI300", 8, "mi300x-x8", "mi300x"), ("Grace Hopper", 1, "gh200", "gh200-96gb"), ("V100S-PCIE-32GB", 8, "a100-pcie-x8", "v100-pcie-32gb"),
    ],
)  # fmt: skip
def test_more_gpus_by_their_names(words: str, gpus: int, machine: str, name: str) -> None:
    found, edits = machine_of(row(gpu=words, gpus=gpus, gpus_per_node=None), [])
    device = load_topology(found, edits).device(0)
    assert found == machine and isinstance(device, Gpu) and device.name == name


def test_a_frameworks_name_says_how_it_shards() -> None:
    for name, zero in (("PyTorch FSDP", 3), ("DeepSpeed ZeRO-2", 2), ("HF Accelerate + FSDP2", 3), ("PyTorch (DDP)", 0)):
        assert sharding_of(row(framework=name, sharding=""), 16, "pytorch", [])["zero"] == zero
    assert sharding_of(row(framework="PyTorch FSDP", sharding="DDP"), 16, "pytorch", [])["zero"] == 0


def test_scripts_are_those_of_who_wrote_them() -> None:
    """NVIDIA's BERT bins its sequences and compiles its update; nobody else's does. ResNets of PyTorch 2 update in few kernels."""
    bert = {"model_name": "BERT-large", "model_type": "bert", "date": "2023-05", "precision": "fp16"}
    assert eager_of(row(**bert, source_id="nv-dle"), "pytorch", True, "fp16", []) == "pytorch-apex-jit"
    assert eager_of(row(**bert), "pytorch", True, "fp16", []) == "pytorch"
    picture = {"model_name": "ResNet-50", "model_type": "cnn", "batch_unit": "images"}
    assert eager_of(row(**picture, gpu="A100", date="2021-03"), "pytorch", True, "fp16", []) == "pytorch-native-amp"
    for changes in ({"date": "2023-06"}, {"framework_version": "PyTorch 2.1"}, {"gpu": "H100"}):
        assert eager_of(row(**(picture | {"gpu": "A100"} | changes)), "pytorch", True, "fp16", []) == "pytorch-foreach"
    assert eager_of(row(**picture, framework_version="NGC pytorch 23.05", gpu="A100"), "pytorch", True, "fp16", []) == "pytorch-native-amp"
    for sharding, file in (
        ("data parallel", "pytorch-amp"),
        ("no sharding (data parallel)", "pytorch-amp"),
        ("fully sharded data parallel", "pytorch"),
    ):
        assert eager_of(row(**bert | {"precision": "fp16 AMP", "sharding": sharding}), "pytorch", True, "fp16", []) == file
    large = row(model_name="T5-11B", model_type="encoder-decoder", sharding="")
    assert eager_of(large, "accelerate", True, "bf16", []) == "pytorch"


def test_models_that_are_no_decoders_are_not_sized_as_decoders() -> None:
    """Their parameters are in their names, but not their tokens."""
    for name in ("HunyuanVideo 13B", "Wan 2.1 14B", "CogVideoX-5B", "SD3.5 8B", "Canary 1B", "Parakeet 1.1B", "Video-LLaVA 7B"):
        with pytest.raises(Refused, match="no model of that name"):
            model_of(row(**(SILENT | {"model_name": name})), [])
    assert model_of(row(**(SILENT | {"model_name": "Wanda 7B"})), [])["layers"]


def test_a_vision_language_model_is_no_decoder_of_its_columns() -> None:
    """The columns are its decoder's; the tower comes with the name."""
    seen = case_of(row(**SILENT | {"model_name": "Qwen2.5-VL-7B", "n_layers": 28, "hidden": 3584, "gpus": 8}))
    assert seen.plan.model_name == "qwen2.5-vl-7b"
