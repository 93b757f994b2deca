"""Plans one change away from a plan: what a person would try next."""

from __future__ import annotations

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.plan import Plan
from sim.planning.sweeps.auto import lacks_tp_overlap, overlap_needs, selective
from sim.planning.sweeps.space import relaid
from sim.sections import Parallel
from sim.setting.bind import length_of, model_of
from topologies.errors import SteptwinError

_LOADERS = (1, 2, 4, 8, 16)
"""Loader processes of a rank that are tried."""
_BUCKETS = ("25 MiB", "100 MiB")
"""Messages of gradients that are tried: DDP's own, and what large models and clusters often take."""
_LONG = 16_384
"""Tokens of a sequence (or a video) from which on ranks may share one."""


def neighbours(plan: Plan, node: int = 1) -> list[tuple[tuple[str, ...], Plan]]:
    """(overrides, plan) for each single change that makes a valid plan of the same world and global batch. `node`: ranks that share one."""
    found: list[tuple[tuple[str, ...], Plan]] = []
    for overrides in _changes(plan, node):
        try:
            there = changed(plan, overrides)
        except SteptwinError:
            continue
        if there.world == plan.world and there != plan:
            found.append((overrides, there))
    return found


def changed(plan: Plan, overrides: tuple[str, ...]) -> Plan:
    """The plan with other keys and the same global batch. Raises `BadInput` and its kinds where it is none."""
    fixed = (*overrides, f"batch.global={plan.global_batch}")
    return load_plan(relaid(plan, fixed), fixed)


