"""A matrix of relations -> a machine's document: the tree that prints the same matrix.

PIX, PXB, PHB, NODE, SYS are nested: devices at most PIX apart share a switch, at most PXB a tree of switches, at most
PHB a root complex, at most NODE a NUMA domain. Where a cell shows NVLink it hides the PCIe distance of two GPUs; it is
then taken from a NIC that both are near to, or from the NUMA affinity.
"""

from __future__ import annotations

from collections.abc import Iterable

from topologies.devices import gpu as catalog_gpu
from topologies.readers import affinity, parts
from topologies.readers.imported import Imported
from topologies.readers.matrix import Matrix
from topologies.readers.nvlink import fit

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


class _Tree:
    """Builds the [tree] table from the innermost groups outwards."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.names = {name: f"gpu{i}" for i, name in enumerate(matrix.gpus)} | {name: f"nic{i}" for i, name in enumerate(matrix.nics)}
        self.table: dict[str, list[str]] = {}
        self.counts = {"sw": 0, "root": 0}
        self.levels: dict[tuple[str, str], int] = {}

    def level(self, a: str, b: str) -> int:
        """Index in LEVELS of the PCIe distance of two devices, the smaller of both directions."""
        found = self.levels.get((a, b))
        if found is None:
            found = self.levels[a, b] = self._level(a, b)
        return found

    def _level(self, a: str, b: str) -> int:
        m = self.matrix
        seen = [m.cells.get(pair, "SYS") for pair in ((a, b), (b, a))]
        levels = [LEVELS.index(cell) for cell in seen if cell in LEVELS]
        if levels and not any(cell.startswith("NV") for cell in seen):
            return min(levels)
        shared = [self.level(a, nic) for nic in m.nics if self.level(a, nic) == self.level(b, nic) <= LEVELS.index("PXB")]
        if shared:
            return min(shared)
        known = m.numas.get(a) or m.cpus.get(a, "?")
        return LEVELS.index("NODE") if known == (m.numas.get(b) or m.cpus.get(b, "?")) else LEVELS.index("SYS")

    def groups(self, names: Iterable[str], level: str) -> list[list[str]]:
        """Devices joined by chains of relations up to `level`."""
        limit = LEVELS.index(level)
        left = list(names)
        found = []
        while left:
            group = [left.pop(0)]
            for member in group:
                near = [name for name in left if self.level(member, name) <= limit]
                group += near
                left = [name for name in left if name not in near]
            found.append(sorted(group, key=list(self.names).index))
        return found

    def fresh(self, kind: str, children: list[str]) -> str:
        name = f"{kind}{self.counts[kind]}"
        self.counts[kind] += 1
        self.table[name] = children
        return name

    def below(self, domain: list[str]) -> list[str]:
        """Children of a NUMA domain."""
        found = []
        for complex_ in self.groups(domain, "PHB"):
            parts = [self.switches(part) for part in self.groups(complex_, "PXB")]
            found += [self.fresh("root", parts)] if len(parts) > 1 else parts
        return found

    def switches(self, part: list[str]) -> str:
        """One device, one switch, or a switch of switches."""
        inner = self.groups(part, "PIX")
        if len(inner) == 1:
            return self.names[part[0]] if len(part) == 1 else self.fresh("sw", [self.names[name] for name in part])
        return self.fresh("sw", [self.fresh("sw", [self.names[name] for name in group]) for group in inner])


def infer(matrix: Matrix, name: str, gpu: str) -> Imported:
    """The machine that a matrix shows. `gpu`: the catalog key, which the text never tells. Raises `BadInput`."""
    notes: list[str] = []
    model = catalog_gpu(gpu).name if gpu else _guess(matrix, notes)
    tree = _Tree(matrix)
    domains = [[*matrix.gpus, *matrix.nics]] if matrix.p2p else tree.groups([*matrix.gpus, *matrix.nics], "NODE")
    sockets = _sockets(matrix, domains)
    document: dict[str, object] = {"name": name, "source": "nvidia-smi topo -m", "gpu": model}
    document["cpu"] = _cpu(matrix, model, notes, len(set(sockets)))
    document["tree"] = _assemble(tree, domains, sockets)
    if matrix.nics:
        document |= _nics(matrix, tree, model, notes)
    if matrix.p2p:
        document["p2p"] = "SYS" if all(cell in ("X", "OK") for cell in matrix.cells.values()) else "none"
        notes.append("A matrix of peer access tells no distances; all devices are put on one socket.")
    document |= _nvlink(matrix, model, notes)
    return Imported(document, tuple(notes))


def _assemble(tree: _Tree, domains: list[list[str]], sockets: list[int]) -> dict[str, list[str]]:
    """Sockets, their NUMA domains where they have several, and what is below."""
    homes: dict[str, list[str]] = {f"socket{s}": [] for s in sorted(set(sockets))}
    numas: dict[str, list[str]] = {}
    for place, (domain, socket) in enumerate(zip(domains, sockets, strict=True)):
        children = tree.below(domain)
        if sockets.count(socket) == 1:
            homes[f"socket{socket}"] += children
        else:
            homes[f"socket{socket}"].append(f"numa{place}")
            numas[f"numa{place}"] = children
    return homes | numas | tree.table


def _sockets(matrix: Matrix, domains: list[list[str]]) -> list[int]:
    """The socket of each domain: by NUMA number where it is known, else by the CPU affinity, else the first."""
    printed = [next((matrix.numas[d] for d in domain if matrix.numas.get(d, "").split("-")[0].isdecimal()), "") for domain in domains]
    numbers = [int(text.split("-")[0]) if text else -1 for text in printed]
    if any(number >= 0 for number in numbers):
        of = affinity.sockets(n for n in numbers if n >= 0)
        return [of.get(number, 0) for number in numbers]
    seen = sorted({min(t) for d in domains for g in d if (t := affinity.from_ranges(matrix.cpus.get(g, "")))})
    places = [next((seen.index(min(t)) for g in d if (t := affinity.from_ranges(matrix.cpus.get(g, "")))), 0) for d in domains]
    return [place * 2 // max(2, len(seen)) for place in places]


def _cpu(matrix: Matrix, gpu: str, notes: list[str], sockets: int) -> object:
    notes.append(
        "The text does not name the CPU; epyc-7742 is entered, with the cores that the affinity shows and ports of the GPUs' PCIe generation."
    )
    shown = {text: affinity.cores(affinity.from_ranges(text)) for text in matrix.cpus.values()}
    numas = [int(text) for text in matrix.numas.values() if text.isdecimal()]
    domains = max(len(shown), affinity.count_domains(numas) if numas else 1)
    return parts.entered("", min(shown.values(), default=0) * domains // sockets, gpu)


def _guess(matrix: Matrix, notes: list[str]) -> str:
    counts = {int(cell[2:]) for cell in matrix.cells.values() if cell.startswith("NV")}
    key = "a100-pcie-80gb"
    if counts:
        by = {18: "h100-sxm", 12: "a100-sxm-80gb", 6: "v100-sxm3-32gb", 8: "h800-sxm"}
        key = by.get(max(counts), "v100-sxm2-16gb" if max(counts) <= 2 else "a100-sxm-80gb")
    notes.append(f"The text does not name the GPU; assumed from its NVLinks: {key}. Correct `gpu` if it is another.")
    return key


def _nics(matrix: Matrix, tree: _Tree, model: str, notes: list[str]) -> dict[str, object]:
    """NICs with the names of the system; their speed is not in the text."""
    rates = {12.5e9: "ib-edr-100g", 25e9: "ib-hdr-200g", 53e9: "ib-ndr-400g"}
    key = rates.get(catalog_gpu(model).pcie, "ib-ndr-400g")
    notes.append(f"The text gives NICs no speed; assumed from the GPU's PCIe generation: {key}.")
    return {"nics": {tree.names[nic]: {"base": key, "name": matrix.legend.get(nic, nic)} for nic in matrix.nics}}


def _nvlink(matrix: Matrix, model: str, notes: list[str]) -> dict[str, object]:
    pairs: dict[tuple[int, int], list[int]] = {}
    for i, a in enumerate(matrix.gpus):
        for j, b in enumerate(matrix.gpus):
            cell = matrix.cells[a, b]
            if i != j and cell.startswith("NV"):
                pairs.setdefault((min(i, j), max(i, j)), []).append(max(1, int(cell[2:])))
    if not pairs:
        return {}
    count = len(matrix.gpus)
    links, most = min(min(counts) for counts in pairs.values()), max(max(counts) for counts in pairs.values())
    everywhere = len(pairs) == count * (count - 1) // 2
    # A GPU with k links cannot have k to each of several peers by cable: then all its links go to switches.
    if everywhere and count > 2 and links * (count - 1) > max(catalog_gpu(model).nvlink_links, most):
        if links < most:
            notes.append(f"Some GPUs have {links} NVLinks, others {most}: some are down. The smaller number is entered for all.")
        return fit([links], {}, model, notes)
    return fit([], pairs, model, notes)
