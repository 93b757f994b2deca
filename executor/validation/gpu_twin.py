"""Predicted, played and trained on GPUs: the table that says how good the predictions are there.

    rows, summary = twin_gpu(None, Path("runs/gpu"), minutes=8)

Every plan of `executor.validation.gpu_plans` is predicted from the catalog alone and from a calibration of this GPU, played op by op, and trained by
PyTorch's own machinery: on one GPU, on all GPUs of the node, and by ranks that share one GPU. Each plan's row stays in its folder, so that
a call takes up what an earlier one has left; a plan that dies, hangs or runs out of memory is reported, and the others go on.

With `device="cpu"` tiny plans of the same kinds go the same way on a machine without GPUs. That is how this is tested: it has NOT been run
on a GPU yet, and no figure of it is published.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from executor.environment import sharing
from executor.launch import time_limit
from executor.play import PlayResult, run_play
from executor.probe import comm_probe
from executor.twin import calibrated, host_seconds
from executor.validation.gpu_cases import Case, cases, shared_machine, slow, this_machine, visible_gpus
from executor.validation.gpu_clocks import clocks, device_facts
from executor.validation.gpu_plans import fewer_layers
from executor.validation.gpu_rows import Row, Summary, classes_of, key_of, ops_within, rates, read_row, summary, write_row
from executor.validation.here import trained
from sim.align import Comparison, Measured, align_by_class, align_by_id
from sim.bind import Setting, bind
from sim.cost.calibration import load_calibration, save_calibration
from sim.detail import STEPS
from sim.files.chrome import write_trace
from sim.files.runs import environment, write_atomic, write_json
from sim.lower.step import lower
from sim.plan import Plan
from sim.predict import predict_setting
from sim.prediction import Prediction
from sim.pricer import pricer_for
from sim.program import Program
from sim.timeline.metrics import step_time
from topologies.errors import BadInput, Refused, RunFailed, UnknownName
from topologies.load import Topology

Say = Callable[[str], None]
T = TypeVar("T")
MOST_STEPS = 30
_SECONDS_OF_STEPS = 4.0
"""Steps are timed for about so long: short ones more often."""
_PLAN_SECONDS = 150.0
"""No plan may take longer than this in all."""
_PROBE_SECONDS = 300.0
_FEWEST_SECONDS = 45.0
"""With less than this left, no further plan is begun: importing torch and preparing takes half of it."""
_SAFE = 0.85
"""Share of the device's memory that a predicted peak may fill: the caching allocator rounds up, and CUDA has its own context."""
NOT_RUN = "not begun: the minutes were over. The next call goes on from here"


class Site(msgspec.Struct, kw_only=True):
    """Where and how all plans of a call run."""

    folder: Path
    machine: Topology
    device: str
    gpus: int
    steps: int
    quick: bool
    say: Say
    end: float
    """Moment (time.monotonic) after which no plan is begun."""
    made_with: tuple[str, ...]
    unprobed: str = ""
    """Why there is no calibration."""


def twin_gpu(
    names: Iterable[str] | None,
    folder: Path,
    *,
    minutes: float = 8.0,
    gpus: int = 0,
    device: str = "cuda",
    steps: int = MOST_STEPS,
    quick: bool = False,
    keep: Path | None = None,
    say: Say = print,
) -> tuple[list[Row], Summary, Path]:
    """Runs the plans `names` (None: all); rows, what they say, and the folder with everything.

    Args:
        folder: of traces, calibrations and rows.
        minutes: after so long no further plan is begun; rows of an earlier call cost nothing.
        gpus: GPUs of this node that may be used; 0: all.
        device: "cuda", or "cpu" for tiny plans on a machine without a GPU.
        steps: most steps that are timed of each plan.
        quick: a short probe, for tests.
        keep: what is small enough to commit is written below here too, into a folder called as the GPU.

    Raises `Refused` where there is no GPU, `UnknownName` for a plan that is not in the table.
    """
    machine = this_machine(device, folder)
    count = gpus or 2
    if device == "cuda":
        count = min(gpus or machine.gpus, visible_gpus(machine))
    known = cases(count, device == "cpu")
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise UnknownName("plan of the GPU table", name, known)
    site = Site(
        folder=folder / gpu_name(machine, device),
        machine=machine,
        device=device,
        gpus=count,
        steps=steps,
        quick=quick,
        say=say,
        end=time.monotonic() + 60.0 * minutes,
        made_with=(gpu_name(machine, device), _torch(), str(steps)),
    )
    site.folder.mkdir(parents=True, exist_ok=True)
    try:
        with time_limit(_PROBE_SECONDS):
            calibrated(1, site.folder / "calibration-1.toml", say, quick=quick)
    except RunFailed as error:  # each row says so, and has no calibrated figure
        site.unprobed = str(error)
        say(f"the probe failed: {error}")
    rows: list[Row] = []
    before = [row for name, case in known.items() if name not in wanted and (row := read_row(site.folder / name, _key(case, site)))]
    for name in wanted:
        rows.append(row_of(known[name], site))
        say(line(rows[-1]))
        _save([*before, *rows], site, keep)
    return rows, summary(rows), site.folder


