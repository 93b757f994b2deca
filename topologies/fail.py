"""What-ifs that remove a part: one cable, NIC, NVSwitch chip or switch (`fail`), or all NVSwitches, NVLinks, NICs or peer access
(`without`)."""

from __future__ import annotations

import re

import msgspec

from topologies.cluster import ON_NODE, Cluster
from topologies.errors import BadInput, Refused, UnknownName
from topologies.machine import Link, Machine, check

WITHOUT = ("nvswitch", "nvlink", "nic", "p2p", "spine")


def without(machine: Machine, what: str) -> Machine:
    """Returns `machine` without any of its NVSwitches, NVLinks or NICs, or without peer-to-peer access. Raises `BadInput`."""
    if what not in WITHOUT:
        raise UnknownName("part to leave out", what, WITHOUT)
    if what == "p2p":
        return msgspec.structs.replace(machine, p2p="none")
    if what == "nic":
        return _drop(machine, set(machine.nics))
    kept = {n: link for n, link in machine.links.items() if not (_through(n) if what == "nvswitch" else link.kind in ("nvlink", "xgmi"))}
    if len(kept) == len(machine.links):
        raise BadInput(f"without={what}: {machine.name} has no {what}")
    return check(msgspec.structs.replace(machine, links=kept, chips=()))


def in_one_piece(cluster: Cluster, what: str) -> Cluster:
    """Returns `cluster`. Raises `Refused` where no link inside a node connects all GPUs in use, as with trays that only NVSwitches
    connect."""
    import networkx  # imported here because it is slow: half of the start of a command

    for run in cluster.runs:
        graph = networkx.Graph(link.split(">") for link in run.machine.links if ">" in link)
        used = tuple(run.machine.gpus)[: run.ranks]
        pieces = [[gpu for gpu in used if gpu in piece] for piece in networkx.connected_components(graph)]
        apart = [piece for piece in pieces if piece]
        if len(apart) > 1:
            raise Refused(
                f"without={what}: nothing else joins {len(apart)} trays of {run.machine.name}, which would be disconnected. Take them as "
                f'nodes: "{run.count * len(apart)}x {run.machine.name}:{len(apart[0])}"'
            )
    return cluster


def _through(link: str) -> bool:
    return link.endswith(">nvswitch") or link.startswith("nvswitch>")


def fail(cluster: Cluster, value: str) -> Cluster:
    """Returns `cluster` after the failure that `value` names: `link:gpu0-sw0`, `link:n3/gpu0-n3/sw0`, `nic:n0/nic1`, `nvswitch:2`,
    `spine:3`, `leaf:0.1`, `core:0`. Raises `BadInput`."""
    what, colon, where = value.partition(":")
    if what in ("leaf", "spine", "core") and colon:
        return _fail_switch(cluster, f"net/{what}{where}")
    if what == "link" and colon:
        return _fail_link(cluster, where)
    if what in ("nic", "nvswitch"):
        node, name = _node(cluster, where)
        return cluster.changed((lambda m: _drop(m, {name})) if what == "nic" else (lambda m: _chips(m, name or "1")), node)
    if what == "gpu":
        raise BadInput("fail=gpu: a rank without its GPU cannot train. Use fewer GPUs: ranks_per_node=7, or slow=r3:0.5")
    raise UnknownName("failure", what, ("link", "nic", "nvswitch", "spine", "leaf", "core"), f"fail={value[:60]}")


def _node(cluster: Cluster, name: str) -> tuple[int | None, str]:
    """Splits a name such as `n3/gpu0` into (node, short name); the node is None, for all nodes, where the name has none."""
    match = ON_NODE.match(name)
    if not match:
        return None, name
    node = int(match.group(1))
    if node >= cluster.nodes:
        raise BadInput(f"there is no node n{node}: {cluster.name} has n0 to n{cluster.nodes - 1}")
    return node, match.group(2)


def _drop(machine: Machine, names: set[str]) -> Machine:
    """Returns `machine` without the NICs `names` and their links."""
    for name in names:
        if name not in machine.nics:
            raise UnknownName("NIC", name, machine.nics, machine.name)
    kept = {n: link for n, link in machine.links.items() if not names & set(n.split(">"))}
    return msgspec.structs.replace(
        machine,
        links=kept,
        nics={name: nic for name, nic in machine.nics.items() if name not in names},
        up={child: parent for child, parent in machine.up.items() if child not in names},
    )


def _chips(machine: Machine, count: str) -> Machine:
    """Removes `count` NVSwitch chips, first those with the most links to each GPU. Each GPU loses its links to them."""
    if not machine.chips:
        raise BadInput(f"fail=nvswitch: {machine.name} has no NVSwitch")
    if not count.isdecimal() or not 1 <= int(count) <= len(machine.chips):
        raise BadInput(f"fail=nvswitch:{count[:20]}: {machine.name} has {len(machine.chips)} chips")
    chips = tuple(sorted(machine.chips))[: len(machine.chips) - int(count)]
    if not chips:
        return without(machine, "nvswitch")
    share = sum(chips) / sum(machine.chips)
    links = {n: Link(link.kind, link.rate * share, link.latency) if _through(n) else link for n, link in machine.links.items()}
    return msgspec.structs.replace(machine, chips=chips, links=links)


def _ends(text: str) -> tuple[str, str]:
    for mark in (">", "<->", "--", "-"):
        a, found, b = text.partition(mark)
        if found and a and b:
            return a.strip(), b.strip()
    raise BadInput(f"fail=link:{text[:60]}: name both ends, e.g. fail=link:gpu0-nvswitch or fail=link:n3/gpu0-n3/nvswitch")


