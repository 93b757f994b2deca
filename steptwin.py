"""StepTwin: predict a training step, run the same plan, compare the two.

    import steptwin
    steptwin.predict({"model": "llama3-8b", "parallel": {"dp_shard": 8, "zero": 3}}, "dgx-h100")

Importing this module loads nothing heavy; each function imports what it needs. The command line is `steptwin`.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from executor.twin import Twin
    from sim.align import Comparison
    from sim.plan import Plan
    from sim.predict import Prediction
    from topologies.load import Topology

__version__ = "0.1.0"
__all__ = ["compare", "main", "predict", "twin"]


def predict(plan: "Plan | str | Path | dict[str, Any]", topology: "Topology | str | Path", **options: Any) -> "Prediction":
    """Predicts one training step; see `sim.predict.predict` for the options and errors."""
    from sim.predict import predict as run

    return run(plan, topology, **options)


def twin(plan: "Plan | str | Path | dict[str, Any]", folder: str | Path, **options: Any) -> "Twin":
    """Probes if needed, predicts, plays, trains with stock PyTorch and compares, on this machine."""
    from executor.twin import twin as run
    from sim.planfile import load_plan

    return run(load_plan(plan), Path(folder), **options)


def compare(predicted: "Prediction", measured: str | Path) -> "Comparison":
    """Lays a prediction beside a trace file that was measured elsewhere."""
    from sim.align import align_by_class
    from sim.kineto import read_trace
    from sim.metrics import step_times

    assert predicted.trace is not None
    trace = read_trace(Path(measured))
    return align_by_class(predicted.trace, trace, step_times(trace))


_PLAN = "A plan: TOML file or a shipped plan's name (steptwin plan list)"
_SET = "Override a key of the plan: --set parallel.tp=4 (may be repeated)"


def _app() -> "typer.Typer":
    import typer

    app = typer.Typer(help=__doc__.split("\n")[0], no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
    json_flag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]
    sets = Annotated[list[str] | None, typer.Option("--set", help=_SET)]
    on = Annotated[str, typer.Option("--on", help='Machine or cluster: dgx-h100, "16x dgx-h100", this-machine, a TOML file')]
    plan_arg = Annotated[str, typer.Argument(help=_PLAN)]
    edits = Annotated[list[str] | None, typer.Option("--edit", help="What-if on the topology: link.nvlink.rate=400 GB/s")]
    out = Annotated[Path | None, typer.Option("--out", help="Folder for the run's files")]

    @app.command("predict")
    def predict_(
        plan: plan_arg,
        on: on = "dgx-h100",
        set_: sets = None,
        edit: edits = None,
        calibration: Path | None = None,
        steps: int = 3,
        out: out = None,
        as_json: json_flag = False,
    ) -> None:
        """Predict one training step.  Example: steptwin predict llama3-8b-fsdp8 --on dgx-h100"""
        from sim.planfile import load_plan
        from sim.predict import predict as run

        found = run(load_plan(plan, tuple(set_ or ())), on, edits=tuple(edit or ()), calibration=calibration, steps=steps)
        if out:
            from reports.folder import write_prediction

            assert found.trace is not None
            write_prediction(out, found.plan, found.program, found.to_dict(), found.trace)
        _show(found.to_dict(), as_json, "prediction")
        if not found.fits:
            raise typer.Exit(3)

    @app.command("twin")
    def twin_(
        plan: plan_arg, out: out = None, set_: sets = None, steps: int = 30, ranks: int | None = None, as_json: json_flag = False
    ) -> None:
        """Probe if needed, predict, run, compare and report, on this machine."""
        from executor.twin import twin as run
        from reports.folder import write_comparison
        from sim.planfile import load_plan

        folder = out or Path("runs") / Path(plan).stem
        found = run(load_plan(plan, tuple(set_ or ())), folder, steps=steps, say=_say)
        result = found.to_dict()
        summary, program = result["prediction"], found.prediction.program
        report = write_comparison(folder, found.plan, program, summary, found.traces, found.comparisons, found.times, result, found.notes)
        _show(result, as_json, "comparison")
        _say(f"report: {report}")

    @app.command("run")
    def run_(plan: plan_arg, out: out = None, set_: sets = None, steps: int = 30, how: str = "stock", as_json: json_flag = False) -> None:
        """Run the plan on this machine's devices: --how stock (PyTorch's own) or play (the predicted program)."""
        from executor.twin import run_plan
        from sim.planfile import load_plan

        folder = out or Path("runs") / Path(plan).stem
        _show(run_plan(load_plan(plan, tuple(set_ or ())), folder, how, steps, say=_say), as_json, "run")

    @app.command("compare")
    def compare_(
        plan: plan_arg,
        measured: Annotated[Path, typer.Option(help="Kineto trace file (.json or .json.gz)")],
        on: on = "dgx-h100",
        set_: sets = None,
        as_json: json_flag = False,
    ) -> None:
        """Lay a prediction beside a trace that was measured elsewhere."""
        from sim.planfile import load_plan
        from sim.predict import predict as run

        found = compare(run(load_plan(plan, tuple(set_ or ())), on), measured)
        _show(_plain(found), as_json, "comparison")

    @app.command("probe")
    def probe_(out: Path = Path("calibration.toml"), ranks: int = 2, quick: bool = False, as_json: json_flag = False) -> None:
        """Measure this machine: kernels, dispatch, memory, collectives, input path; writes a readable calibration file."""
        from executor.probe import probe as run

        found = run(ranks, out, quick=quick)
        _show({"calibration": str(out), "entries": found.entries}, as_json, "probe")

    @app.command("doctor")
    def doctor_(as_json: json_flag = False) -> None:
        """What is installed, which devices are there, what is missing."""
        from executor.doctor import doctor

        _show(doctor(), as_json, "doctor")

    @app.command("accuracy")
    def accuracy_(
        shared: Annotated[Path, typer.Option(help="Folder with groundtruth/ and facts/")] = Path("../shared"),
        workers: int = 2,
        as_json: json_flag = False,
    ) -> None:
        """Every table of accuracy: kernels, collectives, published steps beside their baselines."""
        from sim.accuracy.tables import accuracy_tables

        found = accuracy_tables(shared, workers, say=_say)
        if as_json:
            _show(found, True, "accuracy")
            return
        for name, rows in found.items():
            _show({"rows": rows}, False, name)

    _planning(app, plan_arg, on, sets, json_flag)
    _search(app, plan_arg, on, sets, json_flag)
    _catalog(app, json_flag)
    return app


def _planning(app: "typer.Typer", plan_arg: Any, on: Any, sets: Any, json_flag: Any) -> None:
    """validate, collective, doctor."""
    import typer

    @app.command("validate")
    def validate_(
        data: Annotated[Path, typer.Option(help="CSV in the columns of the published table")],
        collectives: bool = False,
        workers: int = 2,
        limit: int | None = None,
        as_json: json_flag = False,
    ) -> None:
        """Score predictions against published measurements."""
        if collectives:
            from sim.accuracy.collectives import validate_collectives

            _show(validate_collectives(data), as_json, "validation")
            return
        from sim.accuracy.training import validate_training

        _show(validate_training(data, workers=workers, limit=limit).to_dict(), as_json, "validation")

    @app.command("collective")
    def collective_(
        name: str,
        on: on = "dgx-h100",
        bytes_: Annotated[str, typer.Option("--bytes")] = "64 MiB",
        ranks: int | None = None,
        algorithm: str = "auto",
        as_json: json_flag = False,
    ) -> None:
        """A table like nccl-tests': size, time, algbw, busbw and the algorithm chosen."""
        from sim.cost.collective.table import collective_table

        _show(collective_table(name, bytes_, on, ranks, algorithm), as_json, "collective")