def _changes(plan: Plan, node: int) -> list[tuple[str, ...]]:
    p = plan.parallel
    changes: list[tuple[str, ...]] = []
    for axis in ("dp_shard", "dp_replicate"):
        size = getattr(p, axis)
        for other in ("tp", "pp"):
            if size % 2 == 0:
                changes.append((f"parallel.{axis}={size // 2}", *_sized(p, other, getattr(p, other) * 2)))
            if getattr(p, other) % 2 == 0:
                changes.append((f"parallel.{axis}={size * 2}", *_sized(p, other, getattr(p, other) // 2)))
    changes += _replicated(p)
    if p.tp % 2 == 0:
        changes.append((f"parallel.tp={p.tp // 2}", *_sized(p, "pp", p.pp * 2)))
    if p.pp % 2 == 0:
        changes.append((*_sized(p, "pp", p.pp // 2), f"parallel.tp={p.tp * 2}"))
    changes += [(f"batch.micro={plan.batch.micro * 2}",), (f"batch.micro={max(1, plan.batch.micro // 2)}",)]
    changes += [change for how, change in _recomputed(plan) if how != plan.memory.recompute]
    changes += [(f"parallel.zero={stage}",) for stage in (1, 2, 3) if stage != p.zero and p.dp_shard > 1]
    if p.dp_replicate > 1 or p.zero in (1, 2):
        changes += [(f"comm.bucket={size}",) for size in _BUCKETS]
    if p.pp > 1:
        changes += [("parallel.schedule=interleaved", f"parallel.virtual_stages={v}") for v in (2, 4)]
        changes += [(f"parallel.schedule={name}", "parallel.virtual_stages=1") for name in ("zb-h1", "zb-v")]
    changes += [(f"data.workers={count}",) for count in _LOADERS if count > plan.data.workers]
    changes += [] if framework_of(plan).te_attention else [("compile=true",)]  # TransformerEngine's modules are its own kernels
    changes += [_graphs(plan), ("optimizer.implementation=fused",), ("attention=flash",)]
    return changes + _inner(plan) + _switched(plan, node)


def _graphs(plan: Plan) -> tuple[str, ...]:
    """A graph of the step holds experts only where the rows of each are filled up to a fixed number (`sim.result.doubts`)."""
    filled = plan.parallel.capacity or not getattr(model_of(plan), "moe", None)
    return ("cuda_graphs=true",) if filled else ("cuda_graphs=true", "parallel.capacity=1")


def _recomputed(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    """With fused attention "selective" is worth trying by operator or module alone, as the framework has it."""
    words = [f"memory.recompute_modules={one}" for one in selective(plan)]
    some: list[tuple[str, ...]] = [("memory.recompute=selective", word) for word in words] or [("memory.recompute=selective",)]
    return [("none", ("memory.recompute=none",)), *(("selective", change) for change in some), ("full", ("memory.recompute=full",))]


def _replicated(p: Parallel) -> list[tuple[str, ...]]:
    """More groups that shard among fewer ranks each (HSDP, Zhao et al. 2023, 3.2.2), down to pairs, and one step back: parameters then travel less far.
    Of replicas alone, all that share the optimizer, and the rest too."""
    smaller = [p.dp_shard // by for by in (2, 4, 8, 16, 32) if p.dp_shard % by == 0 and p.dp_shard // by > 1]
    changes: list[tuple[str, ...]] = [
        (f"parallel.dp_shard={size}", f"parallel.dp_replicate={p.dp_replicate * p.dp_shard // size}") for size in smaller
    ]
    if p.dp_shard == 1 < p.dp_replicate:
        changes += [(f"parallel.dp_shard={p.dp_replicate}", "parallel.dp_replicate=1", f"parallel.zero={stage}") for stage in (1, 3)]
    if p.dp_shard > 1 and p.dp_replicate % 2 == 0:
        changes.append((f"parallel.dp_shard={p.dp_shard * 2}", f"parallel.dp_replicate={p.dp_replicate // 2}"))
    return changes


def _inner(plan: Plan) -> list[tuple[str, ...]]:
    """Other sizes of what lies inside data parallelism: experts' ranks, and ranks that share one long sequence; and other ways for these to."""
    p = plan.parallel
    changes: list[tuple[str, ...]] = [(f"parallel.ep={p.ep * 2}",)]
    changes += [(f"parallel.ep={p.ep // 2}",)] if p.ep % 2 == 0 else []
    if p.dp_shard % 2 == 0 and (p.cp > 1 or length_of(plan, model_of(plan)) >= _LONG):
        changes.append((f"parallel.dp_shard={p.dp_shard // 2}", f"parallel.cp={p.cp * 2}"))
    if p.cp % 2 == 0:
        changes.append((f"parallel.dp_shard={p.dp_shard * 2}", f"parallel.cp={p.cp // 2}"))
    if p.cp > 1:
        changes += [(f"parallel.cp_kind={kind}",) for kind in ("p2p", "all_gather", "all_to_all") if kind != p.cp_kind]
        changes += [
            ("parallel.cp_kind=all_to_all+p2p", f"parallel.cp_ulysses={ways}") for ways in (2, 4, 8, 16) if p.cp % ways == 0 and p.cp > ways
        ]
    return changes


def _switched(plan: Plan, node: int) -> list[tuple[str, ...]]:
    """What the plan does without, or does for the sake of something else than speed."""
    p, data, output = plan.parallel, plan.data, plan.output
    slower = {
        "comm.overlap=true": not plan.comm.overlap,
        "parallel.sequence_parallel=true": p.tp > 1 and not p.sequence_parallel,
        "parallel.reshard_after_forward=false": bool(p.reshard_after_forward) and p.dp_shard > 1,
        f"parallel.reshard_after_forward={node}": p.reshard_after_forward is True and p.dp_shard * p.cp > node > 1,
        "data.pinned=true": not data.pinned,
        "data.handover=event": data.handover == "synchronize",
        "data.stream=copy": data.stream == "compute",
        "data.create=device": data.create == "cpu",
        "update.aggregate=gpu": plan.update.aggregate != "gpu",
        "optimizer.on=gpu": plan.optimizer.on == "cpu",
        "memory.offload=none": plan.memory.offload != "none",
        "output.checkpoint_mode=async": bool(output.checkpoint_every) and output.checkpoint_mode != "async",
    }
    slower |= {f"output.{name}=0": bool(getattr(output, name)) for name in ("log_every", "sync_every", "item_every", "print_every")}
    overlapped = [(*overlap_needs(plan), "parallel.tp_overlap=true")] if p.tp > 1 and lacks_tp_overlap(plan) else []
    return [*overlapped, *((change,) for change, here in slower.items() if here)]


def _sized(p: Parallel, axis: str, size: int) -> tuple[str, ...]:
    """Overrides that give an axis this size. A pipeline keeps its chunks of layers: more stages hold fewer of them each."""
    found = (f"parallel.{axis}={size}",)
    if axis == "pp" and p.virtual_stages > 1:
        if size == 1 or p.virtual_stages * p.pp % size:
            return (*found, "parallel.schedule=1f1b", "parallel.virtual_stages=1")
        return (*found, f"parallel.virtual_stages={p.virtual_stages * p.pp // size}")
    return found
