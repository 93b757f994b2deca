"""Seconds that a CPU thread spends to dispatch: per kernel, module call, autograd node, collective...

Kinds of host, as frameworks are written: `python` (eager modules), `te` (TransformerEngine's), `te-graphs` (with parts of
each layer captured), `light` (compiled or C++ launches), `graph`
(replayed CUDA graphs). Values with their sources: `params/host.toml`; a slower CPU stretches them all.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_args

from sim.cost.device import table
from sim.framework.framework import HostKind
from sim.work import Conv, MemoryBound, Work
from topologies.errors import UnknownName
from topologies.hardware import Cpu

PREPROCESS = 2e-3
"""Seconds of one sample's preparation where the plan does not say (assumed: decode and augment one image takes 2-10 ms)."""
MEMCPY = 4e9
"""Bytes per second that one thread copies, stages from pageable memory, or pins of what another process has made: 3-8 GB/s on x86 hosts (assumed;
facts: pinned vs pageable)."""
_FIXED = {"preprocess": PREPROCESS, "memcpy": 1 / MEMCPY}


@cache
def _values(kind: str) -> dict[str, float]:
    if kind not in get_args(HostKind):
        raise UnknownName("kind of host", kind, get_args(HostKind))
    own = {what: microseconds * 1e-6 for what, microseconds in table("host", kind, dict[str, float]).items()}
    return _values("python") | own if kind.startswith("te") else own


@cache
def _speed(cpu: str) -> float:
    return table("host", "cpu", dict[str, float]).get(cpu, 1.0)


def host_seconds(what: str, host: str, cpu: Cpu | None = None) -> float:
    """Seconds of one unit of host work `what` on one thread. Raises `UnknownName` for a kind of work that the table lacks,
    or a kind of host. `cpu`: a slower one stretches the table's values; None: as on the table's CPU."""
    if what in _FIXED:
        return _FIXED[what]
    values = _values(host)
    if what not in values:
        raise UnknownName("kind of host work", what, (*values, *_FIXED), "sim/cost/params/host.toml")
    return values[what] * (_speed(cpu.name) if cpu is not None else 1.0)


class Calls(NamedTuple):
    """Seconds on a training thread of the calls that launch kernels; its fields are the units of host work in the tables."""

    kernel: float
    launch: float
    """One kernel launch alone, repeated in a C++ loop."""
    convolution: float
    """Further seconds of a convolution or a batch norm: each call describes its arrays to cuDNN, looks up the plan and asks for its workspace."""

    def of(self, work: Work) -> float:
        """Seconds of the one call that launches `work`."""
        asks = isinstance(work, Conv) or (isinstance(work, MemoryBound) and work.what.startswith("batchnorm"))
        return self.kernel + self.convolution if asks else self.kernel
