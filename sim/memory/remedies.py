"""Changes that make a plan fit into memory; those that cost least time come first."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from sim.framework.chosen import sharding_of, zero_of
from sim.framework.framework import Framework
from sim.model.parts import Network
from sim.plan import Plan


class Change(NamedTuple):
    """One way to need less memory."""

    text: str
    plan: Plan
    scale: float = 1.0
    """New size of a micro-batch as a share of the old one. `plan` keeps the old size in `batch.micro`; its global batch is larger by as
    much."""


def most_sharded(plan: Plan, network: Network, framework: Framework) -> int:
    """The highest level of ZeRO that is possible. A framework may limit it in a pipeline; with weights in four bits, or weights that
    two passes share, it is 2."""
    most = framework.pipeline.zero if plan.parallel.pp > 1 else 3
    return min(most, 2) if network.stored_apart or network.lent else most


def said(plan: Plan, framework: Framework) -> Plan:
    """The plan with its framework's level of ZeRO filled in if it sets none, since a level that is in force already is no remedy."""
    p = plan.parallel
    if p.zero is not None or not sharding_of(plan, framework)[0]:
        return plan
    return msgspec.structs.replace(plan, parallel=msgspec.structs.replace(p, zero=zero_of(plan, framework)))


def changes(plan: Plan, most: int = 3, operators: bool = True, parameters: bool = False, parted: bool = True) -> list[Change]:
    """The changes to try, in this order: sharding (up to ZeRO level `most`), selective recomputation (of attention's core; with
    `operators` also by operator), smaller micro-batches, two of these; full recomputation, offloading; then all that a rank can
    do together; at last more ranks. `parameters`: the framework can offload these, too. `parted`: a batch may be cut into smaller
    micro-batches, which a loss that compares all its samples forbids."""
    by_operator = _by_operator if operators else lambda _: []
    smaller = _smaller if parted else lambda _: []
    found = [*_sharded(plan, most), *_recomputed(plan, "selective"), *by_operator(plan), *smaller(plan)]
    sharded = _sharded(plan, most)[-1:]
    found += [_and(one, less) for one in sharded for less in (*smaller(one.plan), *by_operator(one.plan))]
    found += [_and(_and(one, again), less) for one in sharded for again in by_operator(one.plan) for less in smaller(again.plan)[-1:]]
    found += _recomputed(plan, "full")
    found += [_and(one, again) for one in sharded for again in _recomputed(one.plan, "full")]
    if plan.memory.offload == "none":
        found.append(_offloaded(plan))
    thrifty = _thrifty(plan, most, smaller(plan))
    found.append(thrifty)
    if thrifty.plan.memory.offload == "none":
        found.append(_and(thrifty, _offloaded(thrifty.plan)))
        found += [_and(thrifty, away) for away in _parameters_offloaded(thrifty.plan, most) if parameters]
    found += _more_ranks(thrifty, most)
    return list({change.text: change for change in reversed(found) if change.text}.values())[::-1]


def _and(first: Change, then: Change) -> Change:
    text = f"{first.text} and {then.text}" if first.text else then.text
    return Change(text, then.plan, first.scale * then.scale)


def _sharded(plan: Plan, most: int) -> list[Change]:
    """Higher levels of ZeRO, and sharding in place of copies."""
    p, replace = plan.parallel, msgspec.structs.replace
    level, found = p.zero or 0, list[Change]()
    if p.dp_shard * p.cp > 1:  # ranks that share sequences shard, too
        found += [Change(f"parallel.zero = {to}", replace(plan, parallel=replace(p, zero=to))) for to in range(level + 1, most + 1)]
    if p.dp_replicate > 1:
        whole = replace(p, dp_shard=p.dp_shard * p.dp_replicate, dp_replicate=1)
        words = f"parallel.dp_shard = {whole.dp_shard}, parallel.dp_replicate = 1"
        for to in range(max(1, level), most + 1):
            also = f", parallel.zero = {to}" if to != p.zero else ""
            found.append(Change(words + also, replace(plan, parallel=replace(whole, zero=to))))
    return found


def _recomputed(plan: Plan, how: str) -> list[Change]:
    m = plan.memory
    if m.recompute == how or m.recompute == "full" or plan.task == "forward":
        return []
    return [Change(f'memory.recompute = "{how}"', _with_memory(plan, recompute=how, recompute_layers=0, recompute_modules=()))]


def _by_operator(plan: Plan) -> list[Change]:
    """Selective recomputation by operator, which is torchtitan's. Where attention is fused, recomputing its core alone saves next to
    nothing."""
    m = plan.memory
    if m.recompute == "full" or m.recompute_modules or plan.task == "forward":
        return []
    again = _with_memory(plan, recompute="selective", recompute_layers=0, recompute_modules=("op",))
    return [Change('memory.recompute = "selective", memory.recompute_modules = ["op"]', again)]


