"""Keys of a plan that were said and change nothing: a plan that means something else than its writer thinks should not pass in silence.

Each rule names a key, when it is idle, and why. The tests predict with the key and without it: an idle one changes no figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sim.bind import Setting
from sim.lower.optimizer.owned import STATES
from sim.plan import Plan


class Rule(NamedTuple):
    """`idle(setting)`: has the key, which was said, no effect there? `why` is a reason in words."""

    key: str
    idle: Callable[[Setting], bool]
    why: str


def _zero(setting: Setting) -> int:
    return setting.framework.zero if setting.plan.parallel.zero is None else setting.plan.parallel.zero


def _dense(setting: Setting) -> bool:
    return setting.network.active_parameters == setting.network.parameters


def _forward(setting: Setting) -> bool:
    return setting.plan.task == "forward"


def _one_stage(setting: Setting) -> bool:
    return setting.plan.parallel.pp == 1


def _whole_tensors(setting: Setting) -> bool:
    return setting.plan.parallel.tp == 1


def _nothing_travels(setting: Setting) -> bool:
    """No gradients between ranks; where a flat buffer holds them, it has their dtype all the same."""
    u = setting.plan.update
    alone = setting.plan.world // (setting.plan.parallel.tp * setting.plan.parallel.pp) == 1
    return (alone or u.mode != "sync" or u.aggregate != "gpu") and not setting.framework.accumulate_in_gemm


def _on_cpu(setting: Setting) -> bool:
    return setting.topology.kind == "cpu"


def _unsplit(setting: Setting) -> bool:
    return setting.plan.parallel.dp_shard * setting.plan.parallel.cp == 1


RULES = (
    Rule("seq_len", lambda s: s.network.seq < (s.plan.seq_len or 0), "the model takes no sequences, or cuts them to its own `longest`"),
    Rule(
        "parallel.zero",
        lambda s: _unsplit(s) and bool(s.plan.parallel.zero),
        "dp_shard = 1: there are no ranks to split anything over (dp_replicate holds whole copies)",
    ),
    Rule(
        "parallel.reshard_after_forward",
        lambda s: _zero(s) < 3 or _unsplit(s) or not _one_stage(s),
        "parameters are not split (zero = 3 with dp_shard > 1), or a pipeline's stages keep them (pp > 1)",
    ),
    Rule("parallel.prefetch", lambda s: _zero(s) < 3 or _unsplit(s), "parameters are not split (zero = 3 with dp_shard > 1)"),
    Rule("parallel.sequence_parallel", _whole_tensors, "tp = 1"),
    Rule("parallel.tp_overlap", _whole_tensors, "tp = 1"),
    Rule("parallel.schedule", _one_stage, "pp = 1"),
    Rule("parallel.virtual_stages", _one_stage, "pp = 1"),
    Rule("parallel.cp_kind", lambda s: s.plan.parallel.cp == 1, "cp = 1"),
    Rule("parallel.ep", _dense, "the model has no experts"),
    Rule("parallel.etp", _dense, "the model has no experts"),
    Rule("parallel.capacity", _dense, "the model has no experts"),
    Rule("memory.recompute", _forward, "nothing runs backward"),
    Rule("memory.recompute_modules", lambda s: s.plan.memory.recompute != "selective", 'recompute is not "selective"'),
    Rule("memory.recompute_layers", lambda s: s.plan.memory.recompute != "full", 'recompute is not "full"'),
    Rule("optimizer.name", _forward, "nothing is updated"),
    Rule(
        "optimizer.states",
        lambda s: _forward(s) or not STATES[s.plan.optimizer.name],
        "nothing is updated, or by an optimizer without moments",
    ),
    Rule("comm.reduce_dtype", lambda s: _forward(s) or _nothing_travels(s), "no gradients travel between ranks"),
    Rule("update.mode", _forward, "nothing is updated"),
    Rule("update.aggregate", _forward, "nothing is updated"),
    Rule("update.every", lambda s: s.plan.update.mode != "local", 'mode is not "local"'),
    Rule("update.outer", lambda s: _forward(s) or s.plan.update.mode != "local", 'mode is not "local"'),
    Rule("data.sample", lambda s: s.plan.data.source == "memory" and not s.plan.data.preprocess, 'source = "memory": nothing is read'),
    Rule("data.prefetch", lambda s: s.plan.data.workers == 0, "workers = 0: the training process loads"),
    Rule("data.pinned", _on_cpu, "on a CPU batches are not copied to a device"),
    Rule("data.stream", _on_cpu, "on a CPU batches are not copied to a device"),
    Rule(
        "data.handover",
        lambda s: _on_cpu(s) or s.plan.data.stream == "compute",
        'batches are copied to a device on no stream of their own (stream = "copy", on a GPU)',
    ),
    Rule("output.checkpoint_to", lambda s: not s.plan.output.checkpoint_every, "checkpoint_every = 0"),
    Rule("output.checkpoint_mode", lambda s: not s.plan.output.checkpoint_every, "checkpoint_every = 0"),
)


def idle(setting: Setting) -> list[str]:
    """A sentence for each key that differs from its default and has no effect on this model and machine."""
    return [f"{rule.key} = {shown(setting.plan, rule.key)} has no effect: {rule.why}" for rule in RULES if _idle(rule, setting)]


def _idle(rule: Rule, setting: Setting) -> bool:
    return value(setting.plan, rule.key) != value(_DEFAULT, rule.key) and rule.idle(setting)


_DEFAULT = Plan(model="")


def value(plan: Plan, key: str) -> object:
    """What the plan says at a dotted path."""
    found: object = plan
    for name in key.split("."):
        found = getattr(found, name)
    return found


def shown(plan: Plan, key: str) -> str:
    """The value as a plan file writes it."""
    return msgspec.json.encode(value(plan, key)).decode()
