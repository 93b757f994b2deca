"""From a row's machine columns to a topology expression (`16x dgx-h100`).

The first rule whose GPU and words fit counts. Where a row names a GPU but no machine, the usual 8-GPU server of
that GPU stands in, and the choice is listed.
"""

from __future__ import annotations

import re

from sim.accuracy.rows import Row
from topologies.errors import Refused

_RULES: tuple[tuple[str, str, str], ...] = (
    # (GPU, pattern over "form memory system intra inter", machine of the catalog); "" as pattern: the usual machine
    (r"gb300", "", "gb300-nvl72"),
    (r"gb200", "", "gb200-nvl72"),
    (r"b300", "", "dgx-b300"),
    (r"b200", "aws|efa", "aws-p6-b200"),
    (r"b200", "", "dgx-b200"),
    (r"h200", "efa|aws|p5en", "aws-p5en"),
    (r"h200", "whitefiber", "whitefiber-h200"),
    (r"h200", "", "dgx-h200"),
    (r"h100", "500 ?w|grand teton|hbm2e variant", "grand-teton-h100"),
    (r"h100", "eos|8 compute links", "eos"),
    (r"h100", "efa|aws|\bp5\b", "aws-p5"),
    (r"h100", "azure|nd ?h100", "azure-nd-h100-v5"),
    (r"h100", "gcp|a3-mega|tcpxo", "gcp-a3-mega"),
    (r"h100", "a3-high|tcpx", "gcp-a3-high"),
    (r"h100", "pcie", "h100-pcie-x8"),
    (r"h100", "", "dgx-h100"),
    (r"a100", "jean zay|omni-path", "jean-zay-a100"),
    (r"a100", "leonardo", "leonardo-a100"),
    (r"a100", "selene", "selene"),
    (r"a100", r"^\S* 40 .*1600 ?g", "mosaic-a100-40gb"),
    (r"a100", "1600 ?g", "mosaic-a100"),
    (r"a100", "4 x 100 gb roce", "internevo-a100"),
    (r"a100", "p4de", "aws-p4de"),
    (r"a100", "efa|aws|p4d", "aws-p4d"),
    (r"a100", "azure", "azure-nd-a100-v4"),
    (r"a100", "gcp|a2-", "gcp-a2"),
    (r"a100", "pcie", "a100-pcie-x8"),
    (r"a100", r"^\S* 40 ", "dgx-a100-40gb"),
    (r"a100", "", "dgx-a100"),
    (r"v100", "one nic per node", "dlperf-v100"),
    (r"v100", "dgx-2", "dgx2-v100"),
    (r"v100", "sxm3|nvswitch", "dgx2-v100"),
    (r"v100", r"^\S* 32 ", "dgx1-v100-32gb"),
    (r"v100", "", "dgx1-v100"),
    (r"mi300x", "", "mi300x-x8"),
    (r"mi325x", "", "mi325x-x8"),
    (r"mi250", "", "frontier-mi250x"),
    (r"l40s", "", "l40s-x8"),
    (r"\bl4\b", "", "l4-x8"),
    (r"a10g", "", "aws-g5"),
    (r"pro ?6000", "", "rtx-pro-6000-x8"),
    (r"5090", "", "rtx-5090-x4"),
    (r"4090", "", "rtx-4090-x8"),
    (r"3090", "", "rtx-3090-x4"),
)
_RACK = {"gb200-nvl72": 72, "gb300-nvl72": 72}
"""GPUs of one NVLink domain where it is larger than a tray."""
_RACK_USED = 64
"""Jobs over several racks take 64 of the 72 GPUs of each, so that powers of two divide."""


def machine_of(row: Row, assumed: list[str]) -> str:
    """The topology expression. Raises `Refused` where the GPU is in no machine of the catalog."""
    words = (
        f"{row.gpu_form.split(' ')[0] or '-'} {row.gpu_mem_gb or 0:g} {row.gpu_form} {row.system} {row.intra_net} {row.inter_net}".lower()
    )
    for gpu, pattern, name in _RULES:
        if re.search(gpu, row.gpu.lower()) and (not pattern or re.search(pattern, words)):
            if not pattern and not row.system:
                assumed.append(f"machine not stated: {name}")
            if not row.inter_net and (row.nodes or 1) > 1:
                assumed.append(f"network not stated: that of {name}")
            return _expression(row, name)
    raise Refused(f"GPU {row.gpu!r} is in no machine of the catalog")


def _expression(row: Row, name: str) -> str:
    gpus = row.gpus or 1
    if name in _RACK:
        if gpus <= _RACK[name]:
            return name
        used = _RACK_USED if gpus % _RACK_USED == 0 else _RACK[name]
        return f"{-(-gpus // used)}x {name}:{used}"
    each = row.gpus_per_node or 8
    if gpus <= each:
        return name
    return f"{-(-gpus // each)}x {name}:{each}"
