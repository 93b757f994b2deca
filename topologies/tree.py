"""The PCIe tree of a node (`[tree]`): the devices below each socket and switch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topologies.errors import BadInput
from topologies.machine import KINDS, kind_of, number_of
from topologies.table import Table

_BELOW = {
    "tray": ("socket",),
    "socket": ("numa", "root", "sw", "gpu", "nic"),
    "numa": ("root", "sw", "gpu", "nic"),
    "root": ("sw", "gpu", "nic"),
    "sw": ("sw", "gpu", "nic"),
}
LARGEST = 4096
"""Vertices of one node at most."""


class Tree(msgspec.Struct, frozen=True):
    """The PCIe tree of a node: sockets, switches and the devices below them."""

    up: dict[str, str]
    children: dict[str, tuple[str, ...]]
    sockets: tuple[str, ...]
    trays: tuple[tuple[str, ...], ...]
    """Groups of sockets that are connected directly."""

    def of(self, kind: str) -> tuple[str, ...]:
        """All vertices of a kind, by number."""
        found = {name for name in (*self.children, *self.up) if kind_of(name) == kind}
        return tuple(sorted(found, key=number_of))

    @property
    def homes(self) -> tuple[str, ...]:
        """The memory domains: the NUMA domains of each socket, or the socket itself where it has none."""
        return tuple(n for s in self.sockets for n in (tuple(c for c in self.children.get(s, ()) if kind_of(c) == "numa") or (s,)))

    @property
    def domains(self) -> int:
        """Memory domains of one socket."""
        return max(1, len(self.homes) // max(1, len(self.sockets)))


def read_tree(table: Table, kind: str) -> Tree:
    """The checked tree of a machine's document. Raises `BadInput` that names the vertex in question."""
    where = table.at("tree")
    children = table.texts("tree")
    sockets = table.whole("sockets", 0, most=64)
    if not children and not sockets and kind == "cpu":
        sockets = 1
    for number in range(sockets):
        children.setdefault(f"socket{number}", ())
    if not children:
        raise BadInput(
            f'{table.where} needs a base, e.g. base = "dgx-h100" where it differs little from a machine of the catalog, or a [tree] that says what '
            'hangs on what: socket0 = ["sw0"] and sw0 = ["gpu0", "nic0"]'
        )
    children = _repeat(children, table.whole("repeat", 1, least=1, most=LARGEST))
    if sum(1 + len(names) for names in children.values()) > LARGEST:
        raise BadInput(f"{where} has more than {LARGEST} vertices: describe one node, and write '16x NAME' for a cluster")
    up = _parents(children, where)
    _check_roots(children, up, where)
    found = tuple(sorted({n for n in (*children, *up) if kind_of(n) == "socket"}, key=number_of))
    trays = tuple(names for name, names in children.items() if kind_of(name) == "tray") or (found,)
    up = {child: parent for child, parent in up.items() if kind_of(parent) != "tray"}
    return Tree(up, {name: names for name, names in children.items() if kind_of(name) != "tray"}, found, trays)


def _repeat(children: Mapping[str, tuple[str, ...]], times: int) -> dict[str, tuple[str, ...]]:
    """Makes `times` copies with consecutive numbers: with two GPUs in the tree, those of copy 1 are gpu2 and gpu3."""
    if times == 1:
        return dict(children)
    names = {*children, *(child for found in children.values() for child in found)}
    counts = {kind: sum(kind_of(name) == kind for name in names) for kind in KINDS}

    def moved(name: str, copy: int) -> str:
        kind = kind_of(name)
        return f"{kind}{number_of(name) + copy * counts[kind]}" if kind else name

    if times * len(names) > LARGEST:
        raise BadInput(f"repeat = {times} makes more than {LARGEST} vertices in one node")
    return {moved(p, i): tuple(moved(c, i) for c in found) for i in range(times) for p, found in children.items()}


def _parents(children: Mapping[str, tuple[str, ...]], where: str) -> dict[str, str]:
    up: dict[str, str] = {}
    for parent, names in children.items():
        below = _BELOW.get(kind_of(parent))
        if below is None:
            raise BadInput(f"{where}: '{parent[:40]}' can have nothing below it. Parents are called tray0, socket0, numa0, root0, sw0")
        for child in names:
            if kind_of(child) not in below:
                raise BadInput(
                    f"{where}: '{child[:40]}' cannot hang on {parent}. Allowed below a {kind_of(parent)}: {', '.join(below)} + number"
                )
            if child in up:
                again = "twice" if up[child] == parent else f"on {up[child]} and on {parent}"
                raise BadInput(f"{where}: {child} hangs {again}; a device has one place")
            up[child] = parent
    return up


def _check_roots(children: Mapping[str, tuple[str, ...]], up: Mapping[str, str], where: str) -> None:
    """Raises `BadInput` unless every vertex is below a socket or a tray: there must be no cycle and no vertex without a parent."""
    for name in (*children, *up):
        seen = {name}
        at = name
        while at in up:
            at = up[at]
            if at in seen:
                raise BadInput(f"{where}: {at} hangs on itself through {', '.join(sorted(seen - {at}))}")
            seen.add(at)
        if kind_of(at) not in ("socket", "tray"):
            raise BadInput(f'{where}: {at} hangs on nothing. Put it below a socket: socket0 = ["{at}"]')
