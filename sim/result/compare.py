"""Compares a prediction with a measured trace."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from sim.align import Comparison, Pair, align_by_class, reported, step_of
from sim.imported import read_measured
from sim.imported.folder import trace_files
from sim.imported.names import GRAPH, OTHER, told
from sim.mesh import Mesh
from sim.result.prediction import Prediction
from sim.rules import mesh_of
from sim.timeline.asynchrony import served
from sim.timeline.metrics import step_times
from sim.trace import Span, Trace
from topologies.errors import BadInput
from topologies.units import show_duration

MEASURED = ("stock.json.gz", "played.json.gz")
"""Measured traces in a run's folder; the first that exists is used."""
_EXPORTS = "torch.profiler's .json or .json.gz (prof.export_chrome_trace) or a folder with one for each rank, Nsight's .sqlite (nsys export), or a run's folder"
_RUN = ("plan.toml", "summary.json", "predicted.json.gz")
"""Files that show that a folder is that of a StepTwin run, whose other files are not recorded traces."""
_ONE_STEP = (
    "the trace tells one step: all that was recorded counts as it. Where that was more, mark steps by ranges 'step 0', 'step 1' (record_function, NVTX), "
    "or by torch.profiler's schedule and profile.step()"
)
_OTHERWISE = 1.9
"""Limit of the ratio of matrix products for one model: fusing its linear layers differently changes their number by at most 7 to 4 (q, k
and v, and both halves of a gated MLP)."""
_OTHER_WORK = 10.0
"""Ratio of matrix products from which the trace cannot be of the plan: neither fused layers nor another number of micro-batches explain
it."""
_UNKNOWN = 0.03
"""Share of the kernels' time without a class above which a note says so."""
OTHER_WORK = "the trace is not of this plan"
"""The beginning of the note that comes before all others."""
_NEXT = (
    "What follows compares two different things, and does not tell how good the prediction is. Give the plan of that run: its model, its GPUs and how "
    "they split it, and the batch of one step"
)
_MOST = ("bf16", "fp16", "tf32")
"""Precisions whose matrix products cannot exceed the peak of MFU. (Narrower formats are faster than it, and fp32 may run as tf32.)"""
_PLACE = re.compile(r"r\d+/s\d+/mb\d+/")
_OWN = ("fwd/", "bwd/", "wgrad/")
_RANGE = {"wgrad": "bwd", "recompute": "fwd"}
"""Pass -> the pass whose range (`executor.marks`) contains its kernels, where it has no range of its own."""


def compare(predicted: Prediction, measured: str | Path | Trace) -> Comparison:
    """Compares a prediction with a measured trace by class, and op by op where the ranges of the trace name ops (`op:fwd/L0.attn.qkv`).

    `measured`: a file (`sim.imported`), a run's folder or a trace. Raises `BadInput` for a file that is not a trace, or a prediction
    without one.
    """
    if not isinstance(predicted, Prediction):
        raise BadInput(f"compare takes a prediction, as steptwin.predict(plan, topology) makes it, not {type(predicted).__name__}")
    if predicted.trace is None:
        raise BadInput("this prediction holds no trace: predict the plan with its details")
    trace = measured if isinstance(measured, Trace) else read_measured(measured_file(measured))
    ranks = _alike(predicted.trace, trace, mesh_of(predicted.plan))
    ours = predicted.trace.of(ranks)
    found = align_by_class(ours, _whole_steps(trace), measured_times(trace))
    return replace(found, predicted_step=step_of(predicted.trace), pairs=_pairs(ours, trace), ranks=ranks)


def measured_times(trace: Trace) -> list[float]:
    """Seconds of each measured step. Where the trace has times of steps without the profiler, these are used, because profiled steps take
    longer. Otherwise those of the recorded steps without the first, which begins with the recording and not with the step."""
    if trace.timed:
        return trace.timed
    times = step_times(trace)
    return [step_of(trace)] if served(trace) else times[1:] or times


