"""Warns of keys that a plan sets without any effect, because its writer probably expects one.

Each rule names a key, when it has no effect (is idle), and why. The tests predict with the key and without it: an idle key changes no
figure. They also change every key of a few plans: a key that changes no figure must be named, except a few that only a run reads
(`data.shuffle`, `seed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from sim.framework.chosen import sharding_of, zero_of
from sim.model.layers.redo import redone
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan
from sim.program import Program
from sim.setting.bind import Setting
from sim.work import Attention, Work
from topologies.unfelt import unfelt


class Rule(NamedTuple):
    """`idle(setting)` is true where the key has no effect. `why` is the reason in words."""

    key: str
    idle: Callable[[Setting], bool]
    why: str


def _dense(setting: Setting) -> bool:
    return setting.network.active_parameters == setting.network.parameters


def _forward(setting: Setting) -> bool:
    return setting.plan.task == "forward"


def _one_stage(setting: Setting) -> bool:
    return setting.plan.parallel.pp == 1


def _kept_among_all(setting: Setting) -> bool:
    p = setting.plan.parallel
    return p.reshard_after_forward not in (True, False) and p.kept_among == 1


def _whole_tensors(setting: Setting) -> bool:
    return setting.plan.parallel.tp == 1


def _nothing_travels(setting: Setting) -> bool:
    """True if no gradients travel between ranks and no flat buffer holds them. (Such a buffer has the reduce dtype in any case.)"""
    return _alone(setting) and not setting.framework.linears.accumulates


def _alone(setting: Setting) -> bool:
    """True if no gradients travel between ranks."""
    plan = setting.plan
    return plan.world // (plan.parallel.tp * plan.parallel.pp) == 1 or not plan.update.summed


def _no_buckets(setting: Setting) -> bool:
    """True if gradients do not travel in buckets: FSDP sends them layer by layer, and without overlap they go in one message."""
    framework = setting.framework
    whole = not (setting.plan.comm.overlap and framework.data_parallel.overlap_grad) and not framework.data_parallel.replicas_at_end
    return _forward(setting) or _alone(setting) or sharding_of(setting.plan, framework)[0] == 3 or whole


def _never_beside(setting: Setting) -> bool:
    framework, (zero, _) = setting.framework, sharding_of(setting.plan, setting.framework)
    return (
        _forward(setting)
        or _alone(setting)
        or (zero < 3 and (not framework.data_parallel.overlap_grad or (zero == 0 and framework.data_parallel.replicas_at_end)))
    )


def _nothing_again(setting: Setting) -> bool:
    modules = setting.plan.memory.modules
    return _forward(setting) or (bool(modules) and not any(redone(block, modules).runs for block in setting.network.kinds))


def _one_way(setting: Setting) -> bool:
    """True if the algorithm cannot be chosen: gloo has its own, and inside one node there is no hierarchy."""
    near = setting.topology.nodes_of(setting.plan.world) == 1
    return _on_cpu(setting) or (near and setting.plan.comm.algorithm == "hierarchical")


def _not_copied(setting: Setting) -> bool:
    return _on_cpu(setting) or setting.plan.data.source == "device"


def _on_cpu(setting: Setting) -> bool:
    return setting.topology.kind == "cpu"


def _kinds(setting: Setting) -> list[str]:
    return [block.kind for _, block in setting.network.blocks]


def _works(setting: Setting) -> Iterator[Work]:
    """Forward kernels of all kinds of blocks."""
    return (work for block in setting.network.kinds for part in block.parts for work in part.forward)


def _unsplit(setting: Setting) -> bool:
    return setting.plan.parallel.dp_shard * setting.plan.parallel.cp == 1


RULES = (
    Rule("seq_len", lambda s: s.network.seq < (s.plan.seq_len or 0), "the model takes no sequences, or cuts them to its own `longest`"),
    Rule(
        "attention",
        lambda s: s.network.captured or not any(part.cls == "attention" for block in s.network.kinds for part in block.parts),
        "the model has none, or was captured with the kernels that it ran",
    ),
    Rule(
        "parallel.zero",
        lambda s: bool(s.plan.parallel.zero) and (_unsplit(s) or _forward(s)) and sharding_of(s.plan, s.framework)[0] < 3,
        "dp_shard = 1: there are no ranks to split anything over (dp_replicate holds whole copies), or forward has nothing but parameters",
    ),
    Rule(
        "parallel.reshard_after_forward",
        lambda s: min(zero_of(s.plan, s.framework), sharding_of(s.plan, s.framework)[0]) < 3 or not _one_stage(s) or _kept_among_all(s),
        "parameters are not split (zero = 3 with dp_shard > 1), or a pipeline's stages keep them (pp > 1), or all that share them are the neighbours",
    ),
    Rule(
        "parallel.prefetch",
        lambda s: sharding_of(s.plan, s.framework)[0] < 3,
        "parameters are not split (zero = 3, or FSDP's zero = 2, with dp_shard > 1)",
    ),
    Rule("parallel.sequence_parallel", _whole_tensors, "tp = 1"),
    Rule("parallel.tp_overlap", _whole_tensors, "tp = 1"),
    Rule(
        "parallel.schedule",
        lambda s: _one_stage(s) or (s.plan.parallel.schedule == "interleaved" and s.plan.parallel.virtual_stages == 1),
        "pp = 1, or (interleaved) virtual_stages = 1: one chunk a rank in turn is 1F1B",
    ),
    Rule("parallel.virtual_stages", _one_stage, "pp = 1"),
    Rule("parallel.cp_kind", lambda s: s.plan.parallel.cp == 1, "cp = 1"),
    Rule(
        "parallel.cp_ulysses",
        lambda s: s.plan.parallel.cp == 1 or s.plan.parallel.cp_kind != "all_to_all+p2p",
        'cp = 1, or cp_kind is not "all_to_all+p2p"',
    ),
    Rule("parallel.ep", _dense, "the model has no experts"),
    Rule("parallel.etp", _dense, "the model has no experts"),
    Rule("parallel.capacity", _dense, "the model has no experts"),
    Rule("memory.recompute", _nothing_again, "nothing runs backward, or (selective) the layers have none of the modules"),
    Rule("memory.recompute_modules", lambda s: s.plan.memory.recompute != "selective", 'recompute is not "selective"'),
    Rule(
        "memory.recompute_layers",
        lambda s: s.plan.memory.recompute != "full" or s.plan.memory.recompute_layers > _kinds(s).count("layer"),
        'recompute is not "full", or the model has fewer layers: all run again anyway (0 says so)',
    ),
    Rule(
        "memory.offload",
        lambda s: (_forward(s) and not s.plan.parameters_offloaded) or (s.plan.memory.offload == "optimizer" and s.plan.served),
        "nothing is kept for backward, and nothing is updated, or (optimizer) by a server on a host",
    ),
    Rule("memory.offload_layers", lambda s: s.plan.memory.offload != "activations", 'offload is not "activations"'),
    Rule("optimizer.name", _forward, "nothing is updated"),
    Rule("optimizer.implementation", lambda s: _forward(s) or s.plan.host_updates, "nothing is updated, or by the host in one pass"),
    Rule(
        "optimizer.clip",
        lambda s: _forward(s) or s.plan.served,
        "nothing is updated, or by a server",
    ),
    Rule(
        "optimizer.on",
        lambda s: _forward(s) or s.plan.served or s.plan.parameters_offloaded,
        "nothing is updated, or by a server on a host, or where the parameters lie",
    ),
    Rule(
        "optimizer.states",
        lambda s: _forward(s) or not OPTIMIZERS[s.plan.optimizer.name].states,
        "nothing is updated, or by an optimizer without moments",
    ),
    Rule(
        "comm.bucket",
        _no_buckets,
        "no gradients travel between ranks, or not in buckets (FSDP: by layers; without overlap: in one message)",
    ),
    Rule("comm.overlap", _never_beside, "no gradients travel between ranks, or the framework sums them after backward anyway"),
    Rule("comm.algorithm", _one_way, "gloo has algorithms of its own, and inside one node there is no hierarchy"),
    Rule("comm.reduce_dtype", lambda s: _forward(s) or _nothing_travels(s), "no gradients travel between ranks"),
    Rule(
        "update.mode",
        lambda s: _forward(s) or (s.plan.update.mode == "local" and s.plan.data_ranks == 1),
        "nothing is updated, or (local) no other rank has parameters to agree on",
    ),
    Rule("update.aggregate", _forward, "nothing is updated"),
    Rule("update.every", lambda s: s.plan.update.mode != "local", 'mode is not "local"'),
    Rule("update.outer", lambda s: _forward(s) or s.plan.update.mode != "local", 'nothing is updated, or mode is not "local"'),
    Rule("data.sample", lambda s: s.plan.data.source == "memory" and not s.plan.data.preprocess, 'source = "memory": nothing is read'),
    Rule(
        "data.document",
        lambda s: s.network.seq == s.plan.data.document or not any(isinstance(work, Attention) for work in _works(s)),
        'it is a whole sequence, or scores are written out (attention = "math"): whole squares, of which a mask hides the most',
    ),
    Rule("data.prefetch", lambda s: s.plan.data.workers == 0, "workers = 0: the training process loads"),
    Rule("data.pinned", _not_copied, "batches are not copied to a device: it is a CPU, or they lie there"),
    Rule("data.stream", _not_copied, "batches are not copied to a device: it is a CPU, or they lie there"),
    Rule(
        "data.handover",
        lambda s: _not_copied(s) or s.plan.data.stream == "compute",
        'batches are copied to a device on no stream of their own (stream = "copy", on a GPU)',
    ),
    Rule("output.sync_every", _on_cpu, "a CPU is no device to wait for"),
    Rule("output.item_every", _on_cpu, "a CPU is no device to wait for"),
    Rule("output.checkpoint_to", lambda s: not s.plan.output.checkpoint_every, "checkpoint_every = 0"),
    Rule("output.checkpoint_mode", lambda s: not s.plan.output.checkpoint_every, "checkpoint_every = 0"),
)


def without_effect(setting: Setting, program: Program | None = None) -> list[str]:
    """Sentences about settings without effect: keys of the plan (`idle`), and what-ifs of the machine (`untouched`,
    `topologies.unfelt`)."""
    return idle(setting, program) + untouched(setting) + unfelt(setting.topology, setting.plan.world)


def untouched(setting: Setting) -> list[str]:
    """A sentence for each what-if on a disk or a store that the plan neither reads from nor writes to."""
    data, output = setting.plan.data, setting.plan.output
    store = "store" if setting.topology.store(0) else "disk"  # without a store, the node's own disk is used
    read = {"memory": "", "device": "", "disk": "disk"}.get(data.source, store)
    written = ("disk" if output.checkpoint_to == "disk" else store) if output.checkpoint_every else ""
    found = []
    for edit in dict.fromkeys(setting.topology.cluster.edits):
        part, dot, figure = edit.partition("=")[0].strip().partition(".")
        writes, reads = figure in ("write", "total_write"), figure in ("read", "stream", "total_read")
        if dot and part in ("disk", "store") and (writes or part != read) and (reads or part != written):
            found.append(
                f'{edit} has no effect: data.source = "{data.source}", checkpoint_every = {output.checkpoint_every}: nothing of it is used'
            )
    return found


def idle(setting: Setting, program: Program | None = None) -> list[str]:
    """A sentence for each key that differs from its default and has no effect on this model and machine. With a `program`, also for an
    algorithm that none of its collectives uses."""
    found = [f"{rule.key} = {shown(setting.plan, rule.key)} has no effect: {rule.why}" for rule in RULES if _idle(rule, setting)]
    forced = setting.plan.comm.algorithm
    if forced == "auto" or program is None or any(text.startswith("comm.algorithm = ") for text in found):
        return found
    if any(op.how == forced for ops in program.segments.values() for op in ops if op.kind == "collective"):
        return found
    return [*found, f'comm.algorithm = "{forced}" has no effect: none of the step\'s collectives has such an algorithm']


def _idle(rule: Rule, setting: Setting) -> bool:
    return value(setting.plan, rule.key) != value(_DEFAULT, rule.key) and rule.idle(setting)


_DEFAULT = Plan(model="")


def value(plan: Plan, key: str) -> object:
    """The value of the plan at a dotted path."""
    found: object = plan
    for name in key.split("."):
        found = getattr(found, name)
    return found


def shown(plan: Plan, key: str) -> str:
    """The value as a plan file writes it."""
    return msgspec.json.encode(value(plan, key)).decode()
