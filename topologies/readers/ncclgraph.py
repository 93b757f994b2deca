"""NCCL's graph XML (`NCCL_GRAPH_DUMP_FILE`): the rings and trees that NCCL found, not the machine.

It still tells how many GPUs there are, how far apart (`typeintra`), and how fast one channel is: a uniform machine
with these distances is what can be made of it.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from topologies.errors import BadInput
from topologies.readers.imported import Imported
from topologies.readers.infer import LEVELS, infer
from topologies.readers.matrix import Matrix

_CELLS = {"NVL": "NV", "NVB": "NV", "LOC": "NV", "C2C": "NODE", "PXN": "SYS", "P2C": "NODE"}


def read_graphs(root: Element, name: str, gpu: str) -> Imported:
    """A machine with as many GPUs as the graphs name, all equally far apart. Raises `BadInput`."""
    devices = {child.get("dev", "") for child in root.iter("gpu")}
    ports = {child.get("dev", "") for child in root.iter("net")}
    graph = root.find("graph")
    if graph is None or not devices:
        raise BadInput(f"{name}: a <graphs> file without channels of GPUs. The machine itself is written by NCCL_TOPO_DUMP_FILE=FILE")
    cell = graph.get("typeintra", "SYS").upper()
    cell = _CELLS.get(cell, cell)
    count = sum(len(channel) > 0 for channel in graph.iter("channel"))
    if cell == "NV":
        cell = f"NV{max(1, min(18, count))}"
    elif cell not in LEVELS:
        raise BadInput(f"{name}: unknown typeintra '{cell[:20]}' in <graph>")
    near = graph.get("typeinter", "SYS").upper()
    names = [f"GPU{i}" for i in range(len(devices))]
    nics = [f"NIC{i}" for i in range(len(ports))]
    cells = {(a, b): "X" if a == b else cell for a in names for b in names}
    far = near if near in LEVELS else "SYS"
    # One NIC can be near to every GPU only where all GPUs are near to each other; NIC i is put next to GPU i.
    cells |= {(g, n): far if i == j else "SYS" for i, g in enumerate(names) for j, n in enumerate(nics)}
    cells |= {(n, g): cells[g, n] for g in names for n in nics}
    cells |= {(a, b): "X" if a == b else "SYS" for a in nics for b in nics}
    made = infer(Matrix(tuple(names), tuple(nics), cells, {}, {}, {}), name, gpu)
    notes = ("This file holds NCCL's rings and trees, not the machine: all GPUs are entered at the distance that its first graph states.",)
    return Imported(made.document | {"source": "NCCL graph XML"}, notes + made.notes)
