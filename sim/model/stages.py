"""Which blocks a pipeline stage holds, and how many micro-batches it has begun and not finished."""

from __future__ import annotations

from collections.abc import Iterable

from sim.model.parts import Block, Network
from sim.plan import Plan
from sim.schedule import Action, chunks_of, rank_of, schedule, splits
from sim.schedule.interleaved import round_of
from sim.schedule.reading import name_of
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


def dealt(layers: int, stages: int, ends: int = 0) -> tuple[int, ...]:
    """Layers of each stage: evenly, early stages take what is left over. The first and the last are short of `ends` each, if all stages have so many
    (torchtitan's generate_llm_fqn_per_model_part, which refuses others)."""
    spare = ends if stages > 1 and (layers + 2 * ends) // stages >= max(1, ends) else 0
    each, more = divmod(layers + 2 * spare, stages)
    sizes = [each + (at < more) for at in range(stages)]
    sizes[0] -= spare
    sizes[-1] -= spare
    return tuple(sizes)


def layout(network: Network, plan: Plan) -> tuple[Blocks, ...]:
    """Blocks of each stage, first to last: pp x virtual_stages of them (zb-v, dualpipe: 2 pp). `held` says which rank has which.

    Layers are dealt out as `parallel.stages` says, else evenly, as far as the framework does (`dealt`); blocks that are
    no layers (embedding, head) stay with the layer beside them, a decoder's embedding with the decoder; the first and the last stage may
    hold nothing else. Raises `BadInput` for more stages than layers, `Refused` for a network that is no chain of blocks.
    """
    count = plan.parallel.pp * plan.parallel.chunks
    if count > 1 and not network.chain:
        raise Refused(
            f"{network.name}: some of its blocks read the results of several earlier ones, so no pipeline can cut it; set parallel.pp = 1"
        )
    layers = sum(block.kind == "layer" for _, block in network.blocks)
    if count == 1 and plan.parallel.stages in (None, (layers,)):
        return (network.blocks,)
    sizes = plan.parallel.stages or dealt(layers, count, network.end_layers)
    if sum(sizes) != layers or min(sizes[1:-1], default=1) < 1 or (plan.parallel.stages is None and layers < count):
        raise BadInput(
            f"{network.name}: {layers} layers do not make {count} stages of {', '.join(map(str, sizes[:8]))}. Change pp or parallel.stages"
        )
    stages: list[list[tuple[str, Block]]] = [[] for _ in sizes]
    at, room, left = 0, sizes[0], layers
    for name, block in network.blocks:
        if block.kind == "layer" or (block.kind == "embed" and 0 < left < layers):  # a decoder's embedding is on its first stage
            while room == 0:
                at, room = at + 1, sizes[at + 1]
        if block.kind == "layer":
            room, left = room - 1, left - 1
        elif left == 0:
            at = count - 1  # the head, with or without a layer before it
        stages[at].append((name, block))
    untrained = next((at for at, stage in enumerate(stages) if stage and all(block.detached for _, block in stage)), None)
    if untrained is not None and plan.task != "forward":
        raise Refused(
            f"{network.name}: stage {untrained} holds {stages[untrained][0][0]} to {stages[untrained][-1][0]}, which are frozen: no gradient comes "
            "back to it, and no pipeline runs so. Set parallel.stages so that each holds something that is trained"
        )
    return tuple(tuple(stage) for stage in stages)


def held(stages: tuple[Blocks, ...], plan: Plan, rank: int) -> tuple[Blocks, ...]:
    """The stages of pipeline rank `rank`: every pp-th, or there and back."""
    if plan.parallel.pp == 1:
        return stages
    name = name_of(plan.parallel)
    return tuple(stage for at, stage in enumerate(stages) if rank_of(name, plan.parallel.pp, at) == rank)


def reader(network: Network, stages: Iterable[Blocks]) -> str:
    """The first block of a rank's `stages` that reads the table which `network.tied` share; "" where none does. Unless it has the table, the
    rank needs a copy."""
    return next((name for stage in stages for name, _ in stage if name in network.tied), "") if network.tied else ""


