"""Verbs that exchange Chakra execution traces with other simulators: `steptwin chakra export` and `replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sim.verbs import PlanName
from topologies.errors import BadInput
from topologies.verbs import AsJson, Calibrated, Desk, Fail, MachineSets, On, Sets, Verbs, Without, of_machine, split


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the group to the command line."""
    group = Verbs(help="Chakra execution traces, as ASTRA-sim reads and writes them", no_args_is_help=True)
    app.add_typer(group, name="chakra")

    @group.command()
    def export(
        plan: PlanName,
        out: Annotated[Path, typer.Option("--out", help="Folder for MODEL.RANK.et and MODEL.groups.json")],
        on: On = "dgx-h100",
        set_: Sets = None,
        calibration: Calibrated = None,
        ranks: Annotated[str, typer.Option("--ranks", help="Write these ranks alone: 0,1,8; default: all")] = "",
        as_json: AsJson = False,
    ) -> None:
        """One step of a plan as a trace for each rank.  Example: steptwin chakra export gpt2-ddp8 --out runs/chakra"""
        from sim.exchange.export import export_plan, left_out
        from sim.files.planfile import load_plan
        from sim.setting.bind import bind

        if any(not part.strip().isdecimal() for part in ranks.split(",") if ranks):
            raise BadInput(f"--ranks {ranks[:60]}: must be whole numbers with commas between, such as 0,1,8")
        wanted = tuple(int(part) for part in ranks.split(",")) if ranks else ()
        overrides, edits = split(set_)
        setting = bind(load_plan(plan, overrides), on, edits)
        found = export_plan(setting, out, calibration=calibration, ranks=wanted)
        for key in left_out(setting.plan):
            desk.say(f"note: {key}: not in the traces, which hold what training threads do in one step")
        desk.show(msgspec.to_builtins(found), as_json, "chakra export")

    @group.command()
    def replay(
        prefix: Annotated[str, typer.Argument(help="PREFIX of PREFIX.0.et, PREFIX.1.et ...")],
        on: On = "dgx-h100",
        groups: Annotated[
            Path | None, typer.Option("--groups", help="Communicator groups (JSON); default: PREFIX.groups.json if it is there")
        ] = None,
        set_: MachineSets = None,
        calibration: Annotated[
            Path | None, typer.Option(help="Of a CPU host: its collectives, from a file that `steptwin probe` wrote")
        ] = None,
        fail: Fail = None,
        without: Without = None,
        as_json: AsJson = False,
    ) -> None:
        """Simulate traces on a machine: nodes last what they say, exchanges what they take there.  Example: steptwin chakra replay runs/chakra/gpt2-ddp8"""
        from sim.exchange.replay import replay as run

        edits = of_machine(set_, fail, without)
        found = run(prefix, on, groups=groups, edits=edits, calibration=calibration).to_dict()
        if not as_json:
            desk.say("note: computation lasts what the traces say, whatever device --on names: a machine changes the exchanges")
            found["rows"] = [{"class of op": one["class"], "critical_path_s": one["seconds"]} for one in found.pop("critical_path")]
        desk.show(found, as_json, "chakra replay")
