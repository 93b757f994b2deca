"""Seconds of fused attention, forward and backward, by kernel family.

    time = floor + waves of blocks: tiles of keys x (time of a tile) + start of a block

One block works on some queries of one head and walks over the keys (with a causal mask, half of them on average). Each head
size has a kernel of its own, with its own rate. Fitted on the best kernel of
each GPU; other families run at a stated share of it (`params/attention.toml`).
"""

from __future__ import annotations

import math
from functools import cache

import msgspec

from sim.cost.device import STORED, by_arch, choose, peak_flops, table
from sim.cost.price import Source
from sim.work import BYTES, Attention
from topologies.errors import UnknownName
from topologies.hardware import Gpu

DRAM, HOT = 0.85, 3.0
"""Share of DRAM bandwidth of streaming kernels, and L2 bandwidth over it (see memory.toml, gemm.toml)."""
EXACT, PRODUCTS = "efficient", 3
"""The family that runs 32-bit fused attention on GPUs with TF32 units, whether TF32 is allowed or not; and the number of TF32 products that make one
of fp32."""
SMALL, WIDE = 96, 128
"""Largest head size that may run the kernel for 64 (where it is the faster one), and the head size of the next kernel, to which sizes in between
are padded (head sizes of flash-attention's hopper/tile_size.h)."""
REACHED = 0.67
"""Share of peak FLOP/s in the walk over the keys, for heads of 128, where power does not limit it (A100, RTX PRO 6000)."""