def _offloaded(plan: Plan) -> Change:
    return Change('memory.offload = "optimizer"', _with_memory(plan, offload="optimizer"))


def _parameters_offloaded(plan: Plan, most: int) -> list[Change]:
    """Moves parameters that ZeRO-3 shards to host memory; on a single GPU, too, where ZeRO-3 is set for it."""
    p = plan.parallel
    alone = plan.world == 1
    if most < 3 or p.pp > 1 or not p.reshard_after_forward or not (alone or p.zero == 3):
        return []
    sharded = msgspec.structs.replace(plan, parallel=msgspec.structs.replace(p, zero=3))
    words = 'memory.offload = "parameters"'
    return [Change(words if p.zero == 3 else f"parallel.zero = 3, {words}", _with_memory(sharded, offload="parameters"))]


def _with_memory(plan: Plan, **more: object) -> Plan:
    return msgspec.structs.replace(plan, memory=msgspec.structs.replace(plan.memory, **more))


def _smaller(plan: Plan) -> list[Change]:
    """Micro-batches of half the samples, of a quarter, and so on (or of the largest part that divides them), and as many more of them."""
    micro, found, replace = plan.batch.micro, [], msgspec.structs.replace
    least = 2 if plan.task == "dpo" else 1  # a pair
    while micro > least:
        micro = least * _less(micro // least)
        parts = plan.batch.micro // micro
        batch = replace(plan.batch, global_=plan.global_batch * parts)
        found.append(Change(f"batch.micro = {micro}", replace(plan, batch=batch), 1 / parts))
    return found


def _less(count: int) -> int:
    """Half of `count`, or the largest smaller number that divides it."""
    return count // next((by for by in range(2, math.isqrt(count) + 1) if count % by == 0), count)


def _thrifty(plan: Plan, most: int, smaller: list[Change]) -> Change:
    """All changes together that leave the optimizer on the device: the highest sharding, full recomputation, the smallest micro-batch
    (the last of `smaller`)."""
    found = Change("", plan)
    for options in (_sharded(plan, most), _recomputed(plan, "full"), smaller):
        for one in options[-1:]:
            found = _and(found, one._replace(plan=_merged(found.plan, one.plan, plan)))
    return found


def _more_ranks(thrifty: Change, most: int) -> list[Change]:
    """The thrifty plan over 2, 4 ... 64 times as many sharding ranks, each with as many micro-batches as before."""
    plan, found, replace = thrifty.plan, [], msgspec.structs.replace
    p = plan.parallel
    for times in (2, 4, 8, 16, 32, 64):
        parallel = replace(p, dp_shard=p.dp_shard * times, zero=most)
        batch = replace(plan.batch, global_=plan.global_batch * times)
        words = f"{plan.world * times} GPUs with parallel.dp_shard = {parallel.dp_shard}, batch.global = {round(plan.global_batch * times * thrifty.scale)}"
        words += f", parallel.zero = {most}" if p.zero != most else ""
        rest = thrifty._replace(text=thrifty.text.replace(f"parallel.dp_shard = {p.dp_shard}, ", ""))
        found.append(_and(rest, Change(words, replace(plan, parallel=parallel, batch=batch))))
    return found


def of_sequences(plan: Plan, most: int = 3) -> list[Change]:
    """2, 4 ... 64 times as many ranks for each sequence (context parallelism): each as it is, with the highest sharding, and with full
    recomputation. They take the place of ranks that work on other sequences, as far as there are such. Nothing else makes smaller what
    a rank keeps of one sequence. The model must be described anew for these plans."""
    found, replace, p = list[Change](), msgspec.structs.replace, plan.parallel
    for times in (2, 4, 8, 16, 32, 64):
        shard = p.dp_shard // math.gcd(p.dp_shard, times)
        split = replace(plan, parallel=replace(p, cp=p.cp * times, dp_shard=shard))
        words = f"parallel.cp = {p.cp * times}" + (f", parallel.dp_shard = {shard}" if shard != p.dp_shard else "")
        found.append(Change(words if split.world == plan.world else f"{split.world} GPUs with {words}", split))
        for ways in (_sharded(split, most)[-1:], _recomputed(split, "full")):
            found += [_and(found[-1], way._replace(plan=_merged(found[-1].plan, way.plan, split))) for way in ways]
    return found


def _merged(first: Plan, then: Plan, base: Plan) -> Plan:
    """`base` with what the two plans changed in it: parallelism, memory and batch, each from `then` if it differs from `base` there,
    else from `first`."""
    parallel = then.parallel if then.parallel != base.parallel else first.parallel
    memory = then.memory if then.memory != base.memory else first.memory
    batch = then.batch if then.batch != base.batch else first.batch
    return msgspec.structs.replace(base, parallel=parallel, memory=memory, batch=batch)
