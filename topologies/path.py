"""The way of one flow through the links of a topology."""

from __future__ import annotations

from collections import Counter

import msgspec


class Path(msgspec.Struct, frozen=True):
    """The way of one flow."""

    links: tuple[str, ...]
    """Directed link names, keys of `Topology.rates`; a memory bus that is written and read comes twice."""
    rate: float
    """Bytes per second of the narrowest link (a bus that is crossed twice counts half)."""
    latency: float
    """Seconds, the sum over the links."""
    kind: str
    """NCCL's: LOC NVL NVB C2C PIX PXB PXN PHB SYS NET."""
    staged: bool = False
    """Through host memory, because the devices may not read each other."""

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """(link, how often the flow crosses it)."""
        return tuple(Counter(self.links).items())
