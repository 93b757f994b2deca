"""Figures of a simulated step: rates, MFU, memory, and warnings."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import msgspec

from sim.files.machinefile import machine_words
from sim.memory.numbers import numbers
from sim.memory.remedies import most_sharded, of_sequences, said
from sim.memory.report import DoesNotFit, Fill, MemoryReport, memory_of
from sim.program import Program
from sim.result.doubts import doubts
from sim.result.idle import without_effect
from sim.result.prediction import Prediction
from sim.result.uncertainty import Interval
from sim.rules import check
from sim.schedule.interleaved import round_of
from sim.setting.bind import Setting, network_of
from sim.setting.rooms import rooms, smallest_devices
from sim.timeline import metrics
from sim.trace import Trace
from topologies.errors import BadInput
from topologies.hardware import Cpu, Gpu, Store
from topologies.units import show_duration, show_rate


def figures_of_memory(setting: Setting, remedies: bool = True) -> tuple[MemoryReport, DoesNotFit | None]:
    """Peak memory of the plan by kind, and a `DoesNotFit` (None if it fits), which lists ways to make it fit unless `remedies` is false.
    Where devices differ, each pipeline stage is compared with the smallest device of its ranks. Nothing is simulated."""
    devices = smallest_devices(setting)
    report = memory_of(setting.plan, setting.network, setting.framework, devices, remedies)
    missing = report.check(devices, remedies)
    if missing is not None and missing.remedies == () and setting.topology.kind == "cuda":
        missing = msgspec.structs.replace(missing, remedies=_of_sequences(setting, devices))
    return report, missing


def _of_sequences(setting: Setting, devices: tuple[Gpu | Cpu, ...]) -> tuple[str, ...]:
    """Up to three remedies that give each sequence more ranks. They are offered where no other change is enough."""
    found: list[str] = []
    asked, most = said(setting.plan, setting.framework), most_sharded(setting.plan, setting.network, setting.framework)
    for text, plan, _ in of_sequences(asked, most):
        with suppress(BadInput):  # a model that is not split so, a length that does not divide
            network = network_of(check(plan), setting.framework)
            report = memory_of(plan, network, setting.framework, devices, remedies=False)
            if report.check(devices) is None:
                found.append(f"{text} ({report.taken(devices)})")
        if len(found) == 3:
            break
    return tuple(found)


def fits(setting: Setting) -> bool:
    """True if the plan fits into the memory of every device. Nothing is simulated."""
    return figures_of_memory(setting, remedies=False)[1] is None


def fill_of(setting: Setting) -> Fill:
    """Memory use of the fullest device. Nothing is simulated."""
    return figures_of_memory(setting, remedies=False)[0].fill(smallest_devices(setting))


def _peak(setting: Setting) -> float | None:
    """Peak FLOP/s for MFU, the mean over all devices; None where a device's peak is not known. Formats narrower than 16 bits use the 16-bit
    peak, as is usual."""
    precision = "bf16" if setting.plan.precision in ("fp8", "mxfp8", "fp4", "nvfp4") else setting.plan.precision
    peaks = [(device.flops.get(precision), share) for device, share in setting.topology.devices(setting.plan.world)]
    return None if any(peak is None for peak, _ in peaks) else sum((peak or 0.0) * share for peak, share in peaks)


def mfu_of(setting: Setting, step: float) -> float | None:
    """MFU of a step of `step` seconds: model FLOPs per second and GPU over the peak; None where no peak is known."""
    peak = _peak(setting)
    return setting.flops / step / setting.plan.world / peak if peak and step > 0 else None


def figures(
    setting: Setting,
    program: Program,
    trace: Trace,
    step: float,
    split: metrics.Breakdown,
    path: list[tuple[str, float]],
    sure: Interval,
    sources: dict[str, float],
) -> Prediction:
    """Makes the `Prediction` from a simulated `trace`. `step`: seconds of a step, output included; `split`: its breakdown; `path`: its
    critical path; `sure`: its interval; `sources`: shares of the step with measured, fitted and assumed costs."""
    plan, network, topology = setting.plan, setting.network, setting.topology
    per_gpu = setting.flops / step / plan.world if step > 0 else 0.0
    peak = _peak(setting)
    report, fit = figures_of_memory(setting)
    samples = plan.global_batch / step if step > 0 else 0.0
    return Prediction(
        plan=plan,
        topology=topology.name,
        machine=machine_words(topology),
        gpus=plan.world,
        step_time_s=step,
        samples_per_s=samples,
        tokens_per_s=samples * network.seq,
        model_flops_per_gpu_per_s=per_gpu,
        mfu=mfu_of(setting, step),
        device="cpu" if topology.kind == "cpu" else "cuda",
        parameters=network.parameters,
        active_parameters=network.active_parameters,
        flops_per_step=setting.flops,
        peak_memory_bytes=report.peak,
        memory=report,
        numbers=numbers(plan, setting.framework, network),
        fits=fit is None,
        does_not_fit=fit,
        breakdown=split,
        critical_path=path,
        sources=sources,
        warnings=[
            *_warnings(setting, program, per_gpu, peak, sources["assumed"]),
            *_late(setting, split.host_s / step if step > 0 else 0.0),
            *doubts(setting, report),
        ],
        unit="tokens" if network.seq > 1 else network.sample_unit,
        interval=(sure.low, sure.high),
        mark=sure.mark,
        mark_reasons=sure.why,
        rooms=rooms(setting, trace.ranks),
        program=program,
        trace=trace,
    )


def _warnings(setting: Setting, program: Program, per_gpu: float, peak: float | None, assumed: float) -> list[str]:
    found = without_effect(setting, program)
    found += _crowded(setting) + _unstored(setting) + _rounds(setting)
    if peak and per_gpu > peak * _saved(setting):
        found.append(f"model FLOP rate {per_gpu / 1e12:.0f} TFLOP/s is above the device's peak {peak / 1e12:.0f}: check the model's FLOPs")
    network = setting.network
    if network.seq > 1 and network.chain and setting.plan.task == "train":  # tokens are all that a chain of sequences reads (not Whisper)
        rule = 6.0 * network.active_parameters * network.seq
        if not 0.5 < network.flops_per_sample / rule < 2.5:
            found.append(
                f"model FLOPs are {network.flops_per_sample / rule:.2f} x (6 x parameters x tokens): long sequences, or a wrong shape"
            )
    if network.unseen:
        found.append(
            f"of {', '.join(network.unseen)} in the captured model only the bytes that they move are counted: nothing tells their arithmetic"
        )
    if assumed > 0.5:
        found.append(f"{assumed:.0%} of the first rank's step rests on assumed costs: calibrate with `steptwin probe`")
    return found


def _late(setting: Setting, share: float) -> list[str]:
    """A warning where devices wait for the host for at least `_LATE` of the step. `share`: that part of the step, 0 to 1."""
    if setting.topology.kind == "cpu" or share < _LATE:
        return []
    more = [word for word, on in (("cuda_graphs = true", setting.plan.cuda_graphs), ("compile = true", setting.plan.compile)) if not on]
    ways = ", ".join(["a larger batch.micro", *more])
    return [f"the GPUs wait for their host in {share:.0%} of the step: `steptwin explain` tries what helps ({ways})"]


_LATE = 0.4
"""Share of a step, waiting for the host, from which on a warning is given."""


def _saved(setting: Setting) -> float:
    """Model FLOPs divided by the least FLOPs that kernels need for them: 4 for convolutions in fp32, by Winograd's F(4 x 4, 3 x 3) (Lavin &
    Gray 2016), else 1."""
    convolved = any(part.cls == "conv" for _, block in setting.network.blocks for part in block.parts)
    return 4.0 if setting.plan.precision == "fp32" and convolved else 1.0


def _unstored(setting: Setting) -> list[str]:
    """A shared store that nobody described: of a CPU host its own disk, of a GPU machine a usual file system, which no cloud's object store is."""
    data, output = setting.plan.data, setting.plan.output
    wanted = data.source in ("object-store", "database") or (output.checkpoint_every and output.checkpoint_to == "store")
    store = setting.topology.store(0)
    if data.source == "object-store" and store == Store():
        return [
            f'data.source = "object-store": {setting.topology.name} describes none, and a parallel file system takes its place '
            f"({show_rate(store.stream)} a connection, {show_duration(store.latency)} until the first byte). A cloud's is slower: --set "
            '"store.stream=90 MB/s" --set "store.latency=150 ms" for Amazon S3'
        ]
    if not wanted or store is not None:
        return []
    return [
        f"{setting.topology.name} has no shared store: its own disk takes the place. Describe one in [store] (read, write, stream, latency)"
    ]


