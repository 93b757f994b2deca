"""Seconds of one `Work` on one GPU: the dispatch by kind of work, and its cache.

`kernel_cost` is called for every op of a program, so equal works are priced once and then found in a cache.
"""

from __future__ import annotations

from sim.cost.attention import attention_cost, raised
from sim.cost.conv import conv_cost
from sim.cost.device import peak_flops
from sim.cost.gemm import BEST, gemm_cost, grouped_cost, power_ratio
from sim.cost.memory_bound import memory_bound_cost
from sim.cost.price import Cost, Source
from sim.cost.sparse import sparse_cost
from sim.cost.sustained import is_narrow, training_clock, unraised, vector_clock
from sim.work import EXACT, Attention, Conv, Gemm, GroupedGemm, HostWork, MemoryBound, Scores, Work
from topologies.errors import BadInput
from topologies.hardware import Gpu

Products = Gemm | GroupedGemm | Conv | Attention | Scores
Priced = dict[tuple[Work, str, bool, float], Cost]
_known: dict[int, tuple[Gpu, Priced]] = {}
_MOST_WORKS = 4096
_MOST_GPUS = 64
"""Number of GPU objects whose prices are kept: a sweep that edits GPUs makes a new object for each edit."""
_assumed: list[tuple[float, float]] = []
"""The training clocks of products of 16 bits or more and of fewer bits that a refit gives to all GPUs; empty: each GPU has its own."""


def kernel_cost(work: Work, gpu: Gpu, efficiency: str = "flash2", sustained: bool = True, board: float = 1.0) -> Cost:
    """Cost of all `repeat` launches of `work` together, without the gaps between launches.

    `efficiency`: the attention kernels (flash1 flash2 flash3 cudnn). `sustained`: clocks as in training, under the power limit; False:
    those of a short benchmark. `board`: further factor on that clock for this board (`slowest`: over that of the mean board; `sim.cost.power`: over
    that without a power limit). Raises `Refused` for a dtype that the GPU has no units for, `BadInput` for work of a CPU thread.
    """
    entry = _known.get(id(gpu))
    if entry is None:
        entry = _remember(gpu)
    key = (work, efficiency, sustained, board)
    cost = entry[1].get(key)
    if cost is None:
        if len(entry[1]) >= _MOST_WORKS:
            entry[1].clear()
        cost = entry[1][key] = Cost(*_price(work, gpu, efficiency, sustained, board))
    return cost


def assume(clock: float | None, narrow: float | None = None) -> None:
    """For refits: sets the training clock of all GPUs to `clock`, and to `narrow` for 8- and 4-bit products (None: `clock` too). `clock` = None gives
    each GPU its own again. Clears the cache of prices."""
    _assumed[:] = [] if clock is None else [(clock, clock if narrow is None else narrow)]
    _known.clear()


def assumed() -> tuple[tuple[float, float], ...]:
    """The clocks that `assume` has set, as one pair (16 bits or more, fewer); empty where each GPU has its own."""
    return tuple(_assumed)


def _remember(gpu: Gpu) -> tuple[Gpu, Priced]:
    # The entry holds the Gpu itself, so its id cannot be given to another one meanwhile.
    if len(_known) >= _MOST_GPUS:
        _known.clear()
    entry = _known[id(gpu)] = (gpu, {})
    return entry


def _price(work: Work, gpu: Gpu, efficiency: str, sustained: bool, board: float) -> tuple[float, Source]:
    if isinstance(work, MemoryBound):
        return memory_bound_cost(work, gpu)
    if isinstance(work, HostWork):
        raise BadInput(f"{work} is work of a CPU thread, not of {gpu.name}. Price it with host_seconds")
    gpu = unraised(gpu) if sustained else gpu
    seconds, source = _matrix(work, gpu, efficiency, sustained)
    return at_clock(work, gpu, seconds, board * _training(work, gpu) if sustained else board), source


def _matrix(work: Products, gpu: Gpu, efficiency: str, sustained: bool) -> tuple[float, Source]:
    if isinstance(work, Gemm):
        return gemm_cost(work, gpu, sustained)
    if isinstance(work, GroupedGemm):
        return grouped_cost(work, gpu, sustained)
    if isinstance(work, Conv):
        return conv_cost(work, gpu, sustained)
    ratio = power_ratio(gpu, work.dtype)
    ratio = ratio if sustained else max(1.0, ratio)
    if isinstance(work, Scores) or work.chosen:
        return sparse_cost(work, gpu, min(1.0, ratio))
    return attention_cost(work, gpu, efficiency, raised(gpu, ratio))


def _training(work: Products, gpu: Gpu) -> float:
    """Clock in training over that in a benchmark: of the matrix units (`training_clock`, or what `assume` has set), or of products that run without
    them (`vector_clock`)."""
    if work.dtype in EXACT:
        return vector_clock(gpu)
    return _assumed[0][is_narrow(work.dtype)] if _assumed else training_clock(gpu, work.dtype)[0]


def at_clock(work: Work, gpu: Gpu, seconds: float, clock: float) -> float:
    """Seconds at `clock` times the clock at which the kernel takes `seconds`: only the part of its matrix units (`own_part`) changes, that of memory
    and launches does not."""
    if isinstance(work, (MemoryBound, HostWork)):
        return seconds
    return seconds + own_part(work, gpu, seconds) * (1.0 / clock - 1.0)


def own_part(work: Products, gpu: Gpu, seconds: float) -> float:
    """The part of a kernel's `seconds` that its matrix units take at the best rate that they reach (`BEST` of peak)."""
    return min(seconds, work.flops / (peak_flops(gpu, work.dtype) * BEST))
