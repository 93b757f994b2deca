"""From a row to everything that a prediction needs: plan, machine, and what had to be assumed.

A field that the row leaves empty takes the default of the row's framework, or what most people run; each such
choice is listed in `Case.assumed`. Nothing here looks at the measured time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.accuracy.machines import machine_of
from sim.accuracy.models import family_of, model_of
from sim.accuracy.rows import Row
from sim.accuracy.wording import compiled, framework_of_row, optimizer_of, overlap_of, precision_of, recompute_of, said, sharding_of
from sim.plan import Batch, Comm, Data, Memory, Optimizer, Parallel, Plan
from topologies.errors import BadInput, Refused

_MEGATRON = (
    "megatron-2021",
    "megatron-2022",
    "megatron-deepspeed",
    "megatron-lm",
    "megatron-core",
    "megatron-bridge",
    "nemo",
    "mlperf-nvidia",
)
_WITHOUT_SP = ("megatron-2021", "megatron-deepspeed", "oneflow")
"""Frameworks of before sequence parallelism (Korthikanti et al. 2022), or without."""
_INTERLEAVING = ("megatron-lm", "megatron-core", "megatron-bridge", "nemo", "mlperf-nvidia", "torchtitan", "torchtitan-2024")
"""Frameworks whose published pipelines interleave; the others have no such schedule, or had none then."""
_SQUAD = 384
"""Tokens of a SQuAD example in BERT's fine-tuning scripts (--max_seq_length 384)."""


_AHEAD = Data(workers=4, handover="none")
"""Images are decoded and sent to the device ahead of their step by all that the table's sources run (DALI's pipeline and its prefetch
queue, tf.data, OneFlow's decoders): the copy beside a step is that of a later one, and no step waits for it."""
_BINNED = {128: 120, 512: 288}
"""Tokens of a padded BERT sequence where each batch holds sequences of one length bin of 64: NVIDIA's PyTorch scripts
since 21.09 (LDDL, --phase2_bin_size 64). Half of 512 and a fifth of 128 are padding in Wikipedia (Krell et al. 2021,
sequence packing); the mean of a bin lies half a bin above the sequences' own mean."""


class Case(msgspec.Struct, frozen=True):
    """A row made ready to predict."""

    row: Row
    plan: Plan
    topology: str
    assumed: tuple[str, ...]
    edits: tuple[str, ...] = ()
    """What-ifs of the topology: GPUs that no machine of the catalog holds."""


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


