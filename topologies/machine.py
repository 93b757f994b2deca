"""One node: how its devices are connected, and the rate and latency of each direction of each link.

Inside a node names are short (`gpu0`, `nic0`, `sw0`, `socket0`); PCIe is a tree from the sockets down, as in NCCL's
own XML, and NVLink (or xGMI) connects GPUs directly or through `nvswitch`. A cluster repeats a node; the full name of `gpu0`
on node 3 is `n3/gpu0`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from topologies.errors import BadInput
from topologies.hardware import Cpu, Disk, Gpu, Nic, Store

KINDS = ("tray", "socket", "numa", "root", "sw", "gpu", "nic")
"""Kinds of vertices, which are the letters of their names: a tray of sockets, a CPU socket, a NUMA domain, a PCIe root complex,
a PCIe switch, a GPU, a NIC. `nvswitch` and `dram` are added for the NVLink table and the sockets."""

_NAME = re.compile(r"([a-z]+)(\d{1,4})\Z")


@lru_cache(8192)
def kind_of(name: str) -> str:
    """The kind in a vertex name: `gpu` for `gpu12`; "" for any other text."""
    found = _NAME.match(name)
    return found.group(1) if found and found.group(1) in KINDS else ""


def number_of(name: str) -> int:
    """The number in a vertex name: 12 for `gpu12`; 0 for any other text."""
    found = _NAME.match(name)
    return int(found.group(2)) if found else 0


class Link(msgspec.Struct, frozen=True, gc=False):
    """One direction of a link. Each direction has its own rate: both can run at full speed together."""

    kind: str
    """nvlink | xgmi | c2c | pcie | numa (inside a socket) | upi (between sockets) | dram | engine | net | spine."""
    rate: float
    latency: float


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One node, with all what-ifs applied. Immutable: an edit makes a new machine."""

    name: str
    kind: str
    """cuda | cpu."""
    gpus: dict[str, Gpu]
    """In rank order."""
    cpu: Cpu
    sockets: tuple[str, ...]
    up: dict[str, str]
    """Child -> parent in the tree socket / numa / root / switch / device."""
    links: dict[str, Link]
    """Link by name; `gpu0>sw0` is one direction."""
    nics: dict[str, Nic]
    cabled: tuple[str, ...] = ()
    """All NICs, those that ranks use first: NIC k of this order is on rail k modulo the number of rails. The order stays the same after a
    failure."""
    chips: tuple[int, ...] = ()
    """Number of NVLinks from each GPU to each NVSwitch chip, e.g. (5, 4, 4, 5). All chips together are one vertex, `nvswitch`."""
    p2p: str = "PXB"
    """The longest kind of path over which GPUs may access each other's memory: none PIX PXB PHB SYS; NCCL's default is PXB."""
    disk: Disk = Disk()
    store: Store | None = None
    """The cluster's shared store; None: a CPU host's own disk takes its place."""
    ranks: int = 0
    """Ranks that a CPU host can run; not used on a machine with GPUs."""
    source: str = ""
    document: Mapping[str, object] = {}
    """The TOML it was made from, base included."""

    @property
    def size(self) -> int:
        """Ranks that one node hosts."""
        return len(self.gpus) or self.ranks

    def home(self, name: str) -> str:
        """The socket or NUMA domain whose memory is nearest to a device: its first such ancestor. "" if cut off."""
        while name and not name.startswith(("numa", "socket")):
            name = self.up.get(name, "")
        return name

    def chain(self, name: str) -> list[str]:
        """`name` and its ancestors up to the socket, or to where a link is missing."""
        found = [name]
        while found[-1] in self.up:
            found.append(self.up[found[-1]])
        return found

    def memory_bus(self, home: str) -> str:
        """The DRAM that belongs to a socket or NUMA domain: one bus for both directions."""
        return f"dram@{home}"


def check(machine: Machine) -> Machine:
    """Returns `machine`. Raises `BadInput` where it has no ranks, or where one of several GPUs has no link to anything."""
    if not machine.size:
        raise BadInput(f"machine '{machine.name}' has no GPU and is no CPU host (kind = \"cpu\", ranks = 8)")
    joined = {name.partition(">")[0] for name, link in machine.links.items() if link.kind != "engine"}
    for name in machine.gpus:
        if name not in joined and machine.size > 1:
            raise BadInput(
                f"machine '{machine.name}' is disconnected: {name} has no link left to anything. "
                f"Give it a place in [tree] or an NVLink, or take it out with ranks_per_node={machine.size - 1}"
            )
    return machine
