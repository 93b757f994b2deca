"""`steptwin topology`: list, show, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topologies.verbs import AsJson, Desk, Fail, MachineSets, Report, Verbs, Without, of_machine


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the group to the command line."""
    group = Verbs(help="Machines and clusters", no_args_is_help=True)
    app.add_typer(group, name="topology")

    @group.command("list")
    def list_(as_json: AsJson = False) -> None:
        """Machines and GPUs of the catalog."""
        from topologies.load import gpus, machines

        desk.show({"machines": list(machines()), "gpus": list(gpus())}, as_json, "catalog")

    @group.command()
    def show(
        name: Annotated[str, typer.Argument(help='A machine, "16x dgx-h100", or a file')],
        set_: MachineSets = None,
        fail: Fail = None,
        without: Without = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """What a machine is made of.  Example: steptwin topology show dgx-h100 --report dgx-h100.html"""
        from topologies.load import load_topology
        from topologies.summary import facts, summary

        topology = load_topology(name, of_machine(set_, fail, without))
        desk.show(facts(topology) if as_json else summary(topology), as_json, "topology")
        if report:
            desk.say(f"page: {desk.page('topology', report, topology)}")

    @group.command("import")
    def import_(
        file: Annotated[Path, typer.Argument(help="NCCL's topology XML (NCCL_TOPO_DUMP_FILE) or the text of nvidia-smi topo -m")],
        gpu: Annotated[str, typer.Option(help="The GPUs' catalog name, where the file does not tell")] = "",
        out: Annotated[Path | None, typer.Option("--out", help="Write the TOML here instead of printing it")] = None,
    ) -> None:
        """Turn another tool's file into a TOML that can be edited.  Example: steptwin topology import topo.xml --out mine.toml"""
        from topologies.readers import read_file

        found = read_file(file, gpu)
        for note in found.notes:
            desk.say(f"note: {note}")
        if out is None:
            print(found.toml(), end="")
            return
        part = out.with_name(out.name + ".part")
        part.write_text(found.toml(), "utf-8")
        part.replace(out)
        desk.say(f"wrote {out}; use it with --on {out}")
