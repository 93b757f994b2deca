"""StepTwin: predict a training step, run the same plan, compare the two.

    import steptwin
    steptwin.predict({"model": "llama3-8b", "parallel": {"dp_shard": 8, "zero": 3}}, "dgx-h100")

A plan is a shipped plan's name, a TOML or JSON file, a mapping in the file's form (a result's `to_dict()["plan"]`), or what `plan` returns. A machine is a name, an expression
("16x dgx-h100"), a file, or what `topology` returns. Seconds, bytes, FLOP/s and joules throughout; rates per direction.
Results (`Prediction`, `Sweep`, `Explanation`, `Capacity`, `Spread`, `Faults`, `Jobs`, `Comparison`) print, have `to_dict()` and `to_frame()` (pandas), show
themselves in a notebook and draw themselves with `figure()`.
Every error that is raised on purpose is a `SteptwinError`:

    SteptwinError           one clear message, and the command line's `exit_code`
        BadInput            what was written cannot be used: what, where, what is allowed
            UnitError       a size, rate, time or number that cannot be read
            UnknownName     a key, plan or machine that does not exist; `near` has the nearest
            Disconnected    ranks of a machine that do not reach each other
            Refused         understood, but not supported in this combination
                NoRoom      no plan that was asked for fits into memory
        RunFailed           a run on devices ended early; `partial` is where what was measured is

No error: a plan that does not fit; a prediction has `fits`, and `does_not_fit` with what would make it fit. Importing this module
loads nothing heavy; the verbs of the command line live in the rooms that do the work (`*/commands.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from topologies.errors import BadInput, Disconnected, NoRoom, Refused, RunFailed, SteptwinError, UnitError, UnknownName

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import typer
    from torch import nn

    from executor.twin import Twin
    from sim.align import Comparison as Comparison
    from sim.plan import Plan as Plan
    from sim.planning.capacity.capacity import Capacity as Capacity
    from sim.planning.capacity.goodput import Reliability as Reliability
    from sim.planning.disturbed.faults import Faults as Faults
    from sim.planning.disturbed.jobs import Jobs as Jobs
    from sim.planning.explain.explanation import Explanation as Explanation
    from sim.planning.montecarlo import Jitter as Jitter
    from sim.planning.montecarlo import Spread as Spread
    from sim.planning.sweeps.sweep import Sweep as Sweep
    from sim.result.prediction import Prediction as Prediction
    from topologies.load import Topology as Topology

    PlanLike: TypeAlias = Plan | str | Path | dict[str, Any]
    Machine: TypeAlias = Topology | str | Path
    Prices: TypeAlias = Mapping[str, float] | str | Path

__version__ = "0.1.0"
__all__ = ["BadInput", "Disconnected", "Jitter", "NoRoom", "Refused", "RunFailed", "SteptwinError", "UnitError", "UnknownName", "capacity", "compare", "explain", "faults",
           "jobs", "main", "marked", "plan", "predict", "run", "spread", "sweep", "topology", "twin"]  # fmt: skip
T = TypeVar("T")


_TYPES = {
    "Capacity": "sim.planning.capacity.capacity", "Comparison": "sim.align", "Explanation": "sim.planning.explain.explanation",
    "Faults": "sim.planning.disturbed.faults", "Jitter": "sim.planning.montecarlo", "Jobs": "sim.planning.disturbed.jobs", "Plan": "sim.plan",
    "Prediction": "sim.result.prediction", "Reliability": "sim.planning.capacity.goodput", "Spread": "sim.planning.montecarlo",
    "Sweep": "sim.planning.sweeps.sweep", "Topology": "topologies.load",
}  # fmt: skip
"""What the functions give and take, for annotations and options: the room of each, loaded when it is asked for."""


def __getattr__(name: str) -> Any:
    """`Prediction`, `Jitter` and the like (`_TYPES`)."""
    if name not in _TYPES:
        raise AttributeError(f"module 'steptwin' has no attribute '{name}'")
    return getattr(import_module(_TYPES[name]), name)


def __dir__() -> list[str]:
    """What scripts use."""
    return sorted({*__all__, *_TYPES, "__doc__", "__version__"})


def plan(source: PlanLike, *overrides: str) -> Plan:
    """A checked plan, with keys changed: `plan("llama3-8b-fsdp8", "batch.micro=2", "batch.global=16")`. Raises `BadInput`."""
    from sim.files.planfile import load_plan

    return load_plan(source, overrides)


def topology(source: Machine, *edits: str) -> Topology:
    """A machine or cluster, with what-ifs: `topology("4x dgx-h100", "oversubscription=2")`. Raises `BadInput`."""
    from topologies.load import load_topology

    return _shown(load_topology(source, edits))


def predict(plan: PlanLike, topology: Machine, *, edits: tuple[str, ...] = (), calibration: str | Path | None = None, costs: str = "fitted",
            steps: int = 3, fold: bool = True, detail: bool = True) -> Prediction:  # fmt: skip
    """Predicts one training step. `edits`: what-ifs of the machine ("link.nvlink.rate=200 GB/s"); `calibration`: a file that `steptwin probe` wrote on
    it; `costs`: "fitted", or "tables" of measured kernels; `steps` to simulate at least; `fold`: equal ranks once; `detail=False`: the same figures without
    a trace, for scripts of many plans. Raises `BadInput`; a plan that does not fit is no error (`fits`). More in `sim.predict.predict`."""
    from sim.predict import predict as find

    return _shown(find(plan, topology, edits=edits, calibration=calibration, costs=costs, steps=steps, fold=fold, detail=detail))


def run(plan: PlanLike, folder: str | Path, *, how: str = "stock", steps: int = 30) -> dict[str, Any]:
    """Trains ("stock") or plays ("play") the plan on this machine's devices and times its steps, in seconds. Raises `RunFailed`."""
    from executor.twin import run_plan
    from sim.files.planfile import load_plan

    return run_plan(load_plan(plan), Path(folder), how, steps)