class AttentionFit(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one GPU's best forward kernel."""

    arch: str
    floor: float
    """Seconds of the smallest call."""
    fill: float
    """A block's time before and after its walk over the keys, as a number of keys."""
    peak: float
    """Share of peak FLOP/s in the walk over the keys."""
    diagonal: float
    """Keys beyond the causal half that a block computes and masks away."""
    round: float
    """0: a partly filled wave costs its share; 1: a whole wave."""
    rows: int = 128
    """Queries of one block."""
    prepare: float = 0.0
    """How many times inference moves q, k, v and the output before attention (rotary positions, KV cache): in the benchmark only."""
    cache: float = 0.5
    """Share of L2 in which q, k, v and the output stay until they are read."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of a family's forward kernels over the best kernel, by architecture."""

    forward: dict[str, float]
    backward: dict[str, float]
    """Rate of the backward kernel over that of the same family's forward, both by Attention.flops."""
    whole: bool = False
    """The backward kernel walks over all keys below the diagonal, also where a window leaves few of them."""


class Family(Rates, frozen=True, kw_only=True):
    """Rates for all head sizes and dtypes, and in `kinds` for those that have kernels of their own and were measured."""

    kinds: dict[str, Rates] = {}
    """d64 (head sizes up to 96), d64-full (the same without a mask), mla (values of another size than keys), fp8, fp8-d64, fp8-mla. Each holds for the
    architectures in its `forward`."""


Sets = dict[str, AttentionFit]
"""Kernel -> parameters. d64, d128, d256: causal kernels by head size; full: without a mask, heads up to `SMALL`."""


@cache
def fits(dtype: str) -> dict[str, Sets]:
    text = table("attention", "fit", dict[str, dict[str, Sets]])
    return {gpu: of[dtype] for gpu, of in text.items() if dtype in of}


def pick(sets: Sets, work: Attention) -> AttentionFit:
    """The kernel that runs this head size, or the one of the nearest size that was measured."""
    d = (work.d + (work.dv or work.d)) / 2
    if not work.causal and d <= SMALL and "full" in sets:
        return sets["full"]
    order = ("d64", "d128", "d256") if d <= SMALL else ("d128", "d256", "d64") if d <= 160 else ("d256", "d128", "d64")
    return next(sets[name] for name in order if name in sets)


@cache
def _families() -> dict[str, Family]:
    return table("attention", "family", dict[str, Family])


def attention_cost(work: Attention, gpu: Gpu, family: str = "flash2", clock: float = 1.0) -> tuple[float, Source]:
    """Seconds of all repeats. `family`: kernels of 16- and 8-bit attention (32 bits: `EXACT`). `clock`: factor under sustained load. Raises
    `UnknownName` for an unknown family, `Refused` for a dtype that the GPU has no units for."""
    peak = peak_flops(gpu, work.dtype) * clock
    if BYTES[work.dtype] == 4 and gpu.arch.startswith("sm") and "tf32" in gpu.flops:
        family, peak = EXACT, peak_flops(gpu, "tf32") / PRODUCTS * clock
    kind = "fp8" if STORED.get(work.dtype, work.dtype) == "fp8" else "bf16"
    known = fits(kind)
    name, source = choose(gpu, {key: next(iter(sets.values())).arch for key, sets in known.items()})
    fit = pick(known[name], work)
    rates = _rates(_family(family), work, kind, gpu)
    share, sure = by_arch(gpu, rates.forward)
    if work.backward and rates.whole:
        work = msgspec.structs.replace(work, window=0)
    seconds = forward_seconds(work, gpu, fit, peak * share)
    if work.backward:
        rate, _ = by_arch(gpu, rates.backward)
        seconds = fit.floor + (seconds - fit.floor) * 2.5 / rate
    if WIDE // 2 < work.d < WIDE and work.dv in (0, work.d):
        filled, _ = attention_cost(msgspec.structs.replace(work, d=WIDE, dv=0, repeat=1), gpu, family, clock)
        seconds = min(seconds, filled) if work.d <= SMALL else filled
    return seconds * work.repeat, "assumed" if "assumed" in (source, sure) else "fitted"


def raised(gpu: Gpu, ratio: float) -> float:
    """Factor on the rate of attention on a GPU whose power limit allows `ratio` times the clock of the GPU whose parameters it takes. Above 1 it is at
    most what reaches `REACHED` of peak."""
    known = fits("bf16")
    fit = known[choose(gpu, {key: sets["d128"].arch for key, sets in known.items()})[0]]["d128"]
    return min(ratio, max(1.0, REACHED / fit.peak))


def _rates(family: Family, work: Attention, dtype: str, gpu: Gpu) -> Rates:
    """The most specific of a family's rates that hold for this GPU."""
    head = "mla" if work.dv and work.dv != work.d else "d64" if work.d <= SMALL else ""
    names = (f"fp8-{head}", "fp8") if dtype == "fp8" else (head,) if work.causal else (f"{head}-full", head)
    return next((family.kinds[name] for name in names if name in family.kinds and gpu.arch in family.kinds[name].forward), family)


def _family(name: str) -> Family:
    # A framework that runs unfused attention by default takes torch's own fused kernel where a plan asks for fused attention.
    name = "flash2" if name == "math" else name
    families = _families()
    if name not in families:
        raise UnknownName("attention kernel", name, families)
    return families[name]


def forward_seconds(work: Attention, gpu: Gpu, fit: AttentionFit, peak: float, prepared: bool = True) -> float:
    """Seconds of one forward kernel; with `prepared` = False also of the passes over q, k and v that inference makes before it."""
    dv = work.dv or work.d
    rows = fit.rows if work.q > 32 else fit.rows // 2
    blocks = work.batch * work.heads * math.ceil(work.q / rows)
    keys = work.pairs / work.q + (fit.diagonal if work.causal else 0.0)
    rate = peak * fit.peak / gpu.sms
    step = 2.0 * rows * (_pad(work.d) + _pad(dv)) / rate
    load = blocks / gpu.sms
    waves = max(1.0, fit.round * math.ceil(load) + (1.0 - fit.round) * load)
    # The last block of a causal sequence walks over all keys: the kernel cannot end before it.
    longest = step * (min(work.kv, work.window or work.kv) + fit.fill)
    moved = work.bytes / work.repeat
    before = 0.0 if prepared else _moving(fit.prepare * moved, gpu, fit)
    return fit.floor + before + max(waves * step * (keys + fit.fill), longest, _moving(moved, gpu, fit))


def _pad(d: int) -> int:
    """The head size, rounded up to the multiple of 16 that matrix units take."""
    return -(-d // 16) * 16


def _moving(moved: float, gpu: Gpu, fit: AttentionFit) -> float:
    """Seconds to move `moved` bytes: from L2 where they fit there, else from DRAM, with a smooth change."""
    missed = 1.0 / (1.0 + (fit.cache * gpu.l2 / moved) ** 4) if moved > 0 else 0.0
    return moved / (DRAM * gpu.bandwidth) * (missed + (1.0 - missed) / HOT)
