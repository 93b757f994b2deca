"""What-ifs: short texts (`KEY=VALUE`), each of which makes a new cluster from an old one. They are applied in order.

link.KIND.rate=400 GB/s      every link of a kind (nvlink xgmi c2c pcie numa upi dram net spine), also .latency
fail=link:gpu0-sw0           a cable, both directions, on every node; fail=link:n3/gpu0-n3/sw0 on one;
                             fail=link:net/leaf0.0-net/spine2, fail=spine:2, fail=nic:n0/nic1, fail=nvswitch:2 (two chips)
without=nvswitch             also nvlink, nic, p2p, spine (rail_only in a file)
slow=r3:0.8                  rank 3 computes at 0.8 of full speed; slow=n2:0.8 all ranks of node 2 that have no speed of their own
oversubscription=2  rails=4  pod=16  spines=8  block=8  core_oversubscription=7     fabric.oversubscription=2, as in a file, is the same
ranks_per_node=4             use so many GPUs of each node, the first that order= lists
order=3,2,1,0                which device of its node each local rank takes; order=scatter: ranks go to the nodes in turn
gpu=h200-sxm                 other GPUs in the same places; gpu.memory=96 GiB, gpu.bandwidth, gpu.power=600 W, gpu.clock=1.7 GHz, gpu.sms=66 (and the
                             peaks in proportion), gpu.flops.bf16 ...
cpu.cores=8  cpu.bandwidth=100 GB/s  cpu.flops.fp32=50 GFLOP/s  nic.rate=200 Gbit/s  disk.read=2 GB/s  p2p=none
store.read=2 GB/s  store.total_write=500 GB/s  store.latency=150 ms     the store that all nodes share: read, write, stream, latency, totals
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

import msgspec

from topologies import fail
from topologies.build import P2P, build
from topologies.cluster import Cluster, Run
from topologies.devices import gpu
from topologies.errors import BadInput, Refused, UnknownName
from topologies.fabric import read_fabric
from topologies.machine import Link, Machine
from topologies.refit import refit
from topologies.table import positive
from topologies.units import duration, rate

Edit = Callable[[Cluster, str, str], Cluster]
SECTIONS = ("link", "gpu", "cpu", "nic", "disk", "store", "fabric")
"""First words of the keys that contain a dot."""
_LINKS = ("nvlink", "xgmi", "c2c", "pcie", "numa", "upi", "dram", "engine", "net", "spine")
_PARTS = (
    "gpu.memory",
    "gpu.bandwidth",
    "gpu.power",
    "gpu.clock",
    "cpu.cores",
    "cpu.bandwidth",
    "nic.rate",
    "disk.read",
    "disk.write",
    "store.read",
    "store.write",
)
"""Common keys with a dot, apart from those of links: `meant` offers them."""


def is_edit(key: str) -> bool:
    """True if `key` belongs to a machine, not to a plan."""
    return key in _EDITS or key.partition(".")[0] in SECTIONS


def keys() -> tuple[str, ...]:
    """First words of the keys with a dot (`SECTIONS`), and all keys without a dot."""
    return tuple(dict.fromkeys((*SECTIONS, *_EDITS)))


def meant(key: str) -> list[str]:
    """For an unknown key, at most three keys of a machine that the user may mean: keys that end in it, else keys of the link that it begins
    with (`nvlink.rate`), else the keys with the most similar names."""
    known = [*(f"link.{kind}.{what}" for what in ("rate", "latency") for kind in _LINKS), *_PARTS, *_EDITS]
    link = f"link.{key.partition('.')[0]}."
    found = [one for one in known if one.endswith(f".{key}")] or [one for one in known if one.startswith(link)]
    return (found or difflib.get_close_matches(key[:80], [one for one in known if one != "gpu"], cutoff=0.8))[:3]


def apply(cluster: Cluster, edits: tuple[str, ...]) -> Cluster:
    """Returns `cluster` after all edits. Raises `BadInput`, which names the edit."""
    for edit in edits:
        if not isinstance(edit, str):
            raise BadInput(f"an edit is a text such as 'oversubscription=2', not {edit!r}")
        key, equals, value = (part.strip() for part in edit.partition("="))
        if not equals or not key or not value:
            raise BadInput(f"cannot read the edit {edit[:80]!r}. Write KEY=VALUE, e.g. 'oversubscription=2' or 'fail=link:gpu0-nvswitch'")
        cluster = _one(cluster, key, value)
    return msgspec.structs.replace(cluster, edits=cluster.edits + edits)


def _one(cluster: Cluster, key: str, value: str) -> Cluster:
    first, dot, rest = key.partition(".")
    if dot and first == "link":
        return _link(cluster, rest, value)
    if dot and first in ("gpu", "cpu", "nic", "disk", "store"):
        return cluster.changed(lambda machine: refit(machine, first, rest, value))
    if dot and first == "fabric" and _EDITS.get(rest) is _fabric:
        return _fabric(cluster, rest, value)
    if key not in _EDITS:
        raise UnknownName("edit", key, [*_EDITS, "link.nvlink.rate", "gpu.memory", "cpu.cores", "nic.rate", "disk.read", "store.read"])
    return _EDITS[key](cluster, key, value)


def _link(cluster: Cluster, rest: str, value: str) -> Cluster:
    kind, dot, what = rest.partition(".")
    if kind not in _LINKS:
        raise UnknownName("kind of link", kind, _LINKS)
    if not dot or what not in ("rate", "latency"):
        raise UnknownName("property of a link", what, ("rate", "latency"), f"link.{kind}")
    where = f"link.{kind}.{what}"
    amount = positive(rate(value, where), where) if what == "rate" else duration(value, where)
    if kind == "spine":
        field = "uplink" if what == "rate" else "hop"
        return msgspec.structs.replace(cluster, fabric=msgspec.structs.replace(cluster.fabric, **{field: amount}))
    found = cluster.changed(lambda machine: _set_links(machine, kind, what, amount))
    if all(new.machine is old.machine for new, old in zip(found.runs, cluster.runs, strict=True)):
        kinds = sorted({link.kind for run in cluster.runs for link in run.machine.links.values()} | {"net", "spine"})
        raise BadInput(f"{where}: {cluster.name} has no {kind} link. It has {', '.join(kinds)}")
    return found


def _set_links(machine: Machine, kind: str, what: str, amount: float) -> Machine:
    if kind == "net":
        nics = {name: msgspec.structs.replace(nic, **{what: amount}) for name, nic in machine.nics.items()}
        return msgspec.structs.replace(machine, nics=nics) if nics else machine
    if not any(link.kind == kind for link in machine.links.values()):
        return machine

    def one(link: Link) -> Link:
        if link.kind != kind:
            return link
        return Link(kind, amount, link.latency) if what == "rate" else Link(kind, link.rate, amount)

    return msgspec.structs.replace(machine, links={name: one(link) for name, link in machine.links.items()})


def _fabric(cluster: Cluster, key: str, value: str) -> Cluster:
    try:
        number: float = float(value) if "oversubscription" in key else int(value)
    except ValueError:
        kind = "number" if "oversubscription" in key else "whole number"
        raise BadInput(f"{key}={value[:40]}: must be a {kind}") from None
    read_fabric({key: number}, "the edit")
    return msgspec.structs.replace(cluster, fabric=msgspec.structs.replace(cluster.fabric, **{key: number}))


def _slow(cluster: Cluster, key: str, value: str) -> Cluster:
    who, colon, factor = value.partition(":")
    try:
        number, speed = int(who[1:]), float(factor.rstrip("x"))
    except ValueError:
        number, speed = -1, 0.0
    if not colon or who[:1] not in ("r", "n") or number < 0 or not 1e-3 <= speed <= 1:
        raise BadInput(
            f"slow={value[:40]}: write slow=r3:0.8 (rank 3 at 0.8 of full speed, 0.001 to 1) or slow=n2:0.8 (all ranks of node 2)"
        )
    if number >= (cluster.ranks if who[0] == "r" else cluster.nodes):
        raise BadInput(f"slow={value[:40]}: {cluster.name} has {cluster.ranks} ranks on {cluster.nodes} nodes, counted from 0")
    if who[0] == "n":
        return msgspec.structs.replace(cluster, slow_nodes=cluster.slow_nodes | {number: speed})
    return msgspec.structs.replace(cluster, speeds=cluster.speeds | {number: speed})


def _ranks(cluster: Cluster, key: str, value: str) -> Cluster:
    least = min(run.machine.size for run in cluster.runs)
    if not value.isdecimal() or not 1 <= int(value) <= least:
        raise BadInput(f"ranks_per_node={value[:20]}: must be 1 to {least} on {cluster.name}")
    if cluster.speeds or 0 < len(cluster.order) < int(value):
        before = f"slow=r{min(cluster.speeds)}" if cluster.speeds else "order="
        raise BadInput(f"ranks_per_node={value} numbers the ranks anew, and {before} before it speaks of those there were. Write it first")
    runs = tuple(Run(run.count, run.machine, int(value)) for run in cluster.runs)
    return msgspec.structs.replace(cluster, runs=runs, order=cluster.order[: int(value)])


def _order(cluster: Cluster, key: str, value: str) -> Cluster:
    counts = {run.ranks for run in cluster.runs}
    if value in ("scatter", "block"):
        if len(counts) > 1:
            raise BadInput(f"order={value}: the nodes of {cluster.name} have different numbers of ranks")
        return msgspec.structs.replace(cluster, scatter=value == "scatter")
    size = min(run.machine.size for run in cluster.runs)
    try:
        order = tuple(int(part) for part in value.split(","))
    except ValueError:
        order = ()
    if len(counts) > 1 or len(order) != next(iter(counts)) or len(set(order)) != len(order) or not all(0 <= i < size for i in order):
        raise BadInput(
            f"order={value[:60]}: list the device of each local rank once, 0 to {size - 1}, as in order=1,0,3,2; or scatter, block"
        )
    return msgspec.structs.replace(cluster, order=order)


def _gpu(cluster: Cluster, key: str, value: str) -> Cluster:
    def change(machine: Machine) -> Machine:
        if not machine.gpus:
            raise BadInput(f"gpu={value[:40]}: {machine.name} has no GPU")
        if machine != build(machine.document):
            raise BadInput(f"gpu={value[:40]} builds {machine.name} anew, without what the edits before it changed there. Write it first")
        kept = {field: item for field, item in machine.document.items() if field not in ("gpus", "nvlink")}
        return build({**kept, "gpu": value, "nvlink": _fit_links(machine, value)})

    return cluster.changed(change)


_SWITCHED = r"sxm(?!2)|^(gb|vr)|^h20$"
"""Names of GPUs whose boards can have NVSwitches. (SXM2 is older than NVSwitch, GH200 has its own links to other GPUs, PCIe cards have
NVLink bridges, and AMD's GPUs form a mesh.)"""


def _fit_links(machine: Machine, name: str) -> object:
    """The `[nvlink]` table of the machine for the GPU `name`. With NVSwitches, the links of the new GPU are spread over the same number of
    chips; without, the machine's own table is kept, or is empty where the GPU has no NVLink.

    Raises `Refused` on a machine with NVSwitches for a GPU that has NVLinks but does not connect to NVSwitches (`_SWITCHED`)."""
    links = gpu(name).nvlink_links
    if machine.chips and links:
        if not re.search(_SWITCHED, name):
            raise Refused(
                f"gpu={name}: {machine.name} joins its GPUs by NVSwitches, to which no {name} is connected. Take a machine that has it (steptwin "
                f"topology list), or put it into one without them, e.g. h100-pcie-x8"
            )
        chips = len(machine.chips)
        return {"switch": [n for i in range(chips) if (n := links // chips + (i < links % chips))]}
    return machine.document.get("nvlink", {}) if links else {}


def _p2p(cluster: Cluster, key: str, value: str) -> Cluster:
    if value not in P2P or value == "auto":
        raise UnknownName("p2p level", value, [level for level in P2P if level != "auto"])
    return cluster.changed(lambda machine: msgspec.structs.replace(machine, p2p=value))


def _fail(cluster: Cluster, key: str, value: str) -> Cluster:
    return fail.fail(cluster, value)


def _without(cluster: Cluster, key: str, value: str) -> Cluster:
    if value == "spine":
        return msgspec.structs.replace(cluster, fabric=msgspec.structs.replace(cluster.fabric, rail_only=True))
    return fail.in_one_piece(cluster.changed(lambda machine: fail.without(machine, value)), value)


_EDITS: dict[str, Edit] = {
    "oversubscription": _fabric,
    "rails": _fabric,
    "pod": _fabric,
    "spines": _fabric,
    "block": _fabric,
    "core_oversubscription": _fabric,
    "slow": _slow,
    "ranks_per_node": _ranks,
    "order": _order,
    "gpu": _gpu,
    "p2p": _p2p,
    "fail": _fail,
    "without": _without,
}
