"""What ZeRO-3 gathers together: a layer, and the network's ends: with the root, or each by itself.

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
    """Of what is trained and somebody else trains too: frozen parameters are gathered, and nothing of theirs is reduced
    (`fsdp_params_with_grad` in FSDP2's _fsdp_param_group.py); experts that only replicas share are not gathered, and are reduced. Experts
    first: their unit's backward ends before the layer's; in a pipeline after it, as modules stand."""
    root: bool
    """Gathered before all others, and reduced after them."""
    kept: bool
    """Not freed after forward: the root; a head by itself or the last layer, whose backward is next (reshard_after_forward = False)."""
    tensors: int
    """Parameters, each with its own hooks and views."""
    narrow: tuple[int, int] = (0, 0)
    """Of the dense elements, and of the experts' that are split, those of linears that run in 8 bits or 4."""


def units_of(job: Job, blocks: list[BlockOps], tag: str) -> dict[str, Unit]:
    """Each block's unit: every layer by itself, and so the ends, or with the root."""
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
    """Elements of its dense parameters and of its experts' (that are `split`), the same of what is trained, tensors, and of both the elements
    of narrow linears."""
    found = [0, 0, 0, 0, 0, 0, 0]
    for part in block.parts:
        at = int(split and part.expert)
        found[at] += part.params
        found[2 + at] += 0 if part.frozen else part.params
        found[4] += len(part.tensors)
        found[5 + at] += part.narrow
    return found


def _sizes(job: Job, elements: list[int], shared: bool = False) -> Sizes:
    """Of the kinds of parameters (dense, experts) that there are and that are split, or otherwise `shared`, or FSDP2's all the same, or elsewhere."""
    always = shared or job.fsdp2 or job.plan.parameters_offloaded
    both = (("", "fsdp", elements[0]), (".experts", "efsdp", elements[1]))
    return tuple(one for one in both if one[2] and (always or job.size(one[1]) > 1))


def root_first(units: dict[str, Unit], blocks: list[BlockOps]) -> list[Unit]:
    """The units of a stage in the order of its modules: the root, then its layers."""
    line = [unit for unit in dict.fromkeys(units[block.name] for block in blocks) if unit.messages]
    return sorted(line, key=lambda unit: not unit.root)