def twin(plan: PlanLike, folder: str | Path, *, steps: int = 30, calibration: str | Path | None = None,
         say: Callable[[str], None] = print) -> Twin:  # fmt: skip
    """Probes if needed, predicts, plays, trains with stock PyTorch and compares, on this machine; see `executor.twin.twin`."""
    from executor.twin import twin as find
    from sim.files.planfile import load_plan

    known = Path(calibration) if calibration is not None else None
    return find(load_plan(plan), Path(folder), steps=steps, calibration=known, say=say)


def compare(predicted: Prediction, measured: str | Path) -> Comparison:
    """Lays a prediction beside a trace file that was measured elsewhere, or a run's folder. Raises `BadInput` for what is no trace."""
    from sim.result.compare import compare as find

    return _shown(find(predicted, measured))


def marked(model: nn.Module, **options: Any) -> AbstractContextManager[None]:
    """Names the ops of your own training loop for `compare`; see `executor.marks.marked`."""
    from executor.marks import marked as find

    return find(model, **options)


def sweep(plan: PlanLike, space: str | int | Mapping[str, Iterable[Any]], on: str, file: str | Path | None = None, *, workers: int = 1,
          backend: str = "", address: str = "", prices: Prices | None = None, every: str = "", edits: tuple[str, ...] = (),
          say: Callable[[str], None] | None = None) -> Sweep:  # fmt: skip
    """Every plan of `"tp=1,2,4 pp=1..8 gpus=64"`, `{"tp": [1, 2, 4]}`, or of all sensible ones on so many GPUs (`512`, `"auto=512 nic.rate=200
    Gbit/s,400 Gbit/s"`). Results are kept in `file`
    (SQLite; default: one for each sweep in ./runs) and gone on with. `prices`: money per GPU-hour by machine, or a file of it; `every`: also what cannot be better, "short" or
    "whole"; `workers` processes, or joblib's `backend` at `address`; `say` is told how far it is. Raises `BadInput`."""
    from sim.files.planfile import read_plan
    from sim.planning.sweeps.auto import expanded
    from sim.planning.sweeps.space import parse_space
    from sim.planning.sweeps.sweep import sweep as find

    base, edits = read_plan(plan), _edits(edits)
    points = expanded(base, parse_space({"auto": [space]} if isinstance(space, int) else space), on, edits)
    path = Path(file) if file is not None else None
    money = _prices(prices)
    return _shown(
        find(base, points, on, path, workers=workers, backend=backend, address=address, prices=money, every=every, edits=edits, say=say)
    )


def explain(plan: PlanLike, on: Machine, *, edits: tuple[str, ...] = (), tries: int = 8) -> Explanation:
    """What the step is spent on, what faster resources would bring, the best changes of plan (`tries` simulated). Raises `BadInput`."""
    from sim.planning.explain.explanation import explain as find
    from sim.setting.bind import bind

    return _shown(find(bind(plan, on, edits), tries))


