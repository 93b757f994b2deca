"""Verbs that score: validate, accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topologies.errors import BadInput
from topologies.verbs import AsJson, Desk, Report, Workers


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the verbs."""

    @app.command()
    def validate(
        data: Annotated[Path | None, typer.Option(help="CSV in the columns of the published table; default: the table that ships")] = None,
        collectives: Annotated[bool, typer.Option("--collectives", help="The file holds timings of collectives")] = False,
        workers: Workers = 2,
        limit: Annotated[int | None, typer.Option(help="Only so many rows")] = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Score predictions against published measurements.  Example: steptwin validate --limit 50"""
        if collectives:
            from sim.accuracy.collectives.timings import validate_collectives

            if data is None:
                raise BadInput("validate --collectives needs timings: give a CSV file with --data")
            if limit is not None or report is not None:
                raise BadInput("validate --collectives scores every timing and draws no page: leave --limit and --report out")
            desk.show(validate_collectives(data), as_json, "validation")
            return
        from sim.accuracy.progress import on_terminal
        from sim.accuracy.tables import step_tables
        from sim.accuracy.training import validate_training

        found = validate_training(data, workers=workers, limit=limit, progress=on_terminal())
        if as_json:
            desk.show(found.to_dict(), True, "validation")
        else:
            for name, rows in step_tables(found).items():
                if found.scored or name == "refused":
                    desk.show({"rows": rows}, False, name)
        if not found.scored:
            desk.say(f"nothing is scored: of {found.rows} rows {found.eligible} are of quality A or B with a step time in step_time_s")
        if report:
            desk.say(f"report: {desk.page('validation', report, found.to_dict())}")

    @app.command()
    def accuracy(
        shared: Annotated[
            Path | None, typer.Option(help="Folder with groundtruth/ and facts/; without it ../shared, where that is")
        ] = None,
        workers: Workers = 2,
        as_json: AsJson = False,
    ) -> None:
        """Every table of accuracy, beside targets and baselines.  Example: steptwin accuracy --shared ../shared"""
        from sim.accuracy.progress import on_terminal
        from sim.accuracy.tables import accuracy_tables

        if shared is not None and not shared.is_dir():
            raise BadInput(
                f"--shared {shared} is no folder: it holds groundtruth/ and facts/. Without --shared the shipped table is scored"
            )
        found = accuracy_tables(shared or Path("../shared"), workers, say=desk.say, progress=on_terminal())
        if as_json:
            desk.show(found, True, "accuracy")
            return
        for name, rows in found.items():
            desk.show({"rows": rows}, False, name)