def case_of(row: Row) -> Case:
    """The plan and machine of a row. Raises `BadInput` (or `Refused`, `UnknownName`) with the reason where it has none."""
    if row.problem:
        raise BadInput(row.problem)
    assumed: list[str] = []
    row = _in_sequences(row, assumed)
    framework = framework_of_row(row, assumed)
    sizes = sizes_of(row, assumed, framework)
    model = model_of(row, assumed, 128 * sizes.tp if framework.startswith(_MEGATRON) else 1)
    layers = int(model.get("layers", 1))
    stages = stages_of(layers, sizes.pp * sizes.vp)
    overlap, tp_overlap = overlap_of(row, framework)
    plan = Plan(
        model=model,
        name=row.row_id,
        task="lora" if "lora" in row.task.lower() else "train",
        framework=framework,
        seq_len=_seq_len(row, framework, assumed),
        precision=precision_of(row, assumed),  # type: ignore[arg-type]
        attention=_attention(row),
        compile=compiled(row),
        batch=Batch(global_=sizes.batch, micro=sizes.micro),
        parallel=_parallel(row, sizes, framework, stages, tp_overlap, assumed),
        memory=Memory(**recompute_of(row, layers // sizes.pp, framework, assumed)),
        optimizer=Optimizer(name=optimizer_of(row)),  # type: ignore[arg-type]
        data=_AHEAD if row.batch_unit == "images" else Data(),
        comm=Comm(overlap=overlap),
    )
    machine, edits = machine_of(row, assumed)
    return Case(row, plan, machine, tuple(assumed), edits)


def _in_sequences(row: Row, assumed: list[str]) -> Row:
    """A decoder's batch in tokens, counted in its sequences, which are full; a batch of padded sentences stays what it is."""
    length = row.seq_len
    if row.batch_unit.lower() != "tokens" or not length or not family_of(row):
        return row
    counts = {name: getattr(row, name) for name in ("micro_batch", "global_batch")}
    counts = {name: max(1, round(count / length)) if count and count >= length else count for name, count in counts.items()}
    assumed.append(f"a batch of {row.global_batch} tokens: {counts['global_batch']} sequences of {length}")
    return msgspec.structs.replace(row, batch_unit="sequences", **counts)


def _attention(row: Row) -> Any:
    flash = said(row.flash_attn)
    return None if flash is None else "flash" if flash else "math"


def _seq_len(row: Row, framework: str, assumed: list[str]) -> int | None:
    if row.batch_unit == "images":
        return None
    if row.seq_len is None:
        size = _SQUAD if "squad" in row.task.lower() else 128 if "bert" in row.model_type else 2048
        assumed.append(f"seq_len not stated: {size}")
        return size
    if framework == "pytorch-apex-ddp" and row.task == "train" and row.date >= "2021-09" and row.seq_len in _BINNED:
        size = _BINNED[row.seq_len]
        assumed.append(f"sequences binned by length (LDDL): {size} tokens in the mean of up to {row.seq_len}")
        return size
    return row.seq_len


def sizes_of(row: Row, assumed: list[str], framework: str = "megatron-core") -> Sizes:
    """Completes what is missing and makes it multiply up to the GPUs. Raises `BadInput` where it cannot."""
    if row.gpus is None:
        raise BadInput("the number of GPUs is not stated")
    if row.global_batch is None and row.micro_batch is None:
        raise BadInput("neither global nor micro batch is stated")
    if row.batch_unit.lower() == "tokens":
        raise Refused("the batch is a budget of padded tokens: how many sentences a step holds is not stated")
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    if row.gpus % (tp * pp * cp):
        raise BadInput(f"tp x pp x cp = {tp} x {pp} x {cp} does not divide {row.gpus} GPUs")
    dp = row.gpus // (tp * pp * cp)
    if row.dp not in (None, dp):
        assumed.append(f"dp = {row.dp} in the row, {dp} by the number of GPUs: the latter")
    micro, batch = _batch(row, dp, assumed)
    return Sizes(dp, tp, pp, _virtual(row, pp, batch // (micro * dp), framework, assumed), cp, row.ep or 1, micro, batch)


def _batch(row: Row, dp: int, assumed: list[str]) -> tuple[int, int]:
    """(micro, global) with global a multiple of micro x dp."""
    micro, batch = row.micro_batch, row.global_batch
    if batch is None:
        batch = (micro or 1) * dp * (row.grad_accum or 1)
        assumed.append(f"global batch not stated: {batch}")
    if batch % dp:
        rounded = max(dp, round(batch / dp) * dp)
        assumed.append(f"global batch {batch} is no multiple of dp = {dp}: {rounded}")
        batch = rounded
    each = batch // dp
    if micro is None:
        micro = _micro(row, each)
        assumed.append(f"micro-batch not stated: {micro}")
    if each % micro:
        fits = max(m for m in range(1, min(micro, each) + 1) if each % m == 0)
        assumed.append(f"micro-batch {micro} does not divide {each} samples per rank: {fits}")
        micro = fits
    return micro, batch


def _micro(row: Row, each: int) -> int:
    """Pipelines and wide models take one sample at a time (the smallest bubble, the least memory); where layers are
    recomputed on one stage, all samples fit at once, as in frameworks without accumulation; otherwise up to four."""
    if (row.pp or 1) > 1 or (row.hidden or 0) >= 8192:
        return 1
    if row.recompute.startswith("full"):
        return each
    return next(size for size in (4, 2, 1) if each % size == 0)


def _virtual(row: Row, pp: int, microbatches: int, framework: str, assumed: list[str]) -> int:
    """Model chunks per rank: the row's, as far as the schedule and the layers allow; interleaving needs whole rounds."""
    layers = row.n_layers or 1
    if pp == 1:
        return 1
    if row.vp is None:
        per = layers // pp
        # Small chunks make small bubbles: two layers each, or one where a stage's layers are a prime number.
        two = next((n for n in range(per, 1, -1) if per % n == 0 and per // n >= 2), 0)
        chunks = 1 if microbatches % pp or framework not in _INTERLEAVING else two or per
        assumed.append(f"interleaving not stated: {chunks} chunks per stage")
        return chunks
    if row.vp > 1 and (microbatches % pp or row.vp * pp > layers + 2):
        assumed.append(f"{row.vp} chunks do not fit {microbatches} micro-batches on {pp} stages: plain 1F1B")
        return 1
    return row.vp


def stages_of(layers: int, stages: int) -> tuple[int, ...] | None:
    """Layers of each stage where they are uneven; None where they divide.

    Two spare places belong to the embedding and the head (Megatron: account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split); otherwise early stages fill up and the last holds what is left (DeepSpeed's
    and Megatron's layouts), or one each is taken off from the end.
    """
    if stages < 1 or layers % stages == 0:
        return None
    full = -(-layers // stages)
    if layers + 2 == full * stages:
        return (full - 1, *(full,) * (stages - 2), full - 1)
    last = layers - full * (stages - 1)
    if last >= 1:
        return (*(full,) * (stages - 1), last)
    short = full * stages - layers
    return (*(full,) * (stages - short), *(full - 1,) * short) if full > 1 else None


def _parallel(row: Row, sizes: Sizes, framework: str, stages: tuple[int, ...] | None, tp_overlap: bool, assumed: list[str]) -> Parallel:
    shard = sharding_of(row, sizes.dp, framework, assumed)
    ep = _experts(sizes, assumed)
    along = said(row.sequence_parallel)
    if along is None:
        along = framework not in _WITHOUT_SP
        if sizes.tp > 1:
            assumed.append(f"sequence parallelism not stated: {'on with tp > 1' if along else f'{framework} has none'}")
    chunks = sizes.vp if sizes.pp > 1 else 1
    return Parallel(
        **shard,
        tp=sizes.tp,
        sequence_parallel=sizes.tp > 1 and along,
        tp_overlap=tp_overlap and sizes.tp > 1,
        pp=sizes.pp,
        schedule="interleaved" if chunks > 1 else "1f1b",
        virtual_stages=chunks,
        stages=stages,
        cp=sizes.cp,
        cp_kind="all_to_all" if "a2a" in row.comm_overlap.lower() else "p2p",
        ep=ep,
        etp=_expert_tp(row, sizes, framework, assumed),
        capacity=1.0 if "capacity factor 1.0" in row.notes else 0.0,
    )


def _expert_tp(row: Row, sizes: Sizes, framework: str, assumed: list[str]) -> int | None:
    """Megatron-Core had no expert tensor parallelism of its own before core_r0.10 (December 2024): experts split as all else."""
    if row.etp is None and sizes.ep > 1 and sizes.tp > 1 and framework == "nemo" and row.date[:4] < "2026":
        assumed.append(f"experts split over tp = {sizes.tp} too, as NeMo does unless told")
        return sizes.tp
    return row.etp


def _experts(sizes: Sizes, assumed: list[str]) -> int:
    """Expert-parallel ranks inside dp x cp. Megatron's may reach over tp ranks too: as many as fit stand for them."""
    ranks = sizes.dp * sizes.cp
    if ranks % sizes.ep == 0:
        return sizes.ep
    fits = max(n for n in range(1, min(ranks, sizes.ep) + 1) if ranks % n == 0 and sizes.ep % n == 0)
    assumed.append(f"ep = {sizes.ep} reaches over tp ranks: counted as {fits} inside dp x cp = {ranks}")
    return fits