def _search(app: "typer.Typer", plan_arg: Any, on: Any, sets: Any, json_flag: Any) -> None:
    """sweep, explain, capacity."""
    import typer

    @app.command("sweep")
    def sweep_(
        plan: plan_arg,
        space: Annotated[str, typer.Argument(help='Values by key: "tp=1,2,4 pp=1..8 gpus=64 micro=1,2"')],
        on: on = "dgx-h100",
        set_: sets = None,
        out: Path = Path("runs/sweep.sqlite"),
        workers: int = 2,
        backend: str = "",
        address: str = "",
        prices: Path | None = None,
        as_json: json_flag = False,
    ) -> None:
        """Every plan of a space: memory first, then simulation; resumes where it was."""
        from sim.planfile import load_plan
        from sim.planning.capacity import load_prices
        from sim.planning.space import parse_space
        from sim.planning.sweep import sweep

        base = load_plan(plan, tuple(set_ or ()))
        money = load_prices(prices) if prices else None
        found = sweep(base, parse_space(space), on, out, workers=workers, backend=backend, address=address, prices=money, say=_say)
        rows = [_plain(row) for row in found.feasible]
        shown = {"rows": rows if as_json else [{k: r[k] for k in ("key", "step_time", "mfu", "memory", "gpus")} for r in rows[:10]]}
        if as_json:
            shown["front"] = [_plain(row) for row in found.front]
        _show({**shown, "counts": found.counts, "best": found.best.key if found.best else "", "file": found.path}, as_json, "sweep")

    @app.command("explain")
    def explain_(plan: plan_arg, on: on = "dgx-h100", set_: sets = None, as_json: json_flag = False) -> None:
        """Critical path, what each resource is worth, and the best changes of plan."""
        from sim.bind import bind
        from sim.planfile import load_plan
        from sim.planning.explain import explain

        found = _plain(explain(bind(load_plan(plan, tuple(set_ or ())), on)))
        if as_json:
            _show(found, True, "explain")
            return
        _show(
            {"rows": found["sensitivities"], "step_time_s": found["step_time_s"], "verdict": found["verdict"]},
            False,
            "what faster resources are worth",
        )
        _show(
            {"rows": [{"change": " ".join(c["overrides"]), "step_time_s": c["step_time_s"], "gain": c["gain"]} for c in found["changes"]]},
            False,
            "changes",
        )

    @app.command("capacity")
    def capacity_(
        plan: plan_arg,
        tokens: Annotated[float, typer.Option(help="Tokens (or samples) to train, e.g. 15e12")],
        on: on = "dgx-h100",
        set_: sets = None,
        days: Annotated[float | None, typer.Option(help="Find the smallest cluster that finishes in so many days")] = None,
        prices: Path | None = None,
        as_json: json_flag = False,
    ) -> None:
        """Days, GPU-hours, energy, money and goodput of a training run."""
        from sim.planfile import load_plan
        from sim.planning.capacity import capacity, load_prices, smallest

        base = load_plan(plan, tuple(set_ or ()))
        found = (
            smallest(base, on, tokens, days, say=_say)
            if days
            else capacity(base, on, tokens, prices=load_prices(prices) if prices else None)
        )
        _show({**_plain(found), "days": found.days}, as_json, "capacity")