_KNOWN = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v", "dualpipe")
"""Schedules whose passes in flight are a formula, which takes no time however many micro-batches there are."""


def in_flight(plan: Plan, rank: int, sizes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Forward passes that pipeline rank `rank` has run and not yet run backward, at most, for each of its chunks; of chunks that keep different
    `sizes` when these together are largest (rounds shift between chunks: one of two layers has more later than one of one).

    gpipe keeps all; 1f1b pp - rank (Narayanan et al. 2021, section 2.2.1); interleaved fills 2 (pp - rank - 1) +
    (chunks - 1) rounds and one more, a round of one chunk after the other (Megatron-LM schedules.py); zb-h1 as many as 1f1b's
    first stage (Qi et al. 2023, table 1), with several stages a round more for each further one; zb-v (ibid., section 6) and dualpipe
    2 pp and 2 pp + 1 over their two chunks, of half the layers each. Those of all other schedules, and of unequal chunks, are counted.
    """
    p, total = plan.parallel, plan.microbatches
    name, chunks = name_of(p), p.virtual_stages
    if p.pp == 1:
        return (1,)
    if name not in _KNOWN or len(set(sizes)) > 1:
        return fullest(schedule(name, p.pp, rank, total, chunks), p.pp, sizes or (1,) * chunks_of(name, chunks))
    if p.schedule in ("gpipe", "looped-bfs"):
        return (total,) * chunks
    if p.schedule == "zb-v":
        return min(total, 2 * p.pp - rank - 1), min(total, rank + 1)
    if p.schedule == "dualpipe":
        return min(total, 2 * p.pp - rank), min(total, rank + 1)
    if chunks == 1:
        return (min(total, p.pp if p.schedule == "zb-h1" else p.pp - rank),)
    size = round_of(p.pp, total)
    last = p.pp if p.schedule == "zb-h1" else 2 * (p.pp - rank - 1) + 1
    return _dealt(min(total * chunks, (chunks - 1) * size + last), size, chunks)


def _dealt(begun: int, size: int, chunks: int) -> tuple[int, ...]:
    """So many passes, rounds of `size` of one chunk after the other, by chunk."""
    return tuple(sum(k // size % chunks == chunk for k in range(begun)) for chunk in range(chunks))


def most_kept(plan: Plan, rank: int, weighing: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Bytes that passes in flight keep at most. Of a pass of each chunk: those that last until its weights' gradients are made, and the `others`, of
    blocks that have none, which go with the gradient of its input."""
    p = plan.parallel
    name = name_of(p)
    if p.pp == 1 or not any(others) or not splits(name):
        whole = tuple(a + b for a, b in zip(weighing, others, strict=True))
        return sum(n * size for n, size in zip(in_flight(plan, rank, whole), whole, strict=False))
    kept = most = 0
    begun: dict[tuple[int, int], int] = {}
    for action in schedule(name, p.pp, rank, plan.microbatches, p.virtual_stages):
        chunk, key = action.stage // p.pp, (action.stage, action.microbatch)
        if action.kind == "F":
            begun[key] = others[chunk]
            kept += weighing[chunk] + others[chunk]
        else:  # the others go with the first of its backward's halves
            kept -= begun.pop(key, 0) + (weighing[chunk] if action.kind != "I" else 0)
        most = max(most, kept)
    return most


def fullest(actions: Iterable[Action], pp: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The passes of each chunk that a rank of these actions has begun and not finished, where what they keep, `sizes` each, is most."""
    now, kept = [0] * len(sizes), 0
    most, largest = tuple(now), 0
    for action in actions:
        if action.kind == "I":
            continue
        chunk, sign = action.stage // pp, 1 if action.kind == "F" else -1
        now[chunk] += sign
        kept += sign * sizes[chunk]
        if kept > largest:
            most, largest = tuple(now), kept
    return most
