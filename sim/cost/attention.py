"""Seconds of fused attention, forward and backward, by kernel family.

    time = floor + waves of blocks: tiles of keys x (time of a tile) + start of a block

One block works on `ROWS` queries of one head and walks over the keys (half of them in the mean when causal). The rate
depends on the head size: exponentials cost the same for small heads as for large ones. Fitted on the best kernel of
each GPU; other families run at a stated share of it (`params/attention.toml`).
"""

from __future__ import annotations

import math
from functools import cache

import msgspec

from sim.cost.device import STORED, by_arch, choose, document, peak_flops
from sim.cost.price import Source
from sim.work import Attention
from topologies.errors import UnknownName
from topologies.hardware import Gpu

ROWS = 128
"""Queries of one block: 64-128 in FlashAttention-2, 128-192 in -3."""


class AttentionFit(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted on one GPU's best forward kernel."""

    arch: str
    floor: float
    """Seconds of the smallest call."""
    fill: float
    """Keys whose time a block spends before and after its walk."""
    exp: float
    """Head elements whose multiply-adds take as long as the softmax of one score."""
    peak: float
    """Share of peak FLOP/s in the walk, for large heads."""
    diagonal: float
    """Keys beyond the causal half that a block computes and masks away."""
    round: float
    """0: a partly filled wave costs its share; 1: a whole wave."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of a kernel family over the best kernel, by architecture."""

    forward: dict[str, float]
    backward: dict[str, float]
    """Rate of the backward kernel over that of the same family's forward, both by Attention.flops."""


@cache
def _fits(dtype: str) -> dict[str, AttentionFit]:
    text = msgspec.convert(document("attention")["fit"], dict[str, dict[str, AttentionFit]])
    return {gpu: sets[dtype] for gpu, sets in text.items() if dtype in sets}


@cache
def _families() -> dict[str, Family]:
    return msgspec.convert(document("attention")["family"], dict[str, Family])


def attention_cost(work: Attention, gpu: Gpu, family: str = "flash2", clock: float = 1.0) -> tuple[float, Source]:
    """Seconds of all repeats. `clock`: factor under sustained load. Raises `UnknownName` for the family, `Refused` for the dtype."""
    peak = peak_flops(gpu, work.dtype) * clock
    kind = "fp8" if STORED.get(work.dtype, work.dtype) == "fp8" else "bf16"
    fits = _fits(kind)
    name, source = choose(gpu, {key: fit.arch for key, fit in fits.items()})
    fit = fits[name]
    share, sure = family_share(family, gpu)
    seconds = forward_seconds(work, gpu, fit, peak * share)
    if work.backward:
        rate, _ = by_arch(gpu, _families()[family].backward)
        seconds = fit.floor + (seconds - fit.floor) * 2.5 / rate
    return seconds * work.repeat, "assumed" if "assumed" in (source, sure) else "fitted"


def family_share(family: str, gpu: Gpu) -> tuple[float, Source]:
    """Forward rate of a family over the best kernel of this GPU."""
    families = _families()
    if family not in families:
        raise UnknownName("attention kernel", family, families)
    return by_arch(gpu, families[family].forward)


def forward_seconds(work: Attention, gpu: Gpu, fit: AttentionFit, peak: float) -> float:
    """Seconds of one forward kernel."""
    dv = work.dv or work.d
    rows = min(ROWS, max(16, work.q))
    blocks = work.batch * work.heads * math.ceil(work.q / rows)
    keys = work.pairs / work.q + (fit.diagonal if work.causal else 0.0)
    rate = peak * fit.peak / gpu.sms
    block = 2.0 * rows * (work.d + dv + 2.0 * fit.exp) * (keys + fit.fill) / rate
    load = blocks / gpu.sms
    waves = max(1.0, fit.round * math.ceil(load) + (1.0 - fit.round) * load)
    # The last block of a causal sequence walks over all keys: nothing ends before it.
    longest = 2.0 * rows * (work.d + dv + 2.0 * fit.exp) * (min(work.kv, work.window or work.kv) + fit.fill) / rate
    return fit.floor + max(waves * block, longest, work.bytes / work.repeat / gpu.bandwidth)
