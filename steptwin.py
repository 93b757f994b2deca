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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import typer
    from torch import nn

    from executor.twin import Twin
    from sim.align import Comparison
    from sim.plan import Plan
    from sim.predict import Prediction
    from topologies.load import Topology

__version__ = "0.1.0"
__all__ = ["compare", "main", "marked", "predict", "topology", "twin"]


def predict(plan: Plan | str | Path | dict[str, Any], topology: Topology | str | Path, **options: Any) -> Prediction:
    """Predicts one training step; see `sim.predict.predict` for the options and errors."""
    from sim.predict import predict as run

    return run(plan, topology, **options)


def twin(plan: Plan | str | Path | dict[str, Any], folder: str | Path, **options: Any) -> Twin:
    """Probes if needed, predicts, plays, trains with stock PyTorch and compares, on this machine."""
    from executor.twin import twin as run
    from sim.planfile import load_plan

    return run(load_plan(plan), Path(folder), **options)


def compare(predicted: Prediction, measured: str | Path) -> Comparison:
    """Lays a prediction beside a trace file that was measured elsewhere."""
    from sim.compare import compare as run

    return run(predicted, measured)


def marked(model: nn.Module, **options: Any) -> AbstractContextManager[None]:
    """Names the ops of your own training loop for `compare`; see `executor.marks.marked`."""
    from executor.marks import marked as run

    return run(model, **options)


def topology(source: str | Path | Topology, *edits: str) -> Topology:
    """A machine or cluster by name, expression or file, with what-ifs: `topology("4x dgx-h100", "oversubscription=2")`."""
    from topologies.load import load_topology

    return load_topology(source, edits)


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

        return WRITERS[kind](path, *parts)


def _app() -> typer.Typer:
    import typer

    import executor.commands
    import sim.accuracy.commands
    import sim.commands
    import sim.planning.commands
    import topologies.commands

    about = (__doc__ or "").split("\n")[0]
    app = typer.Typer(help=about, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
    plans = typer.Typer(help="Shipped plans and models", no_args_is_help=True)
    desk = _Desk()
    sim.commands.add(app, plans, desk)
    executor.commands.add(app, plans, desk)
    sim.planning.commands.add(app, desk)
    sim.accuracy.commands.add(app, desk)
    topologies.commands.add(app, desk)
    app.add_typer(plans, name="plan")
    return app


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
