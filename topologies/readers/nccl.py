"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`) -> a machine's document.

Elements: `<system>` of `<cpu numaid affinity arch vendor familyid modelid>`, nested `<pci busid class link_speed
link_width>`, on a GPU `<gpu dev sm rank>` with `<nvlink target count tclass>`, on a NIC `<nic>` with `<net speed>`
(NCCL 2.30.7, src/graph/xml.cc). Files for virtual machines leave out much of it; what is then assumed is noted.
"""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element

from topologies.devices import gpu as catalog_gpu
from topologies.errors import BadInput
from topologies.readers import affinity, parts, pci
from topologies.readers.imported import Imported
from topologies.readers.nvlink import nvlink_table
from topologies.readers.safexml import parse


class Device:
    """A GPU or NIC of the file."""

    def __init__(self, element: Element, parent: str) -> None:
        self.element, self.parent = element, parent
        self.bus = element.get("busid", "").lower()
        self.name = ""

    @property
    def order(self) -> tuple[int, str]:
        """By NCCL's own number where the file has one, then by bus id, as CUDA counts."""
        child = self.element if self.element.tag == "net" else self.element.find(".//gpu")
        child = self.element.find(".//net") if child is None else child
        return (parts.number(child.get("dev", "") if child is not None else ""), self.bus)


class System:
    """The tree of a file: vertices by name, devices in rank order."""

    def __init__(self, cpus: list[Element]) -> None:
        self.notes: list[str] = []
        self.children: dict[str, list[str | Device]] = {}
        self.gpus: list[Device] = []
        self.nics: list[Device] = []
        self.unknown: list[Device] = []
        self.switches: dict[str, Element] = {}
        for cpu, home in zip(cpus, self._homes(cpus), strict=True):
            self._walk(cpu, home)
        self._place_unknown()
        for kind, shelf in (("gpu", self.gpus), ("nic", self.nics)):
            shelf.sort(key=lambda device: device.order)
            for place, device in enumerate(shelf):
                device.name = f"{kind}{place}"

    def _homes(self, cpus: list[Element]) -> list[str]:
        """The vertex of each <cpu> (a NUMA domain), with the sockets above."""
        ids = [parts.number(cpu.get("numaid", ""), place) for place, cpu in enumerate(cpus)]
        of = affinity.sockets(ids, each_own=any(cpu.get("arch") == "arm64" for cpu in cpus))
        whole = len(set(of.values())) == len(of)
        for number in sorted(set(ids)):
            below = self.children.setdefault(f"socket{of[number]}", [])
            if not whole:
                below.append(f"numa{number}")
        return [f"socket{of[number]}" if whole else f"numa{number}" for number in ids]

    def _walk(self, element: Element, parent: str) -> None:
        self.children.setdefault(parent, [])
        for child in element:
            if child.tag == "pci":
                self._pci(child, parent)
            elif child.tag == "nic" and element.tag == "cpu":
                for net in child.findall("net"):
                    self._add(self.nics, Device(net, parent))

    def _pci(self, child: Element, parent: str) -> None:
        cls = child.get("class", "").lower()
        if child.find("pci") is not None or cls.startswith("0x0604"):
            name = f"sw{len(self.switches)}"
            self.switches[name] = child
            self.children[parent].append(name)
            self._walk(child, name)
        elif child.find("gpu") is not None or cls.startswith(("0x0302", "0x0300", "0x1200")):
            self._add(self.gpus, Device(child, parent))
        elif child.find("nic") is not None or cls.startswith("0x02"):
            self._add(self.nics, Device(child, parent))
        elif not cls:
            self._add(self.unknown, Device(child, parent))

    def _add(self, shelf: list[Device], device: Device) -> None:
        shelf.append(device)
        self.children[device.parent].append(device)

    def _place_unknown(self) -> None:
        """Devices without a class: below a switch NICs (AWS writes p5 so), on a root complex GPUs, the NIC last (g5)."""
        loose = [device for device in self.unknown if not device.parent.startswith("sw")]
        loose = loose[: 1 << max(0, len(loose).bit_length() - 1)]
        for device in self.unknown:
            (self.gpus if device in loose else self.nics).append(device)
        if self.unknown:
            self.notes.append("Devices have no class in the file; assumed: NICs below a switch, GPUs and at last a NIC on a CPU.")
        if not self.gpus:
            near = [name for name in self.switches if any(child in self.nics for child in self.children[name])]
            for name in near:
                self._add(self.gpus, Device(Element("pci", {"busid": f"assumed below {name}"}), name))
            if near:
                self.notes.append("The file names no GPU; assumed: one below each switch that has a NIC.")

    def bond(self, kinds: dict[str, object]) -> dict[str, object]:
        """Several equal NICs for each GPU below one switch are used as one with as many ports."""
        found = dict(kinds)
        for below in self.children.values():
            gpus = sum(child in self.gpus for child in below)
            nics = [child for child in below if isinstance(child, Device) and child in self.nics]
            each = len(nics) // gpus if gpus else 0
            key = kinds[nics[0].name] if nics else None
            if each > 1 and len(nics) == each * gpus and isinstance(key, str) and all(kinds[nic.name] == key for nic in nics):
                found |= {nic.name: {"base": key, "count": each} for nic in nics[:gpus]}
                for nic in nics[gpus:]:
                    del found[nic.name]
                    below.remove(nic)
                    self.nics.remove(nic)
        if len(found) < len(kinds):
            self.notes.append(f"{len(kinds)} NICs are entered as {len(found)}: those that serve the same GPU are ports of one.")
        return found

    def tree(self) -> dict[str, list[str]]:
        return {p: [c.name if isinstance(c, Device) else c for c in below] for p, below in self.children.items()}


