"""Verbs that score: validate, accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topologies.verbs import AsJson, Desk, Workers


def add(app: typer.Typer, desk: Desk) -> None:
    """Adds the verbs."""

    @app.command()
    def validate(
        data: Annotated[Path, typer.Option(help="CSV in the columns of the published table")],
        collectives: Annotated[bool, typer.Option("--collectives", help="The file holds timings of collectives")] = False,
        workers: Workers = 2,
        limit: Annotated[int | None, typer.Option(help="Only so many rows")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Score predictions against published measurements."""
        if collectives:
            from sim.accuracy.collectives import validate_collectives

            desk.show(validate_collectives(data), as_json, "validation")
            return
        from sim.accuracy.training import validate_training

        desk.show(validate_training(data, workers=workers, limit=limit).to_dict(), as_json, "validation")

    @app.command()
    def accuracy(
        shared: Annotated[Path, typer.Option(help="Folder with groundtruth/ and facts/")] = Path("../shared"),
        workers: Workers = 2,
        as_json: AsJson = False,
    ) -> None:
        """Every table of accuracy: kernels, collectives, published steps beside their baselines."""
        from sim.accuracy.tables import accuracy_tables

        found = accuracy_tables(shared, workers, say=desk.say)
        if as_json:
            desk.show(found, True, "accuracy")
            return
        for name, rows in found.items():
            desk.show({"rows": rows}, False, name)
