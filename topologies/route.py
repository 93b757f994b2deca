"""Paths inside one node: NVLink, then one GPU in between, then PCIe, then through the sockets.

Kinds are NCCL's: LOC (same device) NVL NVB (over one other GPU) C2C PIX (one switch) PXB (several switches)
PHB (through a CPU) SYS (between NUMA domains). GPUs that may not read each other copy through host memory (`staged`).
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from topologies.machine import Machine, kind_of

ORDER = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS", "NET")
"""Near to far."""


class Leg(msgspec.Struct, frozen=True, gc=False):
    """A path inside a node, by the node's short link names."""

    links: tuple[str, ...]
    kind: str
    staged: bool = False


class Router:
    """Computes and caches the paths inside one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._memo: dict[tuple[str, str], Leg | None] = {}
        self._chains: dict[str, list[str]] = {}
        self._near: dict[str, dict[str, None]] = {}
        for name in machine.links:
            a, _, b = name.partition(">")
            if machine.links[name].kind in ("nvlink", "xgmi"):
                self._near.setdefault(a, {})[b] = None

    def leg(self, a: str, b: str) -> Leg | None:
        """The path from device `a` to device `b` (GPUs, NICs); None where nothing inside the node connects them."""
        if (a, b) not in self._memo:
            self._memo[a, b] = self._find(a, b)
        return self._memo[a, b]

    def _find(self, a: str, b: str) -> Leg | None:
        if a == b:
            return Leg((), "LOC")
        gpus = kind_of(a) == kind_of(b) == "gpu"
        if gpus:
            direct = self._nvlink(a, b) or self._over_gpu(a, b)
            if direct:
                return direct
        tree = self.tree(a, b)
        if tree is None:
            return None
        if tree.kind == "C2C" and not gpus:
            return tree
        limit = self.machine.p2p if gpus else "PXB"
        if limit == "none" or ORDER.index(tree.kind) > ORDER.index(limit):
            return self._through_memory(a, b, tree)
        return tree

    def _nvlink(self, a: str, b: str) -> Leg | None:
        if b in self._near.get(a, {}):
            return Leg((f"{a}>{b}",), "NVL")
        if "nvswitch" in self._near.get(a, {}) and b in self._near.get("nvswitch", {}):
            return Leg((f"{a}>nvswitch", f"nvswitch>{b}"), "NVL")
        return None

    def _over_gpu(self, a: str, b: str) -> Leg | None:
        """The path over one other GPU. Of several, the one whose slower link is fastest; of equals, the first in rank order."""
        links = self.machine.links
        best: tuple[float, str] | None = None
        for middle in self.machine.gpus:
            if middle in self._near.get(a, {}) and b in self._near.get(middle, {}):
                narrow = min(links[f"{a}>{middle}"].rate, links[f"{middle}>{b}"].rate)
                if best is None or narrow > best[0]:
                    best = (narrow, middle)
        return Leg((f"{a}>{best[1]}", f"{best[1]}>{b}"), "NVB") if best else None

    def _chain(self, name: str) -> list[str]:
        found = self._chains.get(name)
        if found is None:
            found = self._chains[name] = self.machine.chain(name)
        return found

    def tree(self, a: str, b: str) -> Leg | None:
        """The path along the PCIe tree and between sockets; None where there is none."""
        rise, fall = self._chain(a), self._chain(b)
        common = next((name for name in rise if name in fall), None)
        if common is not None:
            path = rise[: rise.index(common) + 1] + fall[: fall.index(common)][::-1]
        elif f"{rise[-1]}>{fall[-1]}" in self.machine.links:
            path = rise + fall[::-1]
        else:
            return None
        links = tuple(f"{u}>{v}" for u, v in pairwise(path))
        return Leg(links, self._kind(path, links))

    def _kind(self, path: list[str], links: tuple[str, ...]) -> str:
        kinds = [kind_of(name) for name in path[1:-1]]
        hosts = sum(kind in ("socket", "numa") for kind in kinds)
        if hosts == 1 and any(self.machine.links[name].kind == "c2c" for name in links):
            return "C2C"
        if hosts > 1:
            return "SYS"
        if hosts or "root" in kinds:
            return "PHB"
        return "PIX" if kinds.count("sw") <= 1 else "PXB"

    def _through_memory(self, a: str, b: str, tree: Leg) -> Leg | None:
        """The path through host memory: `a` writes to the memory next to it, `b` reads from there, so that the DRAM bus is crossed
        twice."""
        home = self.machine.home(a)
        rise = self._chain(a)
        write = [f"{u}>{v}" for u, v in pairwise(rise[: rise.index(home) + 1])]
        bus = self.machine.memory_bus(home)
        read = self._from(home, b)
        return Leg((*write, bus, bus, *read), tree.kind, staged=True) if read is not None else None

    def _from(self, a: str, b: str) -> tuple[str, ...] | None:
        leg = self.tree(a, b)
        return leg.links if leg else None

    def host(self, gpu: str, to_device: bool) -> Leg:
        """The path between a GPU and the memory next to it, through one of its copy engines."""
        machine = self.machine
        home = machine.home(gpu)
        bus = machine.memory_bus(home)
        up = machine.links.get(f"{gpu}>{machine.up.get(gpu, '')}")
        kind = "C2C" if up is not None and up.kind == "c2c" else "PHB"
        engine = f"{gpu}>{gpu}.h2d" if to_device else f"{gpu}.d2h>{gpu}"
        engine = engine if engine in machine.links else f"copy@{gpu}"
        if to_device:
            return Leg((bus, *(self._from(home, gpu) or ()), engine), kind)
        return Leg((engine, *(self._from(gpu, home) or ()), bus), kind)