def _rounds(setting: Setting) -> list[str]:
    """Rounds of an interleaved schedule that Megatron-Core runs only where it is told their size (or not at all)."""
    p, many = setting.plan.parallel, setting.plan.microbatches
    interleaves = p.schedule == "interleaved" and p.pp > 1 and p.virtual_stages > 1
    if not interleaves or not setting.framework.pipeline.uneven_rounds or many % p.pp == 0:
        return []
    if many < p.pp:
        return [f"{many} micro-batches on {p.pp} pipeline ranks: Megatron-Core refuses to interleave fewer micro-batches than ranks"]
    return [
        f"{many} micro-batches go in rounds of {round_of(p.pp, many)} here, which Megatron-Core takes with "
        f"microbatch_group_size_per_vp_stage = {round_of(p.pp, many)}; unset it is {p.pp}, and refused"
    ]


def _crowded(setting: Setting) -> list[str]:
    """More loader processes than a node has hardware threads (two a core), which take turns, and each of which keeps batches in memory
    (torch's DataLoader warns of it too); more ranks than cores."""
    topology, workers = setting.topology, setting.plan.data.workers
    ranks = Counter(map(topology.node, range(setting.plan.world)))
    found = []
    most = max((count * workers / topology.cores(node) for node, count in ranks.items()), default=0.0)
    if most > 2:
        found.append(f"data.workers = {workers:,}: a node has {most:,.0f} loader processes for each of its cores")
    tight = next(((count, topology.cores(node)) for node, count in ranks.items() if count > topology.cores(node)), None)
    if tight and topology.kind == "cuda":
        found.append(f"{tight[0]} ranks of a node share its {tight[1]} CPU cores: their host threads take turns")
    return found
