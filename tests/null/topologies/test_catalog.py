"""The catalog: every entry loads, is complete, names its source, and agrees with figures printed elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from topologies.devices import cpu, gpu, nic, shelf
from topologies.errors import BadInput, UnknownName
from topologies.load import gpus, load_topology, machines
from topologies.verbs import of_machine


@pytest.mark.parametrize("name", shelf("gpus"))
def test_every_gpu_is_complete(name: str) -> None:
    found = gpu(name)
    assert found.name == name and found.source and found.sms > 0 and found.clock > 1e8
    assert 8e9 <= found.memory <= 400e9 and 1e11 <= found.bandwidth <= 2.2e13 and found.pcie >= 12e9
    assert found.flops["fp32"] > 1e12 and all(rate > 0 for rate in found.flops.values())
    assert (found.nvlink > 0) == (found.nvlink_links > 0)


@pytest.mark.parametrize(
    ("name", "nominal"),
    [("h100-sxm", 80), ("a100-sxm-40gb", 40), ("h200-sxm", 141), ("b300-sxm", 288), ("l40s", 48), ("a10g", 24), ("t4", 16)],
)
def test_a_program_never_has_all_of_the_nominal_memory(name: str, nominal: int) -> None:
    """The driver keeps about a percent, ECC on GDDR a sixteenth."""
    assert 0.91 * nominal < gpu(name).memory / 2**30 < 0.995 * nominal


@pytest.mark.parametrize("name", shelf("gpus"))
def test_vector_peak_is_no_more_than_units_times_clock(name: str) -> None:
    """128 (Kepler: 192, Volta to Ampere GA100: 64) FP32 lanes per SM and two FLOP per lane; AMD entries give their matrix cores' rate."""
    found = gpu(name)
    lanes = {"sm37": 192, "sm60": 64, "sm70": 64, "sm75": 64, "sm80": 64}.get(found.arch, 128 if found.arch.startswith("sm") else 256)
    assert found.flops["fp32"] <= 2 * lanes * found.sms * found.clock * 1.12


@pytest.mark.no_cover
@pytest.mark.parametrize("name", machines())
def test_every_machine_joins_all_its_ranks(name: str) -> None:
    found = load_topology(name)
    last = found.gpus - 1
    assert found.name == name and found.nodes == 1 and found.symmetric
    assert found.machine(0).source
    for a, b in ((0, 1), (1, 0), (0, last), (last, 0)) if last else ():
        path = found.path(a, b)
        assert path.rate > 0 and path.latency > 0 and path.links
        assert all(found.rates[link] >= path.rate for link in path.links)
    assert found.host_path(0, True).rate > 0 and found.cores(0) > 0 and found.disk(0).read > 0


def test_every_cpu_and_nic_has_a_source() -> None:
    assert all(cpu(name).source and cpu(name).bandwidth > 1e10 and cpu(name).flops["fp32"] > 1e10 for name in shelf("cpus"))
    assert all(nic(name).source and nic(name).rate > 1e8 for name in shelf("nics"))


def test_issue_names_exist() -> None:
    assert {"v100-sxm2-16gb", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "mi250x-gcd", "mi300x"} <= set(
        gpus()
    )
    assert {"dgx1-v100", "dgx2-v100", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "aws-p4d", "aws-p5"} <= set(machines())
    assert {"this-machine", "cpu-host", "rtx-3090-x2", "rtx-4090-x8", "gcp-a3-mega", "azure-nd-h100-v5"} <= set(machines())


