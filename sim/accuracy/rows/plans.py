"""From a row to everything that a prediction needs: plan, machine, and what had to be assumed.

A field that the row leaves empty takes the default of the row's framework, or what most people run; each such
choice is listed in `Case.assumed`. Nothing here looks at the measured time (how one recipe's first release was found: `recipes`).
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from sim.accuracy.architecture.adapters import on_its_linears, trains_adapters
from sim.accuracy.architecture.models import model_of
from sim.accuracy.architecture.names import with_widths
from sim.accuracy.row import Row
from sim.accuracy.rows.attention import attention_of
from sim.accuracy.rows.lengths import of_length, seq_len_of
from sim.accuracy.rows.loops import data_of, output_of, turns_of
from sim.accuracy.rows.machines import in_devices, machine_of, on_nodes
from sim.accuracy.rows.networks import network_of
from sim.accuracy.rows.parts import beside_data, in_parts
from sim.accuracy.rows.recipes import offloaded
from sim.accuracy.rows.recomputation import recompute_of
from sim.accuracy.rows.room import with_room
from sim.accuracy.rows.scripts import steers_power
from sim.accuracy.rows.sharding import sharding_of
from sim.accuracy.rows.sizes import Sizes, gpus_of, sizes_of, stages_of
from sim.accuracy.rows.submissions import algorithm_of, completed, exchanges_heads
from sim.accuracy.rows.systems import described, named_system
from sim.accuracy.rows.updating import optimizer_of
from sim.accuracy.rows.wording import asked_overlaps, compiled, framework_of_row, overlap_of, precision_of, said, schedule_of
from sim.framework.framework import load_framework
from sim.model.load import model_from
from sim.plan import Plan
from sim.sections import Batch, Comm, Memory, Parallel
from topologies.errors import BadInput, Refused

_WITHOUT_SP = ("megatron-2020", "megatron-2021", "megatron-deepspeed", "oneflow")
"""Frameworks of before sequence parallelism, or without."""
_SEQUENCE_PARALLEL = "2022-05"
"""When it was published (Korthikanti et al. 2022)."""


class Case(msgspec.Struct, frozen=True):
    """A row made ready to predict."""

    row: Row
    plan: Plan
    topology: str
    assumed: tuple[str, ...]
    edits: tuple[str, ...] = ()
    """What-ifs of the topology: GPUs that no machine of the catalog holds."""
    turns: int = 1
    """Of the row's steps, that the plan's is made of: an update comes after so many (`sim.accuracy.rows.loops`)."""


def case_of(row: Row) -> Case:
    """The plan and machine of a row. Raises `BadInput` (or `Refused`, `UnknownName`) with the reason where it has none."""
    if row.problem:
        raise BadInput(row.problem)
    assumed: list[str] = []
    row = on_nodes(in_devices(msgspec.structs.replace(completed(row), gpus=gpus_of(row, assumed)), assumed), assumed)
    row = beside_data(with_widths(row), assumed)
    framework = framework_of_row(row, assumed)
    model = on_its_linears(model_of(row, assumed), load_framework(framework).linears.fused_projections, assumed)
    family = str(model.get("family", "decoder"))
    row = _in_samples(of_length(row, family, assumed), family, assumed)
    layers, further = int(model.get("layers", 1)), int(model.get("mtp", 0))
    machine, edits = machine_of(named_system(row), assumed)
    row = in_parts(row, model, framework, machine, edits, assumed)
    if family == "dlrm" and row.ep is None:
        assumed.append("tables of embeddings are shared by all ranks, as DLRM's are")
        row = msgspec.structs.replace(row, ep=row.gpus, sharding=row.sharding or "none")
    sizes = sizes_of(row, assumed, framework, layers)
    overlap, tp_overlap = overlap_of(row, framework)
    turns = turns_of(row, model, sizes.micro)
    precision = precision_of(row, assumed)
    task = _task(row, model, sizes.pp, assumed)
    each = 2 if task == "dpo" else 1
    windowed = getattr(model_from(model), "window", 0) > 0
    parallel = _parallel(row, sizes, framework, layers, further, tp_overlap, windowed, assumed)
    redone = recompute_of(row, layers // sizes.pp, framework, assumed, parallel.chunks)
    plan = Plan(
        model=model,
        name=row.row_id,
        task=task,
        framework=asked_overlaps(row, framework),
        seq_len=None if family == "dlrm" else seq_len_of(row, framework, assumed),
        precision=precision,  # type: ignore[arg-type]
        attention=attention_of(row, sizes.cp, framework, assumed),
        compile=compiled(row),
        batch=Batch(global_=sizes.batch * turns * each, micro=sizes.micro * each),
        parallel=parallel,
        memory=Memory(**redone, **_offload(row, framework, precision)),
        optimizer=optimizer_of(row, precision, assumed),
        data=data_of(row, model, framework, assumed),
        output=output_of(row, model),
        comm=Comm(overlap=overlap, algorithm=algorithm_of(row, framework)),
    )
    machine = described(row, machine)
    edits += ("gpu.vboost=1",) * steers_power(row, framework)
    edits += network_of(row, machine, assumed)
    plan = with_room(plan, machine, edits, row, assumed)
    return Case(row, plan, machine, tuple(assumed), edits, turns)


_REINFORCED = r"\brlhf|\bppo\b|\bgrpo\b|\bdapo\b|reinforc|rollout"


def _task(row: Row, model: dict[str, Any], pp: int, assumed: list[str]) -> Any:
    """A row without backward says so; its parameters are not updated. Preferences are counted in pairs (NeMo-Aligner's and TRL's batches). Raises
    `Refused` for reinforcement learning, whose steps generate texts too."""
    task = row.task.lower()
    if re.search(_REINFORCED, task):
        raise Refused(f"task {row.task!r}: a step of reinforcement learning also generates texts, which is not supported")
    adapters = trains_adapters(row)
    if re.search(r"\bdpo\b|preference", task):
        if model.get("family", "decoder") == "decoder" and not adapters and pp == 1:
            assumed.append("preferences: a sample is a pair of sequences, which go through a frozen copy of the model first")
            return "dpo"
        assumed.append("preferences: the forward passes of the model that is compared with are not counted")
    if re.match(r"inference|forward|eval|prefill", task):
        return "forward"
    return "lora" if adapters else "train"


_PICTURES = ("cnn", "vit", "efficientnet", "convnext", "unet", "dit", "flux", "diffusion-unet")
_TEXT = ("decoder", "encoder", "transformer-xl", "captured")
_MANY = 1 << 16
"""Sequences that no step takes: a batch of so many, its unit unsaid, is counted in tokens."""


_EACH = r"(/|\bper)\s*(gpu|device|accelerator|chip|card)s?\b"


def _of_all(row: Row, assumed: list[str]) -> Row:
    """The batch of all GPUs, where the row's unit is of one GPU. A micro-batch is of one anyway."""
    unit = row.batch_unit.lower().replace("_", " ").replace("-", " ")
    if not row.global_batch or not row.gpus or not re.search(_EACH, unit):
        return row
    batch = row.global_batch * row.gpus
    assumed.append(f"a batch of {row.global_batch} {row.batch_unit}: {batch} on {row.gpus}")
    return msgspec.structs.replace(row, global_batch=batch)


