"""This machine's GPUs, from a driver's tool that a test plays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topologies.errors import BadInput
from topologies.load import load_topology
from topologies.nvidia import catalog_key

KNOWN = {
    ("NVIDIA H100 80GB HBM3", 81559): "h100-sxm",
    ("NVIDIA H100 PCIe", 81559): "h100-pcie",
    ("NVIDIA H100 NVL", 95830): "h100-nvl",
    ("NVIDIA H200", 143771): "h200-sxm",
    ("NVIDIA A100-SXM4-80GB", 81920): "a100-sxm-80gb",
    ("NVIDIA A100-SXM4-40GB", 40960): "a100-sxm-40gb",
    ("NVIDIA A100 80GB PCIe", 81920): "a100-pcie-80gb",
    ("Tesla V100-SXM2-32GB", 32768): "v100-sxm2-32gb",
    ("Tesla V100-SXM3-32GB", 32510): "v100-sxm3-32gb",  # the DGX-2's, of 350 W
    ("Tesla V100-SXM3-32GB-H", 32510): "v100-sxm3-32gb-450w",
    ("Tesla V100-DGXS-32GB", 32510): "v100-sxm2-32gb",
    ("NVIDIA TITAN RTX", 24576): "titan-rtx",
    ("NVIDIA GH200 480GB", 97871): "gh200-96gb",
    ("NVIDIA RTX 6000 Ada Generation", 49140): "rtx-6000-ada",
    ("NVIDIA L40S", 46068): "l40s",
    ("NVIDIA A10G", 23028): "a10g",
    ("NVIDIA GeForce RTX 4090", 24564): "rtx-4090",
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887): "rtx-pro-6000",
    ("NVIDIA B200", 183359): "b200-sxm",
    ("NVIDIA GB200", 189471): "gb200",
}
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-23\t0\nGPU1\tNV18\t X \t0-23\t0\n"


def fake(place: Path, matrix: str = MATRIX, names: str = "NVIDIA H200, 143771\\nNVIDIA H200, 143771\\n", code: int = 0) -> None:
    tool = place / "nvidia-smi"
    (place / "matrix").write_text(matrix)
    tool.write_text(f'#!/bin/sh\nif [ "$1" = topo ]; then cat {place}/matrix; else printf "{names}"; fi\nexit {code}\n')
    tool.chmod(0o755)


@pytest.mark.parametrize(("said", "key"), list(KNOWN.items()))
def test_drivers_names_are_catalog_keys(said: tuple[str, int], key: str) -> None:
    assert catalog_key(*said) == key


@pytest.mark.parametrize(
    ("said", "near"),
    [
        (("NVIDIA GeForce RTX 2080", 8192), "its rtx-2080-ti has 11264 MiB, this one 8192"),
        (("Quadro RTX 6000", 24576), "its rtx-6000-ada has"),
        (("NVIDIA GH200 144G HBM3e", 147456), "its gh200-96gb has"),
        (("NVIDIA TITAN V", 12288), "its titan-rtx has"),
        (("NVIDIA GeForce RTX 3080 Laptop GPU", 8192), "its rtx-3080 has"),
    ],
)
def test_a_number_in_the_name_is_not_enough(said: tuple[str, int], near: str) -> None:
    """A device with another memory is another device: its rates are not those of the catalog's."""
    with pytest.raises(BadInput, match=rf"is not in the catalog \({near}"):
        catalog_key(*said)


