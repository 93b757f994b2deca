"""Verbs of what disturbs a step: faults, jobs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from sim.planning.progress import watched
from sim.verbs import PlanName, heeded, unfit
from topologies.verbs import AsJson, Desk, On, Report, Sets, split


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the verbs."""

    @app.command()
    def faults(
        plan: PlanName,
        on: On = "2x dgx-h100",
        fault: Annotated[
            list[str] | None, typer.Option("--fault", help="fail=nic:n0/nic1, slow=r3:0.8, flap=nic:n0/nic1:0.3; default: the usual ones")
        ] = None,
        set_: Sets = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """What a failed link, a flapping NIC or a slow GPU costs this plan.  Example: steptwin faults gpt2-ddp8 --on dgx-h100"""
        from sim.files.planfile import load_plan
        from sim.planning.disturbed.faults import faults as run
        from sim.setting.bind import bind

        overrides, edits = split(set_)
        setting = heeded(desk, bind(load_plan(plan, overrides), on, edits))
        found = run(setting.plan, setting.topology, tuple(fault or ()), say=watched(desk.say))
        desk.show(_plain(found) | unfit(found, as_json), as_json, "faults")
        if report:
            desk.say(f"report: {desk.page('faults', report, found)}")
        if not found.fits:
            raise typer.Exit(3)

    @app.command()
    def jobs(
        plans: Annotated[list[str], typer.Argument(help="Two plans or more that share one cluster")],
        on: On = "4x dgx-h100",
        place: Annotated[list[str] | None, typer.Option("--place", help="compact or spread, or both")] = None,
        set_: Sets = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Several jobs on one cluster, each one's step alone and beside the others.  Example: steptwin jobs gpt2-ddp8 gpt2-ddp8"""
        from sim.files.planfile import load_plan
        from sim.planning.disturbed.jobs import jobs as run
        from sim.planning.disturbed.places import spoken

        overrides, edits = split(set_)
        found = run(
            [load_plan(plan, overrides) for plan in plans], on, tuple(place or ("compact", "spread")), edits=edits, say=watched(desk.say)
        )
        rows = [_plain(row) | {"slowdown": row.slowdown} | ({} if as_json else {"ranks": spoken(row.ranks)}) for row in found.rows]
        desk.show({**_plain(found), "rows": rows}, as_json, "jobs")
        if report:
            desk.say(f"report: {desk.page('jobs', report, found)}")
        if not all(row.fits for row in found.rows):
            raise typer.Exit(3)


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found
