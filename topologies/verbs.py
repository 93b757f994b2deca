"""What the verbs of the command line share: their options, and the desk that prints and draws for them.

Each room keeps its own verbs (`commands.py`); `steptwin.py` puts them together. A verb computes; the desk, which alone knows `reports`,
shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from typer.core import TyperCommand

from topologies.errors import BadInput


class Verb(TyperCommand):
    """A verb whose options are given once, but those that may be repeated: of two, the last would count and the first be passed over in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does. Raises `BadInput` for an option that is given twice."""
        given: list[Any] = [] if ctx.resilient_parsing else [*self.make_parser(ctx).parse_args(list(args))[2]]
        for one in given:
            if one.param_type_name == "option" and not (one.multiple or one.is_flag) and given.count(one) > 1:
                raise BadInput(f"{one.opts[0]} is given {given.count(one)} times: it takes one value. Give it once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As typer does, which ends an interrupted verb without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("steptwin: interrupted", file=sys.stderr)
            raise


class Verbs(typer.Typer):
    """A command line, or a group of it, whose verbs are `Verb`s."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = Verb, **more: Any) -> Callable[[Any], Any]:
        """As typer does."""
        return super().command(name, cls=cls, **more)


def _catalog(incomplete: str) -> list[str]:
    """What a shell completes to; where it is none of these, files."""
    from topologies.load import machines

    return [name for name in machines() if name.startswith(incomplete)]


On = Annotated[
    str,
    typer.Option(
        "--on", help='Machine or cluster: dgx-h100, "16x dgx-h100", this-machine, a TOML, XML or topo -m file', autocompletion=_catalog
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key of the plan (parallel.tp=4) or of the machine (link.nvlink.rate=200 GB/s); may be repeated"),
]
PlanSets = Annotated[list[str] | None, typer.Option("--set", help="Override a key of the plan (parallel.tp=4); may be repeated")]
MachineSets = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the machine (link.nvlink.rate=200 GB/s); may be repeated")
]
Fail = Annotated[list[str] | None, typer.Option("--fail", help="What if this failed: link:gpu0-nvswitch, spine:2, nic:n0/nic1, nvswitch:2")]
Without = Annotated[list[str] | None, typer.Option("--without", help="What if there were none: nvswitch, nvlink, nic, p2p, spine")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


def _page(text: str) -> Path:
    """Raises `BadInput` for a page that cannot be written, before the work that it is of."""
    path = Path(text)
    folder = next((one for one in (path.absolute().parent, *path.absolute().parents) if one.exists()), Path("/"))
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        why = "it is a folder" if path.is_dir() else f"{folder} is no folder" if not folder.is_dir() else "this user may not write there"
        raise BadInput(f"--report {text}: {why}. Name a file that can be written, e.g. runs/report.html")
    return path


Report = Annotated[Path | None, typer.Option("--report", help="Write a self-contained HTML page here", parser=_page, metavar="PATH")]
Prices = Annotated[Path | None, typer.Option("--prices", help="TOML with prices per GPU-hour by machine, and what changes of one add")]
Calibrated = Annotated[Path | None, typer.Option("--calibration", help="A file that `steptwin probe` wrote on the machine of --on")]
Steps = Annotated[
    int, typer.Option("--steps", help="Optimizer steps to measure; play rounds up to whole passes through its program", min=1)
]
Workers = Annotated[int, typer.Option("--workers", help="Processes of this machine that share the work", min=1)]


class Desk(Protocol):
    """Prints and draws what a verb has found."""

    def show(self, value: Mapping[str, Any], as_json: bool, kind: str) -> None:
        """Prints `value` as JSON, or as tables of the given kind."""

    def say(self, text: str) -> None:
        """Progress, on standard error, so that --json stays clean."""

    def page(self, kind: str, path: Path, *parts: Any) -> Path:
        """Draws `parts` as a page of the given kind and writes it to `path`; returns where it is."""


def split(
    sets: list[str] | None, fail: list[str] | None = None, without: list[str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(overrides of the plan, edits of the machine): `--set` takes both, told apart by their first word."""
    from topologies.edits import is_edit

    plan: list[str] = []
    machine: list[str] = []
    for one in sets or ():
        (machine if is_edit(one.partition("=")[0].strip()) else plan).append(one)
    machine += [f"fail={what}" for what in fail or ()] + [f"without={what}" for what in without or ()]
    return tuple(plan), tuple(machine)


def of_machine(sets: list[str] | None, fail: list[str] | None = None, without: list[str] | None = None) -> tuple[str, ...]:
    """Edits of the machine, for a verb without a plan. Raises `BadInput` for a `--set` that is no key of a machine."""
    from topologies.build import MANY
    from topologies.edits import keys

    plan, machine = split(sets, fail, without)
    if plan:
        many = f" {MANY}" if plan[0].startswith("gpus=") else ""
        raise BadInput(
            f"--set {plan[0]} is no key of a machine, and there is no plan here.{many}{'.' if many else ''} Keys: {', '.join(keys())}"
        )
    return machine
