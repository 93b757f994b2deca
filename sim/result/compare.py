"""A prediction beside a trace that was measured elsewhere."""

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
"""A run's traces, by what is worth more as a measurement."""
_EXPORTS = "torch.profiler's .json or .json.gz (prof.export_chrome_trace) or a folder with one for each rank, Nsight's .sqlite (nsys export), or a run's folder"
_RUN = ("plan.toml", "summary.json", "predicted.json.gz")
"""What a run's folder holds: its other files are no traces that somebody recorded."""
_ONE_STEP = (
    "the trace tells one step: all that was recorded counts as it. Where that was more, mark steps by ranges 'step 0', 'step 1' (record_function, NVTX), "
    "or by torch.profiler's schedule and profile.step()"
)
_OTHERWISE = 1.9
"""Products of one model over those of the same whose linear layers are fused otherwise: at most 7 to 4 (q, k and v, and both halves of a gated MLP)."""
_OTHER_WORK = 10.0
"""Products of one over those of the other from which no question is left: neither fused layers nor micro-batches that were counted otherwise
explain so many."""
_UNKNOWN = 0.03
"""Of a trace's kernels, the part that may have no class before it is told."""
OTHER_WORK = "the trace is not of this plan"
"""How the note begins that is said before all others."""
_NEXT = (
    "What follows compares two different things, and does not tell how good the prediction is. Give the plan of that run: its model, its GPUs and how "
    "they split it, and the batch of one step"
)
_MOST = ("bf16", "fp16", "tf32")
"""Precisions whose products have the peak that MFU is counted against: narrower ones are faster, and fp32's may be run as tf32."""
_PLACE = re.compile(r"r\d+/s\d+/mb\d+/")
_OWN = ("fwd/", "bwd/", "wgrad/")
_RANGE = {"wgrad": "bwd", "recompute": "fwd"}
"""The range (`executor.marks`) in which the kernels of a pass run, where it is not the pass's own."""


def compare(predicted: Prediction, measured: str | Path | Trace) -> Comparison:
    """Aligns by class, and op by op where the trace's ranges name ops (`op:fwd/L0.attn.qkv`).

    measured: a file (`sim.imported`), a run's folder or a trace. Raises `BadInput` for a file that is no trace, or a prediction without one.
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
    """Seconds of each timed step, where the trace tells them: profiled ones take longer. Else of each recorded step that counts: the first begins with
    the recording, not with the step."""
    if trace.timed:
        return trace.timed
    times = step_times(trace)
    return [step_of(trace)] if served(trace) else times[1:] or times


def measured_file(path: str | Path) -> Path:
    """The trace file that `path` names: itself, or in a run's folder what was trained, else played; a folder itself where each rank has a file in it.
    Raises `BadInput` that says what is expected."""
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
    """What speaks against a trace's being of the plan that is predicted: first that it cannot be, where it cannot; then what it says of itself, and
    what its steps do."""
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
    """How much of a trace is of kernels whose names tell nothing, and which are the largest of them."""
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
    """Why the trace cannot be of the plan: no device is faster than its peak, and no product is run ten times for once."""
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
    """Matrix products in a step of a rank, predicted and measured; none where their numbers do not tell a model: of experts and recurrent layers,
    of stock (stretches of time by class, cut at each gap; the trace says its plan), and of several steps that were recorded as one."""
    if measured.meta.get("origin") == "stock" or any(span.cls in ("moe", "rnn") for span in predicted.spans):
        return 0.0, 0.0
    ours, theirs = _counts(predicted)["gemm"], _counts(measured)["gemm"]
    unmarked = len({span.step for span in measured.spans}) == 1  # `_ONE_STEP` says it already
    return (0.0, 0.0) if theirs > ours and unmarked else (ours, theirs)


def _unlike(predicted: Trace, measured: Trace) -> Iterator[str]:
    """What the steps of one do that those of the other do not, or far more of."""
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
    """Ops of the classes whose number tells a model, in a step of a rank."""
    steps = len({(span.rank, span.step) for span in trace.spans}) or 1
    return {cls: sum(told(span.cls) == cls for span in trace.spans) / steps for cls in ("gemm", "comm")}


def _alike(predicted: Trace, measured: Trace, mesh: Mesh) -> tuple[int, ...]:
    """The predicted ranks that stand for the measured ones: profilers write a file for each rank, and stages of a pipeline do different things.
    Those ranks themselves where they were simulated, else the ranks of their stages; all of them where the trace is not of this plan's world."""
    held, ours = set(measured.ranks), set(predicted.ranks)
    if measured.world != mesh.world or not held <= set(range(mesh.world)):
        return tuple(sorted(ours))
    if held <= ours:
        return tuple(sorted(held))
    stages = {mesh.coordinates(rank)["pp"] for rank in measured.ranks}
    return tuple(rank for rank in sorted(ours) if mesh.coordinates(rank)["pp"] in stages)


def _whole_steps(trace: Trace) -> Trace:
    """Without what was recorded of the step that the recording began in, where there are others."""
    numbers = sorted({span.step for span in trace.spans})
    return replace(trace, spans=[span for span in trace.spans if span.step != numbers[0]]) if len(numbers) > 1 else trace


def _pairs(predicted: Trace, measured: Trace) -> tuple[Pair, ...]:
    """Ops that both name, over a whole step: ranges do not say which micro-batch they are of. A backward range covers the gradients of input
    and weights alike, in a prediction they are two ops; a forward range is open again where activations are computed once more."""
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
