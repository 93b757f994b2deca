"""Rows' GPUs and nodes, however spelled, are boards and machines of the catalog."""

from __future__ import annotations

import pytest

from sim.accuracy.rows.machines import machine_of, on_nodes
from sim.accuracy.rows.plans import case_of
from tests.null.accuracy.test_spellings import row
from topologies.errors import Refused
from topologies.hardware import Gpu
from topologies.load import load_topology


@pytest.mark.parametrize(
    ("words", "machine", "gpu"),
    [
        ("H100-SXM5-80GB", "dgx-h100", "h100-sxm"), ("h100_pcie", "h100-pcie-x8", "h100-pcie"), ("H100 NVL", "h100-nvl-x8", "h100-nvl"), ("H200-NVL", "h200-nvl-x8", "h200-nvl"),
        ("H800", "hgx-h800", "h800-sxm"), ("H20", "dgx-h100", "h20"), ("H200 SXM 141GB", "dgx-h200", "h200-sxm"), ("GH200", "2x alps-gh200:4", "gh200-96gb"), ("MI355X", "mi355x-x8", "mi355x"), ("RTX A6000", "rtx-4090-x8", "rtx-a6000"), ("A30", "a100-pcie-x8", "a30"), ("L40", "l40s-x8", "l40"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-4090-x8", "rtx-6000-ada"),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100-40gb", "a100-sxm-40gb"), ("A100-40G", "dgx-a100-40gb", "a100-sxm-40gb"), ("a100_40g", "dgx-a100-40gb", "a100-sxm-40gb"), ("A100-PCIE-40GB", "a100-pcie-x8", "a100-pcie-40gb"),
        ("A100 PCIe 80GB", "a100-pcie-x8", "a100-pcie-80gb"), ("A800", "dgx-a100", "a800-sxm-80gb"), ("Tesla V100-SXM2-32GB", "dgx1-v100-32gb", "v100-sxm2-32gb"),
        ("V100-PCIE-16GB", "a100-pcie-x8", "v100-pcie-16gb"), ("AMD Instinct MI300X", "mi300x-x8", "mi300x"), ("NVIDIA GeForce RTX 4090", "rtx-4090-x8", "rtx-4090"),
        ("GB200 NVL72", "gb200-nvl72", "gb200"), ("DGX B300", "dgx-b300", "b300-sxm"), ("T4", "l4-x8", "t4"), ("A40", "l40s-x8", "a40"), ("A10", "l40s-x8", "a10"),
        ("RTX 3090", "rtx-4090-x8", "rtx-3090"), ("H800 PCIe", "h100-pcie-x8", "h100-pcie"), ("A800 PCIe", "a100-pcie-x8", "a100-pcie-80gb"), ("L20", "l40s-x8", "l20"),
        ("RTX A5000", "rtx-4090-x8", "rtx-a5000"), ("GeForce RTX 2080 Ti", "rtx-4090-x8", "rtx-2080-ti"), ("Quadro RTX 8000", "rtx-4090-x8", "rtx-8000"),
        ("TITAN RTX", "rtx-4090-x8", "titan-rtx"), ("P40", "l4-x8", "p40"), ("Tesla P4", "l4-x8", "p4"), ("GTX 1080 Ti", "rtx-4090-x8", "gtx-1080-ti"),
        ("RTX 3080", "rtx-4090-x8", "rtx-3080"), ("RTX 4080", "rtx-4090-x8", "rtx-4080"),
    ],
)  # fmt: skip
def test_gpus_by_their_names(words: str, machine: str, gpu: str) -> None:
    name, edits = machine_of(row(gpu=words, gpus=8), [])
    device = load_topology(name, edits).device(0)
    assert name == machine and isinstance(device, Gpu) and device.name == gpu


@pytest.mark.parametrize(("words", "memory", "bandwidth"), [("GH200", 96, 4e12), ("GH200 144GB", 144, 4.9e12)])
def test_grace_hopper_has_its_own_memory(words: str, memory: int, bandwidth: float) -> None:
    for gpus, machine in ((1, "gh200"), (4, "alps-gh200"), (16, "4x alps-gh200:4")):
        name, edits = machine_of(row(gpu=words, gpus=gpus, gpus_per_node=None), [])
        device = load_topology(name, edits).device(0)
        assert name == machine and isinstance(device, Gpu) and device.memory == memory << 30 and device.bandwidth == bandwidth


@pytest.mark.parametrize(
    ("gpu", "memory", "system", "machine", "found"),
    [
        ("A100", 80, "a2-ultragpu-8g", "gcp-a2", "a100-sxm-80gb"), ("A100", 40, "a2-highgpu-8g", "gcp-a2", "a100-sxm-40gb"),
        ("A100", 80, "ND96amsr_A100_v4", "azure-nd-a100-v4", "a100-sxm-80gb"), ("A100", 80, "ND A100 v4", "azure-nd-a100-v4", "a100-sxm-80gb"),
        ("H100", 80, "Standard_ND96isr_H100_v5", "azure-nd-h100-v5", "h100-sxm"), ("H200", 141, "p5e.48xlarge", "aws-p5en", "h200-sxm"),
        ("B200", 180, "p6-b200.48xlarge", "aws-p6-b200", "b200-sxm"), ("A100", None, "ND96asr_v4", "azure-nd-a100-v4", "a100-sxm-40gb"),
        ("A100", None, "Standard_ND96amsr_A100_v4", "azure-nd-a100-v4", "a100-sxm-80gb"), ("A100", 40, "Azure", "azure-nd-a100-v4", "a100-sxm-40gb"),
        ("H100", 80, "GCP a3-highgpu-8g", "gcp-a3-high", "h100-sxm"), ("H100", 80, "GCP, GPUDirect-TCPX", "gcp-a3-high", "h100-sxm"), ("H100", 80, "GCP, GPUDirect-TCPXO", "gcp-a3-mega", "h100-sxm"),
        ("H100", 80, "Google Cloud A3 Mega", "gcp-a3-mega", "h100-sxm"), ("H200", 141, "Google Cloud A3 Ultra", "gcp-a3-ultra", "h200-sxm"), ("H200", 141, "A3 Ultra", "gcp-a3-ultra", "h200-sxm"),
    ],
)  # fmt: skip
def test_clouds_by_the_names_of_their_machines(gpu: str, memory: int | None, system: str, machine: str, found: str) -> None:
    name, edits = machine_of(row(gpu=gpu, gpu_mem_gb=memory, system=system, gpus=8), [])
    device = load_topology(name, edits).device(0)
    assert name == machine and isinstance(device, Gpu) and device.name == found


