"""One table of a TOML file, read field by field: unknown keys and wrong kinds are errors that say where."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from topologies import units
from topologies.errors import BadInput, UnknownName

LARGEST = 1 << 20
"""Bytes of a topology file that are read at most: the largest catalog file has 4 KB."""
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""Formats of numbers whose FLOP/s a device may have."""


def read_toml(path: Path, what: str = "topology file", largest: int = LARGEST, hint: str = "") -> dict[str, object]:
    """The document in `path`. Raises `BadInput` (ending in `hint`) where it is absent, too large, not text or not TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise BadInput(f"cannot read the {what} {path}: {error.strerror}. {hint}".rstrip()) from None
    if len(data) > largest:
        raise BadInput(f"{path} is larger than {largest >> 20} MiB: this is no {what}. {hint}".rstrip())
    return parse_toml(data, f"the {what} {path}", hint)


def parse_toml(data: bytes | str, where: str, hint: str = "") -> dict[str, object]:
    """The document in `data`, whose bytes may begin with a byte order mark; `where` names it in messages. Raises `BadInput`."""
    try:
        return tomllib.loads(data if isinstance(data, str) else data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # tomllib's own error, bad text, numbers of thousands of digits, deep nesting
        raise BadInput(f"{where} is not valid TOML: {str(error)[:200] or 'nested too deeply'}. {hint}".rstrip()) from None


class Table:
    """A table with its place (`machine 'x', [fabric]`) and the keys that it may have."""

    def __init__(self, data: object, where: str, allowed: Iterable[str]) -> None:
        if not isinstance(data, Mapping):
            raise BadInput(f"{where} must be a table, got {str(data)[:40]!r}")
        names = tuple(allowed)
        for key in data:
            if key not in names:
                raise UnknownName("key", str(key), names, where)
        self._data: Mapping[str, object] = data
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str, default: object = None) -> object:
        return self._data.get(key, default)

    def at(self, key: str) -> str:
        return f"{self.where}, {key}"

    def text(self, key: str, default: str = "") -> str:
        """A text. Raises `BadInput` for anything else."""
        value = self._data.get(key, default)
        if not isinstance(value, str):
            raise BadInput(f"{self.at(key)} must be a text in quotes, got {value!r}")
        return value

    def whole(self, key: str, default: int = 0, least: int = 0, most: int = 10**7) -> int:
        """A whole number from `least` to `most`. Raises `BadInput`."""
        value = self._data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadInput(f"{self.at(key)} must be a whole number from {least} to {most}, got {str(value)[:40]}")
        return value

    def number(self, key: str, default: float, least: float = 0.0) -> float:
        """A finite number of at least `least`. Raises `BadInput`."""
        value = self._data.get(key, default)
        # A whole number of hundreds of digits is below infinity and yet no float.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= sys.float_info.max:
            raise BadInput(f"{self.at(key)} must be a number of at least {least:g}, got {str(value)[:40]}")
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        """True or false. Raises `BadInput` for anything else."""
        value = self._data.get(key, default)
        if not isinstance(value, bool):
            raise BadInput(f"{self.at(key)} must be true or false, got {str(value)[:40]}")
        return value

    def rate(self, key: str, default: float = 0.0) -> float:
        return positive(units.rate(self._data[key], self.at(key)), self.at(key)) if key in self._data else default

    def size(self, key: str, default: int = 0) -> int:
        return round(positive(units.size(self._data[key], self.at(key)), self.at(key))) if key in self._data else default

    def duration(self, key: str, default: float = 0.0) -> float:
        return units.duration(self._data[key], self.at(key)) if key in self._data else default

    def flops(self, key: str) -> dict[str, float]:
        """FLOP/s by dtype from a table of texts."""
        table = self._data.get(key, {})
        if not isinstance(table, Mapping):
            raise BadInput(f'{self.at(key)} must be a table such as {{ bf16 = "989 TFLOP/s" }}')
        for name in table:
            if name not in DTYPES:
                raise UnknownName("dtype", str(name), DTYPES, self.at(key))
        return {k: positive(units.flops(v, self.at(f"{key}.{k}")), self.at(f"{key}.{k}")) for k, v in table.items()}

    def texts(self, key: str) -> dict[str, tuple[str, ...]]:
        """A table of lists of texts."""
        table = self._data.get(key, {})
        if not isinstance(table, Mapping):
            raise BadInput(f'{self.at(key)} must be a table such as {{ sw0 = ["gpu0", "nic0"] }}')
        found = {}
        for name, values in table.items():
            if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
                raise BadInput(f"{self.at(key)}.{name} must be a list of names in quotes")
            found[str(name)] = tuple(values)
        return found


def positive(value: float, where: str) -> float:
    """`value` (bytes, bytes or operations a second), or `BadInput` where it is not one at least."""
    if not 1 <= value < float("inf"):
        raise BadInput(f"{where} must be above zero and finite, got {value:g}{': less than one byte or operation' if value > 0 else ''}")
    return value
