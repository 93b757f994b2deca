"""Machines that publications call by the name of their kin: what their own papers and system descriptions say that they were."""

from __future__ import annotations

import re

import msgspec

from sim.accuracy.row import Row

_CLUSTER_BUILT = "2021"
"""Megatron-LM's runs on V100, all before, were on DGX SuperPOD: "all of our experiments use up to 32 DGX-2H servers" (Shoeybi et al. 2019,
section 5); its README's tables say DGX-2."""


_ONE_NIC = "one nic per node"
"""DLPerf's servers of eight V100, as its reports describe them: a ConnectX of 100 Gbit/s each."""


def named_system(row: Row) -> Row:
    """The row with the machine that its authors had: Megatron-LM's DGX-2 is a DGX-2H, DLPerf's servers have one NIC."""
    early = re.search(r"megatron(?!.*deepspeed)", row.framework.lower()) and "" < row.date < _CLUSTER_BUILT and "v100" in row.gpu.lower()
    if early and re.search(r"dgx[-_ ]?2\b", row.system.lower()):
        return msgspec.structs.replace(row, system="DGX-2H")
    if row.source_id.startswith("dlperf") and not re.search(_ONE_NIC, row.inter_net.lower()):
        return msgspec.structs.replace(row, inter_net=f"{row.inter_net} {_ONE_NIC}".strip())
    return row


def described(row: Row, machine: str) -> str:
    """The topology expression with the machine of the submission's system description: NVIDIA's L40S nodes in MLPerf hold four of them, and two
    ports of 400 Gbit/s."""
    if row.submitted and (row.gpus_per_node or 4) <= 4:
        return machine.replace("l40s-x8:4", "mlperf-l40s").replace("l40s-x8", "mlperf-l40s")
    return machine
