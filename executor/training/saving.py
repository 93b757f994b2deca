"""Checkpoints of stock training: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from executor.ranks.world import World
from sim.framework.chosen import framework_of, sharding_of
from sim.plan import Plan
from sim.rules import mesh_of
from topologies.errors import RunFailed


def save(state: dict[str, Any], plan: Plan, world: World) -> None:
    """Writes a checkpoint. `full`: rank 0 writes all of it. `sharded`: every rank writes its shard or stage, and replicas share the work.
    Ranks do not wait for each other here. Raises `RunFailed` if it cannot be written."""
    if plan.output.checkpoint_mode == "full":
        if world.rank:
            return
    elif (replicas := replicas_of(plan)) > 1:
        state = dealt(state, data_rank(plan, world.rank) // (plan.data_ranks // replicas), replicas)
    target = world.folder / f"checkpoint-{world.rank}.pt"
    part = target.with_suffix(".part")
    try:
        torch.save(state, part)
        os.replace(part, target)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunFailed(f"checkpoint {target.name} cannot be written: {error}. Free space, or set output.checkpoint_every = 0") from None


def replicas_of(plan: Plan) -> int:
    """How many ranks hold the same part of the model and optimizer; ranks along dp_shard count too if nothing is sharded. 1 with local
    updates, where ranks differ."""
    if plan.local:
        return 1
    sharded = sharding_of(plan, framework_of(plan))[0] > 0
    return plan.parallel.dp_replicate if sharded else plan.data_ranks


def data_rank(plan: Plan, rank: int) -> int:
    """A rank's number among the ranks that read different samples; the ranks of one replica have consecutive numbers."""
    at = mesh_of(plan).coordinates(rank)
    return at["dp_replicate"] * plan.parallel.dp_shard + at["dp_shard"]


def dealt(state: dict[str, Any], replica: int, replicas: int) -> dict[str, Tensor]:
    """Path -> tensor of the part of a state that this replica of `replicas` equal ones writes. Each tensor is assigned to the replica with
    the fewest bytes so far, as in torch/distributed/checkpoint/_dedup_save_plans.py."""
    loads, mine, owners = [0] * replicas, {}, dict[int, int]()
    for path, leaf in tree_flatten_with_path(state)[0]:
        if not isinstance(leaf, Tensor):
            continue
        place = getattr(leaf, "_local_tensor", leaf).data_ptr()  # tied weights are one tensor under two names
        if place not in owners:
            owners[place] = loads.index(min(loads))
            loads[owners[place]] += leaf.numel() * leaf.element_size()
        if owners[place] == replica:
            mine[keystr(path)] = leaf
    return mine
