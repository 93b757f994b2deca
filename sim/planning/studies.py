"""Stories told by shipped plans: each a preset in several variants, predicted side by side.

`cifar10-two-workers`: what more loader processes bring. `two-gpus-six-stages`: the same step over PCIe and NVLink, stage by stage.
`copy-compute-overlap`: what hides a copy, and what brings it back. `nccl-two-gpus`: 4 MiB of gradients, alone and inside a step.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sim.program import MEETING
from sim.timeline.bottleneck import bottleneck
from sim.timeline.metrics import window
from topologies.errors import UnknownName

PCIE, OLDER, NVLINK, CPU = "h100-pcie-x8", "dgx1-v100", "dgx-h100", "cpu-host"


class Variant(NamedTuple):
    """One row of a study: what is changed (`--set` words), and where it runs."""

    label: str
    on: str
    sets: tuple[str, ...] = ()
    alone: int = 0
    """Bytes of an all_reduce by itself, in place of a step."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant is predicted to take; seconds per step."""

    variant: str
    topology: str
    ranks: int
    step_s: float
    data_s: float = 0.0
    """The devices wait for input."""
    exposed_comm_s: float = 0.0
    """Communication that nothing hides."""
    comm_s: float = 0.0
    """All communication of one rank, hidden or not."""
    output_s: float = 0.0
    cpu_busy: float = 0.0
    """Mean share (0 to 1) of the machine's cores that are at work; printing and saving are left out."""
    sync_s: float = 0.0
    """The training thread stands still at host-device sync points."""
    bottleneck: str = ""
    """data | compute | communication | output | host | bubble: the largest share of the step."""
    sources: str = ""


def _cifar() -> tuple[Variant, ...]:
    found = [Variant(f"{n} worker{'s' if n > 1 else ''}", CPU, (f"data.workers={n}",)) for n in (1, 2, 4, 8)]
    two = ("parallel.dp_replicate=2",)
    for n in (1, 2, 4, 8):
        found.append(Variant(f"two GPUs, {n} worker{'s' if n > 1 else ''} each", PCIE, (f"data.workers={n}", *two)))  # noqa: PERF401
    return (*found, Variant("two GPUs, convolutions, 8 workers each", PCIE, ("model=cifar-cnn", "data.workers=8", *two)))


def _six() -> tuple[Variant, ...]:
    found = []
    for word, on in (("PCIe", PCIE), ("NVLink", NVLINK)):
        found += [
            Variant(f"{word}: as shipped", on),
            Variant(f"{word}: 16 workers", on, ("data.workers=16",)),
            Variant(f"{word}: no overlap", on, ("data.workers=16", "comm.overlap=false")),
            Variant(f"{word}: gradients summed on the CPU", on, ("data.workers=16", "update.aggregate=cpu")),
            Variant(f"{word}: asynchronous updates", on, ("data.workers=16", "update.mode=async")),
            Variant(f"{word}: log and save every step", on, ("data.workers=16", "output.log_every=1", "output.checkpoint_every=1")),
        ]
    return tuple(found)


def _overlap() -> tuple[Variant, ...]:
    """One thread pins 4 GB/s: where steps wait for that, nobody sees how a copy over PCIe 5.0 goes. So compute is longer, and the link a PCIe 3.0."""
    large = ("batch.micro=2048", "data.workers=16", _WIDER)
    changes = {
        "pinned, own stream, event": (),
        "pinned, on the compute stream": ("data.stream=compute",),
        "pinned, host waits for the copy": ("data.handover=synchronize",),
        "pinned, no event (a race)": ("data.handover=none",),
        "pageable": ("data.pinned=false",),
        "pinned, stray .item() each step": ("output.item_every=1",),
        "pageable, stray .item() each step": ("data.pinned=false", "output.item_every=1"),
        "print of the loss each step": ("output.print_every=1",),
        "synchronize each step": ("output.sync_every=1",),
        "noise made on the device": ("data.create=device",),
        "noise made on the CPU, then moved": ("data.create=cpu",),
    }
    return tuple(Variant(label, OLDER, (*large, *sets)) for label, sets in changes.items())