def read_system(text: str, name: str, gpu: str) -> Imported:
    """A machine from NCCL's XML. `gpu`: the catalog key, where the file does not tell it. Raises `BadInput`."""
    root = parse(text, f"{name}.xml")  # a dump is a file, called as the machine that is made of it
    if root.tag == "graphs":
        from topologies.readers.ncclgraph import read_graphs

        return read_graphs(root, name, gpu)
    if root.tag != "system":
        raise BadInput(f"{name}: the root is <{root.tag[:40]}>, not NCCL's <system>. NCCL writes the file with NCCL_TOPO_DUMP_FILE=FILE")
    cpus = root.findall("cpu")
    if not cpus:
        raise BadInput(f"{name}: the <system> has no <cpu>. NCCL writes the whole machine with NCCL_TOPO_DUMP_FILE=FILE")
    system = System(cpus)
    if not system.gpus:
        raise BadInput(f"{name}: no GPU in the file: no <pci> with class 0x0302.. or 0x0300..")
    return _document(system, cpus, name, gpu)


def _document(system: System, cpus: list[Element], name: str, gpu: str) -> Imported:
    notes = system.notes
    model = catalog_gpu(gpu).name if gpu else parts.model([d.element for d in system.gpus], [d.element for d in system.nics], notes)
    document: dict[str, object] = {"name": name, "source": "NCCL topology XML", "gpu": model}
    if not gpu:
        document |= parts.own_models({device.name: device.element for device in system.gpus}, model)
    document["cpu"] = parts.cpu(cpus, sum(vertex.startswith("socket") for vertex in system.children), model, notes)
    each = max(1, len(system.nics) // len(system.gpus))
    nics = system.bond({device.name: parts.nic(device.element, each, notes) for device in system.nics})
    first = next(iter(nics.values()), "")
    document |= {"nic": first} if isinstance(first, str) and all(kind == first for kind in nics.values()) else {"nics": nics}
    document["tree"] = system.tree()
    links = {device.bus: device.element.find(".//gpu") for device in system.gpus}
    if any(child is not None for child in links.values()):
        document |= nvlink_table({device.bus: device.name for device in system.gpus}, links, model, notes)
    else:
        document |= parts.assumed_nvlink(model, len(system.gpus), notes)
    document |= _rates(system)
    return Imported({key: value for key, value in document.items() if value not in ({}, "")}, tuple(notes))


def _rates(system: System) -> dict[str, object]:
    """PCIe rates of the file: the most frequent of the GPUs for all, single links of GPUs and switches where they differ."""
    up = {child: parent for parent, below in system.children.items() for child in below if isinstance(child, str)}
    pairs = [(device.name, device.parent, device.element) for device in system.gpus]
    pairs += [(name, up[name], element) for name, element in system.switches.items()]
    rates = {a: (b, rate) for a, b, e in pairs if (rate := pci.pcie_rate(e.get("link_speed", ""), e.get("link_width", "")))}
    usual = Counter(rate for name, (_, rate) in rates.items() if name.startswith("gpu")).most_common(1)
    if not usual:
        return {}
    default = usual[0][0]
    links: dict[str, object] = {}
    for a, (b, rate) in rates.items():
        if rate != default:
            links |= {link: {"rate": f"{rate / 1e9:g} GB/s"} for link in (f"{a}>{b}", f"{b}>{a}")}
    return {"pcie": f"{default / 1e9:g} GB/s", "links": links}
