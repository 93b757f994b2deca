"""Prices ranks that have more samples than others: work for each sample takes longer there; the update and its messages do not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sim.cost.price import Cost, Derived, Pricer
from sim.program import Op

_FOR_EACH_STEP = ("optimizer", "grad.copy", "output")
"""Classes of kernels that run once a step, whatever the number of samples."""
_FOR_EACH_SAMPLE = ("data", "comm.offload")
"""Classes of copies and of CPU threads' work that grow with the samples: the batch and offloaded activations."""
_ACTIVATIONS = ("comm.tp", "comm.cp", "comm.ep", "comm.pp")
"""Classes of messages that carry activations."""


def grows(op: Op) -> bool:
    """Whether the op takes longer with more samples."""
    if op.kind == "compute":
        return op.cls not in _FOR_EACH_STEP and not op.cls.startswith("comm.")
    return op.kind in ("host", "copy") and op.cls in _FOR_EACH_SAMPLE


class Uneven(Derived):
    """A pricer for ranks with uneven numbers of samples. `loads(rank)`: factor on a rank's samples."""

    def __init__(self, inner: Pricer, loads: Callable[[int], float]) -> None:
        super().__init__(inner)
        self._loads = loads

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """The cost for the member with most samples."""
        return _larger(op, self.inner.collective(op, members, siblings), max(map(self._loads, members)))

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """The cost for the sender's number of samples."""
        return _larger(op, self.inner.message(op, source, target, siblings), self._loads(source))

    def local(self, op: Op, rank: int) -> Cost:
        """The cost times the rank's factor, at the same rates; launches do not change."""
        cost, load = self.inner.local(op, rank), self._loads(rank)
        if load == 1.0 or not grows(op):
            return cost
        seconds, ready = cost.seconds * load, cost.ready
        if ready:
            # A chain ends one launch after its device time, or one kernel after its launches, whichever is the slower chain.
            ready = seconds + ready - cost.seconds if cost.seconds >= cost.host else cost.host + (ready - cost.host) * load
            ready = max(ready, seconds)
        return msgspec.structs.replace(cost, seconds=seconds, ready=ready, slowed=cost.slowed * load)


def _larger(op: Op, cost: Cost, load: float) -> Cost:
    """The cost of a message with `load` times the samples, if it carries activations; else the same cost."""
    if load == 1.0 or not op.cls.startswith(_ACTIVATIONS):
        return cost
    return msgspec.structs.replace(cost, seconds=cost.latency + (cost.seconds - cost.latency) * load)
