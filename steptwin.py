"""StepTwin: predict a training step, run the same plan, compare the two.

    import steptwin
    steptwin.predict({"model": "llama3-8b", "parallel": {"dp_shard": 8, "zero": 3}}, "dgx-h100")

Importing this module loads nothing heavy; each function imports what it needs. The command line is `steptwin`; its verbs
live in the rooms that do the work (`*/commands.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import typer
    from torch import nn

    from executor.twin import Twin
    from sim.align import Comparison
    from sim.plan import Plan
    from sim.planning.capacity import Capacity
    from sim.planning.explain import Explanation
    from sim.planning.sweep import Sweep
    from sim.prediction import Prediction
    from topologies.load import Topology

    PlanLike: TypeAlias = Plan | str | Path | dict[str, Any]
    """A plan, a shipped plan's name, a TOML file, or the same as a mapping."""

__version__ = "0.1.0"
__all__ = ["capacity", "compare", "explain", "main", "marked", "predict", "sweep", "topology", "twin"]
T = TypeVar("T")


def predict(plan: PlanLike, topology: Topology | str | Path, **options: Any) -> Prediction:
    """Predicts one training step; see `sim.predict.predict` for the options and errors."""
    from sim.predict import predict as run

    return _shown(run(plan, topology, **options))


def twin(plan: PlanLike, folder: str | Path, **options: Any) -> Twin:
    """Probes if needed, predicts, plays, trains with stock PyTorch and compares, on this machine."""
    from executor.twin import twin as run
    from sim.files.planfile import load_plan

    return run(load_plan(plan), Path(folder), **options)


def compare(predicted: Prediction, measured: str | Path) -> Comparison:
    """Lays a prediction beside a trace file that was measured elsewhere."""
    from sim.timeline.compare import compare as run

    return _shown(run(predicted, measured))


def marked(model: nn.Module, **options: Any) -> AbstractContextManager[None]:
    """Names the ops of your own training loop for `compare`; see `executor.marks.marked`."""
    from executor.marks import marked as run

    return run(model, **options)


def topology(source: str | Path | Topology, *edits: str) -> Topology:
    """A machine or cluster by name, expression or file, with what-ifs: `topology("4x dgx-h100", "oversubscription=2")`."""
    from topologies.load import load_topology

    return _shown(load_topology(source, edits))


def sweep(plan: PlanLike, space: str | int, on: str, file: str | Path | None = None, **options: Any) -> Sweep:
    """Every plan of a space such as `"tp=1,2,4 pp=1..8 gpus=64"` (a number: all sensible plans on so many GPUs); see `sim.planning.sweep`."""
    from sim.files.planfile import read_plan
    from sim.planning.auto import auto_space
    from sim.planning.space import parse_space
    from sim.planning.sweep import sweep as run

    base = read_plan(plan)
    points = auto_space(base, on, space) if isinstance(space, int) else parse_space(space)
    return _shown(run(base, points, on, Path(file) if file is not None else None, **options))


def explain(plan: PlanLike, on: Topology | str | Path, **options: Any) -> Explanation:
    """What the step is spent on, what faster resources would bring, and the best changes of plan; see `sim.planning.explain`."""
    from sim.bind import bind
    from sim.planning.explain import explain as run

    return _shown(run(bind(plan, on), **options))


def capacity(plan: PlanLike, on: str, tokens: float, **options: Any) -> Capacity:
    """Days, GPU-hours, energy, money and goodput of a whole training run; see `sim.planning.capacity`."""
    from sim.files.planfile import load_plan
    from sim.planning.capacity import capacity as run

    return _shown(run(load_plan(plan), on, tokens, **options))


def _shown(value: T) -> T:
    """In a notebook, the value can show itself."""
    from reports.notebook import shown

    return shown(value)


class _Desk:
    """Prints and draws for the verbs (`topologies.verbs.Desk`); the only place that knows `reports`."""

    def show(self, value: Mapping[str, Any], as_json: bool, kind: str) -> None:
        if as_json:
            print(json.dumps(value, indent=1, sort_keys=True, default=str))
            return
        from reports.tables import show

        show(value, kind)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def page(self, kind: str, path: Path, *parts: Any) -> Path:
        from reports.folder import WRITERS

        if sys.stderr.isatty():  # a page of thousands of GPUs takes half a minute
            self.say("drawing the report")
        return WRITERS[kind](path, *parts)


_ROOMS = {
    "sim.commands": ("predict", "compare", "study", "spread", "collective", "schema", "plan"),
    "executor.commands": ("twin", "run", "here", "probe", "doctor", "plan"),
    "sim.planning.commands": ("sweep", "explain", "capacity", "faults", "jobs"),
    "sim.accuracy.commands": ("validate", "accuracy"),
    "topologies.commands": ("topology",),
    "sim.exchange.commands": ("chakra",),
}
"""Which room has which verbs: one verb loads its own rooms alone, which halves the start of a short command."""


def _version(asked: bool) -> None:
    if asked:
        print(f"steptwin {__version__}")
        sys.exit()


def _app(verb: str = "") -> typer.Typer:
    """The command line; with the rooms of `verb` alone where it is one, else with all of them (help, wrong names)."""
    from importlib import import_module

    import typer

    about = (__doc__ or "").split("\n")[0]
    codes = "Exit codes: 0 done, 2 bad input, 3 does not fit into memory, 4 a run failed."
    app = typer.Typer(help=about, epilog=codes, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
    plans = typer.Typer(help="Shipped plans and models", no_args_is_help=True)
    desk = _Desk()

    @app.callback()  # keeps an app of one verb a group: `steptwin topology list` stays two words
    def begin(version: bool = typer.Option(False, "--version", help="Print the version and end", is_eager=True, callback=_version)) -> None:
        pass

    for room in [name for name, verbs in _ROOMS.items() if verb in verbs] or _ROOMS:
        import_module(room).add(app, plans, desk)
    app.add_typer(plans, name="plan")
    return app


def main() -> None:
    """The command line: `steptwin --help`. Exit codes: 0 done, 2 bad input, 3 does not fit, 4 a run failed."""
    import gc

    from topologies.errors import SteptwinError

    # A prediction builds many small objects and next to no cycles: rarer collections save a tenth of a short command.
    gc.set_threshold(50_000, 20, 20)
    try:
        _app(sys.argv[1] if len(sys.argv) > 1 else "")()
    except SteptwinError as error:
        print(f"steptwin: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # a folder that cannot be written, a full disk; what reads files says more itself
        where = f"{error.filename}: " if error.filename else ""
        advice = ". Name another place with --out, --report or --plot" if where else ""
        print(f"steptwin: {where}{error.strerror or error}{advice}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