_FEW = 1024
"""Below it a micro-batch counts sequences: no GPU is given so few tokens at a time."""


def _ranks(row: Row) -> int:
    return (row.gpus or 1) // math.prod(size or 1 for size in (row.tp, row.pp, row.cp))


def _alike(row: Row) -> bool:
    """The global batch is so many micro-batches, which are counted in sequences."""
    micro = row.micro_batch or 0
    return micro < _FEW and row.global_batch == micro * (row.grad_accum or 1) * _ranks(row)


_ROUNDED = 0.07
"""Share by which a number of tokens may differ from what was run: "1.6M" is 1.6 or 1.68 million, rounded."""


def _whole(batch: int, row: Row, micro: int | None) -> int:
    """The batch as full micro-batches of all ranks, where those of the row make about as many sequences as it counts tokens for."""
    each = (micro or 1) * max(1, _ranks(row))
    near = each * max(1, round(batch / each))
    return near if abs(near / batch - 1) <= _ROUNDED else batch


def _in_samples(row: Row, family: str, assumed: list[str]) -> Row:
    """The batch in what the model takes at a time: images; sequences, which are full, where the row counts tokens."""
    row = _of_all(row, assumed)
    unit, length = row.batch_unit.lower(), row.seq_len
    if family in _PICTURES:
        return msgspec.structs.replace(row, batch_unit="images")
    most = _MANY if family == "encoder" else _MANY - 1  # LAMB's largest batch (You et al. 2019): 65,536 sequences
    many = not unit and (row.global_batch or 0) > max(most, 64 * (length or 1) - 1) and not _alike(row)
    if family not in _TEXT or not length or not (many or "tok" in unit):
        return row
    counts = {name: getattr(row, name) for name in ("micro_batch", "global_batch")}
    counts = {name: max(1, round(count / length)) if count and count >= length else count for name, count in counts.items()}
    if counts["global_batch"]:
        counts["global_batch"] = _whole(counts["global_batch"], row, counts["micro_batch"])
    assumed.append(
        f"a batch of {row.global_batch or row.micro_batch} tokens: {counts['global_batch'] or counts['micro_batch']} sequences of {length}"
    )
    return msgspec.structs.replace(row, batch_unit="sequences", **counts)


def _offload(row: Row, framework: str, precision: str) -> dict[str, Any]:
    """ZeRO-Offload and its kind, with DeepSpeedCPUAdam, keep the optimizer on the host; recipes of Megatron-Bridge the activations of some layers."""
    if re.search(r"offload|infinity|cpu[ _-]?ada", f"{row.sharding} {row.optimizer}".lower()):
        return {"offload": "optimizer"}
    layers = offloaded(row, precision) if framework.startswith("megatron-bridge") else 0
    return {"offload": "activations", "offload_layers": layers} if layers else {}