def _fail_link(cluster: Cluster, text: str) -> Cluster:
    """Removes the cable between two vertices, in both directions."""
    a, b = _ends(text)
    if a.startswith("net/") or b.startswith("net/"):
        return _fail_cable(cluster, a, b)
    (node, short_a), (other, short_b) = _node(cluster, a), _node(cluster, b)
    if other is None:
        other = node
    if node != other:
        raise BadInput(f"fail=link:{text[:60]}: both ends must be on one node, or one of them a leaf (net/leaf0.0)")
    return cluster.changed(lambda machine: _cut(machine, short_a, short_b), node)


def _cut(machine: Machine, a: str, b: str) -> Machine:
    gone = {f"{a}>{b}", f"{b}>{a}"}
    cables = [name for name, link in machine.links.items() if link.kind not in ("engine", "dram")]
    if not gone & set(cables):
        raise UnknownName("link", f"{a}>{b}", cables, machine.name)
    if machine.links[f"{a}>{b}"].kind in ("upi", "numa"):
        raise BadInput(f"fail=link:{a}-{b}: a node without its link between processors does not run. Slow it: link.upi.rate=1 GB/s")
    up = {child: parent for child, parent in machine.up.items() if {child, parent} != {a, b}}
    nics = {name: nic for name, nic in machine.nics.items() if name in up}
    links = {n: link for n, link in machine.links.items() if n not in gone}
    found = check(msgspec.structs.replace(machine, up=up, links=links, nics=nics))
    for name in found.gpus:
        if machine.home(name) and not found.home(name):
            raise BadInput(
                f"fail=link:{a}-{b}: {name} would be disconnected from its CPU, which then cannot drive it. "
                f"Slow it instead: link.pcie.rate=1 GB/s, or try fewer GPUs"
            )
    return found


def _fail_cable(cluster: Cluster, a: str, b: str) -> Cluster:
    from topologies.graph import Topology

    rates = Topology(cluster).rates
    if cluster.nodes == 1 or f"{a}>{b}" not in rates:
        raise BadInput(f"fail=link:{a[:40]}-{b[:40]}: {cluster.name} has no such link")
    if "net/leaf" in a + b and "/nic" in a + b:
        nic = a if "/nic" in a else b
        node, name = _node(cluster, nic)
        return cluster.changed(lambda machine: _drop(machine, {name}), node)
    fabric = cluster.fabric
    return msgspec.structs.replace(cluster, fabric=msgspec.structs.replace(fabric, failed=fabric.failed | {f"{a}>{b}", f"{b}>{a}"}))


def _fail_switch(cluster: Cluster, name: str) -> Cluster:
    """Removes a switch. Routes avoid a failed spine, or the failed core switches over a spine. Where a leaf fails, the nodes of its pod
    lose their NICs on its rail."""
    fabric = cluster.fabric
    leaf = re.fullmatch(r"net/leaf(\d{1,6})\.(\d{1,3})", name)
    if _is_upper(cluster, name):
        return msgspec.structs.replace(cluster, fabric=msgspec.structs.replace(fabric, failed=fabric.failed | {name}))
    if leaf and int(leaf.group(1)) * fabric.pod < cluster.nodes and int(leaf.group(2)) < fabric.rails and cluster.nodes > 1:
        return _fail_leaf(cluster, int(leaf.group(1)), int(leaf.group(2)))
    if cluster.nodes == 1:
        raise BadInput(
            f"fail: {cluster.name} is one node, without leaf and spine switches. Take several (2x {cluster.name}), or nvswitch:1, nic:nic0"
        )
    if fabric.rail_only:
        raise BadInput(f"fail: {cluster.name} has no switch {name[:40]}; it has {_leaves(cluster)}, and no spines")
    spines = f"{'0.' if fabric.block else ''}0 to {fabric.spine_name(0, fabric.spine_count - 1).removeprefix('net/spine')}"
    raise BadInput(f"fail: {cluster.name} has no switch {name[:40]}; it has {_leaves(cluster)} and spines {spines}")


def _leaves(cluster: Cluster) -> str:
    """Words for a message: the names of the first and the last leaf switch. There is one leaf for each rail of each pod."""
    pods = -(-cluster.nodes // cluster.fabric.pod)
    return f"leaves leaf:0.0 to leaf:{pods - 1}.{cluster.fabric.rails - 1} (pod.rail)"


def _is_upper(cluster: Cluster, name: str) -> bool:
    """True if the cluster has a spine or core switch of this name."""
    fabric = cluster.fabric
    match = re.fullmatch(r"net/(?:core|spine(?:(\d{1,6})\.)?)(\d{1,6})", name)
    if match is None or int(match.group(2)) >= fabric.spine_count or cluster.nodes == 1:
        return False
    if name.startswith("net/core"):
        return 0 < fabric.block_nodes < cluster.nodes
    pod = int(match.group(1) or 0) * (fabric.block or 1)
    return name == fabric.spine_name(pod, int(match.group(2))) and pod * fabric.pod < cluster.nodes


def _fail_leaf(cluster: Cluster, pod: int, rail: int) -> Cluster:
    size = cluster.fabric.pod
    made: dict[int, Machine] = {}
    special = dict(cluster.special)
    for node in range(pod * size, min(cluster.nodes, (pod + 1) * size)):
        machine = cluster.machine(node)
        if id(machine) not in made:
            names = {nic for place, nic in enumerate(machine.cabled) if place % cluster.fabric.rails == rail and nic in machine.nics}
            made[id(machine)] = _drop(machine, names)
        special[node] = made[id(machine)]
    return msgspec.structs.replace(cluster, special=special)
