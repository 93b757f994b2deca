"""What a row's word of sharding means: ZeRO's level and who shares ("FSDP FULL_SHARD (ZeRO-3)", "HSDP", "ZeRO-1 within groups of 8")."""

from __future__ import annotations

import re
from typing import Any

from sim.accuracy.row import Row
from sim.accuracy.rows.scripts import shard_of
from sim.accuracy.rows.wording import said
from sim.framework.framework import load_framework


def sharding_of(row: Row, dp: int, framework: str, assumed: list[str]) -> dict[str, Any]:
    """dp_shard, dp_replicate, zero and how parameters are kept, for `dp` data-parallel ranks (context ranks apart)."""
    text = row.sharding.lower() or _by_framework(row)
    zero = _in_pipeline(row, _zero(text, framework, assumed, row), framework, assumed)
    if zero == 0 or dp == 1:
        # With one rank nothing is split; FSDP still casts and copies as it does, so its level stays.
        return {"dp_replicate": dp if zero == 0 else 1, "dp_shard": 1 if zero == 0 else dp, "zero": zero}
    size = min(row.fsdp_size or stated_group(text) or shard_of(row, framework) or _in_node(row, text, framework) or dp, dp)
    if dp % size:
        assumed.append(f"sharding group of {size} does not divide dp = {dp}: all ranks share")
        size = dp
    found_sizes: dict[str, Any] = {"dp_shard": size, "dp_replicate": dp // size, "zero": zero}
    if re.search(_KEEPS, text):
        found_sizes |= {"zero": 3, "reshard_after_forward": False}
    return found_sizes


_KEEPS = r"shard_grad_op|fsdp.*(zero|stage)[\s_-]*2|reshard\w*[ =:]+(false|no\b|0)|\b(no|without) reshard"
"""Words of FSDP whose parameters stay gathered after forward: its SHARD_GRAD_OP, which it likens to ZeRO-2."""


def _by_framework(row: Row) -> str:
    """What a row that is silent of sharding says of it with its framework's name: "PyTorch FSDP", "DeepSpeed ZeRO-3", "PyTorch (DDP)"."""
    found = re.search(r"fsdp2?|zero[\s_-]*(?:stage)?[\s_-]*[0-3]|stage[\s_-]*[0-3]|\bddp\b", row.framework.lower())
    return found[0] if found else ""


def stated_group(text: str) -> int:
    """Ranks that share, as the word says: "within groups of 8", "8-way", "(8 x 2)", "16 replicas x 8 shards", "FSDP 32" (FSDP 2 is a version); 0 where
    it does not."""
    found = re.search(
        r"within groups of (\d+)|\b(\d+)[- ]way|\((\d+) ?[x×] ?\d+\)|shard\w* ?(?:size|degree|group)\w* ?[=:]? ?(\d+)|\b(\d+) shards\b"
        r"|\bfsdp[ =:(]+(\d\d+|[4-9])\b",
        text,
    )
    return int(next(group for group in found.groups() if group)) if found else 0


def _in_node(row: Row, text: str, framework: str) -> int:
    """FSDP's hybrid sharding keeps whole copies on each node (torch.distributed.fsdp, ShardingStrategy.HYBRID_SHARD), and so does the LAMB of MLPerf's
    BERT (apex, distributed_fused_lamb.py: dwu_group_size is the node's GPUs unless told); meshes of JAX are their own."""
    hybrid = framework == "mlperf-nvidia-bert" or (re.search(r"hybrid.?shard|hsdp", text) and framework not in ("maxtext", "paxml"))
    return (row.gpus_per_node or 8) if hybrid else 0


def _in_pipeline(row: Row, zero: int, framework: str, assumed: list[str]) -> int:
    """ZeRO-2's sums of each micro-batch exist in no pipeline: Megatron-LM has the distributed optimizer, DeepSpeed's engine asserts a level
    below 2 (runtime/pipe/engine.py), and who keeps gradients whole until the last micro-batch sends what ZeRO-1 does."""
    known = load_framework(framework)
    if (row.pp or 1) == 1 or zero <= 1 or (zero == 2 and known.data_parallel.zero2 == "layers") or (zero == 3 and known.pipeline.zero == 3):
        return zero
    assumed.append(f"ZeRO-{zero} under a pipeline: gradients are summed once a step, as with ZeRO-1")
    return 1


_LEVELS: tuple[tuple[str, int], ...] = (
    (r"no_shard|^not\b|^unshard|^replicat", 0),
    (r"fsdp|full_?shard|fully.?shard|hsdp|hybrid.?shard|zero\+\+|zero.?infinity|\bmics\b|gemini", 3),
    (r"(param|weight)\w*\b.*grad|grad.*(param|weight)|\b(p_)?os ?\+ ?g\w* ?\+ ?p", 3),
    (r"shard_?grad|zero.?offload|grad\w*\b.*\bopt|\bopt\w*\b.*grad|\b(p_)?os ?\+ ?g", 2),
    (r"distributed.?optimi|dist.?opt|dist\w*.?fused.?(adam|lamb)|\bp_os\b|optimi[sz]er.?(state|shard)|zero.?redundancy", 1),
    (r"\bddp\b|^dp$|data.?parallel$|distributed.?data.?parallel|horovod|all.?reduce", 0),
)
"""Words of sharding without a level's number, and the level that they mean."""


def _zero(text: str, framework: str, assumed: list[str], row: Row) -> int:
    if said(text) is False:
        return 0
    if found := re.search(r"(?:zero|stage)[\s_=:-]*(?:stage)?[\s_=:-]*([0-3])", text) or re.search(r"^([0-3])$|\bz-?([0-3])\b", text):
        return int(next(group for group in found.groups() if group))
    for pattern, level in _LEVELS:
        if re.search(pattern, text):
            return level
    level = max(load_framework(framework).data_parallel.zero, 1 if "zero" in text else 0)
    if level == 0 and re.match(r"yes|true|on\b|shard", text):  # no word of what, where the framework shards nothing unless told: FSDP
        level = 3
    assumed.append(
        f"sharding not stated: {framework}'s default, ZeRO-{level}" if not row.sharding else f"sharding {row.sharding!r}: ZeRO-{level}"
    )
    return level
