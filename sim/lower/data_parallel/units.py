"""The units that ZeRO-3 gathers: each layer is one; the network's ends form the root unit together, or are one unit each.

torchtitan wraps the embedding, and the last norm with the head, since July 2025 (torchtitan/distributed/fsdp.py; pull request 1094: the root
was gathered too early for the head, and freed too late for the embedding); tied, they are one unit, as the root was.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.lower.job import Job
from sim.lower.template import BlockOps
from sim.model.parts import Block

ROOT = "root"

Sizes = tuple[tuple[str, str, int], ...]
"""(suffix, mesh axis, elements): experts over `efsdp`, all others over `fsdp`. With FSDP2 also over one rank, which sends nothing and copies all the
same."""


class Unit(NamedTuple):
    """Parameters that are gathered together: one layer, one end, or the root (embedding and head)."""

    name: str
    messages: Sizes
    gradients: Sizes
    """The messages of trained parameters that another rank trains too. Frozen parameters are gathered but not reduced
    (`fsdp_params_with_grad` in FSDP2's _fsdp_param_group.py); experts of which there are only replicas are reduced but not gathered.
    Experts come first: their unit's backward ends before the layer's. In a pipeline they come after it, in the order of the modules."""
    root: bool
    """Gathered before all others, and reduced after them."""
    kept: bool
    """Not freed after forward: the root; a head by itself or the last layer, whose backward is next (reshard_after_forward = False)."""
    tensors: int
    """Number of parameter tensors, each with its own hooks and views."""
    narrow: tuple[int, int] = (0, 0)
    """Elements of linears that run in 8 or 4 bits: (of the dense ones, of the experts' that are split)."""


def units_of(job: Job, blocks: list[BlockOps], tag: str) -> dict[str, Unit]:
    """Block name -> its unit. Every layer is a unit by itself; the ends are too, or they are in the root."""
    split = job.mesh.apart
    ends = () if job.framework.data_parallel.wraps_ends and not job.network.ends_tied else ("embed", "head")
    where = {block.name: f"{tag}{ROOT}" if block.block.kind in ends else block.name for block in blocks}
    kept = {where[block.name] for block in blocks if block.block.kind == "head" and not block.block.detached} | {f"{tag}{ROOT}"}
    if job.framework.data_parallel.keeps_last:
        kept.update([block.name for block in blocks if block.block.kind == "layer"][-1:])
    kinds = {id(block.block): block.block for block in blocks}
    counts = {at: _counted(kind, split) for at, kind in kinds.items()}
    found: dict[str, list[int]] = {}
    for block in blocks:
        name, more = where[block.name], counts[id(block.block)]
        found[name] = [a + b for a, b in zip(found[name], more, strict=True)] if name in found else more
    shared, order = job.size("dp_replicate") > 1, 1 if job.size("pp") > 1 else -1
    units = {
        name: Unit(
            name,
            _sizes(job, its[:2]),
            _sizes(job, its[2:4], shared)[::order],
            name == f"{tag}{ROOT}",
            name in kept,
            its[4],
            (its[5], its[6]),
        )
        for name, its in found.items()
    }
    return {block: units[name] for block, name in where.items()}


def _counted(block: Block, split: bool) -> list[int]:
    """[elements of dense parameters, of experts' (if `split`; else they count as dense), the same two of what is trained, number of
    tensors, elements of narrow linears: dense, experts']."""
    found = [0, 0, 0, 0, 0, 0, 0]
    for part in block.parts:
        at = int(split and part.expert)
        found[at] += part.params
        found[2 + at] += 0 if part.frozen else part.params
        found[4] += len(part.tensors)
        found[5 + at] += part.narrow
    return found


def _sizes(job: Job, elements: list[int], shared: bool = False) -> Sizes:
    """The messages of dense parameters and of experts. `elements`: how many there are of each. A kind without parameters has none;
    neither has one that no other rank shards, unless replicas share it (`shared`), FSDP2 handles it, or parameters are offloaded."""
    always = shared or job.fsdp2 or job.plan.parameters_offloaded
    both = (("", "fsdp", elements[0]), (".experts", "efsdp", elements[1]))
    return tuple(one for one in both if one[2] and (always or job.size(one[1]) > 1))


def root_first(units: dict[str, Unit], blocks: list[BlockOps]) -> list[Unit]:
    """The units of a stage in the order of its modules: the root, then its layers."""
    line = [unit for unit in dict.fromkeys(units[block.name] for block in blocks) if unit.messages]
    return sorted(line, key=lambda unit: not unit.root)
