"""Paths of one topology, found when asked for and kept: between ranks, and between a rank's device and the memory of its host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from topologies.build import ASSUMED_DRAM
from topologies.cluster import full
from topologies.fabric import Fabric
from topologies.path import Path
from topologies.rates import Rates
from topologies.travel import End, across, inside


class Ways:
    """Computes and caches paths. `end` gives the place of a rank, `rates` the rate and latency of a link."""

    def __init__(self, fabric: Fabric, rates: Rates, end: Callable[[int], End]) -> None:
        self._fabric, self._rates, self._end = fabric, rates, end
        self._between: dict[tuple[int, int], Path] = {}
        self._host: dict[tuple[int, bool], Path] = {}

    def between(self, a: int, b: int) -> Path:
        """The path from rank `a` to rank `b`. Raises `BadInput` where nothing connects them."""
        found = self._between.get((a, b))
        if found is None:
            found = self._between[a, b] = self._found(a, b)
        return found

    def _found(self, a: int, b: int) -> Path:
        here, there = self._end(a), self._end(b)
        (node, site, slot), (other, _, far) = here, there
        if a == b:
            return Path((), site.processor(slot).bandwidth or ASSUMED_DRAM, 0.0, "LOC")
        leg = inside(site, slot, far) if node == other else None
        if leg is not None:
            return self._measured(full(node, leg.links), leg.kind, leg.staged)
        return self._measured(*across(self._fabric, here, there))

    def host(self, rank: int, to_device: bool) -> Path:
        """Between pinned host memory and the rank's device, with the copy engine as its last (first) link."""
        found = self._host.get((rank, to_device))
        if found is None:
            node, site, slot = self._end(rank)
            name = site.device(slot)
            if site.machine.gpus:
                leg = site.router.host(name, to_device)
                found = self._measured(full(node, leg.links), leg.kind, False)
            else:
                bus = f"n{node}/{site.machine.memory_bus(site.machine.home(name))}"
                found = self._measured((bus, bus), "LOC", False)
            self._host[rank, to_device] = found
        return found

    def _measured(self, links: tuple[str, ...], kind: str, staged: bool) -> Path:
        """Makes the `Path`: its rate is that of the slowest link, its latency the sum over the links."""
        found = {name: self._rates.link(name) for name in links}
        rate = min(found[name].rate / count for name, count in Counter(links).items())
        return Path(links, rate, sum(found[name].latency for name in links), kind, staged)
