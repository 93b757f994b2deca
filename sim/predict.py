"""From a plan and a topology to a prediction: the composition that users call.

plan -> model, framework, mesh -> program -> priced -> simulated -> trace -> figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sim import uncertainty
from sim.bind import Setting, bind
from sim.brief import brief
from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.idle import idle
from sim.lower.step import lower
from sim.memory.report import DoesNotFit, MemoryReport, memory_of
from sim.memory.timeline import memory_timelines
from sim.plan import Output, Plan
from sim.program import Program
from sim.tables import Tabular
from sim.timeline import metrics
from sim.timeline.asynchrony import rank_steps_per_s
from sim.timeline.syncs import SyncPoint, spread, sync_points
from sim.trace import Trace
from sim.uncertainty import Interval, Mark
from topologies.errors import BadInput, Refused
from topologies.load import Topology

STEPS = 3
"""Simulated steps: the first fills the input path and (DDP) has other buckets; the last is reported."""
OPS_APART = 2_000_000
"""Ops of the simulated ranks up to which each has a span of its own: about 1.5 GB. Beyond, runs of kernels are one span, with the same times."""
OPS_FUSED = 20_000_000
"""Beyond these, what meets nobody else is one span too: hidden and exposed communication among equal ranks counts as compute."""


class Prediction(Tabular, msgspec.Struct, kw_only=True):
    """What `predict` found. Prints as a table; `to_dict()` is the JSON of `steptwin predict --json`, `to_frame()` one row of figures."""

    plan: Plan
    topology: str
    gpus: int
    step_time_s: float
    samples_per_s: float
    tokens_per_s: float
    model_flops_per_gpu_per_s: float
    mfu: float | None
    parameters: int
    flops_per_step: float
    peak_memory_bytes: int
    memory: MemoryReport
    fits: bool
    does_not_fit: DoesNotFit | None
    breakdown: metrics.Breakdown
    critical_path: list[tuple[str, float]]
    sources: dict[str, float]
    warnings: list[str]
    unit: str = "tokens"
    interval: tuple[float, float] = (0.0, 0.0)
    """Seconds between which the step lies with probability `uncertainty.LEVEL`."""
    mark: Mark = "extrapolated"
    """calibrated: half of the step, or more, rests on this machine's own measurements; interpolated: on data of such devices,
    sizes and kernels; extrapolated: beyond them."""
    mark_reasons: tuple[str, ...] = ()
    syncs: list[SyncPoint] = []
    """Where the host waits for the device, and what that costs."""
    program: Program | None = None
    trace: Trace | None = None

    def __str__(self) -> str:
        return brief(self)

    def __repr__(self) -> str:
        return f"Prediction({(self.plan.name or self.plan.model_name)!r}, {self.topology!r}, step_time_s={self.step_time_s:.6g})"

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (DESIGN 8); plain values only."""
        per = "tokens" if self.unit == "tokens" else "samples"
        rate = self.tokens_per_s if per == "tokens" else self.samples_per_s
        return {
            "step_time_s": self.step_time_s,
            "interval_s": {"low": self.interval[0], "high": self.interval[1], "level": uncertainty.LEVEL},
            "mark": self.mark,
            "mark_reasons": list(self.mark_reasons),
            f"{per}_per_s": rate,
            f"{per}_per_s_per_gpu": rate / self.gpus,
            "samples_per_s": self.samples_per_s,
            "model_flops_per_gpu_per_s": self.model_flops_per_gpu_per_s,
            "mfu": self.mfu,
            "model": {"name": self.plan.model_name, "parameters": self.parameters, "flops_per_step": self.flops_per_step},
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory": msgspec.to_builtins(self.memory),
            "fits": self.fits,
            "does_not_fit": msgspec.to_builtins(self.does_not_fit),
            "breakdown": msgspec.structs.asdict(self.breakdown),
            "critical_path": [{"class": name, "seconds": seconds} for name, seconds in self.critical_path],
            "syncs": [msgspec.structs.asdict(point) for point in self.syncs],
            "sources": self.sources,
            "warnings": self.warnings,
            "gpus": self.gpus,
            "topology": self.topology,
            "plan": msgspec.to_builtins(self.plan),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The figures of `to_dict` that are one number or word, those of the breakdown and the interval with them."""
        found = self.to_dict()
        flat = {name: value for name, value in found.items() if isinstance(value, (int, float, str)) or value is None}
        ends = {"interval_low_s": self.interval[0], "interval_high_s": self.interval[1]}
        flat.pop("does_not_fit", None)
        return [{"plan": self.plan.name, "model": self.plan.model_name, **flat, **ends, **found["breakdown"]}]


def predict(
    plan: Plan | str | Path | dict[str, Any],
    topology: Topology | str | Path,
    *,
    edits: tuple[str, ...] = (),
    calibration: str | Path | None = None,
    costs: str = "fitted",
    steps: int = STEPS,
    fold: bool = True,
) -> Prediction:
    """Predicts one training step of `plan` on `topology`.

    Args:
        plan: a plan, a TOML file, a shipped plan's name, or a mapping in the file's form.
        topology: a machine ("dgx-h100"), a cluster ("16x dgx-h100"), a TOML file or a topology.
        edits: what-ifs on the topology ("link.nvlink.rate=400 GB/s").
        calibration: a file made by `probe`; its measured costs take precedence.
        costs: "fitted", or "tables": measured kernels of the package aiconfigurator-core where they cover a shape.
        steps: optimizer steps to simulate; the last one is reported.
        fold: simulate equal ranks once.

    Raises `BadInput` or one of its kinds for input that cannot be used. A plan that does not fit into memory
    is predicted all the same, with `fits` false and what would make it fit.
    """
    return predict_setting(bind(plan, topology, edits), calibration=calibration, costs=costs, steps=steps, fold=fold)


def predict_setting(
    setting: Setting,
    *,
    calibration: str | Path | None = None,
    costs: str = "fitted",
    steps: int = STEPS,
    fold: bool = True,
    detail: bool = True,
) -> Prediction:
    """`predict` for inputs that are bound already. Without `detail`, what meets nobody else is simulated once, for speed."""
    if not isinstance(steps, int) or steps < 1:
        raise BadInput(f"steps = {steps!r}: a whole number of simulated steps, at least 1")
    plan, topology = setting.plan, setting.topology
    quiet = msgspec.structs.replace(plan, output=Output())
    program = lower(quiet, setting.network, setting.framework, topology.kind, steps)
    pricer = pricer_for(setting, calibration, costs)
    length = _length(program, fold and setting.foldable)
    asked, detail = detail, detail and length <= OPS_APART
    trace = simulate(program, pricer, fold, setting.foldable, detail, condensed=not asked or length > OPS_FUSED)
    if detail:
        trace.memory = {rank: list(line) for rank, line in memory_timelines(setting, trace).items()}
    split = metrics.breakdown(trace)
    step = metrics.step_time(trace)
    points = _held(setting, program, pricer, trace, step, fold) if detail else []
    stall = _output_seconds(setting, pricer, step, fold, points)
    split = msgspec.structs.replace(split, output_s=split.output_s + stall)
    shares = uncertainty.shares_of(program, pricer, topology, plan, step)
    sure = uncertainty.interval(
        step + stall, shares, uncertainty.outside(plan, topology, setting.network.parameters), calibration is not None
    )
    found = _figures(setting, program, trace, step + stall, split, sure)
    found.syncs = points
    if asked and not detail:
        found.warnings.append(_coarse(plan, length))
    return found


def _length(program: Program, folded: bool) -> int:
    """Ops that are simulated: those of one rank for each role, or of all ranks."""
    ops = {
        name: sum(len(program.segments[call.segment]) for calls in role.threads.values() for call in calls)
        for name, role in program.roles.items()
    }
    return sum(ops.values()) if folded else sum(ops[name] for name in program.role_of)


def _coarse(plan: Plan, length: int) -> str:
    """What a trace lacks that has too many ops for a span each."""
    lost = ", and communication among equal ranks counts as compute" if length > OPS_FUSED else ""
    return (
        f"{length:,} ops ({plan.microbatches:,} micro-batches in a step): runs of kernels are one span each{lost}; no memory timeline. "
        "The step time is the same. Predict fewer micro-batches to see every op"
    )


def pricer_for(setting: Setting, calibration: str | Path | None = None, costs: str = "fitted", slower: float = 1.0) -> Pricer:
    """The pricer of the setting's kind of machine; compute of every rank takes `slower` times as long. Raises `Refused` where `costs` or the calibration speak of another kind."""
    from sim.lower.noise import factors

    noise = factors(setting.plan)
    factor = noise if slower == 1.0 else lambda rank: noise(rank) * slower
    if setting.topology.kind == "cpu":
        from sim.cost.calibration import load_calibration
        from sim.cost.cpu_pricer import CpuPricer

        if costs != "fitted":
            raise Refused(f"cost source '{costs}' holds kernels of GPUs; {setting.topology.name} has CPUs. Leave --costs out")
        return CpuPricer(setting.topology, load_calibration(calibration), factor)
    from sim.cost.gpu_pricer import GpuPricer

    if calibration is None and costs == "fitted":
        return GpuPricer(setting.topology, setting.framework, factor, setting.plan.world)
    from sim.cost.measured import MeasuredPricer, lookups_of

    return MeasuredPricer(setting.topology, setting.framework, lookups_of(costs, calibration), factor, setting.plan.world)


_WITHOUT: dict[str, dict[str, Any]] = {
    "pageable copy": {"pinned": True},
    "created on the CPU, then moved": {"create": "device"},
    "synchronize()": {"handover": "event"},
}
"""Sync points of the input path, and the keys of [data] that take them away."""


def _held(setting: Setting, program: Program, pricer: Pricer, trace: Trace, step: float, fold: bool) -> list[SyncPoint]:
    """Sync points of every step; those of the input path with what the step would be without them."""
    points = sync_points(program, trace)
    for at, point in enumerate(points):
        if point.op in _WITHOUT and point.where.startswith("data/"):
            data = msgspec.structs.replace(setting.plan.data, **_WITHOUT[point.op])
            better = msgspec.structs.replace(setting.plan, data=data, output=Output())
            other = simulate(
                lower(better, setting.network, setting.framework, setting.topology.kind, program.steps),
                pricer,
                fold,
                setting.foldable,
            )
            points[at] = msgspec.structs.replace(point, adds=step - metrics.step_time(other))
    return points


def _output_seconds(setting: Setting, pricer: Pricer, step: float, fold: bool, points: list[SyncPoint]) -> float:
    """Mean seconds per step that logging, syncs and checkpoints add: each is simulated on every step, then spread. Their sync
    points are added to `points`."""
    known = {point.where for point in points}
    output, added = setting.plan.output, 0.0
    for field in ("log_every", "item_every", "print_every", "sync_every", "checkpoint_every"):
        every = getattr(output, field)
        if not every:
            continue
        only = msgspec.structs.replace(Output(), **{field: 1}, checkpoint_to=output.checkpoint_to, checkpoint_mode=output.checkpoint_mode)
        loud = msgspec.structs.replace(setting.plan, output=only)
        program = lower(loud, setting.network, setting.framework, setting.topology.kind, STEPS)
        trace = simulate(program, pricer, fold, setting.foldable, _length(program, fold and setting.foldable) <= OPS_APART)
        adds = max(0.0, metrics.step_time(trace) - step) / every
        points += spread([p for p in sync_points(program, trace) if p.where not in known], every, adds)
        added += adds
    return added


def figures_of_memory(setting: Setting, remedies: bool = True) -> tuple[MemoryReport, DoesNotFit | None]:
    """Peak memory of the plan by what it is, and what is missing when it does not fit, with ways to make it fit unless `remedies` is
    false. Nothing is simulated."""
    device = setting.topology.device(0)
    report = memory_of(setting.plan, setting.network, setting.framework, device, remedies)
    return report, report.check(device)


def _peak(setting: Setting) -> float | None:
    """FLOP/s that MFU is counted against: 16-bit peak also for narrower formats, as the field does."""
    precision = setting.plan.precision
    return setting.topology.device(0).flops.get("bf16" if precision in ("fp8", "mxfp8", "fp4", "nvfp4") else precision)


def mfu_of(setting: Setting, step: float) -> float | None:
    """Model FLOPs per second and GPU over the peak; None where no peak is known."""
    peak = _peak(setting)
    return setting.network.flops_per_sample * setting.plan.global_batch / step / setting.plan.world / peak if peak and step > 0 else None


def _figures(setting: Setting, program: Program, trace: Trace, step: float, split: metrics.Breakdown, sure: Interval) -> Prediction:
    plan, network, topology = setting.plan, setting.network, setting.topology
    flops = network.flops_per_sample * plan.global_batch
    per_gpu = flops / step / plan.world if step > 0 else 0.0
    peak = _peak(setting)
    report, fit = figures_of_memory(setting)
    samples = plan.global_batch / step if step > 0 else 0.0
    if plan.update.mode == "async":  # nobody waits: throughputs add up
        samples = rank_steps_per_s(trace) * plan.global_batch / plan.world * metrics.step_time(trace) / step
    return Prediction(
        plan=plan,
        topology=topology.name,
        gpus=plan.world,
        step_time_s=step,
        samples_per_s=samples,
        tokens_per_s=samples * network.seq,
        model_flops_per_gpu_per_s=per_gpu,
        mfu=mfu_of(setting, step),
        parameters=network.parameters,
        flops_per_step=flops,
        peak_memory_bytes=report.peak,
        memory=report,
        fits=fit is None,
        does_not_fit=fit,
        breakdown=split,
        critical_path=metrics.critical_path(trace),
        sources=metrics.sources(trace),
        warnings=_warnings(setting, per_gpu, peak, trace),
        unit="tokens" if network.seq > 1 else "samples",
        interval=(sure.low, sure.high),
        mark=sure.mark,
        mark_reasons=sure.why,
        program=program,
        trace=trace,
    )


def _warnings(setting: Setting, per_gpu: float, peak: float | None, trace: Trace) -> list[str]:
    found = idle(setting)
    if peak and per_gpu > peak:
        found.append(f"model FLOP rate {per_gpu / 1e12:.0f} TFLOP/s is above the device's peak {peak / 1e12:.0f}: check the model's FLOPs")
    network = setting.network
    if network.seq > 1 and setting.plan.task == "train":
        rule = 6.0 * network.active_parameters * network.seq
        if not 0.5 < network.flops_per_sample / rule < 2.5:
            found.append(
                f"model FLOPs are {network.flops_per_sample / rule:.2f} x (6 x parameters x tokens): long sequences, or a wrong shape"
            )
    assumed = metrics.sources(trace)["assumed"]
    if assumed > 0.5:
        found.append(f"{assumed:.0%} of the time in ops rests on assumed costs: calibrate with `steptwin probe`")
    return found
