"""What a collective takes from compute that runs beside it.

While a collective runs, each of its channels holds one SM, so compute has SMs - channels left; it also moves bytes
through device memory. Published: FSDP and pipeline training on A100, H100, MI250 and MI210 has compute 18.9 % slower on
average under communication (arXiv 2507.03114); NCCL takes about 24 of 108 (A100) or 132 (H100) SMs, 24-32 on B200.
"""

from __future__ import annotations

from sim.cost.device import TWO_DIES
from topologies.hardware import Gpu

CHANNELS = {"sm70": 12, "sm80": 24, "sm90": 24, **dict.fromkeys(TWO_DIES, 28)}
"""SMs that a collective's kernel holds (facts: channels, SMs, chunks; V100: NCCL 2.x hybrid cube mesh, and sm107 as Blackwell: assumed)."""
_OTHER = 8
"""The same for all other architectures, AMD's too: most are boards on PCIe, which a few channels fill (assumed)."""
_MOST = 4
"""A collective holds at most one SM in four: NCCL opens no more channels than the links need, and small GPUs have few links (assumed)."""


def slowdown(gpu: Gpu, held: int | None = None) -> float:
    """Factor >= 1 on the time of compute that runs beside a collective. `held`: SMs that the collective holds; None: the architecture's number of
    channels (`CHANNELS`). The collective keeps its speed."""
    taken = min(CHANNELS.get(gpu.arch, _OTHER) if held is None else held, gpu.sms // _MOST)
    return gpu.sms / (gpu.sms - taken)
