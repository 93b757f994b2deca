"""What a plan keeps on the fullest rank, by what it is; and what is missing when it does not fit.

Static state by dtype, master copy and ZeRO level (Rajbhandari et al. 2020, section 5); activations by what each part
saves, the recompute policy and the schedule's micro-batches in flight (Korthikanti et al. 2022, section 4); the
working set of the loss or of the largest backward; gathered parameters and unsharded gradients of FSDP.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from sim.files.planfile import mesh_of
from sim.framework import Framework
from sim.memory.activations import Moment, Pass, moments, passes, widest
from sim.memory.remedies import changes
from sim.model.parts import Block, Network
from sim.model.stages import Blocks, held, in_flight, layout
from sim.plan import Plan
from sim.work import BYTES
from topologies.hardware import Cpu, Gpu
from topologies.units import show_size, size


class DoesNotFit(msgspec.Struct, frozen=True):
    """The plan needs more than the device has. A value, not an error: sweeps collect it."""

    needed: int
    available: int
    remedies: tuple[str, ...] = ()
    """Up to three changes that make it fit, those that cost least time first."""

    def __str__(self) -> str:
        ways = "; ".join(self.remedies) or "no single change is enough: use more ranks or a smaller model"
        return f"needs {show_size(self.needed)} of {show_size(self.available)}. Fits with: {ways}"


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Peak bytes of the fullest rank. `peak` is what the device must have; `allocated` what the framework's
    allocator would report (no context, no NCCL)."""

    parameters: int
    gradients: int
    """At the fullest moment: all of them, where they last from one micro-batch to the next."""
    optimizer: int
    """Optimizer states, and the fp32 master copy."""
    activations: int
    """Kept from forward to backward, all micro-batches in flight."""
    working: int
    """Largest of: the loss, one backward's gradients, a block being recomputed, the optimizer's intermediates."""
    gathered: int
    """FSDP: gathered parameters and unsharded gradients; autocast: 16-bit copies of weights; DDP: buckets; Megatron: dummy gradients."""
    context: int
    """CUDA context, NCCL buffers, allocator slack."""
    stage: int = 0
    """Pipeline rank that this is."""
    remedies: tuple[str, ...] = ()

    @property
    def state(self) -> int:
        """What a sharded checkpoint of this rank holds: parameters and optimizer."""
        return self.parameters + self.optimizer

    @property
    def allocated(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.working + self.gathered

    @property
    def peak(self) -> int:
        return self.allocated + self.context

    def check(self, device: Gpu | Cpu) -> DoesNotFit | None:
        """None where it fits; a device whose memory is not known (0) fits everything."""
        if not device.memory or self.peak <= device.memory:
            return None
        return DoesNotFit(self.peak, device.memory, self.remedies)


@cache
def constants() -> dict[str, float]:
    """The figures of `memory.toml` by `table.key`: bytes or shares."""
    tree = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    read = {f"{table}.{key}": value for table, keys in tree.items() for key, value in keys.items()}
    return {name: float(size(value, name) if isinstance(value, str) else value) for name, value in read.items()}


def memory_of(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None = None, remedies: bool = True) -> MemoryReport:
    """The fullest rank's memory. With a `device` that is too small, the report names remedies (unless `remedies` is false)."""
    report = _fullest(plan, network, framework, device)
    if device is None or not remedies or report.check(device) is None:
        return report
    return msgspec.structs.replace(report, remedies=_remedies(plan, network, framework, device))


def _fullest(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None) -> MemoryReport:
    stages = layout(network, plan)
    reports = (_stage(plan, network, framework, device, rank, held(stages, plan, rank)) for rank in _fuller(plan, stages))
    return max(reports, key=lambda report: report.peak)


def _fuller(plan: Plan, stages: tuple[Blocks, ...]) -> list[int]:
    """Pipeline ranks of which none holds the same blocks as one before it, with no more micro-batches in flight."""
    found: list[int] = []
    known: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for rank in range(plan.parallel.pp):
        flight = in_flight(plan, rank)
        same = known.setdefault(tuple(id(block) for chunk in held(stages, plan, rank) for _, block in (*chunk, ("", None))), [])
        tied = rank == plan.parallel.pp - 1  # may hold a copy of an embedding
        if tied or not any(all(a <= b for a, b in zip(flight, other, strict=True)) for other in same):
            found.append(rank)
            same.append(flight)
    return found


def memory_of_stages(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None = None) -> tuple[MemoryReport, ...]:
    """Each pipeline rank's memory at its own fullest moment."""
    stages = layout(network, plan)
    return tuple(_stage(plan, network, framework, device, rank, held(stages, plan, rank)) for rank in range(plan.parallel.pp))


def _stage(
    plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None, rank: int, chunks: tuple[Blocks, ...]
) -> MemoryReport:
    """One pipeline rank at its fullest moment: inside a backward pass, or in the optimizer step."""
    static = static_bytes(plan, network, framework, rank, chunks)
    found = _moments(plan, framework, rank, chunks, static)
    worst = max(found, key=sum)
    return MemoryReport(
        parameters=static["parameters"],
        gradients=worst.gradients,
        optimizer=static["optimizer"],
        activations=worst.activations,
        working=worst.working,
        gathered=static["gathered"],
        context=_context(plan, network, device, worst.activations + worst.working) + _apart(framework, device, found, worst),
        stage=rank,
    )


def _moments(plan: Plan, framework: Framework, rank: int, chunks: tuple[Blocks, ...], static: dict[str, int]) -> list[Moment]:
    """Everything that may be a rank's fullest moment: the optimizer step, and each block's backward with all micro-batches
    in flight that the schedule allows (for each chunk, as any may be next)."""
    found = [Moment(0, static["step"], static["gradients"])]
    if plan.task == "forward":
        return [*found, Moment(0, forward_bytes(chunks), 0)]
    each = growth(plan, framework, chunks, static)
    chains = [passes(plan, chunk, each) for chunk in chunks]
    kept = sum(n * sum(one.kept for one in chain) for n, chain in zip(in_flight(plan, rank), chains, strict=False))
    lasting = 0 if each else static["gradients"]
    if plan.microbatches == 1:
        chains = [[one for chain in chains for one in chain]]
    for chain in chains:
        found += [moment._replace(gradients=moment.gradients + lasting) for moment in moments(chain, kept)]
    if plan.memory.offload == "activations":
        most = offloaded(chains)
        found = [moment._replace(activations=min(moment.activations, most)) for moment in found]
    return found


def forward_bytes(chunks: tuple[Blocks, ...]) -> int:
    """The widest kernel of a forward pass that keeps nothing."""
    return max((widest(part) for chunk in chunks for _, block in chunk for part in block.parts), default=0)


def offloaded(chains: list[list[Pass]]) -> int:
    """memory.offload = "activations": what two blocks keep is on the device at once, the one in use and the one on its way."""
    return 2 * max((one.kept for chain in chains for one in chain), default=0)


def growth(plan: Plan, framework: Framework, chunks: tuple[Blocks, ...], static: dict[str, int]) -> float:
    """Bytes of a parameter's gradient that its backward makes anew: with one micro-batch and no buffer of the framework's
    (zero_grad sets them to None); 0 where gradients last."""
    if plan.microbatches > 1 or framework.accumulate_in_gemm:
        return 0.0
    total = sum(part.params for chunk in chunks for _, block in chunk for part in block.parts if not part.frozen)
    return static["gradients"] / max(1, total)


def _context(plan: Plan, network: Network, device: Gpu | Cpu | None, moving: int) -> int:
    """Of the driver, the libraries and the allocator, and of each group's communicator: NCCL makes one when it is first used, so that a
    model without experts has none for `ep`."""
    if isinstance(device, Cpu):
        return 0
    c, mesh = constants(), mesh_of(plan)
    axes = ("tp", "cp", "pp", "grad", *(("ep",) if network.active_parameters < network.parameters else ()))
    groups = sum(mesh.size(axis) > 1 for axis in axes)
    return round(c["context.bytes"] + c["context.workspace"] + groups * c["nccl.communicator"] + c["allocator.fragmentation"] * moving)


def _apart(framework: Framework, device: Gpu | Cpu | None, found: list[Moment], worst: Moment) -> int:
    """Reserved beside the fullest moment: the step's flat tensors find no room in the segments that activations leave, which are as small as
    these were, and the caching allocator joins no segments (c10/cuda/CUDACachingAllocator.cpp). `found`: the step's moment first."""
    if not framework.flat_step or isinstance(device, Cpu):
        return 0
    step, *others = (moment.activations + moment.working for moment in found)
    return step + max(others, default=0) - worst.activations - worst.working


def static_bytes(plan: Plan, network: Network, framework: Framework, rank: int, chunks: tuple[Blocks, ...]) -> dict[str, int]:
    """Parameters, gradients, optimizer, gathered; and `step`, the optimizer's intermediates."""
    blocks = [block for chunk in chunks for _, block in chunk]
    mesh, p = mesh_of(plan), plan.parallel
    zero = p.zero if p.zero is not None else framework.zero
    if mesh.size("fsdp") == 1 or (p.dp_shard == 1 and p.zero is None):
        zero = 0
    stored = 4.0 if framework.autocast else BYTES[framework.param_dtype]
    grad = BYTES[framework.grad_dtype]
    state = 4.0 if framework.master or framework.autocast else stored
    copies = {"sgd": 0, "momentum": 1}.get(plan.optimizer.name, 2)
    totals = {"parameters": 0.0, "gradients": 0.0, "optimizer": 0.0, "gathered": 0.0, "step": 0.0}
    train = plan.task != "forward"
    for (expert, frozen), count in _counts(network, plan, rank, blocks).items():
        ways = max(1, mesh.size("efsdp" if expert and mesh.size("ep") > 1 else "fsdp"))
        sharded = count / ways
        own = sharded if zero >= 1 else count
        whole = zero < 3
        # FSDP keeps only the optimizer's copy; all others keep what forward reads beside it.
        totals["parameters"] += count * stored if whole else sharded * (state if framework.master else stored)
        if frozen or not train:
            continue
        totals["gradients"] += (count if zero < 2 else sharded) * grad
        if plan.memory.offload != "optimizer" and plan.optimizer.on == "gpu":
            master = framework.master and whole and not framework.autocast
            totals["optimizer"] += own * state * (copies + master)
            totals["step"] += own * state * constants()["optimizer.foreach"] * (framework.optimizer == "foreach" and copies > 0)
            totals["step"] += own * framework.flat_step
    totals["gathered"] = _gathered(plan, framework, zero, blocks, mesh.size("grad"), totals["gradients"])
    return {name: round(value) for name, value in totals.items()}


def _counts(network: Network, plan: Plan, rank: int, blocks: list[Block]) -> dict[tuple[bool, bool], int]:
    """Elements of the parameters by (expert, frozen), with the last stage's own copy of a tied embedding."""
    found: dict[tuple[bool, bool], int] = {}
    for block, times in alike(blocks):
        for part in block.parts:
            if part.tensors:
                sort = part.expert, part.frozen
                found[sort] = found.get(sort, 0) + times * part.params
    if network.tied and plan.parallel.pp > 1 and rank == plan.parallel.pp - 1:
        embedding = dict(network.blocks)[network.tied[0]].parts[0]
        sort = False, embedding.frozen
        found[sort] = found.get(sort, 0) + embedding.tensors[0]
    return found


def alike(blocks: Iterable[Block]) -> list[tuple[Block, int]]:
    """Each block once, with how often it stands there: equal layers are one block."""
    found: dict[int, tuple[Block, int]] = {}
    for block in blocks:
        found[id(block)] = (block, found[id(block)][1] + 1 if id(block) in found else 1)
    return list(found.values())


def _gathered(plan: Plan, framework: Framework, zero: int, blocks: list[Block], ranks: int, gradients: float) -> float:
    """zero = 3: the block in use and those fetched ahead, and the block's whole gradient in backward. DDP without
    gradient views: buckets as large as the gradients. autocast: 16-bit copies, alive until backward."""
    train = plan.task != "forward"
    if zero == 3:
        largest = max((block.params for block, _ in alike(blocks)), default=0)
        ahead = (1 + plan.parallel.prefetch) * BYTES["fp32" if plan.precision in ("fp32", "tf32") else "bf16"]
        return largest * (ahead + (BYTES[framework.reduce_dtype] if train else 0.0))
    found = 0.0
    if framework.autocast:
        found += 2.0 * sum(part.params for block in blocks for part in block.parts if part.cls in ("gemm", "conv", "moe", "rnn"))
    if zero == 0 and ranks > 1 and train and not framework.accumulate_in_gemm:
        found += gradients
    if framework.accumulate_in_gemm and train:
        found += 2.0 * sum(_weights(blocks))
    return found


def _weights(blocks: list[Block]) -> set[int]:
    """Sizes of the linears' weights. Where the GEMM adds into the main gradient, autograd still wants a gradient:
    TransformerEngine keeps one dummy for each shape (module/base.py, get_dummy_wgrad)."""
    return {
        max(part.tensors)
        for block, _ in alike(blocks)
        if block.kind == "layer"
        for part in block.parts
        if part.cls in ("gemm", "moe") and part.tensors
    }


def _remedies(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu) -> tuple[str, ...]:
    """Up to three changes that make it fit, tried in the order of what they cost: sharding, selective recomputation,
    smaller micro-batches, more stages, full recomputation, offloading."""
    found: list[str] = []
    for text, changed, scale in changes(plan):
        report = _fullest(changed, network, framework, device)
        if scale != 1.0:
            report = msgspec.structs.replace(report, activations=round(report.activations * scale), working=round(report.working * scale))
        if report.check(device) is None:
            found.append(f"{text} ({show_size(report.peak)})")
        if len(found) == 3:
            break
    return tuple(found)
