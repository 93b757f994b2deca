"""Which kernel stands for a memory-bound work: each is built from the bytes that the work reads and writes."""

from __future__ import annotations

import torch

from executor.arena import Arena
from executor.kernels import elementwise, lists, rows, updates
from executor.kernels.site import Body, Site
from sim.cost.variant import HALVES, variant
from sim.optimizers import OPTIMIZERS
from sim.work import MemoryBound

_KERNELS = elementwise.KERNELS | rows.KERNELS | lists.KERNELS


def memory_kernel(work: MemoryBound, arena: Arena, dtype: torch.dtype) -> Body:
    """The kernel of one work. Kinds without their own kernel run as a copy, an add or, if nothing is written, a sum of the same bytes."""
    site, name = Site(work, arena, dtype), variant(work).removesuffix(HALVES)
    return _KERNELS.get(name, updates.update if name in OPTIMIZERS else _plain)(site)


def _plain(site: Site) -> Body:
    return rows.reduce(site) if site.work.written == 0 else elementwise.plain(site)
