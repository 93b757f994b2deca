"""How tokens of a mixture of experts travel when each goes only once to every place that holds one of its experts."""

from __future__ import annotations

from topologies.errors import BadInput

_ONCE = "once:"


def once(experts: int) -> str:
    """The word (`Op.how`) for an all_to_all whose tokens go to `experts` ranks each, once to every node and from there on."""
    return f"{_ONCE}{experts}"


def experts_of(how: str) -> int:
    """The inverse of `once`; 0 for an exchange that goes any other way. Raises `BadInput`."""
    if not how.startswith(_ONCE):
        return 0
    text = how.removeprefix(_ONCE)
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise BadInput(f"cannot read {how[:40]!r} of an all_to_all: write {once(8)} where each token goes to 8 ranks")
    return int(text)


def different(places: int, experts: int) -> float:
    """Places that hold at least one of a token's experts, in the mean over even routing: places x (1 - (1 - 1 / places) ** experts)."""
    return places * (1.0 - (1.0 - 1.0 / places) ** experts)
