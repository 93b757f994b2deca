"""A row that was measured did fit: where it does not say how, what most people do to make it fit is assumed.

Parameters, gradients and optimizer states that no device could hold were shared out; a micro-batch that is not stated is one that fits; layers
whose activations are far beyond the device were recomputed. Nothing is assumed where the row speaks, or the framework's recipes are known.
"""

from __future__ import annotations

import msgspec

from sim.accuracy.row import Row
from sim.accuracy.rows.wording import said
from sim.memory.report import memory_of
from sim.plan import Plan
from sim.setting.bind import bind
from topologies.errors import BadInput

_BEYOND = 1.3
"""Predicted peak over the device's memory from which on a row recomputes. Published rows that say that they recompute nothing are predicted at
1.28 of it at most (llm-foundry's MPT-350M on A100 of 40 GB)."""
_RECIPES = ("megatron-bridge", "mlperf-nvidia")
"""Frameworks whose recipes say what is recomputed and offloaded (`recipes`), or whose weights lie in 8 bits (MLPerf's yaml: fp8_params)."""
_WIDE = 2048
"""From which width on encoders and encoder-decoders have billions of parameters (T5-3B is narrower, its layers wide inside)."""
_TRAINED, _FROZEN = 16, 2
"""Bytes of a replica for each parameter: in 16 bits with its gradient, and three in fp32 (Rajbhandari et al. 2019, ZeRO, section 3.1); frozen."""
_SHARED = {
    **dict.fromkeys(("pytorch", "pytorch-amp", "huggingface", "huggingface-amp", "deepspeed"), 3),
    **dict.fromkeys(("megatron-2021", "megatron-2022", "oneflow-gpt", "oneflow"), 1),
}
"""What people turn to whose replicas are too large: FSDP in PyTorch; in Megatron-LM the distributed optimizer, in OneFlow
ZeRO's first level (LiBai: train.zero_optimization)."""


def with_room(plan: Plan, topology: str, edits: tuple[str, ...], row: Row, assumed: list[str]) -> Plan:
    """The plan with unstated choices made so that it fits; each is noted. A plan that cannot be bound comes back as it is."""
    sharding, micro = said(row.sharding) is None, row.micro_batch is None and row.grad_accum is None and row.batch_unit != "images"
    redo = said(row.recompute) is None and plan.memory.recompute == "none" and not plan.framework_base.startswith(_RECIPES)
    if not (sharding or micro or redo):
        return plan
    try:
        if sharding:
            plan = _shared(plan, topology, edits, assumed)
        if micro:
            plan = _smaller(plan, topology, edits, assumed)
        if redo and _large(plan) and _filled(plan, topology, edits) > _BEYOND:
            _instead(assumed, "recomputation not stated", "full, for it would not fit without")
            plan = msgspec.structs.replace(plan, memory=msgspec.structs.replace(plan.memory, recompute="full"))
    except BadInput:
        pass  # said again, and better, when the plan is predicted
    return plan


def _instead(assumed: list[str], what: str, choice: str) -> None:
    """The note of what was chosen, in place of that of the default."""
    assumed[:] = [note for note in assumed if not note.startswith(what)] + [f"{what}: {choice}"]


def _large(plan: Plan) -> bool:
    """A decoder, or an encoder as large as they are: whose layers people recompute. Of the others the prediction of memory is what is wrong."""
    tree = plan.model if isinstance(plan.model, dict) else {}
    return tree.get("family", "decoder") == "decoder" or int(tree.get("hidden", 0)) >= _WIDE


def _filled(plan: Plan, topology: str, edits: tuple[str, ...]) -> float:
    """The fullest rank's memory over the device's; 0 where that is not known."""
    setting = bind(plan, topology, edits)
    device = setting.topology.device(0)
    report = memory_of(setting.plan, setting.network, setting.framework, device, remedies=False)
    return report.peak / device.memory if device.memory else 0.0


def _shared(plan: Plan, topology: str, edits: tuple[str, ...], assumed: list[str]) -> Plan:
    """Replicas of which one alone is larger than the device are no replicas."""
    p, level = plan.parallel, _SHARED.get(plan.framework_base, 0)
    if not level or p.zero or p.dp_replicate == 1:
        return plan
    setting = bind(plan, topology, edits)
    memory = setting.topology.device(0).memory
    trained = _TRAINED if plan.task == "train" else _FROZEN
    if not memory or trained * setting.network.parameters <= memory * p.tp * p.pp:
        return plan
    _instead(assumed, "sharding not stated", f"ZeRO-{level}, for no device holds a replica")
    framework = plan.framework
    if isinstance(framework, str):
        framework = framework.removesuffix("-amp")  # FSDP casts what it gathers (MixedPrecision), no autocast does
    return msgspec.structs.replace(
        plan, framework=framework, parallel=msgspec.structs.replace(p, dp_shard=p.dp_replicate, dp_replicate=1, zero=level)
    )


def _smaller(plan: Plan, topology: str, edits: tuple[str, ...], assumed: list[str]) -> Plan:
    """The largest micro-batch up to the plan's that fits; one where none does."""
    most, each = plan.batch.micro, plan.global_batch // plan.data_ranks
    for size in (size for size in range(most, 0, -1) if each % size == 0):
        plan = msgspec.structs.replace(plan, batch=msgspec.structs.replace(plan.batch, micro=size))
        if size == 1 or _filled(plan, topology, edits) <= 1.0:
            break
    if plan.batch.micro != most:
        _instead(assumed, "micro-batch not stated", f"{plan.batch.micro}, for {most} would not fit")
    return plan
