"""Of all ranks that a launcher started, only the first one prints tables, JSON and progress and writes pages, so that each comes once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executor.ranks.environment import leads
from topologies.verbs import Desk


class Speaker:
    """A desk (`topologies.verbs.Desk`) that is silent on all ranks but the first."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def show(self, value: Mapping[str, Any], as_json: bool, kind: str) -> None:
        """Prints `value` as JSON, or as tables of the given kind."""
        if leads():
            self._desk.show(value, as_json, kind)

    def say(self, text: str) -> None:
        """Prints progress on standard error."""
        if leads():
            self._desk.say(text)

    def page(self, kind: str, path: Path, *parts: Any) -> Path:
        """Draws `parts` as a page and writes it; the other ranks only return `path`."""
        return self._desk.page(kind, path, *parts) if leads() else path
