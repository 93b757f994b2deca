"""Which GPU, NIC and CPU a topology XML means, from whatever it tells; what is assumed goes to `notes`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from xml.etree.ElementTree import Element

from topologies.devices import gpu as catalog_gpu
from topologies.readers import affinity, pci


def number(text: str, otherwise: int = 0) -> int:
    """A small whole number of an attribute, or `otherwise`."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else otherwise


def model(gpus: list[Element], nics: list[Element], notes: list[str]) -> str:
    """The catalog key of the file's GPUs: by PCI id, else by compute capability, else by PCIe generation."""
    known = Counter(key for e in gpus if (key := pci.gpu_by_id(e.get("vendor", ""), e.get("device", ""))))
    if len(known) > 1:
        notes.append(f"GPUs of several models: {', '.join(sorted(known))}; each is entered as what it is, where it has as many NVLinks.")
    if known:
        return known.most_common(1)[0][0]
    for element in gpus:
        child = element.find("gpu")
        key = pci.gpu_by_sm(child.get("sm", "")) if child is not None else ""
        if key:
            notes.append(f"GPU model assumed from its compute capability: {key}. Correct `gpu` if it is another.")
            return key
    key = pci.usual(max(pci.pcie_generation(element.get("link_speed", "")) for element in (*gpus, *nics)))[0]
    notes.append(f"The file does not name the GPU; assumed from the PCIe generation: {key}. Correct `gpu` if it is another.")
    return key


def own_models(gpus: Mapping[str, Element], usual: str) -> dict[str, object]:
    """{"gpus": ...}: those that the file knows as another model than the `usual` one, and that have the NVLinks for its place."""
    known = {name: pci.gpu_by_id(element.get("vendor", ""), element.get("device", "")) for name, element in gpus.items()}
    links = catalog_gpu(usual).nvlink_links
    own = {name: key for name, key in known.items() if key not in ("", usual) and catalog_gpu(key).nvlink_links >= links}
    return {"gpus": own} if own else {}


def cpu(cpus: list[Element], sockets: int, gpu: str, notes: list[str]) -> object:
    """The catalog's CPU of the same generation, with the cores that the affinity masks show. `gpu`: the file's GPUs."""
    first = cpus[0]
    base = pci.cpu_by_id(first.get("arch", ""), first.get("vendor", ""), first.get("familyid", ""), first.get("modelid", ""))
    if not base:
        notes.append("The file does not tell the CPU; epyc-7742 is assumed, with ports of the GPUs' PCIe generation.")
    masks = [affinity.from_mask(element.get("affinity", "")) for element in cpus]
    each = min(affinity.cores(mask) for mask in masks)
    domains = max(len(set(masks)), affinity.count_domains(number(element.get("numaid", "")) for element in cpus))
    count = each * domains // max(1, sockets)
    return entered(base, count, gpu)


def entered(base: str, cores: int, gpu: str) -> object:
    """A CPU of so many cores (0: as the catalog's) as a machine's table has it; one that nobody names ("") is of a usual kind, and its ports are as
    fast as the GPU's: a guess must bound nothing."""
    fields: dict[str, object] = {"cores": cores} if 0 < cores <= 4096 else {}
    rate = catalog_gpu(gpu).pcie
    if not base and rate:
        fields["pcie"] = f"{rate / 1e9:g} GB/s"
    base = base or "epyc-7742"
    return {"base": base, **fields} if fields else base


def nic(element: Element, each: int, notes: list[str]) -> object:
    """A NIC's catalog key or table: by its speed, else by PCI id, else by PCIe generation (`each`: NICs per GPU)."""
    net = element if element.tag == "net" else element.find(".//net")
    infiniband = element.get("class", "").lower().startswith("0x0207")
    speed = net.get("speed", "") if net is not None else ""
    if speed.isascii() and speed.isdecimal() and len(speed) < 8 and int(speed):
        key = pci.nic_by_speed(int(speed), infiniband)
        return key or {
            "name": f"nic-{int(speed)}",
            "rate": f"{int(speed) / 1000:g} Gbit/s",
            "latency": "1 us",
            "source": "speed from the file",
        }
    efa = pci.EFA.get(element.get("device", "").lower().removeprefix("0x"))
    if efa:
        return efa
    usual = pci.usual(pci.pcie_generation(element.get("link_speed", "")))[1]
    # NICs that share a GPU's switch share its lanes too: four below a gen5 switch have 100G each (AWS p5).
    gbit = int(usual.rsplit("-", 1)[1].removesuffix("g")) // each
    key = pci.nic_by_speed(gbit * 1000, infiniband) or usual
    note = f"The file gives NICs no speed; assumed from the PCIe generation: {key}."
    if note not in notes:
        notes.append(note)
    return key


def assumed_nvlink(key: str, gpus: int, notes: list[str]) -> dict[str, object]:
    """Files for virtual machines do not show NVLink: boards of four SXM parts join every two of them (HGX A100 and H100 4-GPU), larger ones have
    NVSwitches."""
    links = catalog_gpu(key).nvlink_links
    if gpus <= 2 or "sxm" not in key or key.startswith("v100-sxm2") or links not in pci.SWITCHED:
        return {}
    if gpus == 4 and links % 3 == 0:
        notes.append(f"The file tells nothing of NVLink; assumed: {links // 3} links between every two of the four GPUs.")
        return {"nvlink": {"mesh": "all"}}
    notes.append(f"The file tells nothing of NVLink; assumed: all {links} links of each GPU go to NVSwitches.")
    return {"nvlink": {"switch": list(pci.SWITCHED[links])}}