_WIDER = 'model={family="mlp", name="wide-input", widths=[12288, 3072, 1024, 10], loss="cross_entropy"}'


def _nccl() -> tuple[Variant, ...]:
    gradients = 4 * 1048576
    found = []
    for ranks, places in ((2, (PCIE, NVLINK)), (4, (PCIE, NVLINK)), (8, (PCIE, NVLINK)), (16, (f"2x {NVLINK}",))):
        for on in places:
            sets = (f"parallel.dp_replicate={ranks}", "batch.micro=64", "data.workers=8")
            found += [
                Variant(f"{ranks} GPUs, {on}: alone", on, sets, gradients),
                Variant(f"{ranks} GPUs, {on}: in a step", on, sets),
                Variant(f"{ranks} GPUs, {on}: in a step, 4 layers", on, (*sets, _LAYERS)),
                Variant(f"{ranks} GPUs, {on}: 4 layers, no overlap", on, (*sets, _LAYERS, "comm.overlap=false")),
            ]
    return tuple(found)


_LAYERS = 'model={family="mlp", name="four-layers", widths=[1023,1024,1024,1024,1024]}'
"""Gradients of later layers are summed beside the backward of earlier ones; a single layer has nothing to hide behind."""

STUDIES = {"cifar10-two-workers": _cifar, "two-gpus-six-stages": _six, "copy-compute-overlap": _overlap, "nccl-two-gpus": _nccl}


def variants(name: str) -> tuple[Variant, ...]:
    """The rows of a study. Raises `UnknownName` for a name that is none."""
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name]()


def run_study(name: str, calibration: str | None = None) -> list[Row]:
    """Every variant of a shipped study, predicted. Raises `UnknownName`; `BadInput` where a calibration cannot be used.

    `calibration`: of a CPU host, for the variants that run on one.
    """
    return [_alone(name, v) if v.alone else _step(name, v, calibration) for v in variants(name)]


def _step(name: str, variant: Variant, calibration: str | None) -> Row:
    from sim.files.planfile import load_plan
    from sim.predict import predict
    from sim.timeline.utilisation import cpu_busy
    from topologies.load import load_topology

    topology = load_topology(variant.on)
    p = predict(load_plan(name, variant.sets), topology, calibration=calibration if topology.kind == "cpu" else None)
    assert p.trace is not None
    begin, end = window(p.trace)
    one = p.trace.ranks[0]
    comm = sum(
        min(s.end, end) - max(s.start + s.wait, begin)
        for s in p.trace.spans
        if s.rank == one and s.kind in MEETING and s.end > begin and s.start + s.wait < end
    )
    return Row(
        variant=variant.label, topology=p.machine, ranks=p.gpus, step_s=p.step_time_s, data_s=p.breakdown.data_s,
        exposed_comm_s=p.breakdown.exposed_comm_s, comm_s=comm, output_s=p.breakdown.output_s,
        cpu_busy=cpu_busy(p.trace, topology, p.step_time_s),
        sync_s=sum(point.seconds for point in p.syncs), bottleneck=bottleneck(p.breakdown),
        sources=max(p.sources, key=lambda source: p.sources[source]),
    )  # fmt: skip


def _alone(name: str, variant: Variant) -> Row:
    """The collective by itself on an idle machine, as nccl-tests times it."""
    from sim.cost.collective import collective_cost
    from sim.files.planfile import load_plan
    from topologies.load import load_topology

    ranks = load_plan(name, variant.sets).world
    topology = load_topology(variant.on)
    cost = collective_cost("all_reduce", variant.alone, tuple(range(ranks)), topology)
    return Row(
        variant=variant.label, topology=topology.name, ranks=ranks, step_s=cost.seconds, exposed_comm_s=cost.seconds, comm_s=cost.seconds,
        bottleneck="communication", sources=cost.source,
    )  # fmt: skip
