"""The computer that the program runs on, as a CPU host: what the operating system tells, and nothing that it does not.

Cores, memory, sockets and NUMA domains come from the OS. FLOP/s and memory bandwidth are measured by `steptwin probe`
and laid over with the edits `cpu.bandwidth=...` and `cpu.flops.fp32=...`; until then they are absent.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

TCP = {"name": "ethernet", "rate": "10 Gbit/s", "latency": "15 us", "source": "assumed: TCP through the kernel on 10G Ethernet"}
"""The NIC of a host of which nothing better is known."""
RANKS = 64
"""Processes that a CPU host takes at most: beyond the cores they only take turns."""


def cores_of_process() -> list[int]:
    """Numbers of the CPU cores that this process may run on; where the system does not say which, all."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cores() -> int:
    """How many they are."""
    return len(cores_of_process())


def memory() -> int:
    """Bytes of main memory; 0 where the OS does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


def nearest_cpu() -> str:
    """The catalog's CPU of this machine's generation, whose single threads are about as fast; "" where the system does not tell."""
    from topologies.readers.pci import cpu_by_id

    said = dict(re.findall(r"^(vendor_id|cpu family|model)\s*:\s*(.+?)\s*$", _cpuinfo(), re.MULTILINE))
    return cpu_by_id("", said.get("vendor_id", ""), said.get("cpu family", ""), said.get("model", ""))


def document() -> dict[str, object]:
    """The TOML document of this machine: one socket entry per physical package."""
    info = _cpuinfo()
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    sockets = max(1, len(set(re.findall(r"^physical id\s*:\s*(\d+)$", info, re.MULTILINE))))
    count = cores()
    sockets = sockets if count % sockets == 0 else 1
    cpu: dict[str, object] = {
        "name": (model.group(1).strip() if model else platform.processor() or platform.machine() or "cpu").lower().replace(" ", "-")[:60],
        "cores": count // sockets,
        "source": "the operating system",
    }
    if memory():
        cpu["memory"] = f"{memory() // sockets} B"
    return {
        "name": "this-machine",
        "source": "read from the operating system; rates are assumed until a calibration gives them",
        "kind": "cpu",
        "ranks": RANKS,
        "sockets": sockets,
        "cpu": cpu,
        "tree": {"socket0": ["nic0"]} | {f"socket{i}": [] for i in range(1, sockets)},
        "nic": TCP,
    }
