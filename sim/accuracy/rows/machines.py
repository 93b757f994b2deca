"""From a row's machine columns to a topology expression (`16x dgx-h100`) and its what-ifs (`gpu=h20`).

The first rule whose GPU and words fit counts. Where a row names a GPU but no machine, the usual server of that GPU
stands in, and the choice is listed. A GPU that the catalog knows and no machine of it holds takes the place of its kin in a
server of the same kind.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from sim.accuracy.row import Row
from topologies.errors import Refused
from topologies.load import load_topology

_RULES: tuple[tuple[str, str, str, str], ...] = (
    # (GPU, pattern over "memory GPU form system intra inter", machine of the catalog, what-ifs); "" as pattern: the usual machine
    (r"vr200|rubin", "", "vr200-nvl72", ""),
    (r"gb300", "", "gb300-nvl72", ""),
    (r"gb200", "", "gb200-nvl72", ""),
    (r"b300", "", "dgx-b300", ""),
    (r"b200", r"aws|efa|\bp6", "aws-p6-b200", ""),
    (r"b200", "", "dgx-b200", ""),
    # Grace Hopper's later H100: 144 GB of HBM3e at 4.9 TB/s (NVIDIA's data sheet)
    (r"gh200|grace hopper", r"^14[14] ", "gh200", "gpu.memory=144 GiB; gpu.bandwidth=4900 GB/s"),
    (r"gh200|grace hopper", "", "gh200", ""),
    (r"h200", r"\bnvl\b|pcie", "h200-nvl-x8", ""),
    (r"h200", "efa|aws|p5en?", "aws-p5en", ""),
    (r"h200", "whitefiber", "whitefiber-h200", ""),
    (r"h200", r"gcp|google cloud|a3[- ]?ultra", "gcp-a3-ultra", ""),
    (r"h200", "", "dgx-h200", ""),
    (r"h800", "pcie", "h100-pcie-x8", ""),  # its links alone differ from H100's
    (r"h800", "", "hgx-h800", ""),
    # H20's later memory: 141 GB of HBM3e at 4.8 TB/s, as H200's
    (r"h20\b", r"^14[14] |3e", "dgx-h100", "gpu=h20; gpu.memory=141 GiB; gpu.bandwidth=4800 GB/s"),
    (r"h20\b", "", "dgx-h100", "gpu=h20"),
    (r"h100", "500 ?w|grand teton|hbm2e variant", "grand-teton-h100", ""),
    (r"h100", "eos|8 compute links", "eos", ""),
    (r"h100", r"efa|aws|\bp5\b", "aws-p5", ""),
    (r"h100", r"azure|(?<![a-z])nd\d*\w* ?h100|(?<![a-z])nd96isr", "azure-nd-h100-v5", ""),
    (r"h100", r"a3[- ]?high|tcpx(?!o)", "gcp-a3-high", ""),
    (r"h100", r"gcp|google cloud|a3[- ]?mega|tcpxo", "gcp-a3-mega", ""),
    (r"h100", r"\bnvl\b", "h100-nvl-x8", ""),
    (r"h100", "pcie", "h100-pcie-x8", ""),
    (r"h100", "", "dgx-h100", ""),
    (r"a800", r"pcie", "a100-pcie-x8", ""),  # its links alone differ from A100's
    (r"a800", "", "dgx-a100", "gpu=a800-sxm-80gb"),
    (r"a100(?!0)", "jean zay|omni-path", "jean-zay-a100", ""),
    (r"a100(?!0)", "leonardo|^64 ", "leonardo-a100", ""),  # no other A100 has 64 GB
    (r"a100(?!0)", "selene", "selene", ""),
    (r"a100(?!0)", r"^40 .*1600 ?g", "mosaic-a100-40gb", ""),
    (r"a100(?!0)", "1600 ?g", "mosaic-a100", ""),
    (r"a100(?!0)", "4 x 100 gb roce", "internevo-a100", ""),
    (r"a100(?!0)", "p4de", "aws-p4de", ""),
    (r"a100(?!0)", "efa|aws|p4d", "aws-p4d", ""),
    # ND96asr has A100 of 40 GB, ND96amsr of 80 (Azure's pages of the NDasrA100_v4 and NDm_A100_v4 series)
    (r"a100(?!0)", r"^40 .*azure|(?<![a-z])nd96asr", "azure-nd-a100-v4", "gpu=a100-sxm-40gb"),
    (r"a100(?!0)", r"azure|(?<![a-z])nd\d*\w* ?a100|(?<![a-z])nd96amsr", "azure-nd-a100-v4", ""),
    (r"a100(?!0)", r"^80 .*(gcp|google cloud|a2-)|a2-ultra", "gcp-a2", "gpu=a100-sxm-80gb"),
    (r"a100(?!0)", "gcp|google cloud|a2-", "gcp-a2", ""),
    (r"a100(?!0)", r"^40 .*pcie", "a100-pcie-x8", "gpu=a100-pcie-40gb"),
    (r"a100(?!0)", "pcie", "a100-pcie-x8", ""),
    (r"a100(?!0)", r"^40 ", "dgx-a100-40gb", ""),
    (r"a100(?!0)", "", "dgx-a100", ""),
    (
        r"v100s",
        "",
        "a100-pcie-x8",
        "gpu=v100-pcie-32gb; gpu.bandwidth=1134 GB/s; gpu.clock=1597",
    ),  # a later V100 PCIe with faster memory, and boost: 130 and 16.4 TFLOP/s (NVIDIA's data sheet)
    (r"v100", "one nic per node", "dlperf-v100", ""),
    (r"v100", "p3dn", "aws-p3dn", ""),
    (r"v100", "ndv2|nd40rs", "azure-ndv2", ""),
    (r"v100", r"dgx[-_ ]?2h|dgx[-_ ]?2 .*\bclustered", "dgx2h-v100", ""),
    (r"v100", r"dgx[-_ ]?2", "dgx2-v100", ""),
    (r"v100", r"sxm3|(?<!no )nvswitch", "dgx2-v100", ""),
    (r"v100", r"^32 .*pcie", "a100-pcie-x8", "gpu=v100-pcie-32gb"),
    (r"v100", "pcie", "a100-pcie-x8", "gpu=v100-pcie-16gb"),
    (r"v100", r"^32 ", "dgx1-v100-32gb", ""),
    (r"v100", "", "dgx1-v100", ""),
    (r"p100", r"sxm|nvlink|dgx[-_ ]?1", "dgx1-p100", ""),
    (r"p100", "", "a100-pcie-x8", "gpu=p100-pcie"),
    (r"\bk80", "", "a100-pcie-x8", "gpu=k80"),
    (r"mi300a", "", "alps-gh200", "gpu=mi300a"),
    (r"mi300", "", "mi300x-x8", ""),
    (r"mi325x", "", "mi325x-x8", ""),
    (r"mi355x", "", "mi355x-x8", ""),
    (r"mi350x", "", "mi355x-x8", "gpu=mi350x"),
    (r"mi250", "", "frontier-mi250x", ""),
    (r"mi210", "", "a100-pcie-x8", "gpu=mi210"),
    (r"mi100", "", "a100-pcie-x8", "gpu=mi100"),
    (r"l40s", "g6e|aws", "aws-g6e", ""),
    (r"l40s", "", "l40s-x8", ""),
    (r"\bl4\b", "", "l4-x8", ""),
    (r"\bt4\b", "", "l4-x8", "gpu=t4"),
    (r"\bp40\b", "", "l4-x8", "gpu=p40"),
    (r"\bp4\b", "", "l4-x8", "gpu=p4"),
    (r"\bl20\b", "", "l40s-x8", "gpu=l20"),
    (r"\ba5000", "", "rtx-4090-x8", "gpu=rtx-a5000"),
    (r"(rtx|quadro) ?8000", "", "rtx-4090-x8", "gpu=rtx-8000"),
    (r"titan rtx", "", "rtx-4090-x8", "gpu=titan-rtx"),
    (r"2080 ?ti", "", "rtx-4090-x8", "gpu=rtx-2080-ti"),
    (r"1080 ?ti", "", "rtx-4090-x8", "gpu=gtx-1080-ti"),
    (r"4080", "", "rtx-4090-x8", "gpu=rtx-4080"),
    (r"3080", "", "rtx-4090-x8", "gpu=rtx-3080"),
    (r"\ba30\b", "", "a100-pcie-x8", "gpu=a30"),
    (r"\bl40\b", "", "l40s-x8", "gpu=l40"),
    (r"a10g", "", "aws-g5", ""),
    (r"\ba10\b", "", "l40s-x8", "gpu=a10"),
    (r"\ba40\b", "", "l40s-x8", "gpu=a40"),
    (r"pro ?6000", "", "rtx-pro-6000-x8", ""),
    (r"\ba6000", "", "rtx-4090-x8", "gpu=rtx-a6000"),
    (r"6000 ?ada", "", "rtx-4090-x8", "gpu=rtx-6000-ada"),
    (r"5090", "", "rtx-5090-x4", ""),
    (r"4090", "", "rtx-4090-x8", ""),
    (r"3090", "", "rtx-3090-x4", ""),
)
_LARGER: dict[str, tuple[str, tuple[str, ...]]] = {
    "rtx-3090-x4": ("rtx-4090-x8", ("gpu=rtx-3090",)),
    "rtx-5090-x4": ("rtx-4090-x8", ("gpu=rtx-5090",)),
    "gh200": ("alps-gh200", ()),
}
"""Where a row's nodes hold more GPUs than the machine: a larger one of the same kind."""
_RACK = ("gb200-nvl72", "gb300-nvl72", "vr200-nvl72")
"""Machines whose NVLink domain is larger than a tray."""
_RACK_USED = 64
"""Jobs over several racks take 64 of the 72 GPUs of each, so that powers of two divide."""

