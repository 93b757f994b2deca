"""What PCI and CPU identifiers of topology files mean: GPU models, generations, NICs, processors.

Device ids: the PCI ID repository (pci-ids.ucw.cz), vendors 10de, 1002, 1d0f, 15b3.
"""

from __future__ import annotations

import re

GPUS = {
    ("10de", "15f8"): "p100-pcie",
    ("10de", "1bb3"): "p4",
    ("10de", "1db1"): "v100-sxm2-16gb",
    ("10de", "1db4"): "v100-pcie-16gb",
    ("10de", "1db5"): "v100-sxm2-32gb",
    ("10de", "1db6"): "v100-pcie-32gb",
    ("10de", "1db8"): "v100-sxm3-32gb",
    ("10de", "1eb8"): "t4",
    ("10de", "20b0"): "a100-sxm-40gb",
    ("10de", "20b2"): "a100-sxm-80gb",
    ("10de", "20b3"): "a100-sxm-64gb",
    ("10de", "20b5"): "a100-pcie-80gb",
    ("10de", "20f1"): "a100-pcie-40gb",
    ("10de", "2235"): "a40",
    ("10de", "2236"): "a10",
    ("10de", "2237"): "a10g",
    ("10de", "2204"): "rtx-3090",
    ("10de", "2684"): "rtx-4090",
    ("10de", "26b9"): "l40s",
    ("10de", "27b8"): "l4",
    ("10de", "2321"): "h100-nvl",
    ("10de", "2324"): "h800-sxm",
    ("10de", "2329"): "h20",
    ("10de", "2330"): "h100-sxm",
    ("10de", "2331"): "h100-pcie",
    ("10de", "2335"): "h200-sxm",
    ("10de", "233b"): "h200-nvl",
    ("10de", "2901"): "b200-sxm",
    ("10de", "2941"): "gb200",
    ("10de", "2b85"): "rtx-5090",
    ("10de", "2bb5"): "rtx-pro-6000",
    ("10de", "3182"): "b300-sxm",
    ("10de", "31c2"): "gb300",
    ("1002", "738c"): "mi100",
    ("1002", "7408"): "mi250x-gcd",
    ("1002", "740f"): "mi210",
    ("1002", "74a1"): "mi300x",
    ("1002", "74a5"): "mi325x",
}
EFA = {"efa0": "efa-100g", "efa1": "efa-100g", "efa2": "efa-200g", "efa3": "efa-400g"}
SWITCHED = {18: (5, 4, 4, 5), 12: (2, 2, 2, 2, 2, 2), 6: (1, 1, 1, 1, 1, 1), 8: (2, 2, 2, 2)}
"""NVLinks of a GPU -> links to each NVSwitch chip, where a file tells only the sum: HGX H100, HGX A100, DGX-2, H800."""
_BY_GENERATION = {3: ("v100-sxm2-16gb", "ib-edr-100g"), 4: ("a100-sxm-80gb", "ib-hdr-200g"), 5: ("h100-sxm", "ib-ndr-400g")}
_BY_SM = {"60": "p100-pcie", "61": "p4", "70": "v100-sxm2-16gb", "75": "t4", "80": "a100-sxm-80gb", "86": "a10", "89": "l40s"}
_BY_SM |= {"90": "h100-sxm", "100": "b200-sxm", "103": "b300-sxm", "107": "vr200", "120": "rtx-pro-6000"}
_USABLE = {1: 3.2, 2: 6.4, 3: 12.5, 4: 25.0, 5: 53.0, 6: 105.0}
"""GB/s per direction that x16 of a PCIe generation carries (as in the GPUs' catalog files; 1, 2 and 6 scaled from NCCL's table)."""
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def pcie_generation(speed: str) -> int:
    """PCIe generation of "16.0 GT/s PCIe"; 0 where the text says none."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*GT/s", speed)
    return _GENERATION.get(float(match.group(1)), 0) if match else 0


def pcie_rate(speed: str, width: str) -> float:
    """Usable bytes per second of a link; 0.0 where the file leaves it open (NCCL then takes x16 gen3)."""
    gen = pcie_generation(speed)
    lanes = int(width) if width.isdecimal() and len(width) <= 3 else 0
    return _USABLE[gen] * 1e9 * lanes / 16 if gen and 0 < lanes <= 32 else 0.0


def gpu_by_id(vendor: str, device: str) -> str:
    """Catalog key of a PCI device, "" if unknown."""
    return GPUS.get((vendor.lower().removeprefix("0x"), device.lower().removeprefix("0x")), "")


def gpu_by_sm(sm: str) -> str:
    """The most common GPU of a compute capability, "" if unknown."""
    return _BY_SM.get(sm, "")


def usual(gen: int) -> tuple[str, str]:
    """(GPU, NIC) that machines of a PCIe generation usually have."""
    return _BY_GENERATION[min(max(gen, 3), 5)]


def nic_by_speed(mbit: int, infiniband: bool) -> str:
    """Catalog key of a NIC by its speed in Mbit/s, "" where none has it."""
    names = {100_000: "ib-edr-100g", 200_000: "ib-hdr-200g", 400_000: "ib-ndr-400g", 800_000: "ib-xdr-800g"}
    ethernet = {10_000: "ethernet-10g", 25_000: "ethernet-25g", 100_000: "roce-100g", 200_000: "roce-200g", 400_000: "roce-400g"}
    return (names if infiniband else ethernet).get(mbit, "")


_GENOA = frozenset(str(number) for number in (*range(0x10, 0x20), *range(0x60, 0xB0)))
"""Models of AMD's family 19h that are Zen 4, Genoa among them; the others are Zen 3 (Linux, arch/x86/kernel/cpu/amd.c, bsp_init_amd)."""


def cpu_by_id(arch: str, vendor: str, family: str, model: str) -> str:
    """The catalog's CPU of the same generation; of a generation that it does not have, a recent one of the same vendor; "" for other vendors. NCCL writes
    AMD families as 143 (Zen 2) or 175 (Zen 3, Zen 4) too."""
    if arch == "arm64":
        return "grace"
    if vendor == "AuthenticAMD":
        if family in ("25", "175") and model in _GENOA:
            return "epyc-9654"
        return {"23": "epyc-7742", "143": "epyc-7742", "25": "epyc-7543", "175": "epyc-7543"}.get(family, "epyc-9654")
    if vendor == "GenuineIntel":
        known = {"79": "xeon-e5-2698v4", "85": "xeon-8275cl", "143": "xeon-8480c", "207": "xeon-8570", "173": "xeon-6776p"}
        return known.get(model, "xeon-8480c")
    return ""
