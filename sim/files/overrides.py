"""Overrides of a plan by dotted path, as `--set parallel.tp=4` has them."""

from __future__ import annotations

from typing import Any

from sim.files.keynames import sections, unplaced
from sim.plan import Plan
from sim.wrongvalue import is_list
from topologies.edits import is_edit, meant
from topologies.errors import BadInput
from topologies.table import parse_toml

SHORT = {
    "tp": "parallel.tp",
    "tp_overlap": "parallel.tp_overlap",
    "pp": "parallel.pp",
    "cp": "parallel.cp",
    "cp_kind": "parallel.cp_kind",
    "ep": "parallel.ep",
    "etp": "parallel.etp",
    "capacity": "parallel.capacity",
    "placement": "parallel.placement",
    "zero": "parallel.zero",
    "dp_shard": "parallel.dp_shard",
    "dp_replicate": "parallel.dp_replicate",
    "schedule": "parallel.schedule",
    "virtual_stages": "parallel.virtual_stages",
    "micro": "batch.micro",
    "global": "batch.global",
    "recompute": "memory.recompute",
    "precision": "precision",
    "seq_len": "seq_len",
    "framework": "framework",
}
"""Keys by one word, as `--set tp=2` and a sweep's space `tp=1,2` may name them."""
_FRAMEWORK = Plan(model="").framework


def set_key(tree: dict[str, Any], override: str, where: str) -> dict[str, Any]:
    """The plan with `key=value` in it. Raises `BadInput` for what is none, or for a key of the machine."""
    path, equals, text = (part.strip() for part in override.partition("="))
    keys = SHORT.get(path, path).split(".")
    if not equals or not all(keys):
        raise BadInput(f"--set {override!r}: write key=value, e.g. --set parallel.tp=4")
    if keys[0] not in sections(Plan):
        _check_machines(path, where)
    value = _value(text)
    if not isinstance(value, list) and is_list(keys, Plan):
        value = [_value(one) for one in text.split(",") if one]
    copy = dict(tree)
    if keys[0] in ("model", "framework") and len(keys) > 1 and isinstance(copy.get(keys[0], _FRAMEWORK), str):
        copy[keys[0]] = {"base": copy.get(keys[0], _FRAMEWORK)}  # one field of a shipped one
    at = copy
    for key in keys[:-1]:
        inner = at.get(key, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {override!r}: {key} is a value, not a section")
        at[key] = dict(inner)
        at = at[key]
    at[keys[-1]] = value
    if keys == ["parallel", "schedule"]:
        at.pop("actions", None)  # are those of the schedule before
    return copy


def _value(text: str) -> object:
    """A TOML value, or a text without quotes."""
    try:
        found: object = parse_toml(f"v = {text}", "value")["v"]
    except BadInput:
        return text.strip()
    return found


def _check_machines(key: str, where: str) -> None:
    """Raises `BadInput` for a key that stands outside of its section, and for one that is, or may be meant for, a machine's."""
    if is_edit(key):
        raise BadInput(
            f"{key} is a key of the machine, and only keys of a plan are allowed here. Use it in --set of a command that takes --on, or give it to steptwin.topology"
        )
    misplaced = unplaced(key, where)
    if misplaced is not None:
        raise misplaced
    if near := meant(key):
        raise BadInput(f"unknown key '{key[:80]}' in {where}. Did you mean the machine's {' or '.join(near)}?")
