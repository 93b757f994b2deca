"""Verbs that predict: predict, compare, study, spread, collective, and `plan list`, `plan show` and `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sim.verbs import PlanName, heeded, unfit
from topologies.errors import BadInput
from topologies.verbs import (
    AsJson,
    Calibrated,
    Desk,
    Fail,
    MachineSets,
    On,
    PlanSets,
    Report,
    Sets,
    Without,
    of_machine,
    split,
)


def _folder(text: str) -> Path:
    """Raises `BadInput` for an empty name, which would be the folder that one is in."""
    if not text.strip():
        raise BadInput('--out "" names no folder. Write e.g. --out runs/mine')
    return Path(text)


Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run's files", parser=_folder, metavar="PATH")]


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the verbs; `plans` is the group `steptwin plan`."""
    _predict(app, desk)
    _compare(app, desk)
    _studies(app, desk)
    _collective(app, desk)
    _plans(plans, desk)

    @app.command(context_settings={"ignore_unknown_options": True})  # `collective --calibrate` has a form of its own
    def schema(verb: Annotated[list[str], typer.Argument(help="A verb with --json: predict, sweep, plan list ...")]) -> None:
        """The JSON schema of what a verb prints with --json.  Example: steptwin schema predict"""
        from sim.files.schema import schema as find

        desk.show(find(" ".join(verb)), True, "schema")


