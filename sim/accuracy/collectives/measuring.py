"""What a published timing of a collective holds besides the collective: the host, as its measuring tool uses it.

Nothing here is fitted to collectives: the costs are those of `params/host.toml`, on the machine's CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from sim.cost.host import host_seconds
from topologies.graph import Topology


class Tool(msgspec.Struct, frozen=True):
    """A timing is the greater of the collective with `added` seconds, and `least` seconds.

    nccl-tests with a process or a thread for each GPU launches ahead of the device: both are zero.
    """

    added: float = 0.0
    least: float = 0.0

    def seconds(self, collective: float) -> float:
        """What the tool prints for a collective of so many seconds."""
        return max(collective + self.added, self.least)


_EVENTS = re.compile(r"all_reduce_bench", re.I)
"""ml-engineering's script: event, torch.distributed call, event on an idle device, so all that the call does before its launch counts."""
_ONE_THREAD = re.compile(r"ai-benchmarking-guide", re.I)
"""Azure's guide runs `all_reduce_perf -g 8` (NCCLBandwidth.py): one thread launches on every GPU of the node in turn."""
_SOURCES = (
    (re.compile(r"aiconfigurator", re.I), "aiconfigurator"),
    (re.compile(r"ml-engineering", re.I), "ml-engineering"),
    (re.compile(r"crazyguitar", re.I), "aws-gpu-communication-benchmark"),
    (re.compile(r"aws-nccl-tests|awsome-distributed", re.I), "aws-nccl-tests"),
    (re.compile(r"ai-benchmarking-guide", re.I), "azure-guide"),
    (re.compile(r"mlcommons|mlperf", re.I), "mlperf-logs"),
)


def tool_of(row: Mapping[str, str], topology: Topology, local: int) -> Tool:
    """The tool that made a row, by its columns `lib` and `source`; `local`: GPUs of the group on one node."""
    told = f"{row.get('lib', '')} {row.get('source', '')}"
    cpu = topology.host(0)
    if _EVENTS.search(told):
        return Tool(added=host_seconds("collective", "light", cpu))
    if _ONE_THREAD.search(told):
        return Tool(least=local * host_seconds("kernel", "light", cpu))
    return Tool()


def source_of(row: Mapping[str, str]) -> str:
    """Who published a row, under one name in all files."""
    told = f"{row.get('source_id', '')} {row.get('source', '')}"
    return next((name for pattern, name in _SOURCES if pattern.search(told)), row.get("source_id", "") or "unnamed")


_NEGATED = r"\b(no|without|non|w/o)[ -]?{0}|{0}\w*[ =:]*(0|off|disabled|false|no)\b"
_DENIED = "|".join(_NEGATED.format(name) for name in ("(nccl_)?nvls(_enable)?", "sharp", "collnet"))
"""Words by which a row says what NCCL did not run: "NCCL_NVLS_ENABLE=0", "no NVLS", "SHARP off"."""


def without_nvls(row: Mapping[str, str]) -> bool:
    """The row denies NVLS, and names no algorithm: NCCL had rings and trees."""
    told = (row.get("algo") or "").lower()
    return "nvls" in told and "nvls" not in re.sub(_DENIED, "", told) and algorithm_of(row) == "auto"


def algorithm_of(row: Mapping[str, str]) -> str:
    """The algorithm that the row says NCCL ran, in our words; `auto` where it does not say.

    `SHARP`, also of the network, is `collnet`; NVLSTree is `nvls` over nodes.
    """
    algo, net = (row.get("algo") or "").lower(), (row.get("inter_net") or "").lower()
    told = re.sub(_DENIED, "", algo)
    if not algo and "sharp" in re.sub(_DENIED, "", net):
        told = "sharp"
    for word, name in (("sharp", "collnet"), ("collnet", "collnet"), ("ring", "ring"), ("nvls", "nvls"), ("tree", "tree"), ("pat", "pat")):
        if word in told:
            return name
    return "auto"
