"""Quantities as people write them, and as the program holds them.

Inside: seconds (float), bytes (int), bytes per second per direction (float), FLOP/s (float).
At the edge a unit is required: `"25 MiB"`, `"450 GB/s"`, `"400 Gbit/s"`, `"1.2 us"`, `"989 TFLOP/s"`.
Rates are decimal (GB/s = 1e9 bytes per second), as nccl-tests and vendors print them; sizes may be
decimal (MB) or binary (MiB). A bare number is an error that shows the two likely readings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from topologies.errors import UnitError

_SIZE = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_SIZE |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = {f"{name}/s": float(scale) for name, scale in _SIZE.items()}
_RATE |= {f"{p}bit/s": s / 8 for p, s in (("", 1.0), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))}
_FLOPS = {f"{p}FLOP/s": s for p, s in (("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))}
_POWER = {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
_FREQUENCY = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}

_COUNT = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d]\S*)?\s*\Z")
_LIKELY = {"size": ("MiB", "MB"), "time": ("ms", "us"), "rate": ("GB/s", "Gbit/s"), "FLOP rate": ("TFLOP/s", "GFLOP/s"), "power": ("W", "kW"),
           "clock": ("MHz", "GHz")}  # fmt: skip


def _read(text: object, table: dict[str, float] | dict[str, int], noun: str, where: str, likely: tuple[str, str] | None = None) -> float:
    place = f" at {where}" if where else ""
    first, second = likely or _LIKELY[noun]
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        raise UnitError(f'a {noun} needs a unit{place}: got {text!r}. Write "{text} {first}" or "{text} {second}"')
    match = _NUMBER.match(text) if isinstance(text, str) and len(text) <= 64 else None
    if match is None:
        raise UnitError(f'cannot read {str(text)[:40]!r} as a {noun}{place}. Example: "1.5 {first}"')
    number, unit = match.groups()
    if unit is None:
        raise UnitError(f'a {noun} needs a unit{place}: got \'{number}\'. Write "{number} {first}" or "{number} {second}"')
    if unit not in table:
        near = _near(unit, table)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnitError(f"unknown unit '{unit[:20]}' for a {noun}{place}.{hint} Allowed: {', '.join(table)}")
    value = float(number) * table[unit]
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"a {noun} must be finite and not negative{place}: got {text!r}")
    return value


def _near(unit: str, table: Iterable[str]) -> list[str]:
    """Units that are written alike: Gbit/s for Gb/s and Gbps, where a small b is a bit, as networks are sold; else whatever the letters' size."""
    said = unit.replace("ps", "/s")
    short = {name: name.replace("bit", "b") for name in table}
    alike = [name for name, letters in short.items() if letters.lower() == said.lower()]
    return [name for name in alike if short[name] == said] or alike


def size(text: object, where: str = "") -> int:
    """Bytes of `"25 MiB"`, `"1.5 GB"`, `"4096 B"`. Raises `UnitError`."""
    return round(_read(text, _SIZE, "size", where))


def duration(text: object, where: str = "", likely: tuple[str, str] = ("ms", "us")) -> float:
    """Seconds of `"2 ms"`, `"1.2 us"`; `likely` are the two units that the message offers for a bare number. Raises `UnitError`."""
    return _read(text, _TIME, "time", where, likely)


def rate(text: object, where: str = "") -> float:
    """Bytes per second, one direction, of `"450 GB/s"` or `"400 Gbit/s"`. Raises `UnitError`."""
    return _read(text, _RATE, "rate", where)


def flops(text: object, where: str = "") -> float:
    """FLOP per second of `"989 TFLOP/s"`; a multiply-add counts two. Raises `UnitError`."""
    return _read(text, _FLOPS, "FLOP rate", where)


def power(text: object, where: str = "") -> float:
    """Watts of `"700 W"`, `"1.4 kW"`. Raises `UnitError`."""
    return _read(text, _POWER, "power", where)


def frequency(text: object, where: str) -> float:
    """Hertz of `"1980 MHz"`, `"1.98 GHz"`. Raises `UnitError`."""
    return _read(text, _FREQUENCY, "clock", where)


def count(text: str, where: str = "") -> float:
    """How many: `"15T"`, `"300B"` (billions), `"1.5e12"`. Raises `UnitError`."""
    match = _NUMBER.match(text) if len(text) <= 64 else None
    unit = match.group(2) if match else None
    if match is None or (unit or "K").upper() not in _COUNT:
        place = f" at {where}" if where else ""
        raise UnitError(f"cannot read {text[:40]!r} as a number{place}. Write 15e12, or 15T ({', '.join(_COUNT)})")
    return float(match.group(1)) * (_COUNT[unit.upper()] if unit else 1.0)


def _show(value: float, steps: tuple[tuple[str, float], ...]) -> str:
    for unit, scale in steps:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    unit, scale = steps[-1]
    return f"{value / scale:.4g} {unit}"


def show_count(value: float) -> str:
    """`3.072e8` -> `"307.2 M"`; billions as B, as `count` reads them."""
    return _show(value, (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0))).rstrip()


def show_size(value: float) -> str:
    """`27262976` -> `"26 MiB"`; exact bytes below 1 KiB."""
    return _show(value, (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)))


def show_duration(value: float) -> str:
    """`0.00234` -> `"2.34 ms"`."""
    return _show(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def show_energy(joules: float) -> str:
    """`1.402e11` -> `"38.94 MWh"`; kWh below one MWh, joules below a tenth of a kWh."""
    if joules >= 3.6e9:
        return f"{joules / 3.6e9:,.2f} MWh"
    return f"{joules / 3.6e6:,.2f} kWh" if joules >= 3.6e5 else f"{joules:,.0f} J"


def show_rate(value: float) -> str:
    """`4.5e11` -> `"450 GB/s"` (decimal)."""
    return _show(value, (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3), ("B/s", 1.0)))


def show_flops(value: float) -> str:
    """`9.89e14` -> `"989 TFLOP/s"`."""
    return _show(value, (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6)))