def test_hosts_whose_matrix_shows_no_nic_are_joined_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists InfiniBand's and RoCE's alone; clouds and containers have others."""
    fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    both = load_topology("2x this-machine:1")
    assert both.gpus == 2 and both.path(0, 1).rate == pytest.approx(1.25e9)
    assert load_topology("this-machine").path(0, 1).kind == "NVL", "inside a host nothing changes"


GENOA = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9454 48-Core Processor\n"
RAPIDS = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n"
MILAN = GENOA.replace("17", "1").replace("9454 48", "7763 64")


@pytest.mark.parametrize(("said", "base"), [(GENOA, "epyc-9654"), (MILAN, "epyc-7543"), (RAPIDS, "xeon-8480c"), ("", "epyc-7742")])
@pytest.mark.parametrize("matrix", [MATRIX, ""])
def test_the_cpu_is_the_one_that_the_system_names(
    said: str, base: str, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's matrix names none: host times would be those of a CPU of 2019, a fifth longer than on Genoa."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("topologies.thismachine._cpuinfo", lambda: said)
    fake(
        tmp_path, matrix or "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\t\n", "NVIDIA H100 80GB HBM3, 81559\n" * (2 if matrix else 1)
    )
    found = load_topology("this-machine").host(0)
    assert found.name == base
    assert not matrix or found.cores == 24, "cores are those of the affinity"


def test_two_kinds_of_gpus_in_one_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = MATRIX.replace("NV18", "PHB")
    fake(tmp_path, matrix, "NVIDIA GeForce RTX 3090, 24576\\nNVIDIA GeForce RTX 4090, 24564\\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = load_topology("this-machine")
    assert [found.device(rank).name for rank in range(2)] == ["rtx-3090", "rtx-4090"]


def test_one_gpu_needs_no_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose driver tool cannot tell who hangs on what."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake(tmp_path, "", "NVIDIA H100 80GB HBM3, 81559\\n")
    found = load_topology("this-machine")
    assert (found.gpus, found.device(0).name) == (1, "h100-sxm")
    fake(tmp_path, "")
    with pytest.raises(BadInput, match="no header line with GPU0"):
        load_topology("this-machine")


def test_a_machine_with_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = load_topology("this-machine")
    assert (found.kind, found.gpus, found.name) == ("cuda", 2, "this-machine")
    assert found.path(0, 1).kind == "NVL"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_topology("this-machine").kind == "cpu"


@pytest.mark.parametrize(
    ("said", "devices"),
    [
        ("1", ("n0/gpu1",)),
        ("3,1", ("n0/gpu3", "n0/gpu1")),
        (" 2 , 0", ("n0/gpu2", "n0/gpu0")),
        ("2,7,0", ("n0/gpu2",)),  # CUDA sees none after the first that is not there
        ("GPU-c,GPU-a1", ("n0/gpu2", "n0/gpu0")),
        ("0,1,2,3", ("n0/gpu0", "n0/gpu1", "n0/gpu2", "n0/gpu3")),
    ],
)
def test_ranks_take_the_gpus_that_cuda_shows(said: str, devices: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = "".join(["\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n", *(_line(at) for at in range(4))])
    fake(tmp_path, matrix, "NVIDIA H200, 143771\\n" * 4)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        tool.read_text().replace("if [", 'if [ "$1" = --query-gpu=uuid ]; then printf "GPU-a1\\nGPU-a2\\nGPU-c3\\nGPU-d4\\n"; elif [', 1)
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    found = load_topology("this-machine")
    assert tuple(found.device_name(rank) for rank in range(found.gpus)) == devices
    assert load_topology("this-machine:1").device_name(0) == devices[0]


def _line(at: int) -> str:
    return f"GPU{at}\t" + "\t".join(" X " if other == at else "NV18" for other in range(4)) + "\t0-23\t0\n"


@pytest.mark.parametrize("said", ["", "-1", "9", "NoDevFiles"])
def test_where_cuda_shows_no_gpu_the_machine_is_its_cpu(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert load_topology("this-machine").kind == "cpu"


def test_slices_of_a_gpu_are_not_its_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(BadInput, match="slice of a GPU"):
        load_topology("this-machine")


def test_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n", "NVIDIA L4, 23034\\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = load_topology("this-machine")
    assert (found.kind, found.gpus) == ("cuda", 1)


def test_gpus_that_nobody_knows_and_tools_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake(tmp_path, names="Voodoo Graphics, 4\\n")
    with pytest.raises(BadInput, match="is not in the catalog"):
        load_topology("this-machine")
    fake(tmp_path, code=9)
    assert load_topology("this-machine").kind == "cpu"


def test_a_tool_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF broken")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(BadInput, match=r"does not answer .*CUDA_VISIBLE_DEVICES= to use the CPU alone"):
        load_topology("this-machine")