_ANOTHER = r"(?<!\d)(?![12]080 ?ti)([1-5]0[5-9]0) ?(?:ti|super|d|laptop|mobile|max q)\b"
"""Cards for games whose suffix makes them other chips, or other sizes of the same: an RTX 3080 Ti is no 3080."""
_SOCKETED = r"sxm|\bhgx|\bdgx|nvswitch"
_CARD = r"pcie|\bnvl\b"
"""Words of boards on sockets, and of cards: beside the former, unless the GPU's own name or form says it, PCIe is what leads to hosts and adapters."""
_CLUSTERED = " clustered"
"""Said of a row with several nodes. NVIDIA's clusters of DGX-2 were of DGX-2H (DGX SuperPOD of 2019): so says the heading over BERT's rows of 4 to 32
nodes in TensorFlow 1, where the text below says DGX-2."""


def machine_of(row: Row, assumed: list[str]) -> tuple[str, tuple[str, ...]]:
    """The topology expression and its what-ifs. Raises `Refused` where the GPU is in no machine of the catalog."""
    name = re.sub(r"[_-]", " ", row.gpu.lower())
    words = f"{_memory(row):g} {row.gpu} {row.gpu_form} {row.system} {row.intra_net} {row.inter_net}".lower()
    if re.search(_SOCKETED, words) and not re.search(_CARD, f"{row.gpu} {row.gpu_form}".lower()):
        words = re.sub(_CARD, "", words)
    words += _CLUSTERED * ((row.nodes or 1) > 1)
    if kin := re.search(_ANOTHER, name):
        raise Refused(f"GPU {row.gpu!r} is in no machine of the catalog: a {kin[1]} is another")
    for gpu, pattern, machine, edits in _RULES:
        if re.search(gpu, name) and (not pattern or re.search(pattern, words)):
            if not pattern and not row.system:
                assumed.append(f"machine not stated: {machine}")
            if not row.inter_net and (row.nodes or 1) > 1:
                assumed.append(f"network not stated: that of {machine}")
            return _expression(row, machine, tuple(edits.split("; ")) if edits else (), assumed)
    raise Refused(f"GPU {row.gpu!r} is in no machine of the catalog")


