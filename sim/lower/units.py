"""What ZeRO-3 gathers together: a layer, or the root with the network's ends, as torchtitan wraps them."""

from __future__ import annotations

from typing import NamedTuple

from sim.lower.job import Job
from sim.lower.template import BlockOps

ROOT = "root"

Sizes = tuple[tuple[str, str, int], ...]
"""(suffix, mesh axis, elements): experts over `efsdp`, all others over `fsdp`."""


class Unit(NamedTuple):
    """Parameters that are gathered together: one layer, or the root (embedding and head)."""

    name: str
    messages: Sizes
    gradients: Sizes
    """Of what is trained and somebody else trains too: frozen parameters are gathered, and nothing of theirs is reduced
    (`fsdp_params_with_grad` in FSDP2's _fsdp_param_group.py); experts that only replicas share are not gathered, and are reduced."""
    root: bool
    tensors: int
    """Parameters, each with its own hooks and views."""


def units_of(job: Job, blocks: list[BlockOps], tag: str) -> dict[str, Unit]:
    """Each block's unit: every layer by itself, the ends with the root."""
    split = job.size("ep") > 1
    where = {block.name: f"{tag}{ROOT}" if block.block.kind in ("embed", "head") else block.name for block in blocks}
    whole: dict[str, list[int]] = {}
    trained: dict[str, list[int]] = {}
    tensors: dict[str, int] = {}
    for block in blocks:
        name = where[block.name]
        sizes, gradients = whole.setdefault(name, [0, 0]), trained.setdefault(name, [0, 0])
        for part in block.block.parts:
            sizes[split and part.expert] += part.params
            gradients[split and part.expert] += 0 if part.frozen else part.params
            tensors[name] = tensors.get(name, 0) + len(part.tensors)
    shared = job.size("dp_replicate") > 1
    units = {
        name: Unit(name, _sizes(job, sizes), _sizes(job, trained[name], shared), name == f"{tag}{ROOT}", tensors.get(name, 0))
        for name, sizes in whole.items()
    }
    return {block: units[name] for block, name in where.items()}


def _sizes(job: Job, elements: list[int], shared: bool = False) -> Sizes:
    """Of the kinds of parameters (dense, experts) that there are and that are split, or otherwise `shared`."""
    both = (("", "fsdp", elements[0]), (".experts", "efsdp", elements[1]))
    return tuple(one for one in both if one[2] and (shared or job.size(one[1]) > 1))


def root_first(units: dict[str, Unit], blocks: list[BlockOps]) -> list[Unit]:
    """The units of a stage in the order of its modules: the root, then its layers."""
    line = [unit for unit in dict.fromkeys(units[block.name] for block in blocks) if unit.messages]
    return sorted(line, key=lambda unit: not unit.root)
