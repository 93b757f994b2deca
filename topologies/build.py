"""Builds a `Machine` from its TOML document.

```toml
name = "two-and-two"
gpu = "a100-pcie-80gb"        # catalog key, or a [gpu] table; [gpus] gives single GPUs their own
cpu = "epyc-7742"
nic = "ib-hdr-200g"           # of every nic in the tree; [nics] gives single NICs their own
p2p = "PXB"                   # farthest path over which GPUs read each other; "none": always through host memory
[tree]                        # the devices below each socket and each PCIe switch
socket0 = ["sw0"]
socket1 = ["gpu2", "gpu3"]
sw0 = ["gpu0", "gpu1", "nic0"]
[nvlink]
mesh = [[0, 1, 4]]            # GPUs 0 and 1 are joined by 4 links; or switch = [5, 4, 4, 5]: links to each NVSwitch chip
[links]
"sw0>socket0" = { rate = "12 GB/s" }       # one direction of one link
```
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from topologies.affinity import nearest
from topologies.devices import read_cpu, read_disk, read_gpu, read_nic, read_store
from topologies.errors import BadInput, UnknownName
from topologies.hardware import Cpu, Gpu, Nic
from topologies.machine import Link, Machine, check, kind_of, number_of
from topologies.route import Router
from topologies.table import Table
from topologies.tree import Tree, read_tree

FIELDS: tuple[str, ...] = ("name", "title", "source", "kind", "base", "gpu", "gpus", "cpu", "nic", "nics", "p2p", "pcie", "sockets")
FIELDS += ("repeat", "tree", "nvlink", "links", "fabric", "disk", "store", "ranks")
P2P = ("none", "PIX", "PXB", "PHB", "SYS", "auto")
LATENCY = {"nvlink": 0.7e-6, "xgmi": 0.9e-6, "c2c": 0.4e-6, "pcie": 0.75e-6, "numa": 0.05e-6, "upi": 0.15e-6, "dram": 0.1e-6, "engine": 0.0}
"""Latency of one link in one direction, in seconds. The values of NVLink and PCIe are half of a measured GPU-to-GPU access over one switch
(1.3-2 us and 1.5-2 us); the others have the order of magnitude of load latencies. All are assumed: the real time of a collective's
step or of a copy is fitted in `sim.cost`."""
ASSUMED_DRAM = 20e9
"""Bytes per second of the memory of a socket whose bandwidth is not known: one DDR4-2666 channel (64 bit x 2666 MT/s)."""


def build(document: Mapping[str, object]) -> Machine:
    """The machine that a document (with its `base` already merged) describes. Raises `BadInput`."""
    where = f"machine '{str(document.get('name', 'unnamed'))[:60]}'"
    table = Table(document, where, FIELDS)
    kind = table.text("kind", "cuda")
    if kind not in ("cuda", "cpu"):
        raise UnknownName("kind", kind, ("cuda", "cpu"), where)
    tree = read_tree(table, kind)
    gpus = _gpus(table, tree)
    cpu = read_cpu(table.raw("cpu", "epyc-7742"), table.at("cpu"))
    nics = _nics(table, tree)
    machine = Machine(
        name=table.text("name", "unnamed"),
        kind=kind,
        gpus=gpus,
        cpu=cpu,
        sockets=tree.sockets,
        up=tree.up,
        links={},
        nics=nics,
        chips=_chips(table, gpus),
        p2p=_p2p(table, cpu, len(gpus)),
        disk=read_disk(table.raw("disk"), table.at("disk")),
        store=read_store(table.raw("store"), table.at("store")) if gpus or table.raw("store") else None,
        ranks=table.whole("ranks", 64 if kind == "cpu" else 0, most=4096),
        source=table.text("source"),
        document=document,
    )
    links = _tree_links(table, machine, tree) | _socket_links(machine, tree) | _nvlinks(table, machine)
    machine = msgspec.structs.replace(machine, links=_override(table, links))
    return check(msgspec.structs.replace(machine, cabled=_cabled(machine)))


def _cabled(machine: Machine) -> tuple[str, ...]:
    used = {name for use in nearest(machine, Router(machine), machine.gpus, machine.ranks).values() for name in use.names}
    return tuple(sorted(machine.nics, key=lambda name: (name not in used, number_of(name))))


MANY = 'How many GPUs there are is said by a base with at least as many, of which --on takes as many as a plan uses: --on "FILE.toml:2"'


def _gpus(table: Table, tree: Tree) -> dict[str, Gpu]:
    said = table.raw("gpus", {})
    if not isinstance(said, Mapping) or {"count", "number"} & {*said}:
        raise BadInput(f'{table.at("gpus")} gives single GPUs their own: gpu0 = "h100-sxm", and no number. {MANY}')
    own = Table(table.raw("gpus", {}), table.at("gpus"), tree.of("gpu"))
    names = tree.of("gpu")
    if names and "gpu" not in table and not all(name in own for name in names):
        raise BadInput(f'{table.where} has GPUs in its tree but does not say which: gpu = "h100-sxm"')
    return {name: read_gpu(own.raw(name, table.raw("gpu")), table.at(name if name in own else "gpu")) for name in names}


def _nics(table: Table, tree: Tree) -> dict[str, Nic]:
    names = tree.of("nic")
    own = Table(table.raw("nics", {}), table.at("nics"), names)
    if "nic" not in table and not all(name in own for name in names):
        raise BadInput(f'{table.where} has NICs in its tree but does not say which: nic = "ib-ndr-400g", or a table')
    return {name: read_nic(own.raw(name, table.raw("nic")), table.at(name if name in own else "nic")) for name in names}


def _p2p(table: Table, cpu: Cpu, gpus: int) -> str:
    level = table.text("p2p", "auto")
    if level not in P2P:
        raise UnknownName("p2p level", level, P2P, table.where)
    if level != "auto":
        return level
    # NCCL 2.30.7, src/graph/paths.cc: on AMD CPUs with at most two GPUs peer access is used across the whole node.
    return "SYS" if gpus <= 2 and cpu.name.startswith(("epyc", "threadripper", "amd")) else "PXB"


def _tree_links(table: Table, machine: Machine, tree: Tree) -> dict[str, Link]:
    default = table.rate("pcie", min((gpu.pcie or 12.5e9 for gpu in machine.gpus.values()), default=25e9))
    # The CPU limits the rate of its PCIe ports where the document names a CPU and gives no `pcie` rate of its own.
    ports = machine.cpu.pcie or math.inf if "cpu" in table and "pcie" not in table else math.inf
    links: dict[str, Link] = {}
    for child, parent in machine.up.items():
        kind, rate = "pcie", default
        port = ports if kind_of(parent) in ("socket", "numa", "root") else math.inf
        if child in machine.nics:
            # Assumed: a NIC has as many PCIe lanes as its ports need. An 800G port uses gen6; four 100G ports have a slot each.
            rate = max(default * machine.nics[child].count, machine.nics[child].rate)
        elif child in machine.gpus:
            gpu = machine.gpus[child]
            on_board = gpu.c2c and kind_of(parent) in ("socket", "numa")
            kind, rate = ("c2c", gpu.c2c) if on_board else ("pcie", table.rate("pcie", gpu.pcie or default))
        elif kind_of(child) == "numa":
            kind, rate = "numa", _dram(machine, tree)
        elif kind_of(child) == "root":
            # A root complex carries all its ports at full rate at the same time.
            rate, port = min(default, port) * max(1, len(tree.children.get(child, ()))), math.inf
        if kind == "pcie" and child not in machine.nics:
            rate = min(rate, port)
        links[f"{child}>{parent}"] = links[f"{parent}>{child}"] = Link(kind, rate, LATENCY[kind])
    for name, gpu in machine.gpus.items():
        rate = gpu.c2c or gpu.pcie or default
        # A GPU with one copy engine has one resource for both directions, like a memory bus.
        engines = (f"{name}>{name}.h2d", f"{name}.d2h>{name}") if gpu.copy_engines > 1 else (f"copy@{name}",)
        links |= dict.fromkeys(engines, Link("engine", rate, LATENCY["engine"]))
    return links


def _dram(machine: Machine, tree: Tree) -> float:
    return (machine.cpu.bandwidth or ASSUMED_DRAM) / tree.domains


def _socket_links(machine: Machine, tree: Tree) -> dict[str, Link]:
    """The DRAM bus of each memory domain, and the links between the sockets of one tray."""
    links = {machine.memory_bus(home): Link("dram", _dram(machine, tree), LATENCY["dram"]) for home in tree.homes}
    rate = machine.cpu.interconnect or 10e9
    for group in tree.trays:
        links |= {f"{a}>{b}": Link("upi", rate, LATENCY["upi"]) for a in group for b in group if a != b}
    return links


def _chips(table: Table, gpus: Mapping[str, Gpu]) -> tuple[int, ...]:
    nvlink = Table(table.raw("nvlink", {}), table.at("nvlink"), ("switch", "mesh"))
    chips = nvlink.raw("switch", ())
    if not isinstance(chips, (list, tuple)) or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 64 for n in chips):
        raise BadInput(f"{nvlink.at('switch')} must list the links of each GPU to each chip, e.g. [5, 4, 4, 5]")
    for name, gpu in gpus.items():
        if chips and sum(chips) > gpu.nvlink_links:
            raise BadInput(
                f"{nvlink.at('switch')}: {sum(chips)} links per GPU, but {name} ({gpu.name}) has {gpu.nvlink_links}. {_fewer(gpu)}"
            )
    return tuple(chips)


def _nvlinks(table: Table, machine: Machine) -> dict[str, Link]:
    links: dict[str, Link] = {}
    for name, gpu in machine.gpus.items():
        if machine.chips:
            rate = gpu.nvlink * sum(machine.chips) / gpu.nvlink_links
            links[f"{name}>nvswitch"] = links[f"nvswitch>{name}"] = Link("nvlink", rate, LATENCY["nvlink"])
    nvlink = Table(table.raw("nvlink", {}), table.at("nvlink"), ("switch", "mesh"))
    mesh = nvlink.raw("mesh", ())
    if mesh == "all":
        names = list(machine.gpus)
        each = min((gpu.nvlink_links for gpu in machine.gpus.values()), default=0) // max(1, len(names) - 1)
        mesh = [[number_of(a), number_of(b), each] for i, a in enumerate(names) for b in names[i + 1 :]]
    if not isinstance(mesh, (list, tuple)):
        raise BadInput(f'{nvlink.at("mesh")} must be a list of [gpu, gpu, links] or "all"')
    taken: Counter[str] = Counter()
    for row in mesh:
        a, b, count = _row(row, machine, nvlink.at("mesh"))
        gpu = machine.gpus[a]
        if not gpu.nvlink_links:
            raise BadInput(f"{nvlink.at('mesh')}: {a} ({gpu.name}) has no NVLink")
        kind = "xgmi" if gpu.arch.startswith("gfx") else "nvlink"
        rate = gpu.nvlink / gpu.nvlink_links * count
        links[f"{a}>{b}"] = links[f"{b}>{a}"] = Link(kind, rate, LATENCY[kind])
        for name in (a, b):
            taken[name] += count
            if taken[name] > machine.gpus[name].nvlink_links:
                raise BadInput(
                    f"{nvlink.at('mesh')}: {taken[name]} links end at {name}, but a {machine.gpus[name].name} "
                    f"has {machine.gpus[name].nvlink_links}. {_fewer(machine.gpus[name])}"
                )
    return links


def _fewer(gpu: Gpu) -> str:
    if not gpu.nvlink_links:
        return "Leave [nvlink] out"
    return f"Write numbers that add up to {gpu.nvlink_links} or less, or name a GPU with more NVLinks"


def _row(row: object, machine: Machine, where: str) -> tuple[str, str, int]:
    if not isinstance(row, (list, tuple)) or len(row) != 3 or not all(isinstance(n, int) and not isinstance(n, bool) for n in row):
        raise BadInput(f"{where}: each row is [gpu, gpu, links], got {str(row)[:40]}")
    a, b, count = f"gpu{row[0]}", f"gpu{row[1]}", row[2]
    for name in (a, b):
        if name not in machine.gpus:
            raise UnknownName("GPU", name, machine.gpus, where)
    if a == b or not 0 < count <= 64:
        raise BadInput(f"{where}: a link joins two GPUs by 1 to 64 links, got {row}")
    return a, b, count


def _override(table: Table, links: dict[str, Link]) -> dict[str, Link]:
    """`links` with the rates and latencies of `[links]`, each for one direction of one link. Raises `BadInput` for a link that does not
    exist."""
    given = table.raw("links", {})
    if not isinstance(given, Mapping):
        raise BadInput(f'{table.at("links")} must be a table such as "gpu0>sw0" = {{ rate = "12 GB/s" }}')
    found = dict(links)
    for name, value in given.items():
        if name not in links:
            raise UnknownName("link", str(name), links, table.at("links"))
        one = Table(value, f"{table.at('links')} '{name}'", ("rate", "latency"))
        old = links[name]
        found[name] = Link(old.kind, one.rate("rate", old.rate), one.duration("latency", old.latency))
    return found
