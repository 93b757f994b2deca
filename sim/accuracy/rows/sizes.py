"""How a row splits its work: degrees of parallelism, batch and pipeline. What the row does not state is filled in; the result is
consistent."""

from __future__ import annotations

import re

import msgspec

from sim.accuracy.row import Row
from sim.accuracy.rows.wording import said
from sim.framework.framework import load_framework
from sim.schedule.interleaved import makes_rounds
from topologies.errors import BadInput, Refused

_INTERLEAVING = ("megatron-lm", "megatron-core", "megatron-bridge", "nemo", "mlperf-nvidia", "torchtitan")
"""Frameworks whose published pipelines interleave; the others have no such schedule, or had none then."""


class Sizes(msgspec.Struct, frozen=True):
    """Degrees of parallelism and batch of a row, complete and consistent."""

    dp: int
    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    micro: int
    batch: int


def gpus_of(row: Row, assumed: list[str]) -> int:
    """The number of GPUs: as stated, or computed from nodes, degrees of parallelism or batches. Raises `BadInput` if none of them gives
    it."""
    if row.gpus is not None:
        return row.gpus
    model = (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
    samples = (row.micro_batch or 0) * (row.grad_accum or 0)
    if row.dp and row.tp and row.pp:
        gpus, why = model * row.dp, "tp x pp x cp x dp"
    elif row.nodes and (row.gpus_per_node or row.nodes == 1):
        gpus, why = row.nodes * (row.gpus_per_node or 8), f"{row.nodes} nodes of {row.gpus_per_node or 8}"
    elif row.dp:
        gpus, why = model * row.dp, "tp x pp x cp x dp"
    elif samples and row.global_batch and row.global_batch % samples == 0:
        gpus, why = model * row.global_batch // samples, "global batch over micro-batch and accumulation"
    elif row.gpus_per_node:
        gpus, why = row.gpus_per_node, "one node"
    else:
        raise BadInput("the number of GPUs is not stated")
    assumed.append(f"number of GPUs not stated: {gpus}, {why}")
    return gpus


def sizes_of(row: Row, assumed: list[str], framework: str = "megatron-core", layers: int = 1) -> Sizes:
    """Fills in the sizes that are missing, so that dp x tp x pp x cp is the number of GPUs. `assumed`: gets a note for each choice.
    `layers`: number of layers of the model, which the row may not state.

    Raises `BadInput` if that is not possible, `Refused` if the batch counts tokens.
    """
    if row.gpus is None:
        raise BadInput("the number of GPUs is not stated")
    if row.global_batch is None and row.micro_batch is None:
        raise BadInput("neither global nor micro batch is stated")
    if "tok" in row.batch_unit.lower():
        raise Refused("the batch is a budget of padded tokens: how many sentences a step holds is not stated")
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    if row.gpus % (tp * pp * cp):
        raise BadInput(f"tp x pp x cp = {tp} x {pp} x {cp} does not divide {row.gpus} GPUs")
    dp = row.gpus // (tp * pp * cp)
    if row.dp not in (None, dp):
        assumed.append(f"dp = {row.dp} in the row, {dp} by the number of GPUs: the latter")
    micro, batch = _batch(row, dp, framework, assumed)
    return Sizes(dp, tp, pp, _virtual(row, layers, pp, batch // (micro * dp), framework, assumed), cp, row.ep or 1, micro, batch)


def _batch(row: Row, dp: int, framework: str, assumed: list[str]) -> tuple[int, int]:
    """(micro-batch, global batch) in samples; the global batch is a multiple of micro-batch x dp."""
    micro, batch = row.micro_batch, row.global_batch
    if batch is None:
        batch = (micro or 1) * dp * (row.grad_accum or 1)
        assumed.append(f"global batch not stated: {batch}")
    if batch % dp:
        rounded = max(dp, round(batch / dp) * dp)
        assumed.append(f"global batch {batch} is no multiple of dp = {dp}: {rounded}")
        batch = rounded
    each = batch // dp
    if framework.startswith("torchtitan") and (row.pp or 1) > 1 and micro in (None, each) and (row.grad_accum or 1) == 1:
        micro = each // (row.pp or 1) if row.date < _SINGLY and each % (row.pp or 1) == 0 else 1
        assumed.append(f"{each} samples of a rank go through the pipeline in micro-batches of {micro}: torchtitan's default")
    elif micro is None:
        micro = _micro(row, each)
        assumed.append(f"micro-batch not stated: {micro}")
    if each % micro:
        fits = max(m for m in range(1, min(micro, each) + 1) if each % m == 0)
        assumed.append(f"micro-batch {micro} does not divide {each} samples per rank: {fits}")
        micro = fits
    return micro, batch


_SINGLY = "2025-05"
"""torchtitan splits a rank's batch into as many micro-batches as the pipeline has ranks (pipeline_parallel_microbatches), from then on into
single samples (pipeline_parallel_microbatch_size = 1)."""
_FIT, _FIT_RECOMPUTED = 1 << 14, 1 << 16
"""Tokens in a micro-batch on one GPU if all activations are kept, and if only the inputs of layers are kept (full recomputation)."""
_NARROW = 1536
"""Below this width a GPU is given the tokens that it takes: nanoGPT's GPT-2 trains on 12 samples of 1024 at a time, llm.c's on 64."""
_GATHERED = r"fsdp|full_?shard|fully.?shard|zero[\s_-]*(stage)?[\s_-]*3|stage[\s_-]*3|^3$"
"""Words for sharding that all-gathers parameters for each micro-batch (FSDP, ZeRO-3). With it, people use few micro-batches."""


def _micro(row: Row, each: int) -> int:
    """What accumulation says, but one step of it in a pipeline, whose micro-batches it does not count. Unsaid: all images, for nothing that
    trains on them accumulates; one sample in pipelines and wide models (the smallest bubble, the least memory); else as many as fit: four
    at most with all activations, but all of BERT's short ones and of narrow models'."""
    if row.grad_accum and each % row.grad_accum == 0 and (row.grad_accum > 1 or (row.pp or 1) == 1):
        return each // row.grad_accum
    if row.batch_unit == "images":
        return each
    whole = said(row.recompute) is True and not re.match(r"selective|block|partial|sac\b", row.recompute.lower())
    gathered = whole and re.search(_GATHERED, row.sharding.lower()) is not None
    if (row.pp or 1) > 1 or ((row.hidden or 0) >= 8192 and not gathered):
        return 1
    fits = max(1, (_FIT_RECOMPUTED if whole else _FIT) // (row.seq_len or 1))
    if not whole and (row.seq_len or 0) > 512 and not 0 < (row.hidden or 0) < _NARROW:
        fits = min(fits, 4)
    return max(size for size in range(1, min(fits, each) + 1) if each % size == 0)


def _chunks(places: int, pp: int) -> int:
    """Small chunks make small bubbles: two layers each, or one where nothing else divides; 0 where nothing does. Two spare places are the
    embedding's and the head's (as in `stages_of`)."""
    even = [n for n in range(places // pp, 1, -1) if places % (pp * n) == 0]
    return next((n for n in even if places // (pp * n) >= 2), even[0] if even else 0)


def _virtual(row: Row, layers: int, pp: int, microbatches: int, framework: str, assumed: list[str]) -> int:
    """Model chunks per rank: the row's, as far as the schedule and the layers allow; interleaving needs equal rounds, unless the framework
    takes others, and is done in whole ones where nobody says so."""
    if pp == 1:
        return 1
    if row.vp is None and framework.startswith("torchtitan"):
        said_of = f"{row.comm_overlap} {row.notes} {row.recompute_detail} {row.framework} {row.source}".lower()
        plain = "1f1b" in said_of and "interleav" not in said_of
        chunks = 1 if plain or microbatches % pp or 2 * pp > layers + 2 else 2
        assumed.append(f"stages of a rank not stated: {chunks}, as torchtitan's generate_split_points makes for the schedule")
        return chunks
    if row.vp is None:
        most = _chunks(layers, pp) or _chunks(layers + 2, pp) or 1
        # Who runs a deep pipeline on hardly more micro-batches than stages interleaves, or half the step were bubble.
        interleaves = framework.startswith(_INTERLEAVING) or (framework in ("pytorch", "huggingface") and microbatches <= 2 * pp)
        chunks = most if interleaves and microbatches % pp == 0 else 1
        assumed.append(f"interleaving not stated: {chunks} chunks per stage")
        return chunks
    rounds = makes_rounds(pp, microbatches) or load_framework(framework).pipeline.uneven_rounds
    if row.vp > 1 and (not rounds or row.vp * pp > layers + 2):
        assumed.append(f"{row.vp} chunks do not fit {microbatches} micro-batches on {pp} stages: plain 1F1B")
        return 1
    return row.vp


def stages_of(layers: int, stages: int, further: int = 0) -> tuple[int, ...] | None:
    """Number of layers of each stage if the stages are uneven; None if `stages` divides `layers`, or if no such split is known.

    Two spare places belong to the embedding and the head (Megatron: account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split), one more to each of the `further` modules of multi-token prediction where stages are too short for
    what follows; otherwise early stages fill up and the last holds what is left (DeepSpeed's and Megatron's layouts; Megatron-Bridge's of
    DeepSeek V3, with the module there), or one each is taken off from the end.
    """
    if stages < 1 or layers % stages == 0:
        return None
    full = -(-layers // stages)
    last = layers - full * (stages - 1)
    if layers + 2 + further == full * stages and full > further and not (further and last >= 1):
        return (full - 1, *(full,) * (stages - 2), full - 1 - further)
    if last >= 1:
        return (*(full,) * (stages - 1), last)
    short = full * stages - layers
    return (*(full,) * (stages - short), *(full - 1,) * short) if full > 1 else None