def gpu_name(machine: Topology, device: str) -> str:
    """The catalog's name of the GPU, as folders are called; `cpu` without one."""
    return machine.device(0).name if device == "cuda" else "cpu"


def _torch() -> str:
    import torch

    return str(torch.__version__)


def line(row: Row) -> str:
    """One row as text."""

    def show(value: float | None) -> str:
        return f"{value * 1e3:9.2f}" if value is not None else "        -"

    def off(against: str) -> str:
        error = row.error("calibrated", against)
        return f"{error:+7.1%}" if error is not None else "      -"

    stock, played = (one.median if one is not None else None for one in (row.stock, row.played))
    times = f"{show(row.uncalibrated)} {show(row.calibrated)} {show(played)} {show(stock)} ms  {off('played')} {off('stock')}"
    failed = "".join(f"  [{what}: {why.splitlines()[0][:120]}]" for what, why in (row.refused | row.failed).items())
    return f"{row.plan:20} {row.kind:26} {times}{failed}"


def row_of(case: Case, site: Site) -> Row:
    """The row that lies in the plan's folder, or a new one; never raises but for an interrupt."""
    folder = site.folder / case.name
    key = _key(case, site)
    known = read_row(folder, key)
    if known is not None:
        return known
    row = Row(plan=case.name, kind=case.kind, model=case.plan.model_name, ranks=case.plan.world, key=key)
    left = site.end - time.monotonic()
    if (left < _FEWEST_SECONDS and site.device == "cuda") or left < 0:
        row.failed["plan"] = NOT_RUN
        return row
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with time_limit(min(_PLAN_SECONDS, max(left, _FEWEST_SECONDS))), _ranks(case, site):
        _guarded(row, "plan", folder, lambda: _fill(row, case, site, folder))
    row.seconds = time.monotonic() - begin
    write_row(folder, row)
    return row


def _key(case: Case, site: Site) -> str:
    return key_of(case.plan, *site.made_with)


def _ranks(case: Case, site: Site) -> AbstractContextManager[None]:
    return sharing() if case.where == "shared" and site.device == "cuda" else nullcontext()


def _guarded(row: Row, what: str, folder: Path, call: Callable[[], T]) -> T | None:
    """What `call` gives; where it fails, None, and the row says why."""
    try:
        return call()
    except Refused as error:
        (row.refused if what in ("played", "stock") else row.failed)[what] = str(error)
    except Exception as error:  # one plan's fault, whatever it is, must not end the others
        words = str(error) or type(error).__name__
        row.failed[what] = words.replace(str(folder), folder.name)  # the row is published, the folder's place is not
        write_atomic(folder / f"{what}.error.txt", traceback.format_exc())
    return None


def _fill(row: Row, case: Case, site: Site, folder: Path) -> None:
    """Predicts, plays and trains one plan; each on its own, so that one that fails leaves the others."""
    setting, plan = _fitting(case, site)
    row.model, row.notes = plan.model_name, _notes(case, plan)
    plain = predict_setting(setting, steps=STEPS, fold=False)
    row.uncalibrated, row.predicted_memory = plain.step_time_s, plain.peak_memory_bytes
    path = _guarded(row, "calibration", folder, lambda: _calibration(case, site))
    good = plain
    if path is not None:
        good = predict_setting(setting, calibration=path, steps=STEPS, fold=False)
        row.calibrated, row.mark, row.measured_share = good.step_time_s, good.mark, good.sources.get("measured", 0.0)
    assert good.trace is not None and plain.trace is not None
    write_trace(good.trace, folder / "predicted.json.gz")
    count = max(5, min(site.steps, round(_SECONDS_OF_STEPS / good.step_time_s)))
    first = second = third = None
    with clocks() as row.clocks:
        played = _guarded(row, "played", folder, lambda: _played(row, case, setting, good, path, folder, count))
        if played is not None:
            write_trace(played.trace, folder / "played.json.gz")
            first, second = (align_by_id(one.trace, played.trace, played.step_times) for one in (plain, good) if one.trace is not None)
            row.played, row.ops_within = Measured.of(played.step_times), ops_within(second)
        third = _guarded(row, "stock", folder, lambda: _stock(row, plan, good, folder, count))
    row.classes = classes_of(first, second if path is not None else None, third)


