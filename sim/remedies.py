"""What a person would change to make a plan fit into memory, those that cost least time first."""

from __future__ import annotations

import msgspec

from sim.plan import Plan


def changes(plan: Plan) -> list[tuple[str, Plan, float]]:
    """(words, changed plan, factor on activations): sharding, selective recomputation, smaller micro-batches (the same
    plan with less to keep), full recomputation, offloading."""
    replace, p, m = msgspec.structs.replace, plan.parallel, plan.memory
    levels = [level for level in (1, 2, 3) if level > (p.zero or 0) and p.dp_shard > 1]
    found = [(f"parallel.zero = {level}", replace(plan, parallel=replace(p, zero=level)), 1.0) for level in levels]
    if p.dp_shard == 1 and p.dp_replicate > 1:
        sharded = replace(p, dp_shard=p.dp_replicate, dp_replicate=1, zero=3)
        found.append((f"parallel.dp_shard = {p.dp_replicate}, dp_replicate = 1, zero = 3", replace(plan, parallel=sharded), 1.0))
    if m.recompute == "none":
        found.append(('memory.recompute = "selective"', replace(plan, memory=replace(m, recompute="selective")), 1.0))
    micro = plan.batch.micro
    while micro > 1:
        micro //= 2
        found.append((f"batch.micro = {micro}", plan, micro / plan.batch.micro))
    if m.recompute != "full":
        found.append(('memory.recompute = "full"', replace(plan, memory=replace(m, recompute="full")), 1.0))
        if p.dp_shard > 1 and (p.zero or 0) < 3:
            both = replace(plan, memory=replace(m, recompute="full"), parallel=replace(p, zero=3))
            found.append(('memory.recompute = "full" and parallel.zero = 3', both, 1.0))
    if m.offload == "none":
        found.append(('memory.offload = "optimizer"', replace(plan, memory=replace(m, offload="optimizer")), 1.0))
    return found