def capacity(plan: PlanLike, on: Machine, tokens: float | str, *, how: Reliability | None = None, checkpoint: float | str | None = None,
             prices: Prices | None = None, seed: int = 0, edits: tuple[str, ...] = ()) -> Capacity:  # fmt: skip
    """Days, GPU-hours, joules, money, goodput for `tokens` (15e12, "15T" or "50k samples"; samples for images). `how`: what fails how often; `checkpoint`:
    seconds ("2 min") that one stalls training for (default: the plan's own); `prices`: money per GPU-hour by machine, or a file of it. Raises `BadInput`."""
    from sim.files.planfile import load_plan
    from sim.planning.capacity.amounts import tokens_of
    from sim.planning.capacity.capacity import capacity as find
    from topologies.units import duration

    plan = load_plan(plan)
    amount = tokens_of(tokens, plan, "tokens") if isinstance(tokens, str) else tokens
    stall = duration(checkpoint, "checkpoint", ("s", "min")) if isinstance(checkpoint, str) else checkpoint
    machine, edits = str(on) if isinstance(on, Path) else on, _edits(edits)
    return _shown(find(plan, machine, amount, how=how, checkpoint=stall, prices=_prices(prices), seed=seed, edits=edits))


def _edits(edits: str | Sequence[str]) -> tuple[str, ...]:
    """One alone is one, as for a machine: no list of letters."""
    return (edits,) if isinstance(edits, str) else tuple(edits)


def _prices(prices: Prices | None) -> dict[str, float] | None:
    from sim.planning.capacity.prices import load_prices

    if not isinstance(prices, (Mapping, str, os.PathLike, type(None))):
        raise BadInput(f'prices is money per GPU-hour by machine, such as {{"dgx-h100": 2.5}}, or a file of it, not {prices!r:.40}')
    return None if prices is None else load_prices(prices)


def spread(plan: PlanLike, on: Machine, draws: int = 1000, seed: int = 0, *, jitter: Jitter | None = None,
           calibration: str | Path | None = None) -> Spread:  # fmt: skip
    """Step time as a distribution under jitter and imbalance, in seconds. Same seed, same draws. Raises `BadInput`."""
    from sim.planning.montecarlo import spread as find

    return _shown(find(plan, on, draws, seed, jitter=jitter, calibration=calibration))


def faults(plan: PlanLike, on: Machine, tried: str | Sequence[str] = (), *, edits: tuple[str, ...] = ()) -> Faults:
    """The step under each fault of `tried` ("fail=nic:n0/nic1", "slow=r3:0.8"; none: the usual ones). Raises `BadInput`."""
    from sim.planning.disturbed.faults import faults as find

    return _shown(find(plan, on, tried if isinstance(tried, str) else tuple(tried), edits=edits))


def jobs(plans: Sequence[PlanLike], on: Machine, placements: str | Sequence[str] = (), *, edits: tuple[str, ...] = ()) -> Jobs:
    """Several jobs on one cluster, each one's step alone and beside the others, in each placement (none: both). Raises `BadInput`."""
    from sim.planning.disturbed.jobs import jobs as find

    return _shown(find(plans, on, placements, edits=edits))


def _shown(value: T) -> T:
    """In a notebook, the value can show itself."""
    from reports.notebook import shown

    return shown(value)


class _Desk:
    """Prints and draws for the verbs (`topologies.verbs.Desk`); the only place that knows `reports`."""

    def show(self, value: Mapping[str, Any], as_json: bool, kind: str) -> None:
        try:
            self._print(value, as_json, kind)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough: the pages that were asked for are written all the same
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, value: Mapping[str, Any], as_json: bool, kind: str) -> None:
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
    "sim.planning.commands": ("sweep", "explain", "capacity"),
    "sim.planning.disturbed.commands": ("faults", "jobs"),
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
    import typer

    from topologies.verbs import Verbs

    codes = "Exit codes: 0 done, 2 bad input, 3 does not fit into memory, 4 a run failed."
    about = (__doc__ or "").split("\n")[0]
    app = Verbs(help=about, epilog=codes, no_args_is_help=True, pretty_exceptions_enable=False,
                context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
    plans = Verbs(help="Shipped plans and models", no_args_is_help=True)
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