def _notes(case: Case, plan: Plan) -> tuple[str, ...]:
    """What one must know of a row to read its figures."""
    found = []
    if plan != case.plan:
        found.append(f"{case.plan.model_name} does not fit here: run as {plan.model_name}")
    if case.where == "shared":
        found.append("predicted on a stand-in: each rank on a GPU of its own with its share of the speed, without peer-to-peer (assumed)")
    if plan.world == 1 and plan.parallel.zero:
        found.append(
            "stock shards over a mesh of one rank; the prediction has no sharding there: the difference is what FSDP2 itself costs"
        )
    if plan.output.checkpoint_every > 1:
        found.append("played without checkpoints, which do not come with every step")
    return tuple(found)


def _fitting(case: Case, site: Site) -> tuple[Setting, Plan]:
    """The plan on its machine, with as many layers as the device's memory holds. Raises `BadInput` where not even one fits."""
    plan = case.plan
    while True:
        setting = _bound(plan, case, site)
        if site.device == "cpu":
            return setting, plan
        found = predict_setting(setting, fold=True, detail=False)
        room = setting.topology.device(0).memory * _SAFE / (plan.world if case.where == "shared" else 1)
        if found.peak_memory_bytes <= room:
            return setting, plan
        smaller = fewer_layers(plan)
        if smaller is None:
            raise BadInput(f"needs {found.peak_memory_bytes / 2**30:.1f} GiB of the {room / 2**30:.1f} that this GPU has for it")
        plan = smaller


def _bound(plan: Plan, case: Case, site: Site) -> Setting:
    if case.where == "shared" and site.device == "cuda":
        return bind(plan, shared_machine(plan.world, site.machine.device(0).name, site.folder), (*slow(plan.world), "without=p2p"))
    return bind(plan, site.machine)


def _calibration(case: Case, site: Site) -> Path:
    """The calibration that this plan's ranks predict from: kernels of one rank, with the collectives of as many as the plan has."""
    if site.unprobed:
        raise RunFailed(site.unprobed)
    one = site.folder / "calibration-1.toml"
    base = calibrated(1, one, site.say, quick=site.quick)
    if (case.where != "node" and site.device == "cuda") or case.plan.world == 1:
        return one
    path = site.folder / f"calibration-{case.plan.world}.toml"
    if not path.is_file() or path.stat().st_mtime < one.stat().st_mtime:
        site.say(f"probing collectives over {case.plan.world} ranks ...")
        found = comm_probe(case.plan.world, quick=site.quick)
        tables = base.tables | {"collective": found.tables.get("collective", ())}
        tables["host"] = (*base.tables.get("host", ()), *found.tables.get("host", ()))
        save_calibration(msgspec.structs.replace(base, ranks=case.plan.world, tables=tables), path)
    return path


def _played(row: Row, case: Case, setting: Setting, good: Prediction, path: Path | None, folder: Path, steps: int) -> PlayResult:
    """Plays the program, with its output where that comes with every step."""
    if case.where == "shared" and setting.topology.kind == "cuda":
        raise Refused("gloo's collectives of device tensors hold the host thread; the program's do not. Stock training is measured")
    assert good.program is not None and good.trace is not None
    program, out = good.program, setting.plan.output
    row.played_predicted = step_time(good.trace)
    if {1} == {n for n in (out.log_every, out.item_every, out.print_every, out.sync_every, out.checkpoint_every) if n}:
        program, row.played_predicted = _loud(setting), good.step_time_s
    return run_play(program, host_seconds(program, pricer_for(setting, path)), folder, steps)


def _loud(setting: Setting) -> Program:
    return lower(setting.plan, setting.network, setting.framework, setting.topology.kind, STEPS)


def _stock(row: Row, plan: Plan, good: Prediction, folder: Path, steps: int) -> Comparison:
    """Trains the plan with PyTorch's own machinery. Raises `Refused` where it has none for it."""
    stock, times = trained(plan, folder, steps)
    assert good.trace is not None
    write_trace(stock.trace, folder / "stock.json.gz")
    row.stock, row.stock_memory = Measured.of(times), stock.memory
    return align_by_class(good.trace, stock.trace, times)


def _save(rows: list[Row], site: Site, keep: Path | None) -> None:
    """Writes the summary after every plan; into `keep` as well, with the calibration."""
    found: dict[str, Any] = {
        "device": device_facts() if site.device == "cuda" else {"name": "cpu"},
        "gpus": site.gpus,
        "environment": environment(),
        "steps": site.steps,
        "probed": {path.stem: rates(load_calibration(path)) for path in sorted(site.folder.glob("calibration-*.toml"))},
        "rows": msgspec.to_builtins(rows),
        "summary": msgspec.to_builtins(summary(rows)),
    }
    calibration = site.folder / "calibration-1.toml"
    write_json(site.folder / "summary.json", found)
    if keep is not None:
        write_json(keep / site.folder.name / "summary.json", found)
        if calibration.is_file():
            write_atomic(keep / site.folder.name / "calibration.toml", calibration.read_bytes())
