"""The memory of a plan's fullest rank, by what it holds; and what is missing when it does not fit.

Static state (`static`) and what the device holds beside tensors (`overhead`); activations by what each part saves, the recompute policy
and the schedule's micro-batches in flight (Korthikanti et al. 2022, section 4); the working set of the loss or of the largest backward.
"""

from __future__ import annotations

import sys

import msgspec

from sim.framework.framework import Framework
from sim.lower.ends import held_back
from sim.lower.noise import loads
from sim.memory.activations import Known, Moment, moments, passes, widest
from sim.memory.overhead import context_bytes, slack_bytes
from sim.memory.static import static_bytes
from sim.model.layers.redo import sent_away
from sim.model.parts import Network
from sim.model.stages import Blocks, held, in_flight, layout, most_kept
from sim.plan import Plan
from sim.schedule import splits
from sim.schedule.reading import name_of
from topologies.hardware import Cpu, Gpu
from topologies.units import show_size

Devices = Gpu | Cpu | tuple[Gpu | Cpu, ...]
"""The device of all ranks, or one of each pipeline rank."""


def _of_stage(devices: Devices | None, stage: int) -> Gpu | Cpu | None:
    return devices[stage] if isinstance(devices, tuple) else devices


UNFIT = "DOES NOT FIT into memory (`steptwin predict` says what is missing)"
"""A study shows this below its figures for such a plan, which say what the plan would take if it did fit."""


class DoesNotFit(msgspec.Struct, frozen=True):
    """The plan needs more than the device has. A value, not an error: sweeps collect it."""

    needed: int
    available: int
    """Bytes of the device's memory; on a CPU host, one rank's share of the host's memory."""
    remedies: tuple[str, ...] | None = ()
    """Up to three changes that make it fit, those that cost least time first. None where nobody looked for any."""

    def __str__(self) -> str:
        lacks = f"needs {show_size(self.needed)} of {show_size(self.available)}"
        if self.remedies is None:
            return lacks
        ways = (
            f"Fits with: {'; '.join(self.remedies)}" if self.remedies else "No single change is enough: use more ranks or a smaller model"
        )
        return f"{lacks}. {ways}"


_CROWDED = 0.93
"""Above this share of a device's memory its allocator has little room. It cannot use some 3 % of the memory (`sim.memory.overhead`),
and figures may be 4 % too low, as they are at most in the mean of a publication (README): then all memory is taken."""


