"""Rules of a plan that span several of its keys, and the mesh that its sizes and placement make."""

from __future__ import annotations

from sim.framework.chosen import sharding_of
from sim.framework.framework import load_framework
from sim.mesh import AXES, Mesh
from sim.plan import Plan
from sim.schedule.interleaved import check_rounds
from sim.schedule.reading import written_of
from sim.sections import LOOPS, VEES, Data, Parallel, Update
from topologies.errors import BadInput, Refused

MOST_MICROBATCHES = 100_000
"""Of one step: half a minute of simulation. Nobody accumulates gradients over so many."""


def mesh_of(plan: Plan) -> Mesh:
    """The mesh that the plan's sizes and placement make."""
    named = [name.strip() for name in plan.parallel.placement.split(",")]
    inner = [axis for name in named for axis in (("dp_shard", "dp_replicate") if name == "dp" else (name,))]
    if sorted(inner) != sorted(AXES):
        raise BadInput(f"parallel.placement = '{plan.parallel.placement}' must name tp, cp, dp and pp once each")
    sizes = {axis: getattr(plan.parallel, axis) for axis in AXES}
    p = plan.parallel
    etp, ulysses = 0 if p.expert_tp == p.tp else p.expert_tp, 1 if p.ulysses == p.cp else p.ulysses
    return Mesh(sizes, tuple(reversed(inner)), p.ep, etp, ulysses, p.kept_among)


def check(plan: Plan) -> Plan:
    """Rules that span keys. Returns the plan; raises `BadInput` or `Refused`."""
    p, ranks = plan.parallel, plan.data_ranks
    if p.cp > 1 and p.cp_kind == "all_to_all+p2p" and not p.cp_ulysses:
        raise BadInput(
            f'parallel.cp_kind = "all_to_all+p2p" with cp = {p.cp} needs parallel.cp_ulysses: how many neighbours exchange heads, a divisor of cp'
        )
    mesh_of(plan)
    per_step = plan.batch.micro * ranks
    if plan.global_batch % per_step:
        upper = -(-plan.global_batch // per_step) * per_step
        near = f"{upper - per_step} or {upper}" if upper > per_step else f"{upper}"
        raise BadInput(
            f"batch.global = {plan.global_batch} is no multiple of batch.micro x dp_replicate x dp_shard = "
            f"{plan.batch.micro} x {p.dp_replicate} x {p.dp_shard} = {per_step}. Use {near}"
        )
    if plan.microbatches > MOST_MICROBATCHES:
        raise Refused(
            f"batch.global = {plan.global_batch} makes {plan.microbatches:,} micro-batches in a step; at most {MOST_MICROBATCHES:,} are "
            "simulated. Raise batch.micro or the data-parallel ranks, or lower batch.global"
        )
    if plan.task == "dpo" and plan.batch.micro % 2:
        raise BadInput(
            f'batch.micro = {plan.batch.micro}: task = "dpo" compares sequences in pairs (a chosen and a rejected one), which are counted one by one. Use an '
            "even batch.micro"
        )
    _check_schedule(plan)
    if p.stages is not None:
        _check_stages(p.stages, p.pp, p.chunks)
    _check_update(plan.update)
    _check_data(plan.data)
    if plan.update.mode != "sync":
        _check_whole(plan)
    return plan


def _check_data(data: Data) -> None:
    """A batch that lies on the device is neither read nor made."""
    set_ = [f"data.{key}" for key in ("workers", "sample", "preprocess") if getattr(data, key)]
    if data.source == "device" and set_:
        raise BadInput(
            f'data.source = "device" is one batch that lies on the device from the start: nothing is read or made. Set {" and ".join(set_)} to 0, or take '
            "another source: disk, object-store, database, memory"
        )


def _check_schedule(plan: Plan) -> None:
    """What its schedule says of a pipeline's other sizes."""
    p, microbatches = plan.parallel, plan.microbatches
    if p.schedule == "csv" or p.actions:
        _check_written(p, microbatches)
    elif p.virtual_stages > 1 and p.schedule not in (*LOOPS, *VEES):
        raise Refused(
            f'parallel.virtual_stages = {p.virtual_stages} needs schedule = "{LOOPS[0]}", not "{p.schedule}" (or {", ".join(LOOPS[1:])})'
        )
    elif p.pp > 1 and p.virtual_stages > 1 and _in_equal_rounds(plan):
        check_rounds(p.pp, microbatches)


def _in_equal_rounds(plan: Plan) -> bool:
    schedule = plan.parallel.schedule
    return schedule == "zb-h1" or (schedule == "interleaved" and not load_framework(plan.framework).pipeline.uneven_rounds)


def _check_written(p: Parallel, microbatches: int) -> None:
    """A schedule of one's own is for the pipeline that it is written for."""
    if p.schedule != "csv" or not p.actions:
        raise BadInput(
            'parallel.actions and schedule = "csv" belong together, as a plan has them that has read schedule = "mine.csv". '
            f'This one has schedule = "{p.schedule}" {"and" if p.actions else "without"} actions'
        )
    written = written_of(p.actions)
    for key, says, has in (
        ("parallel.pp", p.pp, len(p.actions)),
        ("parallel.virtual_stages", p.virtual_stages, written.chunks),
        ("micro-batches of a step", microbatches, written.microbatches),
    ):
        if says != has:
            raise BadInput(
                f"{key} = {says}, but the schedule's file is written for {has}: {len(p.actions)} rows (pipeline ranks) of {written.chunks} "
                f"stages each, {written.microbatches} micro-batches (batch.global / batch.micro / data-parallel ranks). Change the plan, or the file"
            )
    if p.pp == 1:
        raise Refused('schedule = "csv" orders the work of several ranks: use pp > 1')


def _check_whole(plan: Plan) -> None:
    """Ranks that update by themselves hold whole models, also where the framework alone would split them."""
    p = plan.parallel
    if p.tp * p.pp * p.cp * p.ep > 1 or (p.zero or 0) > 0 or sharding_of(plan, load_framework(plan.framework))[0] > 0:
        raise Refused(
            f'update.mode = "{plan.update.mode}" holds a whole model on each rank: use it with tp = pp = cp = ep = 1 and zero = 0'
            + (
                f' (framework = "{plan.framework_name}" splits over dp_shard where zero is left out)'
                if p.zero is None and p.dp_shard > 1
                else ""
            )
        )


def _check_update(update: Update) -> None:
    """Only synchronous updates have gradients to sum in a place of choice."""
    why = {"local": "local updates sum no gradients", "async": "a parameter server's host sums them"}
    if update.aggregate in {"local": ("cpu", "primary"), "async": ("primary",)}.get(update.mode, ()):
        raise Refused(
            f'update.aggregate = "{update.aggregate}" with update.mode = "{update.mode}": {why[update.mode]}. Leave aggregate out, or use '
            'mode = "sync"'
        )


def _check_stages(stages: tuple[int, ...], pp: int, chunks: int) -> None:
    """The layout's own rule (`sim.model.stages.layout`), as far as it can be told without the model's number of layers."""
    if len(stages) != pp * chunks:
        raise BadInput(f"parallel.stages names {len(stages)} stages; pp = {pp} with {chunks} to a rank makes {pp * chunks}")
    if min(stages[1:-1], default=1) < 1 or not sum(stages):
        raise BadInput(
            f"parallel.stages = {list(stages[:8])}: only the first and the last stage may be without layers (the embedding or the head alone)"
        )
