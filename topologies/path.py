"""The path of one flow through the links of a topology."""

from __future__ import annotations

from collections import Counter

import msgspec


class Path(msgspec.Struct, frozen=True):
    """The path of one flow."""

    links: tuple[str, ...]
    """Names of directed links, which are keys of `Topology.rates`. A memory bus that is both written and read occurs twice."""
    rate: float
    """Bytes per second of the slowest link (of a bus that is crossed twice, half of its rate)."""
    latency: float
    """Seconds, the sum over the links."""
    kind: str
    """NCCL's: LOC NVL NVB C2C PIX PXB PXN PHB SYS NET."""
    staged: bool = False
    """True: the data go through host memory, because the devices have no peer access."""

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """(link, how often the flow crosses it)."""
        return tuple(Counter(self.links).items())