def measured_file(path: str | Path) -> Path:
    """The trace that `path` names: a file itself; for a run's folder the first file of `MEASURED` in it; for a folder with one trace per
    rank the folder itself. Raises `BadInput`, which says what is expected."""
    path = Path(path)
    if path.is_dir():
        found = next((path / name for name in MEASURED if (path / name).is_file()), None)
        if found is None and trace_files(path) and not any((path / name).exists() for name in _RUN):
            return path
        if found is None:
            raise BadInput(f"{path} is a folder without a measured trace ({' or '.join(MEASURED)}). Give {_EXPORTS}")
        return found
    if not path.exists():
        raise BadInput(f"there is no measured trace {path}. Give {_EXPORTS}")
    return path


def doubts(predicted: Prediction, trace: Trace) -> list[str]:
    """Notes that tell why the trace may not be of the predicted plan. The first says that it cannot be, where this is certain; the others
    come from the trace's metadata and from what its steps contain."""
    plan, why = predicted.plan, list(_other_work(predicted, trace))
    found = [f"{OTHER_WORK}: {', and '.join(why)}. {_NEXT}"] if why else []
    if trace.meta.get("origin") == "predicted":
        found.append("the trace is a prediction itself: what is called measured here is what that one says")
    name, said = plan.name or plan.model_name, trace.meta.get("plan")
    if said and said != name:
        found.append(f"the trace is of '{said}', the prediction of '{name}'")
    if trace.world > 1 and trace.world != plan.world:
        found.append(f"the trace is of {trace.world} ranks, the plan has {plan.world}")
    if trace.world != plan.world and plan.parallel.pp > 1:
        found.append("the trace does not tell which stage of the pipeline it is of: its classes stand beside the mean of all stages")
    if len({span.step for span in trace.spans}) == 1:
        found.append(_ONE_STEP)
    if unread := trace.meta.get("unread"):
        found.append(f"{unread} events of the trace could not be read and are left out")
    found += _unknown(trace)
    if any(span.cls == GRAPH for span in trace.spans):
        found.append(
            "CUDA graphs were recorded whole: their kernels are one class, 'graph'. nsys profile --cuda-graph-trace=node tells them apart"
        )
    elif predicted.trace is not None:
        found += _unlike(predicted.trace.of(_alike(predicted.trace, trace, mesh_of(plan))), trace)
    return found


def _unknown(trace: Trace) -> Iterator[str]:
    """A note on the kernels without a class, where their share of the time is above `_UNKNOWN`, with the names of the largest."""
    computed, unknown = 0.0, dict[str, float]()
    for span in trace.spans:
        if span.kind == "compute":
            computed += span.seconds
            if span.cls == OTHER:
                unknown[span.name] = unknown.get(span.name, 0.0) + span.seconds
    share = sum(unknown.values()) / (computed or 1.0)
    if trace.origin == "imported" and share > _UNKNOWN:
        largest = sorted(unknown, key=lambda name: -unknown[name])[:3]
        names = ", ".join(repr(name.removeprefix("void ")[:70]) for name in largest)
        yield f"{share:.0%} of the kernels' time is of names that tell no class, '{OTHER}' in the table. The largest: {names}"


def _other_work(predicted: Prediction, trace: Trace) -> Iterator[str]:
    """Reasons why the trace cannot be of the plan: the devices would be faster than their peak, or the number of matrix products differs by
    a factor of `_OTHER_WORK`."""
    measured = statistics.median(measured_times(trace))
    used = predicted.mfu * predicted.step_time_s / measured if predicted.mfu is not None and measured > 0 else 0.0
    if used > 1.0 and predicted.device == "cuda" and predicted.plan.precision in _MOST:
        yield f"with its step of {show_duration(measured)} the plan would use {used:,.0%} of what the GPUs can compute at most"
    if predicted.trace is None or any(span.cls == GRAPH for span in trace.spans):
        return
    ours, theirs = _products(predicted.trace.of(_alike(predicted.trace, trace, mesh_of(predicted.plan))), trace)
    if ours and theirs and not 1 / _OTHER_WORK < theirs / ours < _OTHER_WORK:
        yield f"a step of it runs {theirs:,.0f} matrix products on a rank, one of the prediction {ours:,.0f}"


