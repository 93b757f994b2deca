"""Verbs that plan: sweep, explain, capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from topologies.verbs import AsJson, Desk, On, PlanName, Prices, Sets, Workers, split


def add(app: typer.Typer, desk: Desk) -> None:
    """Adds the verbs."""
    _sweep(app, desk)
    _explain(app, desk)
    _capacity(app, desk)


def _sweep(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def sweep(
        plan: PlanName,
        space: Annotated[str, typer.Argument(help='Values by key: "tp=1,2,4 pp=1..8 gpus=64 micro=1,2"')],
        on: On = "dgx-h100",
        set_: Sets = None,
        out: Annotated[Path, typer.Option("--out", help="SQLite file for the results; a file that is there is gone on with")] = Path(
            "runs/sweep.sqlite"
        ),
        workers: Workers = 2,
        backend: Annotated[str, typer.Option(help="dask or ray, for an existing cluster")] = "",
        address: str = "",
        prices: Prices = None,
        as_json: AsJson = False,
    ) -> None:
        """Every plan of a space: memory first, then simulation; resumes where it was."""
        from sim.planfile import load_plan
        from sim.planning.capacity import load_prices
        from sim.planning.space import parse_space
        from sim.planning.sweep import sweep as run

        base = load_plan(plan, tuple(set_ or ()))
        money = load_prices(prices) if prices else None
        found = run(base, parse_space(space), on, out, workers=workers, backend=backend, address=address, prices=money, say=desk.say)
        rows = [_plain(row) for row in found.feasible]
        shown: dict[str, Any] = {
            "rows": rows if as_json else [{k: r[k] for k in ("key", "step_time", "mfu", "memory", "gpus")} for r in rows[:10]]
        }
        if as_json:
            shown["front"] = [_plain(row) for row in found.front]
        desk.show({**shown, "counts": found.counts, "best": found.best.key if found.best else "", "file": found.path}, as_json, "sweep")


def _explain(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def explain(plan: PlanName, on: On = "dgx-h100", set_: Sets = None, as_json: AsJson = False) -> None:
        """Critical path, what each resource is worth, and the best changes of plan."""
        from sim.bind import bind
        from sim.planfile import load_plan
        from sim.planning.explain import explain as run

        overrides, edits = split(set_)
        found = _plain(run(bind(load_plan(plan, overrides), on, edits)))
        if as_json:
            desk.show(found, True, "explain")
            return
        head = {"rows": found["sensitivities"], "step_time_s": found["step_time_s"], "verdict": found["verdict"]}
        desk.show(head, False, "what faster resources are worth")
        changes = [{"change": " ".join(c["overrides"]), "step_time_s": c["step_time_s"], "gain": c["gain"]} for c in found["changes"]]
        desk.show({"rows": changes}, False, "changes")


def _capacity(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def capacity(
        plan: PlanName,
        tokens: Annotated[float, typer.Option(help="Tokens (or samples) to train, e.g. 15e12")],
        on: On = "dgx-h100",
        set_: Sets = None,
        days: Annotated[float | None, typer.Option(help="Find the smallest cluster that finishes in so many days")] = None,
        prices: Prices = None,
        as_json: AsJson = False,
    ) -> None:
        """Days, GPU-hours, energy, money and goodput of a training run."""
        from sim.planfile import load_plan
        from sim.planning.capacity import capacity as run
        from sim.planning.capacity import load_prices, smallest

        base = load_plan(plan, tuple(set_ or ()))
        money = load_prices(prices) if prices else None
        found = smallest(base, on, tokens, days, say=desk.say) if days else run(base, on, tokens, prices=money)
        desk.show({**_plain(found), "days": found.days}, as_json, "capacity")


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found
