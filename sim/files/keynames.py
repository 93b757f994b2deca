"""The keys that a plan, or a table of it, has by the types that hold them, and where a key that stands in the wrong place belongs."""

from __future__ import annotations

import typing
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import msgspec

from sim.plan import Plan
from sim.wrongvalue import struct_of
from topologies.errors import BadInput, UnknownName

_NEAR = 0.6
"""Likeness of two words (difflib's ratio) from which one may stand for the other."""

_COUNTS = (
    "gpus",
    "num_gpus",
    "n_gpus",
    "ngpus",
    "gpu_count",
    "gpus_per_node",
    "world_size",
    "world",
    "ranks",
    "nproc_per_node",
    "nodes",
    "num_nodes",
    "nnodes",
)
"""Words of other programs for how many devices there are, which a plan does not say in one number."""
_COUNTED = (
    "unknown key '{key}' in {where}: a plan runs on dp_replicate x dp_shard x tp x pp x cp GPUs. Change one of them, e.g. --set parallel.dp_shard=2, and "
    'batch.global with it; --on says where they are: "4x dgx-h100" is four nodes, "dgx-h100:2" two GPUs of one. A sweep tries several: gpus=8,16'
)


@lru_cache
def sections(struct: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """The keys of a table in a file, with the type of those that are tables themselves."""
    hints = typing.get_type_hints(struct)
    return {key: struct_of(hints[name]) for key, name in zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)}


def check_names(tree: dict[str, Any], struct: type[msgspec.Struct], where: str, prefix: str = "") -> None:
    """Raises `UnknownName` or `BadInput` for a key of a table, or of one in it, that `struct` has not, and for a section that is none."""
    names = sections(struct)
    for key, value in tree.items():
        if key not in names:
            if prefix in ("", "parallel.") and key.lower() in _COUNTS:
                raise BadInput(_COUNTED.format(key=prefix + key, where=where))
            raise unplaced(key, where, names) or _unknown(key, where, names, prefix)
        inner = names[key]
        if inner is not None:
            if not isinstance(value, dict):
                raise BadInput(f"{prefix}{key} in {where} is a section: write [{key}] and its keys below")
            check_names(value, inner, where, f"{prefix}{key}.")


_DEEPEST = 8
"""Tables in tables in which keys are looked at: more than any section has, and an end to a mapping that holds itself."""


def check_keys(tree: dict[Any, Any], where: str, below: int = _DEEPEST) -> None:
    """Raises `BadInput` for a key that is no text, in a mapping or one below it: no file has such, a script may."""
    for key, value in tree.items():
        if not isinstance(key, str):
            raise BadInput(
                f"{str(key)[:40]} in {where} is no key: a plan as a dict has a file's keys as texts, such as {{'model': 'llama3-8b'}}"
            )
        if isinstance(value, dict) and below:
            check_keys(value, where, below - 1)


def _below(names: dict[str, type[msgspec.Struct] | None], key: str) -> list[str]:
    """The dotted keys whose last part is `key`: `overlap` for `comm.overlap`."""
    return [f"{section}.{key}" for section, inner in names.items() if inner is not None and key in sections(inner)]


def unplaced(key: str, where: str, names: dict[str, type[msgspec.Struct] | None] | None = None) -> UnknownName | None:
    """For a key that stands outside of its section; None where none of `names` (a plan's own) has such a key. Names this short are near to nothing
    by their letters."""
    below = _below(sections(Plan) if names is None else names, key)
    return UnknownName("key", key, below, where, meant=below) if below else None


def _unknown(key: str, where: str, names: dict[str, type[msgspec.Struct] | None], prefix: str) -> UnknownName:
    """For a key that no table has: near to one of `names`, or to one below them whose last part it begins (`dp`) or is spelled like."""
    below = {f"{section}.{name}": name for section, inner in names.items() if inner is not None for name in sections(inner)}
    alike = {dotted: SequenceMatcher(None, key.lower(), name).ratio() for dotted, name in (below | {name: name for name in names}).items()}
    near = [dotted for dotted, ratio in alike.items() if ratio >= _NEAR or below.get(dotted, "").startswith(f"{key}_")]
    meant = sorted(near, key=lambda dotted: -alike[dotted])[:3] if not below.keys().isdisjoint(near) else []
    return UnknownName("key", f"{prefix}{key}", [prefix + name for name in names], where, meant=meant)