def _predict(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def predict(
        plan: PlanName,
        on: On = "dgx-h100",
        set_: Sets = None,
        fail: Fail = None,
        without: Without = None,
        calibration: Calibrated = None,
        costs: Annotated[str, typer.Option(help="fitted, or tables: measured kernels of the package aiconfigurator-core")] = "fitted",
        steps: Annotated[int, typer.Option(help="Optimizer steps to simulate at least; two are in any case", min=1)] = 3,
        out: Out = None,
        as_json: AsJson = False,
    ) -> None:
        """Predict one training step.  Example: steptwin predict llama3-8b-fsdp8 --on dgx-h100 --set seq_len=4096"""
        from sim.files.planfile import load_plan
        from sim.predict import details, predict_setting
        from sim.setting.bind import bind
        from topologies.load import load_topology

        overrides, edits = split(set_, fail, without)
        machine, base = load_topology(on, edits), load_plan(plan, overrides)
        beside = _beside(out, plan, on, edits, calibration)
        setting = bind(base, machine)
        # A table shows nothing that comes of single ops: 405B on 16,384 GPUs takes 6 s without them, 22 with.
        detail = out is not None or (as_json and details(setting, steps))
        found = predict_setting(setting, calibration=calibration, costs=costs, steps=steps, detail=detail)
        summary = found.to_dict()
        if out:
            desk.say(f"report: {desk.page('prediction', out, found.plan, found.program, summary, found.trace, machine, beside)}")
        desk.show(summary, as_json, "prediction")
        if not found.fits:
            raise typer.Exit(3)


def _beside(out: Path | None, plan: str, on: str, edits: tuple[str, ...], calibration: Path | None) -> dict[str, str]:
    """What a rerun needs beside the plan, by its name in the folder `out`: the machine, the calibration. Raises `BadInput`, before anything is
    computed, where a file that somebody wrote would be overwritten."""
    if out is None:
        return {}
    from sim.files.machinefile import machine_files
    from sim.files.owned import calibration_beside, check_folder

    found = machine_files(on, edits) | (calibration_beside(calibration, out) if calibration is not None else {})
    check_folder(out, plan, found)
    return found


def _compare(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def compare(
        plan: PlanName,
        measured: Annotated[
            Path,
            typer.Option(
                help="A trace of your own run: torch.profiler's .json[.gz] or a folder of all ranks', Nsight's .sqlite, or a run's folder"
            ),
        ],
        on: On = "dgx-h100",
        set_: Sets = None,
        fail: Fail = None,
        without: Without = None,
        calibration: Calibrated = None,
        out: Out = None,
        as_json: AsJson = False,
    ) -> None:
        """Lay a prediction beside a trace of your own run.  Example: steptwin compare my-plan.toml --on dgx-h100 --measured trace.json.gz"""
        from sim.files.planfile import load_plan
        from sim.imported import read_measured
        from sim.predict import predict
        from sim.result.compare import compare as run
        from sim.result.compare import doubts, measured_file, measured_times
        from topologies.load import load_topology

        overrides, edits = split(set_, fail, without)
        machine, base = load_topology(on, edits), load_plan(plan, overrides)
        beside = _beside(out, plan, on, edits, calibration)
        trace = read_measured(measured_file(measured))
        predicted = predict(base, machine, calibration=calibration)
        found = {"imported": run(predicted, trace)}
        runs = {name: one.to_dict() for name, one in found.items()}
        result = {"prediction": predicted.to_dict(), "runs": runs, "notes": doubts(predicted, trace)}
        if out:
            times = {"imported": measured_times(trace)}
            parts = (predicted.plan, predicted.program, result, [predicted.trace, trace], found, times, beside, machine)
            desk.say(f"report: {desk.page('comparison', out, *parts)}")
        desk.show(result, as_json, "comparison")


def _studies(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def study(
        name: Annotated[str, typer.Argument(help="cifar10-two-workers two-gpus-six-stages copy-compute-overlap nccl-two-gpus")],
        calibration: Annotated[str | None, typer.Option(help="Of a CPU host, for the variants that run on one")] = None,
        as_json: AsJson = False,
    ) -> None:
        """A shipped plan in its variants, side by side: what each change brings.  Example: steptwin study nccl-two-gpus"""
        from sim.planning.studies import run_study

        rows = [msgspec.to_builtins(row) for row in run_study(name, calibration)]
        shown = ("variant", "step_s", "data_s", "exposed_comm_s", "sync_s", "cpu_busy", "bottleneck")
        desk.show({"rows": rows if as_json else [{key: row[key] for key in shown} for row in rows]}, as_json, name)

    @app.command()
    def spread(
        plan: PlanName,
        on: On = "dgx-h100",
        set_: Sets = None,
        draws: Annotated[int, typer.Option(help="Steps to draw")] = 1000,
        seed: Annotated[int, typer.Option(help="Of the draws")] = 0,
        rank: Annotated[float | None, typer.Option(help="Sigma of log(clock) of boards; 0: the slowest as `predict` has it")] = None,
        step: Annotated[float | None, typer.Option(help="Sigma of log(time) from step to step")] = None,
        length: Annotated[float | None, typer.Option(help="Sigma of log(length) of the samples")] = None,
        slow_link: Annotated[float | None, typer.Option(help="A node's link (on one node: a rank's) that is so many times slower")] = None,
        calibration: Calibrated = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Step time as a distribution: P50, P95, P99 under jitter and imbalance.  Example: steptwin spread gpt2-ddp8 --draws 500"""
        from sim.files.planfile import load_plan
        from sim.planning.montecarlo import Jitter
        from sim.planning.montecarlo import spread as run
        from sim.setting.bind import bind

        overrides, edits = split(set_)
        given = {"rank": rank, "step": step, "length": length, "slow_link": slow_link}
        jitter = Jitter(**{key: value for key, value in given.items() if value is not None})
        setting = heeded(desk, bind(load_plan(plan, overrides), on, edits))
        drawn = run(setting, draws=draws, seed=seed, jitter=jitter, calibration=calibration)
        found = msgspec.to_builtins(drawn)
        if not as_json:
            del found["samples_s"]
        desk.show(found | unfit(drawn, as_json), as_json, "spread")
        if report:
            desk.say(f"report: {desk.page('spread', report, drawn.plan, drawn.topology, drawn)}")
        if not drawn.fits:
            raise typer.Exit(3)


_COLLECTIVES = "all_reduce all_gather reduce_scatter all_to_all broadcast reduce barrier send"
_ALGORITHMS = "auto ring tree nvls pat collnet hierarchical"
"""What `sim.cost.collective` knows, which takes long to load for a line of help; tested to be the same words."""
_LARGEST = "64 MiB"


def _collective(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def collective(
        name: Annotated[str, typer.Argument(help=_COLLECTIVES)],
        on: On = "dgx-h100",
        bytes_: Annotated[str, typer.Option("--bytes", help="Largest size of the table")] = _LARGEST,
        ranks: Annotated[int | None, typer.Option(help="How many ranks take part, the first ones; default: all")] = None,
        algorithm: Annotated[str, typer.Option(help=_ALGORITHMS)] = "auto",
        set_: MachineSets = None,
        fail: Fail = None,
        without: Without = None,
        calibrate: Annotated[Path | None, typer.Option("--calibrate", help="Output of nccl-tests: fit the machine's links to it")] = None,
        plot: Annotated[Path | None, typer.Option("--plot", help="Write a page with algbw and busbw over size here")] = None,
        as_json: AsJson = False,
    ) -> None:
        """A table like nccl-tests': size, time, algbw, busbw.  Example: steptwin collective all_reduce --on "4x dgx-h100" --bytes "1 GiB\""""
        from sim.cost.collective.table import collective_table
        from sim.files.machinefile import machine_words
        from topologies.load import load_topology
        from topologies.unfelt import unfelt

        machine = load_topology(on, of_machine(set_, fail, without))
        if calibrate is not None:
            if plot or ranks is not None or (bytes_, algorithm) != (_LARGEST, "auto"):
                raise BadInput(
                    "collective --calibrate fits the links to what the file has, and draws no page: leave --bytes, --ranks, --algorithm and --plot out"
                )
            from sim.cost.ncclimport import calibrate as fit

            fitted = fit(calibrate, machine, name)
            words = [f"--set {edit!r}" for edit in fitted.edits]
            desk.show({"rows": fitted.table, "edits": words, "before": fitted.before, "after": fitted.after}, as_json, "nccl-tests")
            return
        found = collective_table(name, bytes_, machine, ranks, algorithm) | {"topology": machine_words(machine)}
        for note in unfelt(machine, found["ranks"]):
            desk.say(f"note: {note}")
        desk.show(found, as_json, "collective")
        if plot:
            desk.say(f"page: {desk.page('collective', plot, found)}")


def _plans(plans: typer.Typer, desk: Desk) -> None:
    @plans.command("list")
    def list_(as_json: AsJson = False) -> None:
        """Shipped plans, each with a machine for --on, models, and frameworks."""
        from sim.files.planfile import about, presets
        from sim.framework.framework import frameworks
        from sim.model import models

        rows = [dict(zip(("plan", "what", "on"), (name, *about(path)), strict=True)) for name, path in presets().items()]
        desk.show({"rows": rows, "models": list(models()), "frameworks": list(frameworks())}, as_json, "plans")

    @plans.command()
    def show(plan: PlanName, set_: PlanSets = None, as_json: AsJson = False) -> None:
        """A plan file with every default filled in, to start from.  Example: steptwin plan show tiny-ddp > my-plan.toml"""
        from sim.files.fullplan import full_plan, full_tree
        from sim.files.planfile import load_plan

        found = load_plan(plan, tuple(set_ or ()))
        if as_json:
            desk.show(full_tree(found), True, "plan")
        else:
            print(full_plan(found), end="")