def _schedule(row: Row, sizes: Sizes) -> Any:
    """The schedule that the row names, where its micro-batches are enough for it (DualPipe-V: two for each stage)."""
    schedule = schedule_of(row) if sizes.pp > 1 else ""
    few = sizes.batch // (sizes.micro * sizes.dp) < 2 * sizes.pp
    return "" if schedule == "dualpipe" and few else schedule


def _parallel(
    row: Row, sizes: Sizes, framework: str, layers: int, further: int, tp_overlap: bool, windowed: bool, assumed: list[str]
) -> Parallel:
    shard = sharding_of(row, sizes.dp, framework, assumed)
    etp = _expert_tp(row, sizes, framework, assumed)
    ep = _experts(sizes, etp, assumed)
    along = said(row.sequence_parallel)
    if along is None:
        along = not framework.startswith(_WITHOUT_SP) and not "" < row.date[:7] < _SEQUENCE_PARALLEL
        if sizes.tp > 1:
            assumed.append(f"sequence parallelism not stated: {'on with tp > 1' if along else f'{framework} has none'}")
    chunks, stages = sizes.vp if sizes.pp > 1 else 1, stages_of(layers, sizes.pp * sizes.vp, further)
    schedule = _schedule(row, sizes)
    if schedule:
        chunks, stages = 1, None if schedule == "dualpipe" else stages_of(layers, sizes.pp, further)
    return Parallel(
        **shard,
        tp=sizes.tp,
        sequence_parallel=sizes.tp > 1 and along,
        tp_overlap=tp_overlap and sizes.tp > 1,
        pp=sizes.pp,
        schedule=schedule or ("interleaved" if chunks > 1 else "1f1b"),
        virtual_stages=chunks,
        stages=None if load_framework(framework).pipeline.ends_as_layers else stages,  # who counts ends as layers deals them out by itself
        cp=sizes.cp,
        **_context(row, sizes, windowed, assumed),
        ep=ep,
        etp=etp,
        capacity=_capacity(row, framework),
    )


def _context(row: Row, sizes: Sizes, windowed: bool, assumed: list[str]) -> dict[str, Any]:
    """Heads for sequence where the row says so, and where windows leave no ring (Megatron-Bridge's GPT-OSS: cp_comm_type = "a2a"). Of
    "a2a+p2p" heads are exchanged inside a node, as far as cp reaches there."""
    said = f"{row.comm_overlap} {row.framework}".lower()
    if sizes.cp > 1 and re.search(r"a2a\s*\+\s*p2p|\busp\b", said):
        inside = math.gcd(sizes.cp, max(1, (row.gpus_per_node or 8) // sizes.tp))
        assumed.append(f"context parallelism by all_to_all among {inside} ranks, rings between them")
        return {"cp_kind": "all_to_all+p2p", "cp_ulysses": inside}
    if sizes.cp > 1 and (exchanges_heads(row) or re.search(r"a2a|ulysses", said)):
        return {"cp_kind": "all_to_all"}
    if windowed and sizes.cp > 1:
        assumed.append("context parallelism by all_to_all: no ring attention takes windows")
        return {"cp_kind": "all_to_all"}
    return {"cp_kind": "p2p"}


def _capacity(row: Row, framework: str) -> float:
    """1 where an expert's tokens beyond the mean are dropped: as the row says, in NeMo's recipe of Grok-1 (MegatronTokenDropCallback), and in
    SimuMax's runs (run_pretrain_deepseekv2.sh: --moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity)."""
    grok = framework == "nemo" and "grok" in row.model_name.lower()
    return 1.0 if grok or (row.n_experts and "simumax" in row.source_id) or "capacity factor 1.0" in row.notes or row.drops_tokens else 0.0


def _expert_tp(row: Row, sizes: Sizes, framework: str, assumed: list[str]) -> int | None:
    """Megatron-Core had no expert tensor parallelism of its own before core_r0.10 (December 2024): experts split as all else."""
    if row.etp is None and sizes.ep > 1 and sizes.tp > 1 and framework.startswith("nemo") and row.date[:4] < "2026":
        assumed.append(f"experts split over tp = {sizes.tp} too, as NeMo does unless told")
        return sizes.tp
    return row.etp


def _experts(sizes: Sizes, etp: int | None, assumed: list[str]) -> int:
    """Expert-parallel ranks; as many as fit stand for more than there are."""
    ranks = sizes.dp * sizes.cp * (sizes.tp // (etp or 1))
    if ranks % sizes.ep == 0:
        return sizes.ep
    fits = max(n for n in range(1, min(ranks, sizes.ep) + 1) if ranks % n == 0 and sizes.ep % n == 0)
    assumed.append(f"ep = {sizes.ep} is not what {ranks} ranks divide into: counted as {fits}")
    return fits
