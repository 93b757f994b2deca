"""Verbs that need devices: twin, run, here, probe, doctor, and `plan capture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from executor.ranks.speaker import Speaker
from sim.verbs import PlanName
from topologies.errors import BadInput
from topologies.verbs import AsJson, Desk, PlanSets, Steps

Folder = Annotated[Path | None, typer.Option("--out", help="Folder for the run's files; default: runs/PLAN")]


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the verbs; `plans` is the group `steptwin plan`."""
    desk = Speaker(desk)
    _runs(app, desk)
    _machine(app, desk)

    @plans.command("capture")
    def capture_(
        module: Annotated[str, typer.Argument(help="my_package.my_module:build, a function that returns a torch.nn.Module")],
        input_: Annotated[list[str], typer.Option("--input", help="Shape and dtype of an input: 8x3x224x224:fp32; may be repeated")],
        out: Annotated[Path, typer.Option("--out", help="The model file to write; its name ends in .json")],
        precision: Annotated[str, typer.Option(help="Dtype of parameters and floating-point inputs")] = "",
        trust: Annotated[bool, typer.Option("--trust", help="Import and run the named code; without this nothing of it runs")] = False,
    ) -> None:
        """Record a module's ops under fake tensors.  Example: steptwin plan capture my_pkg.mod:build --input 8x3x224x224:fp32 --out m.json"""
        from executor.recording.capture import capture_to

        desk.say(f"wrote {capture_to(module, tuple(input_), out, trust, precision=precision)}")


def folder_of(plan: str) -> Path:
    """Default folder of a run: `runs/llama3.1-8b-128k` for the plan of that name, `runs/mine` for `plans/mine.toml`."""
    return Path("runs") / Path(plan.removesuffix(".toml")).name


def _runs(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def twin(plan: PlanName, out: Folder = None, set_: PlanSets = None, steps: Steps = 30, as_json: AsJson = False) -> None:
        """Probe if needed, predict, run, compare and report, on this machine.  Example: steptwin twin tiny-ddp"""
        from executor.twin import machines
        from executor.twin import twin as run
        from sim.files.machinefile import machine_files
        from sim.files.owned import CALIBRATION, calibration_beside, check_folder
        from sim.files.planfile import load_plan

        folder, beside = out or folder_of(plan), machine_files(machines())
        check_folder(folder, plan, (*beside, CALIBRATION))
        found = run(load_plan(plan, tuple(set_ or ())), folder, steps=steps, say=desk.say)
        result, beside = found.to_dict(), beside | calibration_beside(Path(found.calibration), folder)
        parts = (found.plan, found.prediction.program, result, found.traces, found.comparisons, found.times, beside)
        report = desk.page("comparison", folder, *parts)
        desk.show(result, as_json, "comparison")
        desk.say(f"report: {report}")

    @app.command()
    def run(
        plan: PlanName,
        out: Folder = None,
        set_: PlanSets = None,
        steps: Steps = 30,
        how: Annotated[str, typer.Option(help="stock (PyTorch's own machinery) or play (the predicted program)")] = "stock",
        as_json: AsJson = False,
    ) -> None:
        """Run the plan on this machine's devices.  Example: steptwin run cpu-comm-bound --how play"""
        from executor.twin import run_plan
        from sim.files.owned import CALIBRATION, check_folder
        from sim.files.planfile import load_plan

        folder = out or folder_of(plan)
        check_folder(folder, plan, (CALIBRATION,) if how == "play" else ())
        desk.show(run_plan(load_plan(plan, tuple(set_ or ())), folder, how, steps, say=desk.say), as_json, "run")


def _machine(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def probe(
        out: Annotated[Path, typer.Option("--out", help="The calibration file to write")] = Path("calibration.toml"),
        ranks: Annotated[int, typer.Option(help="Processes that measure at once: the ranks of the plans to predict", min=1)] = 2,
        quick: Annotated[bool, typer.Option("--quick", help="A third of the time for each point: more noise")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Measure this machine; writes a readable calibration file.  Example: steptwin probe --out calibration.toml"""
        from executor.probe import probe as run

        found = run(ranks, out, quick=quick)
        desk.show({"calibration": str(out), "entries": found.entries}, as_json, "probe")
        if found.missing:
            desk.say(f"not measured: {found.missing}")
        if found.crowded:
            desk.say(f"note: {found.crowded}")

    @app.command()
    def here(
        names: Annotated[list[str] | None, typer.Argument(help="Plans of the table; all of them where none is named")] = None,
        out: Annotated[Path, typer.Option("--out", help="Folder for calibrations and runs")] = Path("runs/here"),
        steps: Steps = 30,
        as_json: AsJson = False,
        gpu: Annotated[bool, typer.Option("--gpu", help="The table of GPU plans: one GPU, all of the node, ranks that share one")] = False,
        gpus: Annotated[int | None, typer.Option("--gpus", help="With --gpu: GPUs that may be used; default: all of this node")] = None,
        minutes: Annotated[
            float | None, typer.Option("--minutes", help="With --gpu: start no plan after so many; default: 9. The next call continues")
        ] = None,
        device: Annotated[
            str | None, typer.Option("--device", help="With --gpu: cpu runs the same table with tiny plans, without a GPU; default: cuda")
        ] = None,
        keep: Annotated[
            Path | None, typer.Option("--keep", help="With --gpu: folder for summary and calibration; default: reports/measured")
        ] = None,
    ) -> None:
        """Predicted against measured here: small plans of every kind.  Example: steptwin here ddp fsdp 1f1b"""
        own = {"gpus": gpus, "minutes": minutes, "device": device, "keep": keep}
        given = {name: value for name, value in own.items() if value is not None}
        if gpu:
            _gpu_table(desk, names or None, out, steps, as_json, given)
            return
        if given:
            raise BadInput(f"{', '.join(f'--{name}' for name in given)}: only with the table of GPU plans. Add --gpu, or leave it out")
        from executor.validation.here import here as run

        rows, summary = run(names or None, out, steps, say=desk.say)
        desk.show({"rows": msgspec.to_builtins(rows), **msgspec.to_builtins(summary)}, as_json, "this machine")

    @app.command()
    def doctor(as_json: AsJson = False) -> None:
        """What is installed, which devices are there, what is missing."""
        from executor.doctor import doctor as look

        desk.show(look(), as_json, "doctor")


def _gpu_table(desk: Desk, names: list[str] | None, out: Path, steps: int, as_json: bool, given: dict[str, Any]) -> None:
    """`steptwin here --gpu`. `given`: the options of that table which the user has given."""
    from executor.validation.gpu_twin import twin_gpu

    if given.get("device") != "cpu":
        given.setdefault("keep", Path("reports/measured"))
    _, total, folder = twin_gpu(names, out, steps=steps, say=desk.say, **given)
    found = msgspec.json.decode((folder / "summary.json").read_bytes())
    page = desk.page("gpu", folder / "report.html", found)
    shares = {
        "mean error, uncalibrated": total.uncalibrated,
        "mean error, calibrated": total.calibrated,
        "calibrated against played": total.against_played,
        "time in ops within 10 %": total.ops_within,
    }
    words = {name: "-" if share is None else f"{share:.1%}" for name, share in shares.items()}
    desk.show(found if as_json else {"plans with figures": f"{total.measured} of {total.plans}", **words}, as_json, "GPU")
    desk.say(f"report: {page}")
