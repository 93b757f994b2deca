"""Results as text, as plain values and as a pandas DataFrame: what the values that scripts get have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from topologies.errors import BadInput


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a pandas DataFrame. Raises `BadInput` without pandas."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise BadInput("to_frame needs pandas: pip install pandas. Without it, to_dict() has the same rows") from None
    return pandas.DataFrame(list(rows))


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text: the first column and sentences to the left, figures to the right."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    left = [at == 0 or wordy(line[at] for line in lines[1:]) for at in range(len(head))]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    shown = [
        [cell.ljust(width) if left[at] else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in shown)


def _briefly(value: Any) -> str:
    """What a line has room for: of a list its length, of a table its type, of a number its first digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple, dict)):
        return f"<{len(value)}>"
    return f"<{type(value).__name__}>" if isinstance(value, msgspec.Struct) else repr(value)


_SENTENCE = 24
"""Letters from which a cell that begins with no digit is one."""


def wordy(cells: Iterable[str]) -> bool:
    """Whether a column holds sentences, which read from the left."""
    return any(len(cell) > _SENTENCE and not cell.lstrip("+-")[:1].isdigit() for cell in cells)


class Tabular:
    """A value that is a table: plain by `to_dict`, a DataFrame by `to_frame`. `_rows` gives one mapping of plain values a row."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _rows(self) -> list[dict[str, Any]]: ...

        # `reports.notebook` gives these to what the functions of `steptwin` return.
        def figure(self, what: str = "") -> Any: ...

        def _repr_html_(self) -> str: ...

    def __repr__(self) -> str:
        """One line, however many rows there are; `print` shows them."""
        fields = ((name, getattr(self, name)) for name in getattr(self, "__struct_fields__", ()))
        return f"{type(self).__name__}({', '.join(f'{name}={_briefly(value)}' for name, value in fields)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the verb's `--json` has them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row for each result. Raises `BadInput` without pandas."""
        return frame(self._rows())
