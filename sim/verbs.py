"""What verbs about a plan share."""

from __future__ import annotations

from typing import Annotated

import typer


def _shipped(incomplete: str) -> list[str]:
    """What a shell completes to; where it is none of these, files."""
    from sim.files.planfile import presets

    return [name for name in presets() if name.startswith(incomplete)]


PlanName = Annotated[str, typer.Argument(help="A plan: TOML file or a shipped plan's name (steptwin plan list)", autocompletion=_shipped)]
