"""What a reader hands on: a machine's document, and what it had to assume."""

from __future__ import annotations

import msgspec

from topologies.readers.dump import dump


class Imported(msgspec.Struct, frozen=True):
    """A machine that was read from another tool's file."""

    document: dict[str, object]
    """As read from a machine's TOML file: `topologies.build.build` makes a machine of it."""
    notes: tuple[str, ...] = ()
    """Assumptions, for the person who checks the file."""

    def toml(self) -> str:
        """A TOML file to read and edit, the notes on top as comments."""
        return dump(self.document, self.notes)