def _catalog(app: "typer.Typer", json_flag: Any) -> None:
    """topology list|show|import, plan list|show|capture."""
    import typer

    topology = typer.Typer(help="Machines and clusters", no_args_is_help=True)
    plans = typer.Typer(help="Shipped plans and models", no_args_is_help=True)
    app.add_typer(topology, name="topology")
    app.add_typer(plans, name="plan")

    @topology.command("list")
    def list_(as_json: json_flag = False) -> None:
        """Machines of the catalog."""
        from topologies.load import gpus, machines

        _show({"machines": list(machines()), "gpus": list(gpus())}, as_json, "catalog")

    @plans.command("list")
    def plan_list(as_json: json_flag = False) -> None:
        """Shipped plans."""
        from sim.model import models
        from sim.planfile import presets

        _show({"plans": list(presets()), "models": list(models())}, as_json, "catalog")

    @plans.command("show")
    def plan_show(plan: str, as_json: json_flag = False) -> None:
        """A plan with every default filled in."""
        from sim.planfile import load_plan

        _show(_plain(load_plan(plan)), as_json, "plan")


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _show(value: dict[str, Any], as_json: bool, kind: str) -> None:
    if as_json:
        print(json.dumps(value, indent=1, sort_keys=True, default=str))
        return
    from reports.tables import show

    show(value, kind)


def _say(text: str) -> None:
    """Progress, on standard error, so that --json stays clean."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """The command line: `steptwin --help`. Exit codes: 0 done, 2 bad input, 3 does not fit, 4 a run failed."""
    from topologies.errors import SteptwinError

    try:
        _app()()
    except SteptwinError as error:
        print(f"steptwin: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