def in_devices(row: Row, assumed: list[str]) -> Row:
    """An MI250(X) is two devices of 64 GB to PyTorch: a row that counts modules of 128 GB, four a server, is counted in devices."""
    whole = re.search(r"mi250", row.gpu.lower()) and (_memory(row) > 100 or (row.gpus_per_node or 8) <= 4)
    if not whole or row.gpus is None:
        return row
    assumed.append(f"{row.gpus} modules of two devices: {2 * row.gpus} devices")
    return msgspec.structs.replace(row, gpus=2 * row.gpus, gpus_per_node=2 * (row.gpus_per_node or 4), dp=None)


def on_nodes(row: Row, assumed: list[str]) -> Row:
    """The row with its number of nodes, where it gives the GPUs of one: also where the row's own nodes do not hold all GPUs."""
    if not row.gpus or not row.gpus_per_node or (row.nodes or 0) * row.gpus_per_node >= row.gpus:
        return row
    nodes = -(-row.gpus // row.gpus_per_node)
    if row.nodes:
        assumed.append(f"{row.nodes} nodes of {row.gpus_per_node} GPUs do not hold {row.gpus}: {nodes} nodes")
    return msgspec.structs.replace(row, nodes=nodes)


def _memory(row: Row) -> float:
    """GB of device memory: the row's, or those in the GPU's name ("A100-SXM4-40GB", "a100_40g"); 0 where neither tells."""
    found = re.search(r"(?<![\da-z])(\d{2,3}) ?g(?:i?b)?(?![a-z])", row.gpu.lower())
    return row.gpu_mem_gb or (float(found.group(1)) if found else 0.0)


@cache
def _slots(name: str) -> int:
    """Ranks of one node of the catalog's machine."""
    return load_topology(name).ranks_per_node


def _expression(row: Row, name: str, edits: tuple[str, ...], assumed: list[str]) -> tuple[str, tuple[str, ...]]:
    gpus, slots = row.gpus or 1, _slots(name)
    if name in _RACK:
        if gpus <= slots:
            return name, edits
        used = _RACK_USED if gpus % _RACK_USED == 0 else slots
        return f"{-(-gpus // used)}x {name}:{used}", edits
    each = row.gpus_per_node or (-(-gpus // row.nodes) if row.nodes else 4 if name == "gh200" and gpus > 1 else slots)
    if name in _LARGER and not row.gpus_per_node and not row.nodes and slots < gpus <= 8:
        each = gpus  # eight cards are one server sooner than two over a network
    if each > slots and name in _LARGER:
        name, larger = _LARGER[name]
        edits, slots = (*larger, *edits), _slots(name)
    if each > slots:
        assumed.append(f"{each} GPUs per node in the row: {slots}, which {name} holds")
    each = min(each, slots)
    return (name if gpus <= each else f"{-(-gpus // each)}x {name}:{each}"), edits