class Fill(msgspec.Struct, frozen=True):
    """Memory of the device that the plan fills most, in bytes."""

    peak: int
    needed: int
    """Tensors and context: what the allocator cannot give back before it fails. The rest of the peak is its slack."""
    available: int
    """Memory of the device; 0 where it is not known."""
    nearly_full: bool
    """It fits, but may still run out of memory: by the error of these figures, an uneven step, or fragmentation."""

    def __str__(self) -> str:
        if not self.available:
            return show_size(self.peak)
        found = f"{show_size(self.peak)} of {show_size(self.available)}"
        cached = f", {show_size(self.needed)} without cache" if self.needed < self.peak and self.peak > _CROWDED * self.available else ""
        return found + cached + (": nearly full" if self.nearly_full else "")


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Peak bytes of the fullest rank, the one that fills most of its device. `peak` is what the device must have; `allocated` what the framework's
    allocator would report (no context, no NCCL)."""

    parameters: int
    gradients: int
    """Gradients at the fullest moment: all of them, where they live from one micro-batch to the next."""
    optimizer: int
    """Optimizer states, and the fp32 master copy."""
    activations: int
    """Kept from forward to backward, all micro-batches in flight."""
    working: int
    """Largest of: the loss, one backward's gradients, a block being recomputed, the optimizer's intermediates."""
    gathered: int
    """FSDP: gathered parameters and unsharded gradients; autocast: 16-bit copies of weights, and 8-bit ones beside these;
    DDP: buckets; Megatron: dummy gradients."""
    slack: int
    """Reserved by the caching allocator, and not in use at that moment."""
    context: int
    """CUDA context, buffers of NCCL and of TransformerEngine's overlap."""
    stage: int = 0
    """The pipeline rank that the figures are of."""
    remedies: tuple[str, ...] = ()

    @property
    def allocated(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.working + self.gathered

    @property
    def reserved(self) -> int:
        """What the framework's allocator has taken from the device."""
        return self.allocated + self.slack

    @property
    def peak(self) -> int:
        return self.reserved + self.context

    def check(self, devices: Devices, remedies: bool = True) -> DoesNotFit | None:
        """None if the plan fits; a device of unknown memory (0) fits everything. `remedies` = False: the answer says that nobody looked
        for remedies."""
        device = _of_stage(devices, self.stage)
        if device is None or not device.memory or self.peak <= device.memory:
            return None
        return DoesNotFit(self.peak, device.memory, self.remedies if remedies else None)

    def fill(self, devices: Devices) -> Fill:
        """How full the device is. CPU hosts are never nearly full: no allocator holds memory back there."""
        device, needed = _of_stage(devices, self.stage), self.allocated + self.context
        room = device.memory if device else 0
        crowded = isinstance(device, Gpu) and self.peak <= room and needed > _CROWDED * room
        return Fill(self.peak, needed, room, crowded)

    def taken(self, devices: Devices) -> str:
        """The peak in words, for a change that is proposed: "79.18 GiB, nearly full"."""
        return show_size(self.peak) + (", nearly full" if self.fill(devices).nearly_full else "")


def memory_of(plan: Plan, network: Network, framework: Framework, devices: Devices | None = None, remedies: bool = True) -> MemoryReport:
    """The fullest rank's memory. With `devices` that are too small, the report names remedies (unless `remedies` is false)."""
    report = _fullest(plan, network, framework, devices)
    if devices is None or not remedies or report.check(devices) is None:
        return report
    return msgspec.structs.replace(report, remedies=_remedies(plan, network, framework, devices))


def _fullest(plan: Plan, network: Network, framework: Framework, devices: Devices | None, share: float = 1.0) -> MemoryReport:
    """The report of the rank that fills most of its device. `share`: micro-batches have this share of the samples with which `network`
    was described."""
    stages, known = layout(network, plan), Known()
    rooms = [device.memory if device else 0 for device in (_of_stage(devices, rank) for rank in range(plan.parallel.pp))]
    reports = (
        _stage(plan, network, framework, _of_stage(devices, rank), rank, held(stages, plan, rank), known, share)
        for rank in _fuller(plan, stages, rooms)
    )
    return max(reports, key=lambda report: report.peak / (rooms[report.stage] or max(rooms) or 1))


def _fuller(plan: Plan, stages: tuple[Blocks, ...], rooms: list[int]) -> list[int]:
    """The pipeline ranks that must be looked at to find the fullest one. A rank is left out if one before it holds the same blocks on
    as large a device, with at least as many micro-batches in flight."""
    found: list[int] = []
    known: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for rank in range(plan.parallel.pp):
        flight = in_flight(plan, rank)
        blocks = (id(block) for chunk in held(stages, plan, rank) for _, block in (*chunk, ("", None)))
        same = known.setdefault((rooms[rank], *blocks), [])
        tied = rank == plan.parallel.pp - 1  # may hold a copy of an embedding
        if tied or not any(all(a <= b for a, b in zip(flight, other, strict=True)) for other in same):
            found.append(rank)
            same.append(flight)
    return found


def memory_of_stages(plan: Plan, network: Network, framework: Framework, devices: Devices | None = None) -> tuple[MemoryReport, ...]:
    """Each pipeline rank's memory at its own fullest moment."""
    stages = layout(network, plan)
    known = Known()
    return tuple(
        _stage(plan, network, framework, _of_stage(devices, rank), rank, held(stages, plan, rank), known)
        for rank in range(plan.parallel.pp)
    )


def _stage(
    plan: Plan,
    network: Network,
    framework: Framework,
    device: Gpu | Cpu | None,
    rank: int,
    chunks: tuple[Blocks, ...],
    known: Known,
    share: float = 1.0,
) -> MemoryReport:
    """One pipeline rank at its fullest moment: inside a backward pass, or in the optimizer step."""
    static = static_bytes(plan, network, framework, chunks)
    waiting = held_back(plan, network, framework, rank)
    found = _loaded(plan, _moments(plan, framework, rank, chunks, static, known, waiting), share)
    worst = max(found, key=sum)
    report = MemoryReport(
        parameters=static["parameters"],
        gradients=worst.gradients,
        optimizer=static["optimizer"],
        activations=worst.activations,
        working=worst.working,
        gathered=static["gathered"],
        slack=0,
        context=context_bytes(plan, network, framework, device),
        stage=rank,
    )
    room = device.memory - report.peak if device and device.memory else sys.maxsize
    return msgspec.structs.replace(report, slack=slack_bytes(plan, framework, device, found, worst, room))


def _loaded(plan: Plan, found: list[Moment], share: float) -> list[Moment]:
    """The same moments on the rank with most samples, which has a `share` of the usual ones at even load. The first moment, the
    optimizer step's, does not depend on samples."""
    most = share * (max(map(loads(plan), range(plan.world))) if plan.noise.imbalance != "none" else 1.0)
    return [found[0], *(one.of_samples(most) for one in found[1:])] if most != 1.0 else found


def _moments(
    plan: Plan, framework: Framework, rank: int, chunks: tuple[Blocks, ...], static: dict[str, int], known: Known, waiting: int
) -> list[Moment]:
    """Everything that may be a rank's fullest moment: the optimizer step, and each block's backward with all micro-batches
    in flight that the schedule allows (for each chunk, as any may be next). `waiting`: bytes that are kept besides (`held_back`)."""
    found = [Moment(0, static["step"], static["gradients"])]
    if plan.task == "forward":
        return [*found, Moment(0, forward_bytes(chunks), 0)]
    each = growth(plan, framework, chunks, static)
    chains = [passes(plan, chunk, each, known, framework.compile) for chunk in chunks]
    away = [sent_away(plan.memory, chunk) for chunk in chunks]
    stay = [[one for at, one in enumerate(chain) if at not in gone] for chain, gone in zip(chains, away, strict=True)]
    weighing, others = (tuple(sum(one.kept for one in chain if one.weighs == has) for chain in stay) for has in (True, False))
    kept, apart = waiting + most_kept(plan, rank, weighing, others), plan.parallel.pp > 1 and splits(name_of(plan.parallel))
    lasting = 0 if each else static["gradients"]
    if plan.microbatches == 1:
        begins = [sum(len(chain) for chain in chains[:number]) for number in range(len(chains))]
        away = [{start + at: start + beside for start, gone in zip(begins, away, strict=True) for at, beside in gone.items()}]
        chains = [[one for chain in chains for one in chain]]
    for chain, gone in zip(chains, away, strict=True):
        found += [moment._replace(gradients=moment.gradients + lasting) for moment in moments(chain, gone, kept, apart)]
    return found


def forward_bytes(chunks: tuple[Blocks, ...]) -> int:
    """Bytes of the largest kernel of a forward pass that keeps nothing for backward."""
    return max((widest(part) for chunk in chunks for _, block in chunk for part in block.parts), default=0)


def growth(plan: Plan, framework: Framework, chunks: tuple[Blocks, ...], static: dict[str, int]) -> float:
    """Bytes that a parameter's backward allocates for its gradient, with one micro-batch and no gradient buffer of the framework
    (zero_grad sets gradients to None). 0 where gradients live through the whole step."""
    if plan.microbatches > 1 or framework.linears.accumulates or framework.precision.sums_apart:
        return 0.0
    total = sum(part.params for chunk in chunks for _, block in chunk for part in block.parts if not part.frozen)
    return static["gradients"] / max(1, total)


def _remedies(plan: Plan, network: Network, framework: Framework, devices: Devices) -> tuple[str, ...]:
    """Up to three changes that make it fit, tried in the order of what they cost (`sim.memory.remedies.changes`)."""
    from sim.memory.remedies import changes, most_sharded, said  # most plans fit, and start sooner without

    found, kept = list[str](), set[str]()
    operators = framework.tensor_parallel.style == "dtensor"  # torch checkpoints by operator; others by module or layer
    parameters = framework.data_parallel.offloads_parameters
    most, parted = most_sharded(plan, network, framework), not network.compares
    for text, changed, scale in changes(said(plan, framework), most, operators, parameters, parted):
        if isinstance(_of_stage(devices, 0), Cpu) and (changed.world > plan.world or changed.memory.offload != plan.memory.offload):
            continue  # ranks on a host share its memory: this gains nothing
        if changed.parameters_offloaded and "optimizer" in kept:
            continue  # offloading the optimizer is enough, and moves less
        report = _fullest(changed, network, framework, devices, scale)
        if report.check(devices) is None:
            kept.add(changed.memory.offload)
            found.append(f"{text} ({report.taken(devices)})")
        if len(found) == 3:
            break
    return tuple(found)
