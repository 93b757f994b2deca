"""How many ways a row splits its model where it does not say so: what its data-parallel ranks leave, what samples and memory ask for.

Rows that state their degrees of parallelism are not touched.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import msgspec

from sim.accuracy.row import Row
from sim.accuracy.rows.sharding import sharding_of, stated_group
from sim.framework.framework import load_framework
from sim.model.load import model_from
from sim.model.network import describe
from sim.model.parts import Shape
from sim.model.specs.decoder import Decoder
from topologies.load import load_topology

_NODE = 8
"""GPUs that tensor and expert parallelism span at most where the row does not say."""
_SPLITS = ("megatron", "nemo", "mlperf-nvidia", "oneflow-gpt")
"""Frameworks in which models that no GPU holds are split by tensors and pipelines."""
_FILLED = 0.6
"""Share of a device's memory that weights, gradients and states take at most, the rest being activations': with it the rule below gives tensor and
pipeline parallelism of all ten models of Narayanan et al. 2021, table 1, on A100 of 80 GB."""
_WEIGHTS, _STATES = 6, 12
"""Bytes of a parameter: in 16 bits with an fp32 gradient, and Adam's three in fp32 (Narayanan et al. 2021, section 3.5), which ZeRO-1 shares out."""


def beside_data(row: Row, assumed: list[str]) -> Row:
    """The row with the degrees that it leaves out, where its data-parallel ranks are fewer than its GPUs: tensors inside a node, the rest stages.

    Sources that count copies of what a group shares (`fsdp_size`, HSDP), or experts' ranks apart, leave nothing: there the GPUs tell how many
    ranks are data-parallel.
    """
    if not row.dp or not row.gpus or row.gpus % row.dp or row.batch_unit.lower() == "images":
        return row
    left, over = divmod(row.gpus // row.dp, math.prod(getattr(row, name) or 1 for name in ("tp", "pp", "cp")))
    blank = [name for name in ("tp", "pp", "cp") if getattr(row, name) is None]
    if over or left <= 1 or not blank or _counts_copies(row, left):
        return row
    sharded = re.search(_SHARDED, row.sharding.lower()) is not None
    if (blank == ["cp"] or sharded) and not (blank == ["cp"] and _splits_sequences(row)):
        return row
    inside = next(size for size in range(min(left, row.gpus_per_node or _NODE), 0, -1) if left % size == 0)
    degrees = {"tp": inside, "pp": left // inside} if blank[:2] == ["tp", "pp"] else {blank[0]: left}
    assumed.append(f"{_told(degrees)} not stated: what dp = {row.dp} leaves of {row.gpus} GPUs")
    return msgspec.structs.replace(row, **degrees)


_COPIES = r"hsdp|hybrid"
"""Words of sharding inside groups of data-parallel ranks, whose copies a source may call dp (torchtitan: data_parallel_replicate_degree)."""
_SHARDED = r"fsdp|fully.?shard|full_?shard"
"""Words of sharding that such groups may do, though nothing says so."""
_LONG = 1 << 15
"""Tokens of a sequence from which on ranks that nothing else explains share sequences."""
_CONTEXT = r"context.?parallel|\bcp\b|ring.?attention|ulysses"


def _counts_copies(row: Row, left: int) -> bool:
    """`left` GPUs of each data-parallel rank share parameters, or hold the experts between them."""
    group = row.fsdp_size or stated_group(row.sharding.lower())
    return re.search(_COPIES, row.sharding.lower()) is not None or left == group or ((row.ep or 1) > 1 and left % (row.ep or 1) == 0)


def _splits_sequences(row: Row) -> bool:
    """The row's sequences are long, or it says that ranks share them."""
    words = f"{row.sharding} {row.framework} {row.comm_overlap} {row.notes} {row.arch_note} {row.sequence_parallel}".lower()
    return (row.seq_len or 0) >= _LONG or re.search(_CONTEXT, words) is not None


def in_parts(row: Row, model: dict[str, Any], framework: str, machine: str, edits: tuple[str, ...], assumed: list[str]) -> Row:
    """The row with a split that it leaves out: for a batch with fewer samples than GPUs, for experts, and for a model that no GPU holds."""
    spec = model_from(model)
    row = _undivided(row, str(model.get("family", "")), assumed)
    if not isinstance(spec, Decoder):
        return _by_samples(row, model.get("heads", 1), assumed)
    if framework.startswith(_SPLITS) and spec.lora is None:
        row = _by_memory(row, spec, framework, _memory(machine, edits), assumed)
    if spec.moe and row.ep is None and (row.gpus or 1) > 1:
        assumed.append("ep not stated: 1")
    return _by_samples(row, spec.heads, assumed)


_WHOLE = ("dit", "flux")
"""Families of which no layer is split by tensors."""


def _undivided(row: Row, family: str, assumed: list[str]) -> Row:
    """A diffusion transformer's row, its tensor-parallel ranks counted as data-parallel ones where samples are enough: each then does as much, but
    for the messages inside layers."""
    tp, samples = row.tp or 1, (row.global_batch or 0) * (row.pp or 1)
    if family not in _WHOLE or tp == 1 or not row.gpus or samples < row.gpus:
        return row
    assumed.append(
        f"tensor parallelism of {tp} inside a diffusion transformer is not supported: its ranks are counted as data-parallel ones"
    )
    micro = max(1, row.micro_batch // tp) if row.micro_batch else None
    return msgspec.structs.replace(row, tp=1, dp=None, micro_batch=micro)


@cache
def _memory(machine: str, edits: tuple[str, ...]) -> int:
    """Bytes of the first GPU of a machine, of which a table has a few."""
    return load_topology(machine, edits).device(0).memory


def _by_samples(row: Row, heads: Any, assumed: list[str]) -> Row:
    """With fewer samples in a batch than GPUs the model is split: by tensor parallelism inside a node."""
    if not _silent(row) or not row.global_batch or not row.gpus or row.batch_unit == "images" or not isinstance(heads, int) or heads == 1:
        return row
    least = -(-row.gpus // row.global_batch)
    fits = (size for size in (2, 4, 8) if least <= size <= _NODE and row.gpus % size == 0 and heads % size == 0)
    size = next(fits, 0)
    if least == 1 or not size:
        return row
    assumed.append(f"tensor parallelism not stated: {size}, for a batch of {row.global_batch} on {row.gpus} GPUs")
    return msgspec.structs.replace(row, tp=size)


def _by_memory(row: Row, spec: Decoder, framework: str, memory: float, assumed: list[str]) -> Row:
    """The fewest parts that leave room for activations: of experts, then of tensors inside a node, then of layers."""
    gpus, zero = row.gpus or 1, sharding_of(row, row.gpus or 1, framework, [])["zero"]
    free = _silent(row)
    if not memory or zero > 1 or not (free or (spec.moe and row.ep is None)):
        return row
    network = describe(spec, Shape(micro=1, seq=128, precision="bf16"), load_framework(framework))
    totals = network.parameters
    idle = 1 - spec.moe.top_k / spec.moe.experts if spec.moe else 0.0
    experts = (totals - network.active_parameters) / idle if idle else 0.0

    def fits(tp: int, pp: int, ep: int) -> bool:
        states = _STATES / (gpus / (tp * pp) if zero else 1)
        return (_WEIGHTS + states) * (totals - experts + experts / ep) <= _FILLED * memory * tp * pp

    tp, pp, ep = row.tp or 1, row.pp or 1, row.ep or 1
    if fits(tp, pp, ep):
        return row
    if spec.moe and row.ep is None:
        ranks = math.gcd(gpus // pp, spec.moe.experts)
        ep = max((size for size in range(1, _NODE + 1) if ranks % size == 0), default=1)
    if free and not fits(1, 1, ep):
        tp = next((size for size in (2, 4, 8) if _divides(size, row, spec) and fits(size, 1, ep)), 0)
        tp = tp or max(size for size in (1, 2, 4, 8) if _divides(size, row, spec))
        stages = [n for n in range(1, spec.layers + 1) if gpus % (tp * n) == 0 and 0 in (spec.layers % n, (spec.layers + 2) % n)]
        pp = next((n for n in stages if fits(tp, n, ep)), stages[-1])
    degrees = {name: size for name, size in (("tp", tp), ("pp", pp), ("ep", ep)) if getattr(row, name) is None and size > 1}
    if degrees:
        assumed.append(f"{_told(degrees)} not stated: for no device holds {totals / 1e9:.3g} billion parameters")
    return msgspec.structs.replace(row, **degrees)


def _divides(tp: int, row: Row, spec: Decoder) -> bool:
    return (row.gpus or 1) % tp == 0 and spec.heads % tp == 0 and spec.kv % tp == 0 and tp <= (row.gpus_per_node or _NODE)


def _silent(row: Row) -> bool:
    return not (row.tp or row.pp or row.cp)


def _told(degrees: dict[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in degrees.items())