@pytest.mark.parametrize(
    ("name", "kind", "rate", "nic"),
    [
        ("dgx1-v100", "NVL", 25e9, 6.25e9),
        ("dgx2-v100", "NVL", 150e9, 6.25e9),
        ("dgx-a100", "NVL", 300e9, 25e9),
        ("dgx-h100", "NVL", 450e9, 50e9),
        ("dgx-b200", "NVL", 900e9, 50e9),
        ("gb200-nvl72", "NVL", 900e9, 50e9),
        ("aws-p5", "NVL", 450e9, 50e9),
        ("aws-p4d", "NVL", 300e9, 6.25e9),
        ("mi300x-x8", "NVL", 64e9, 50e9),
        ("mi355x-x8", "NVL", 76.8e9, 50e9),
        ("vr200-nvl72", "NVL", 1800e9, 200e9),
        ("a100-pcie-x8", "PIX", 25e9, 6.25e9),
        ("jean-zay-a100", "NVL", 300e9, 2.6875e9),
        ("dlperf-v100", "NVL", 25e9, 1.5625e9),
    ],
)
def test_machines_as_their_makers_describe_them(name: str, kind: str, rate: float, nic: float) -> None:
    """Neighbours' link and each rank's share of the NICs, in bytes/s per direction."""
    found = load_topology(name)
    use = found.nic_of(0)
    assert found.path(0, 1).kind == kind and found.path(0, 1).rate == pytest.approx(rate)
    assert use is not None and use.rate == pytest.approx(nic)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean dgx-h100") as caught:
        load_topology("dgx-h10")
    assert "dgx-h100" in caught.value.near
    with pytest.raises(UnknownName, match="h100-sxm"):
        gpu("h100-smx")
    with pytest.raises(BadInput, match=r"one of your own is a table in the file of its machine, \[gpu\] with base"):
        load_topology("dgx-h100", ("gpu=mine.toml",))


def test_a_name_is_no_path() -> None:
    for name in ("../machines/dgx-h100", "..", "/etc/passwd"):
        with pytest.raises(UnknownName):
            gpu(name)


def test_loading_a_large_cluster_imports_neither_networkx_nor_numpy() -> None:
    code = (
        "import sys; from topologies.load import load_topology; t = load_topology('2048x dgx-h100', ('oversubscription=2',)); t.path(0, 9000);"
        "print([m for m in ('networkx', 'numpy', 'plotly', 'torch', 'simpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "[]"


def test_this_machine_tells_what_the_system_knows_and_no_more() -> None:
    found = load_topology("this-machine")
    assert found.kind == "cpu" and found.host(0).flops == {} and found.host(0).bandwidth == 0
    assert found.cores(0) >= 1 and found.gpus == 64
    calibrated = load_topology("this-machine", ("cpu.bandwidth=18 GB/s", "cpu.flops.fp32=50 GFLOP/s"))
    assert calibrated.host(0).bandwidth == 18e9 and calibrated.host(0).flops == {"fp32": 50e9}
    assert calibrated.path(0, 64 - 64 % max(1, len(found.sockets(0))) - len(found.sockets(0))).rate == pytest.approx(9e9)


def test_grace_hopper_reaches_its_gpu_over_c2c() -> None:
    """A GH200's host memory is 450 GB/s away, not a PCIe link; on Alps three other GPUs are six NVLinks of 25 GB/s away each."""
    for name in ("gh200", "alps-gh200"):
        path = load_topology(name).host_path(0, True)
        assert (path.kind, path.rate) == ("C2C", 360e9)
    alps = load_topology("2x alps-gh200")
    assert [alps.path(0, rank).rate for rank in (1, 2, 3, 4)] == [150e9, 150e9, 150e9, 25e9]


def test_cards_have_tensor_cores_for_tf32_where_their_makers_say() -> None:
    """RTX PRO 6000: 251.9 TFLOP/s dense; A6000 and 6000 Ada: half of their bf16."""
    assert [round(gpu(name).flops["tf32"] / 1e12) for name in ("rtx-pro-6000", "rtx-a6000", "rtx-6000-ada")] == [252, 77, 182]


@pytest.mark.parametrize(
    ("name", "told"),
    [("rtx-4090", "These have it: rtx-4090-x4, rtx-4090-x8"), ("t4", "--on l4-x8 --set gpu=t4"), ("a10", "gpu = .a10. in")],
)
def test_a_gpu_for_a_machine_says_where_it_goes(name: str, told: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' is a GPU, not a machine. .*{told}"):
        load_topology(f"2x {name}")


@pytest.mark.parametrize("said", ["gpus = 2", "gpus = { count = 2 }", "gpu_count = 2"])
def test_a_number_of_gpus_is_told_where_it_is_said(said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'base = "l4-x8"\n{said}\n')
    with pytest.raises(BadInput, match=r'How many GPUs there are .*--on "FILE\.toml:2"'):
        load_topology(file)
    file.write_text('base = "l4-x8"\n')
    assert load_topology(f"{file}:2").gpus == 2
    with pytest.raises(BadInput, match=r'--on "FILE\.toml:2"'):
        of_machine(["gpus=2"])
