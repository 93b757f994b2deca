"""A row that was measured did fit into memory. If it does not say how, this module assumes what most people do to make it fit.

If no device could hold all parameters, gradients and optimizer states, they are sharded. A micro-batch that is not stated is one that fits.
If the activations need far more than the device has, layers are recomputed. Nothing is assumed where the row states it, or where the
framework's recipes are known.
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
"""Predicted peak over the device's memory from which on a row recomputes. Published rows that say that they recompute nothing are predicted
at 1.28 of it at most (llm-foundry's MPT-350M on A100 of 40 GB)."""
_RECIPES = ("megatron-bridge", "mlperf-nvidia")
"""Frameworks whose recipes say what is recomputed and offloaded (`recipes`), or whose weights lie in 8 bits (MLPerf's yaml: fp8_params)."""
_WIDE = 2048
"""Hidden size from which on encoders and encoder-decoders have billions of parameters (T5-3B is narrower, but its layers are wide
inside)."""
_TRAINED, _FROZEN = 16, 2
"""Bytes of a replica for each parameter: in 16 bits with its gradient, and three in fp32 (Rajbhandari et al. 2019, ZeRO, section 3.1);
frozen."""
_SHARED = {
    **dict.fromkeys(("pytorch", "pytorch-amp", "huggingface", "huggingface-amp", "deepspeed"), 3),
    **dict.fromkeys(("megatron-2021", "megatron-2022", "oneflow-gpt", "oneflow"), 1),
}
"""Framework -> ZeRO level that is assumed if a replica is too large: FSDP (3) in PyTorch; the distributed optimizer (1) in Megatron-LM;
ZeRO's first level in OneFlow (LiBai: train.zero_optimization)."""


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
        pass  # the prediction of the plan raises it again, with a better message
    return plan


def _instead(assumed: list[str], what: str, choice: str) -> None:
    """Replaces the notes that begin with `what` (on the default choice) by a note on `choice`."""
    assumed[:] = [note for note in assumed if not note.startswith(what)] + [f"{what}: {choice}"]


def _large(plan: Plan) -> bool:
    """Is the model a decoder, or as wide as large ones? People recompute the layers of these. For other models that do not fit, the
    prediction of memory is taken to be wrong."""
    tree = plan.model if isinstance(plan.model, dict) else {}
    return tree.get("family", "decoder") == "decoder" or int(tree.get("hidden", 0)) >= _WIDE


def _filled(plan: Plan, topology: str, edits: tuple[str, ...]) -> float:
    """Predicted peak memory of the fullest rank over the memory of the device; 0 if the latter is not known."""
    setting = bind(plan, topology, edits)
    device = setting.topology.device(0)
    report = memory_of(setting.plan, setting.network, setting.framework, device, remedies=False)
    return report.peak / device.memory if device.memory else 0.0


def _shared(plan: Plan, topology: str, edits: tuple[str, ...], assumed: list[str]) -> Plan:
    """The plan with ZeRO if one replica would not fit into the device's memory, with a note; otherwise the plan as it is."""
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
    """The plan with the largest micro-batch, up to its own, that fits; 1 if none fits. A smaller one is noted."""
    most, each = plan.batch.micro, plan.global_batch // plan.data_ranks
    for size in (size for size in range(most, 0, -1) if each % size == 0):
        plan = msgspec.structs.replace(plan, batch=msgspec.structs.replace(plan.batch, micro=size))
        if size == 1 or _filled(plan, topology, edits) <= 1.0:
            break
    if plan.batch.micro != most:
        _instead(assumed, "micro-batch not stated", f"{plan.batch.micro}, for {most} would not fit")
    return plan
