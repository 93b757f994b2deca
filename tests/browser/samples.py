"""One page of each kind, small and made from real predictions, with a hostile name in every place that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from reports.folder import WRITERS
from sim.accuracy.training import validate_training
from sim.align import Comparison, align_by_class, align_by_id
from sim.cost.collective.table import collective_table
from sim.files.planfile import load_plan
from sim.planning.capacity.capacity import capacity
from sim.planning.capacity.scaling import scaling
from sim.planning.disturbed.faults import faults
from sim.planning.disturbed.jobs import jobs
from sim.planning.explain.explanation import explain
from sim.planning.montecarlo import spread
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict
from sim.result.prediction import Prediction
from sim.setting.bind import bind
from sim.timeline.metrics import step_times
from sim.trace import Span, Trace
from topologies.load import load_topology

HOSTILE = "<script>alert(1)</script>"
"""Shows as text wherever it stands, or the page is broken."""
GPT: dict[str, object] = {
    "name": HOSTILE,
    "model": "gpt2-124m",
    "batch": {"global": 32, "micro": 2},
    "parallel": {"dp_shard": 8, "zero": 3},
}
PIPELINE: dict[str, object] = {
    "name": HOSTILE,
    "model": "gpt2-124m",
    "batch": {"global": 8, "micro": 1},
    "parallel": {"dp_shard": 4, "tp": 2, "pp": 2, "zero": 2},
}
MANY: dict[str, object] = {
    "name": HOSTILE,
    "model": {"family": "mlp", "name": HOSTILE, "widths": [1024] * 9},
    "batch": {"global": 48, "micro": 8},
    "parallel": {"dp_replicate": 6, "zero": 0},
}
"""Six ranks, more than are drawn."""


def slower(trace: Trace, origin: str = "played") -> Trace:
    """A trace as if it had been measured: every op a little longer than predicted, one with a hostile id."""
    spans = [msgspec.structs.replace(s, start=1.07 * s.start, end=1.07 * s.end, wait=1.07 * s.wait) for s in trace.spans]
    last = trace.spans[-1]
    extra = Span(last.rank, last.lane, f"r0/s0/mb0/{HOSTILE}", 0.0, 1e-4, cls=HOSTILE, name=HOSTILE)
    return msgspec.structs.replace(trace, spans=[*spans, extra], origin=origin)


def compared(found: Prediction) -> tuple[list[Trace], dict[str, Comparison], dict[str, list[float]]]:
    """(traces, comparisons, step times) of a prediction against itself made slower."""
    assert found.trace is not None
    played, stock = slower(found.trace), slower(found.trace, "stock")
    times = {"played": [t * f for t in step_times(played)[-1:] for f in (0.98, 1.0, 1.03)], "stock": step_times(stock)[-1:] * 3}
    comparisons = {"played": align_by_id(found.trace, played, times["played"]), "stock": align_by_class(found.trace, stock, times["stock"])}
    return [found.trace, played, stock], comparisons, times


def prediction(folder: Path) -> Path:
    machine = load_topology("2x dgx-h100")
    found = predict(PIPELINE, machine)
    return WRITERS["prediction"](folder / "prediction", found.plan, found.program, found.to_dict(), found.trace, machine)


def comparison(folder: Path) -> Path:
    machine = load_topology("dgx-h100")
    found = predict(MANY, machine, fold=False)
    traces, comparisons, times = compared(found)
    parts: tuple[object, ...] = (
        found.plan,
        None,
        {"prediction": found.to_dict(), "notes": [HOSTILE]},
        traces,
        comparisons,
        times,
        None,
        machine,
    )
    return WRITERS["comparison"](folder / "comparison", *parts)


def sweep_(folder: Path) -> Path:
    base = load_plan(GPT)
    space = parse_space("tp=1,2 zero=1,3 micro=1,2 gpus=4,8")
    found = sweep(base, space, "dgx-h100", folder / "sweep.sqlite", prices={"dgx-h100": 2.5})
    row = msgspec.structs.replace(found.rows[0], key=f"note={HOSTILE} {found.rows[0].key}", reason=HOSTILE)
    found.rows[0] = row
    return WRITERS["sweep"](folder / "sweep.html", HOSTILE, found)


def capacity_(folder: Path) -> Path:
    plan, prices = load_plan(GPT), {"dgx-h100": 2.5}
    curves = [scaling(plan, "dgx-h100", (4, 8, 16), 1e10, weak=weak, prices=prices) for weak in (False, True)]
    return WRITERS["capacity"](folder / "capacity.html", HOSTILE, capacity(plan, "dgx-h100", 1e10, prices=prices), *curves, HOSTILE)


def topology(folder: Path) -> Path:
    file = folder / f"{HOSTILE.partition('/')[0]}.toml"  # a topology is called by its file; a file's name holds no slash
    file.write_text('name = "node"\nbase = "dgx-a100"\n', "utf-8")
    return WRITERS["topology"](folder / "topology.html", load_topology(file))


def collective(folder: Path) -> Path:
    found = collective_table("all_reduce", "1 GiB", "2x dgx-h100")
    found["rows"][3]["algorithm"] = HOSTILE
    return WRITERS["collective"](folder / "collective.html", found | {"topology": HOSTILE})


def validation(folder: Path) -> Path:
    """The page of `validate`, on a sample of the shipped table."""
    found = validate_training(None, limit=12, workers=1).to_dict()
    name, row = next(iter(found["predictions"].items()))
    found["predictions"] = {HOSTILE: row} | {key: value for key, value in found["predictions"].items() if key != name}
    found["refused"] = [{"row_id": HOSTILE, "reason": HOSTILE}]
    return WRITERS["validation"](folder / "validation.html", found)


ODD = "日本語 «Größe» مرحبا 🚀 \u202e" + HOSTILE
"""Letters of many scripts, one of them from right to left, and a sign that turns the rest around."""
HUGE: dict[str, object] = {
    "name": "a-very-long-name-" * 120,
    "model": "llama3-8b",
    "seq_len": 8192,
    "batch": {"global": 128, "micro": 1},
    "parallel": {"dp_shard": 128, "tp": 8, "zero": 3},
}
"""1,024 ranks, folded."""


def one_rank(folder: Path) -> Path:
    machine = load_topology("dgx-h100")
    found = predict(GPT | {"name": ODD, "parallel": {}, "batch": {"global": 2, "micro": 2}}, machine)
    return WRITERS["prediction"](folder / "one", found.plan, found.program, found.to_dict(), found.trace, machine)


def huge(folder: Path) -> Path:
    machine = load_topology("128x dgx-h100")
    found = predict(HUGE, machine)
    return WRITERS["prediction"](folder / "huge", found.plan, found.program, found.to_dict(), found.trace, machine)


def nothing(folder: Path) -> Path:
    """A trace without any op, as of a run that was stopped at once."""
    machine = load_topology("dgx-h100")
    found = predict(GPT, machine)
    return WRITERS["prediction"](folder / "nothing", found.plan, found.program, found.to_dict(), Trace([]), machine)


def instant(folder: Path) -> Path:
    """One op of no length."""
    machine = load_topology("dgx-h100")
    found = predict(GPT, machine)
    trace = Trace([Span(0, "compute", f"r0/s0/mb0/{ODD}", 0.0, 0.0, cls=ODD)])
    return WRITERS["prediction"](folder / "instant", found.plan, found.program, found.to_dict(), trace, machine)


EDGES: dict[str, Callable[[Path], Path]] = {"one rank": one_rank, "1,024 ranks": huge, "no spans": nothing, "one instant": instant}
"""Pages of the smallest and largest traces and of names that nobody expects."""


def explained(folder: Path) -> Path:
    return WRITERS["explain"](folder / "explain.html", HOSTILE, "dgx-h100", explain(bind(GPT, "dgx-h100"), tries=8))


def broken(folder: Path) -> Path:
    return WRITERS["faults"](folder / "faults.html", faults(GPT, "2x dgx-h100"))


def beside(folder: Path) -> Path:
    return WRITERS["jobs"](folder / "jobs.html", jobs([GPT, GPT], "2x dgx-h100"))


def drawn(folder: Path) -> Path:
    return WRITERS["spread"](folder / "spread.html", HOSTILE, "dgx-h100", spread(GPT | {"seq_len": 2048}, "dgx-h100", 200))


PAGES: dict[str, Callable[[Path], Path]] = {
    "prediction": prediction,
    "comparison": comparison,
    "sweep": sweep_,
    "capacity": capacity_,
    "topology": topology,
    "collective": collective,
    "validation": validation,
    "explain": explained,
    "faults": broken,
    "jobs": beside,
    "spread": drawn,
}