def _products(predicted: Trace, measured: Trace) -> tuple[float, float]:
    """Matrix products per step and rank, (predicted, measured). (0.0, 0.0) where the numbers cannot be compared: with experts or recurrent
    layers, for stock traces (their spans are stretches of time by class, cut at each gap), and where several steps were recorded as one."""
    if measured.meta.get("origin") == "stock" or any(span.cls in ("moe", "rnn") for span in predicted.spans):
        return 0.0, 0.0
    ours, theirs = _counts(predicted)["gemm"], _counts(measured)["gemm"]
    unmarked = len({span.step for span in measured.spans}) == 1  # `_ONE_STEP` says it already
    return (0.0, 0.0) if theirs > ours and unmarked else (ours, theirs)


def _unlike(predicted: Trace, measured: Trace) -> Iterator[str]:
    """Notes on what the steps of one trace contain and those of the other do not, or contain far more of."""
    ours, theirs = _counts(predicted), _counts(measured)
    if bool(ours["comm"]) != bool(theirs["comm"]):
        holds = "collectives, and the plan's ranks send nothing" if theirs["comm"] else "no collective, and the plan's ranks send"
        yield f"the trace holds {holds}: is it of a run on as many GPUs, split the same way?"
    products, run = _products(predicted, measured)
    if products and run and _OTHERWISE < max(run / products, products / run) < _OTHER_WORK:
        yield (
            f"a step of the trace runs {run:,.0f} matrix products on a rank, one of the prediction {products:,.0f}: is it of this model, with "
            "as many layers and micro-batches?"
        )


def _counts(trace: Trace) -> dict[str, float]:
    """Number of ops per step and rank, for the classes gemm and comm."""
    steps = len({(span.rank, span.step) for span in trace.spans}) or 1
    return {cls: sum(told(span.cls) == cls for span in trace.spans) / steps for cls in ("gemm", "comm")}


def _alike(predicted: Trace, measured: Trace, mesh: Mesh) -> tuple[int, ...]:
    """The simulated ranks that correspond to the measured ones (a trace may hold only some ranks, and pipeline stages differ): the measured
    ranks themselves where all were simulated, else the simulated ranks of their stages; all simulated ranks where the trace has another
    world size."""
    held, ours = set(measured.ranks), set(predicted.ranks)
    if measured.world != mesh.world or not held <= set(range(mesh.world)):
        return tuple(sorted(ours))
    if held <= ours:
        return tuple(sorted(held))
    stages = {mesh.coordinates(rank)["pp"] for rank in measured.ranks}
    return tuple(rank for rank in sorted(ours) if mesh.coordinates(rank)["pp"] in stages)


def _whole_steps(trace: Trace) -> Trace:
    """The trace without its first step, in which the recording began. A trace with a single step is returned as it is."""
    numbers = sorted({span.step for span in trace.spans})
    return replace(trace, spans=[span for span in trace.spans if span.step != numbers[0]]) if len(numbers) > 1 else trace


def _pairs(predicted: Trace, measured: Trace) -> tuple[Pair, ...]:
    """Pairs of ops that both traces name, summed over a step, because ranges do not tell the micro-batch. A backward range contains the
    gradients of inputs and of weights, which are two ops in a prediction; recomputed activations run in the forward range."""
    theirs = _sums([s for s in measured.spans if s.id.startswith(_OWN)])
    computed = [s for s in reported(predicted) if s.kind == "compute"]
    ours, first = _sums(computed), {_name(s): s for s in reversed(computed)}
    return tuple(
        Pair(
            name,
            first[name].rank,
            first[name].lane,
            first[name].cls,
            "compute",
            statistics.median(ours[name]),
            statistics.median(theirs[name]),
        )
        for name in ours
        if name in theirs
    )


def _name(span: Span) -> str:
    pass_, _, op = _PLACE.sub("", span.id).partition("/")
    return f"{_RANGE.get(pass_, pass_)}/{op}"


def _sums(spans: list[Span]) -> dict[str, list[float]]:
    """Seconds of each op in each (rank, step): all its kernels together."""
    sums: dict[tuple[str, int, int], float] = {}
    for span in spans:
        key = (_name(span), span.rank, span.step)
        sums[key] = sums.get(key, 0.0) + span.seconds - span.wait
    found: dict[str, list[float]] = {}
    for (name, *_), seconds in sums.items():
        found.setdefault(name, []).append(seconds)
    return found
