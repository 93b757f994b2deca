"""The twin: one plan predicted, played and trained on this machine, and compared.

A new calibration is made if there is none, or if it is of another device, another number of ranks or other versions, or older than a week.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from executor.nvml import driver
from executor.periods import trained
from executor.play import PlayResult, run_play
from executor.possible import check_runs, without_stock
from executor.probe import completed, probe
from executor.ranks.alone import alone_among
from executor.ranks.environment import hosts, leads, own_gpu, place
from executor.stock import StockResult, run_stock
from sim.align import Comparison, Measured, align_by_class, align_by_id, guilty, step_of
from sim.arguments import check_whole
from sim.cost.calibration import Calibration, calibration_on
from sim.files.machinefile import machine_files
from sim.files.runs import write_json
from sim.plan import Plan
from sim.predict import predict_setting
from sim.program import HOST, Program
from sim.result.prediction import Prediction
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.detail import STEPS
from sim.tables import Tabular
from sim.trace import Trace
from topologies.errors import BadInput
from topologies.load import Topology

Say = Callable[[str], None]
_FRESH = timedelta(days=7)
_GOOD = 0.2
"""If the step's error is above this share, the report says which class of op is off."""


class Twin(Tabular, msgspec.Struct, kw_only=True):
    """What a twin run found. Prints as text; `to_frame()` has a row for each run and class of op."""

    plan: Plan
    prediction: Prediction
    traces: list[Trace]
    comparisons: dict[str, Comparison]
    times: dict[str, list[float]]
    """Run ("stock", "played") -> seconds of every measured step."""
    notes: list[str]
    calibration: str

    def __str__(self) -> str:
        runs = [f"{name}\n{found}" for name, found in self.comparisons.items()]
        return "\n\n".join([str(self.prediction), *runs, *(["\n".join(self.notes)] if self.notes else [])])

    def __repr__(self) -> str:
        runs = ", ".join(f"{name} {found.error:+z.1%}" for name, found in self.comparisons.items())
        return f"Twin({self.prediction!r}, {runs})"

    def _rows(self) -> list[dict[str, Any]]:
        return [{"run": name, **row} for name, found in self.comparisons.items() for row in found.to_dict()["classes"]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        runs = {name: found.to_dict() for name, found in self.comparisons.items()}
        return {"prediction": self.prediction.to_dict(), "runs": runs, "notes": self.notes, "calibration": self.calibration}


def calibrated(ranks: int, path: Path, say: Say, machine: Topology, quick: bool = False) -> Calibration:
    """The calibration at `path`; a new one (`quick`: a short one) if that does not fit a run of `ranks` ranks on `machine`, which is this
    machine."""
    if path.is_file():
        try:
            found = calibration_on(path, machine)
        except BadInput as error:
            say(f"calibration {path} cannot be used ({error}); probing again")
        else:
            if found.ranks == ranks and not (why := _stale(found)):
                if found.quick and not quick:
                    say(
                        f"calibration {path} was made with --quick, which leaves more noise in it; steptwin probe without it makes a better one"
                    )
                if found.crowded:
                    say(f"calibration {path}: {found.crowded}")
                return _whole(found, path, say)
            if found.ranks == ranks:
                say(f"calibration {path} {why}; probing again")
    say(f"probing this machine with {ranks} rank{'s' if ranks > 1 else ''} at once ...")
    begun = time.monotonic()
    found = probe(ranks, path, quick)
    say(
        f"probed {found.entries} points in {time.monotonic() - begun:.0f} s -> {path}{f'. Missing: {found.missing}' if found.missing else ''}"
    )
    if found.crowded:
        say(f"note: {found.crowded}")
    return found


def _whole(found: Calibration, path: Path, say: Say) -> Calibration:
    """The calibration, with the tables that it lacks probed again."""
    if found.lacking:
        say(f"calibration {path} lacks {', '.join(found.lacking)} ({found.missing}); probing these again")
        found = completed(found, path)
    return found


def _stale(found: Calibration) -> str:
    """Why the calibration is not valid for what runs here now; "" if it is."""
    now = {"torch": torch_version()} | ({"driver": driver()} if found.device == "cuda" else {})
    other = [
        f"{what} {found.versions.get(what) or 'unknown'}, here is {here}"
        for what, here in now.items()
        if found.versions.get(what, "") != here
    ]
    if other:
        return f"was made with {'; '.join(other)}"
    return f"is older than {_FRESH.days} days" if _age(found) >= _FRESH else ""


def _age(found: Calibration) -> timedelta:
    try:
        made = datetime.fromisoformat(found.date)
    except ValueError:
        return timedelta.max
    return datetime.now(made.tzinfo) - made


def torch_version() -> str:
    """The version of torch that plays and trains here."""
    import torch

    return str(torch.__version__)


def twin(plan: Plan, folder: Path, *, steps: int = 30, calibration: Path | None = None, say: Say = print) -> Twin:
    """Probes if needed, then predicts, plays, trains and compares `plan` on this machine. A plan that PyTorch's own machinery cannot run is
    only played."""
    check_whole("steps", steps, "timed steps")
    path = calibration or folder.parent / f"calibration-{plan.world}.toml"
    setting = bind(plan, machines())
    left_out = without_stock(setting)
    every = plan.period if plan.period <= steps else 1  # rarer work is in neither median step
    with alone_among(folder):
        calibrated(plan.world, path, say, setting.topology)
        predicted = predict_setting(setting, calibration=path, steps=max(STEPS, 1 + min(every, plan.averages_every)), fold=False)
        assert predicted.program is not None and predicted.trace is not None
        say(f"predicted: {predicted.step_time_s * 1e3:.2f} ms a step")
        stock, times = (None, []) if left_out else trained(plan, folder, steps, every)
        say(
            f"trained {len(stock.step_times)} steps with PyTorch's own machinery" if stock else f"not trained by PyTorch itself: {left_out}"
        )
        played = run_program(predicted.program, setting, path, folder, steps)
        say(f"played {len(played.step_times)} steps of the program")
    runs: dict[str, StockResult | PlayResult] = {"stock": stock, "played": played} if stock else {"played": played}
    found = {"stock": _beside_stock(predicted, stock.trace, times, every)} if stock else {}
    found["played"] = align_by_id(predicted.trace, played.trace, played.step_times)
    notes = _buckets(predicted.program, stock) if stock else [f"not trained by PyTorch itself: {left_out}"]
    notes += [f"stock: {stock.warning}"] if stock and stock.warning else []
    return Twin(
        plan=plan,
        prediction=predicted,
        traces=[predicted.trace, *(run.trace for run in reversed(runs.values()))],
        comparisons=found,
        times={name: run.step_times for name, run in runs.items()},
        notes=[*_notes(found, runs, every), *notes],
        calibration=str(path),
    )


def _beside_stock(predicted: Prediction, stock: Trace, times: list[float], every: int) -> Comparison:
    """Compares the mean step over a period of `every` steps. The steps of a predicted trace save nothing, unless all steps do: the time of
    output comes from the prediction's figures."""
    assert predicted.trace is not None
    plan = predicted.plan
    found = align_by_class(predicted.trace, stock, times, min(every, plan.averages_every))
    if every == 1 or not plan.output.periods:
        return found
    output = predicted.breakdown.output_s
    classes = [msgspec.structs.replace(row, predicted=output) if row.cls == "output" else row for row in found.classes]
    return msgspec.structs.replace(found, predicted_step=predicted.step_time_s, classes=tuple(classes))


def run_program(program: Program, setting: Setting, calibration: Path | None, folder: Path, steps: int) -> PlayResult:
    """Plays the program; the player spins for the predicted seconds of each host op, and on a GPU for the predicted host time of each
    launch."""
    pricer, found = pricer_for(setting, calibration), dict[str, float]()
    for op in (op for ops in program.segments.values() for op in ops):
        if op.kind == "host" or (program.device == "cuda" and op.lane != HOST):
            cost = pricer.local(op, 0)
            found[op.id] = cost.seconds if op.kind == "host" else cost.host
    return run_play(program, found, folder, steps)


def _notes(found: dict[str, Comparison], runs: Mapping[str, StockResult | PlayResult], every: int) -> list[str]:
    notes = []
    for name, one in found.items():
        spread = (one.measured_step.high - one.measured_step.low) / one.measured_step.median
        if spread > 0.15:
            notes.append(f"{name}: the machine is noisy, steps spread over {spread:.0%} of the median (p10 to p90)")
        if abs(one.error) > _GOOD:
            recorded = step_of(runs[name].trace, every if name == "stock" else 1)
            notes.append(f"{name}: the prediction is off by {one.error:+.0%}; {_cause(one, recorded)}")
        if one.missing:
            notes.append(f"{name}: {len(one.missing)} predicted ops have no span, first {one.missing[0]}")
    return notes


def _cause(one: Comparison, recorded: float) -> str:
    """In words, where most of the error is: in a class of op, or in none, if the step that was recorded op by op (`recorded` seconds) took
    as long as predicted and the timed steps did not."""
    (cls, seconds), timed = guilty(one), one.measured_step.median
    error = one.predicted_step - timed
    if (recorded - timed) / error > max(0.5, seconds / error):
        return (
            f"most of it in no class: the step that was recorded op by op took {recorded * 1e3:.2f} ms, those that were timed {timed * 1e3:.2f} "
            "(the machine's pace, or what recording costs)"
        )
    if not cls:
        return "no class of op is off in that direction"
    return f"{'most of it' if seconds / error > 0.5 else 'the largest part'} in class '{cls}' ({seconds * 1e3:+.2f} ms a step)"


def _buckets(program: Program, stock: StockResult) -> list[str]:
    """Notes where DDP's buckets differ from the program's, in the first step or in later ones."""
    notes = []
    for name, real, first in (("first step", stock.first_buckets, True), ("later steps", stock.buckets, False)):
        ours = bucket_bytes(program, 0 if first else program.steps - 1)
        if real and ours != real:
            notes.append(f"DDP's buckets differ in the {name}: predicted {ours}, PyTorch {real}")
    return notes


def bucket_bytes(program: Program, step: int) -> list[int]:
    """Bytes of the gradient all_reduces of one step on rank 0, in order."""
    return [
        op.bytes
        for call, op in program.ops(0)
        if call.step == step and op.kind == "collective" and op.name == "all_reduce" and op.cls == "comm.dp"
    ]


def machines() -> str:
    """Name of the machine of this run: this one or, if a launcher started ranks on several hosts, so many like it with the ranks of each.
    Raises `BadInput` if each rank sees only its own GPU: then it is unknown how the GPUs are linked."""
    at = place()
    if at is None:
        return "this-machine"
    if own_gpu(at):
        raise BadInput(
            f"{at.launcher} shows each of the {at.local_world} ranks of this host one GPU alone, and so does not show how they are joined: "
            f"start ranks that see all of them (srun --gpus-per-node {at.local_world}), each takes its own"
        )
    return "this-machine" if at.local_world == at.world else f"{hosts()}x this-machine:{at.local_world}"


def run_plan(plan: Plan, folder: Path, how: str, steps: int, say: Say = print) -> dict[str, Any]:
    """`steptwin run`: one kind of run alone, as plain values. The folder has all that `compare` and a rerun need. At least `steps` steps
    are timed: "play" ends with a whole pass through its program, which has as many steps as the prediction needed to settle (5 in a pass,
    where 3 are asked for)."""
    check_whole("steps", steps, "timed steps")
    if how not in ("stock", "play"):
        raise BadInput(f"--how {how}: allowed are stock (PyTorch's own machinery) and play (the predicted program)")
    setting, program, path = bind(plan, machines()), None, None
    check_runs(setting, stock=how == "stock", play=how == "play")
    with alone_among(folder):
        if how == "stock":
            stock = run_stock(plan, folder, steps)
            trace, times, warning = stock.trace, stock.step_times, stock.warning
        else:
            path = folder.parent / f"calibration-{plan.world}.toml"
            calibrated(plan.world, path, say, setting.topology)
            program = predict_setting(setting, calibration=path).program
            assert program is not None
            played = run_program(program, setting, path, folder, steps)
            trace, times, warning = played.trace, played.step_times, ""
        found = {
            "how": how,
            "step_time_s": msgspec.to_builtins(Measured.of(times)),
            "folder": str(folder),
            "steps_s": times,
            "warning": warning,
        }
        if leads():
            keep_run(folder, plan, program, found, trace, path)
    return found


def keep_run(
    folder: Path, plan: Plan, program: Program | None, found: dict[str, Any], trace: Trace, calibration: Path | None = None
) -> None:
    """Writes a run's plan, machine, program, environment, summary, trace and, if given, the calibration that its host ops' seconds come
    from; each file whole or not at all."""
    from sim.files.chrome import write_run
    from sim.files.inputs import forget_other_plan, write_inputs
    from sim.files.nccl import wires_of
    from sim.files.owned import calibration_beside

    measured = calibration_beside(calibration, folder) if calibration is not None else {}
    forget_other_plan(folder, plan)
    write_inputs(folder, plan, program, machine_files(machines()) | measured)
    write_json(folder / f"summary-{found['how']}.json", found)  # what was trained and what was played share a folder
    write_run(trace, folder, wires_of(plan))
