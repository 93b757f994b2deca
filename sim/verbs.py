"""What verbs about a plan share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from topologies.verbs import Desk

if TYPE_CHECKING:
    from sim.setting.bind import Setting


def _shipped(incomplete: str) -> list[str]:
    """What a shell completes to; where it is none of these, files."""
    from sim.files.planfile import presets

    return [name for name in presets() if name.startswith(incomplete)]


PlanName = Annotated[str, typer.Argument(help="A plan: TOML file or a shipped plan's name (steptwin plan list)", autocompletion=_shipped)]


def heeded(desk: Desk, setting: Setting) -> Setting:
    """The setting, after a word about what of it has no effect: `predict` has these among its warnings."""
    from sim.result.idle import without_effect

    for text in without_effect(setting):
        desk.say(f"warning: {text}")
    return setting


class Fitting(Protocol):
    """What a study found of a plan, whether or not that fits into memory."""

    @property
    def fits(self) -> bool: ...


def unfit(found: Fitting, as_json: bool) -> dict[str, str]:
    """A line for people below the figures of a plan that does not fit."""
    from sim.memory.report import UNFIT

    return {} if found.fits or as_json else {"memory": UNFIT}
