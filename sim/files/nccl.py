"""Collectives as torch.profiler tells them: their names and kernels, the group that meets, and what each rank gives and gets.

A span knows its size, its group's name and size, and not its numbers or the group's ranks: the plan tells those (`wires_of`).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from sim.framework.chosen import framework_of
from sim.mesh import ALL_AXES, Mesh
from sim.plan import Plan
from sim.program import MESSAGE
from sim.rules import mesh_of
from sim.trace import Span
from sim.work import activation_dtype

_TORCH = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}
_UNEVEN = "all_to_allv"
_OURS = {theirs: ours for ours, theirs in _TORCH.items()} | {_UNEVEN: "all_to_all"}
_WORDS = {what: what.replace("_", "") for what in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")}
"""What names of recorded kernels hold."""
_SENT = (*MESSAGE, "all_to_all")
_KERNELS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast"}
_KERNELS |= {"reduce": "Reduce", "barrier": "AllReduce"}
_SUMS = ("all_reduce", "reduce_scatter", "reduce", "barrier")
_PART = {"all_gather": (False, True), "reduce_scatter": (True, False)}
"""Whether a rank gives, and gets, the whole array; of all others both."""
_NUMBERS = {"fp32": ("f32", "Float", 4), "bf16": ("bf16", "BFloat16", 2), "fp16": ("f16", "Half", 2)}
"""What NCCL calls them in its kernels' names, torch in a trace, and their bytes."""
_GRADIENTS, _ACTIVATIONS = re.compile(r"(?:^|/)grad/"), re.compile(r"(?:^|/)(?:fwd|bwd|recompute)/")
_SEAMS = ("comm.tp", "comm.cp", "comm.ep")
"""Classes of what activations and their gradients travel in."""
_LISTED = 30
"""Ranks that torch.profiler writes out at an op."""


class Wires(msgspec.Struct, frozen=True):
    """What a plan says of its collectives: who shares a group, and in which numbers sums travel ("" where that is not known)."""

    mesh: Mesh | None = None
    gradients: str = ""
    """Between ranks that hold the same parameters."""
    kept: str = ""
    """Gradients where they are kept: tensor parallel ranks sum those of what they all hold there."""
    activations: str = ""


class Group(NamedTuple):
    """The ranks that meet, in their order; () where only their number is known (0: nor that)."""

    name: str
    size: int
    ranks: tuple[int, ...] = ()


def wires_of(plan: Plan) -> Wires:
    """The dtypes of what a plan sends, and its mesh: what its traces need to name NCCL's kernels and sizes."""
    precision = framework_of(plan).precision
    return Wires(mesh_of(plan), precision.reduce_dtype, precision.grad_dtype, activation_dtype(plan.precision))


def word_of(called: str) -> str:
    """The word that programs have for a collective of torch's (`_allgather_base`: all_gather); others as they are."""
    return _OURS.get(called, called)


def word_in(kernel: str) -> str:
    """The word for the collective that a recorded kernel is named after; "" where it is named after none."""
    return next((what for what, word in _WORDS.items() if word in kernel.lower().replace("_", "")), "")


def group_of(span: Span, wires: Wires) -> Group:
    """Where the span's rank meets others."""
    mesh = wires.mesh
    held = mesh is not None and span.rank < mesh.world and span.group in ALL_AXES and mesh.size(span.group) == span.group_size
    return Group(span.group, span.group_size, tuple(mesh.group(span.group, span.rank)) if mesh is not None and held else ())


def kernel_name(span: Span, wires: Wires) -> str:
    """NCCL's kernel: messages and exchanges share one, sums have one for each kind of numbers."""
    what = span.name or span.kind
    arguments = "(ncclDevKernelArgsStorage<4096ul>)"
    if what in _SENT:
        return f"ncclDevKernel_SendRecv{arguments}"
    numbers = _NUMBERS.get(_numbers(what, span, wires))
    how = "_Max" if span.id.endswith(".loss.max") else "_Sum"
    summed = how + (f"_{numbers[0]}" if numbers else "") if what in _SUMS else ""
    return f"ncclDevKernel_{_KERNELS.get(what, what)}{summed}_RING_LL{arguments}"


def collective_args(span: Span, group: Group, wires: Wires) -> dict[str, Any]:
    """What stands at a collective's kernel."""
    what = span.name or span.kind
    called = (
        _UNEVEN if what == "all_to_all" and span.cls == "comm.ep" else _TORCH.get(what, what)
    )  # experts' tokens are as many as they are
    named = {"Collective name": called, "Process Group Name": group.name, "Process Group Description": group.name}
    return named | _sizes(what, span, wires) | ({"Process Group Ranks": _listed(group.ranks)} if group.ranks else {})


def _listed(ranks: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, ranks[:_LISTED]))}{', ...' if len(ranks) > _LISTED else ''}]"


def _numbers(what: str, span: Span, wires: Wires) -> str:
    """In which a sum travels; "" where that is not known, and of what is no sum."""
    if what not in _SUMS:
        return ""
    if what == "barrier" or span.cls == "comm.norm" or ".loss." in span.id:
        return "fp32"
    if _GRADIENTS.search(span.id):
        return wires.kept if span.cls == "comm.tp" else wires.gradients
    return wires.activations if span.cls in _SEAMS and _ACTIVATIONS.search(span.id) else ""


def _sizes(what: str, span: Span, wires: Wires) -> dict[str, Any]:
    """What a collective takes and gives on one rank, as bytes where its numbers are not known. Where the group's size is not known either, a part of
    it is left out."""
    _, dtype, width = _NUMBERS.get(_numbers(what, span, wires), ("", "Byte", 1))
    found: dict[str, Any] = {"dtype": dtype} | ({"Group size": span.group_size} if span.group_size else {})
    for key, whole in zip(("In msg nelems", "Out msg nelems"), _PART.get(what, (True, True)), strict=True):
        if whole or span.group_size:
            found[key] = (span.bytes if whole else span.bytes // span.group_size) // width
    return found