@pytest.mark.parametrize(
    "words", ["RTX 3080 Ti", "GeForce RTX3090Ti", "RTX 4080 SUPER", "RTX 4090 D", "NVIDIA RTX 4090 Laptop GPU", "RTX 2080 Super"]
)
def test_a_card_is_not_its_smaller_kin(words: str) -> None:
    with pytest.raises(Refused, match="is another"):
        machine_of(row(gpu=words, gpus=1), [])


def test_a_v100s_is_faster_than_a_v100() -> None:
    """NVIDIA's data sheet: 130 and 16.4 TFLOP/s, 1134 GB/s."""
    name, edits = machine_of(row(gpu="V100S-PCIE-32GB", gpus=8), [])
    device = load_topology(name, edits).device(0)
    assert isinstance(device, Gpu) and device.bandwidth == 1134e9 and device.clock == 1597e6
    assert device.flops["fp16"] == pytest.approx(130e12, rel=0.01) and device.flops["fp32"] == pytest.approx(16.4e12, rel=0.02)


def test_a_later_h20_has_its_own_memory() -> None:
    for words, memory in (("H20-3e", 141), ("H20 141GB", 141), ("H20", 96)):
        name, edits = machine_of(row(gpu=words, gpus=8), [])
        assert load_topology(name, edits).device(0).memory == memory << 30


def test_eight_cards_are_one_server_unless_nodes_are_told() -> None:
    for card in ("RTX 3090", "RTX 5090"):
        assert machine_of(row(gpu=card, gpus=8, gpus_per_node=None), [])[0] == "rtx-4090-x8"
    assert machine_of(row(gpu="RTX 3090", gpus=8, gpus_per_node=4, nodes=2), [])[0] == "2x rtx-3090-x4:4"


def test_a_module_of_two_devices_counts_as_two() -> None:
    """Four MI250 of 128 GB a server are eight devices of 64 GB, as PyTorch counts them; rows that count so are left alone."""
    modules = case_of(row(gpu="AMD MI250", gpu_mem_gb=128, gpus=4, gpus_per_node=4, dp=4))
    assert (modules.plan.world, modules.topology) == (8, "frontier-mi250x") and any("two devices" in word for word in modules.assumed)
    assert case_of(row(gpu="MI250X", gpu_mem_gb=64, gpus=16)).plan.world == 16


@pytest.mark.parametrize(
    ("cells", "machine"),
    [
        ({"gpu": "A100", "gpu_form": "SXM4", "intra_net": "NVLink3; PCIe Gen4 to the host"}, "dgx-a100"),
        ({"gpu": "H100", "gpu_form": "SXM5", "inter_net": "NDR, PCIe Gen5 adapters"}, "dgx-h100"),
        ({"gpu": "H200", "gpu_form": "SXM", "intra_net": "NVL switch"}, "dgx-h200"),
        ({"gpu": "A100", "intra_net": "NVSwitch (no PCIe)"}, "dgx-a100"),
        ({"gpu": "A100-PCIE-80GB", "system": "HGX"}, "a100-pcie-x8"),
        ({"gpu": "H100", "intra_net": "PCIe Gen5, NVLink bridges"}, "h100-pcie-x8"),
    ],
)
def test_boards_on_sockets_have_pcie_to_their_hosts_alone(cells: dict[str, str], machine: str) -> None:
    blank = {"gpu_form": "", "system": "", "intra_net": "", "inter_net": ""}
    assert machine_of(row(**(blank | {"gpus": 8, "nodes": 1} | cells)), [])[0] == machine


def test_nodes_hold_what_their_machine_can() -> None:
    noted: list[str] = []
    assert machine_of(row(gpus=64, gpus_per_node=16), noted)[0] == "8x dgx-h100:8" and any("16 GPUs per node" in word for word in noted)
    assert machine_of(row(gpus=16, gpus_per_node=None, nodes=4), [])[0] == "4x dgx-h100:4"
    assert machine_of(row(gpu="RTX 3090", gpus=4, gpus_per_node=4), []) == ("rtx-3090-x4", ())


def test_nodes_that_do_not_hold_the_gpus_are_as_many_as_do() -> None:
    noted: list[str] = []
    assert on_nodes(row(gpus=16, nodes=2, gpus_per_node=4), noted).nodes == 4 and noted == ["2 nodes of 4 GPUs do not hold 16: 4 nodes"]
    assert on_nodes(row(gpus=16, nodes=4, gpus_per_node=8), noted).nodes == 4 and len(noted) == 1


def test_gpus_outside_the_catalog_are_refused_by_name() -> None:
    for name in ("TPU v5e", "Gaudi2", "A1000"):
        with pytest.raises(Refused, match=name):
            machine_of(row(gpu=name), [])
