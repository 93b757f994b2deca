"""Plan files: TOML in and out (JSON too, as `plan show --json` prints it), and overrides by dotted path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from sim.files.keynames import check_keys, check_names
from sim.files.overrides import set_key
from sim.framework.framework import Framework, load_framework
from sim.plan import Plan
from sim.rules import check
from sim.schedule.reading import read_rows, written_of
from sim.wrongvalue import wrong_value
from topologies import units
from topologies.errors import BadInput, UnitError, UnknownName
from topologies.table import read_toml

SIZES = ("comm.bucket", "data.sample")
"""Keys of a plan that hold bytes: a file says them with a unit."""
TIMES = ("data.preprocess",)
"""Keys of a plan that hold seconds."""
_LARGEST = 1 << 20
_BYTES = 1 << 16
"""A bare size from here on is one in bytes."""


def load_plan(source: str | Path | Plan | dict[str, Any], overrides: tuple[str, ...] = ()) -> Plan:
    """A checked plan from a TOML or JSON file, a preset's name, a mapping or a plan; `overrides` are `a.b=c` (or a word of `sim.files.overrides.SHORT`)."""
    return check(read_plan(source, overrides))


def read_plan(source: str | Path | Plan | dict[str, Any], overrides: tuple[str, ...] = ()) -> Plan:
    """The same, each key by itself: what spans several is not checked. For a base whose split a sweep replaces."""
    if isinstance(source, Plan):
        if not overrides:
            return _typed(msgspec.to_builtins(source, enc_hook=_plain), "plan")  # a script may have put anything into it
        tree = dump_tree(source)
        where = "plan"
    elif isinstance(source, dict):
        check_keys(source, "plan")
        tree, where = source, "plan"
    elif isinstance(source, (str, os.PathLike)):
        tree, where = _read(str(source))
    else:
        given = f"{type(source).__name__} ({str(source)[:40]})"
        raise BadInput(f"a plan is a shipped plan's name, a file, a dict in the file's form, or what steptwin.plan returns, not {given}")
    for override in overrides:
        if not isinstance(override, str):
            raise BadInput(f"an override is a text such as 'batch.micro=2', one for each key, not {str(override)[:60]!r}")
        tree = set_key(tree, override, where)
    return from_tree(tree, where)


def presets() -> dict[str, Path]:
    """Shipped plans by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent.parent / "presets").glob("*.toml"))}


def about(path: Path) -> tuple[str, str]:
    """(what it is, a machine that it is for) of a shipped plan: its first two lines say so."""
    what, machine = (line.lstrip("# ") for line in path.read_text("utf-8").splitlines()[:2])
    return what.removesuffix("."), machine.removeprefix("Machine: ")


def _read(source: str) -> tuple[dict[str, Any], str]:
    shipped = presets()
    path = shipped.get(source, Path(source))
    if not os.path.isfile(path):
        if _has_model(source):
            raise _model_for_plan(source, shipped)
        if "/" in source or source.endswith(".toml"):
            wrong = "is no file" if os.path.exists(source) else "does not exist"
            raise BadInput(f"plan file {source} {wrong}. Give a TOML file, or one of: {', '.join(shipped)}")
        raise UnknownName("plan", source, shipped)
    tree = _json(path) if source.endswith(".json") else read_toml(path, "plan file", _LARGEST)
    if "model" not in tree and not tree.keys().isdisjoint(("model_type", "family")):
        raise _model_for_plan(source, shipped)
    return _beside(tree, path.parent), source


def _beside(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The plan with files that it names (model, schedule) found beside itself, as a topology's are; what is not there is looked for where we are."""

    def named(section: object, key: str) -> dict[str, Any]:
        name = section.get(key) if isinstance(section, dict) else None
        there = isinstance(name, str) and any(os.path.isfile(folder / name / inside) for inside in ("", "config.json"))
        return {key: str(folder / str(name))} if there else {}

    found = tree | named(tree, "model")
    for section, key in (("model", "base"), ("parallel", "schedule")):
        if changed := named(found.get(section), key):
            found[section] = found[section] | changed
    return found


def _json(path: Path) -> dict[str, Any]:
    """What `steptwin plan show --json` has printed. Raises `BadInput`."""
    try:
        found = msgspec.json.decode(path.read_bytes()[: _LARGEST + 1])
    except OSError as error:
        raise BadInput(f"cannot read the plan file {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"the plan file {path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"the plan file {path} must hold an object, as steptwin plan show --json prints it")
    return found


def _has_model(source: str) -> bool:
    """Is it a model's name, or the folder of one?"""
    from sim.model.load import load_model

    try:
        load_model(source)
    except BadInput:
        return False
    return True


def _model_for_plan(source: str, shipped: Iterable[str]) -> BadInput:
    """For a model in the place of a plan, the likeliest other thing: what to write."""
    return BadInput(
        f'{source} is a model, not a plan. A plan names it: model = "{source}" in a TOML file, {{"model": "{source}"}} in Python, or '
        f"--set model={source} on a shipped plan: {', '.join(shipped)}"
    )


def _native(value: Any) -> Any:
    """A number of numpy, as the rows of a DataFrame have them, as Python's; everything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) else value


def _plain(value: Any) -> Any:
    """What a plan holds that no file could. Raises `BadInput` for what is no number of numpy either."""
    if not callable(getattr(value, "item", None)):
        raise BadInput(f"plan: {type(value).__name__} is no value of a plan: it has numbers, texts, lists and tables")
    return _native(value)


def _quantities(tree: dict[str, Any]) -> dict[str, Any]:
    """Units are read where a person wrote them; numbers that came from a `Plan` value do not pass here."""
    copy = {key: {k: _native(v) for k, v in value.items()} if isinstance(value, dict) else _native(value) for key, value in tree.items()}
    for paths, read in ((SIZES, units.size), (TIMES, units.duration)):
        for path in paths:
            section, key = path.split(".")
            if isinstance(copy.get(section), dict) and copy[section].get(key) is not None:
                _bare(path, copy[section][key])
                copy[section][key] = read(copy[section][key], path)
    return copy


def _bare(path: str, value: object) -> None:
    """Raises `UnitError` for a bare number that can only be bytes: no bucket has 26214400 MiB."""
    if path in SIZES and isinstance(value, int) and not isinstance(value, bool) and value >= _BYTES:
        raise UnitError(f'a size needs a unit at {path}: got {value}. Write "{value} B" or "{units.show_size(value)}"')


def from_tree(tree: dict[str, Any], where: str = "plan") -> Plan:
    """A plan from nested mappings in the file's form. Raises `BadInput` with the key's path."""
    check_names(tree, Plan, where)  # first: `modl = ...` is a slip, and no plan without a model
    if "model" not in tree:
        raise BadInput(f'{where} names no model. Add e.g. model = "llama3-8b" (steptwin plan list shows all)')
    return _typed(_quantities(_read_schedule(tree)), where)


def _read_schedule(tree: dict[str, Any]) -> dict[str, Any]:
    """A schedule that is named by its file as what the file says: a plan that is kept or sent on needs no file beside it."""
    parallel = tree.get("parallel")
    path = parallel.get("schedule") if isinstance(parallel, dict) else None
    if parallel is None or not isinstance(path, str) or not path.endswith(".csv"):
        return tree
    rows = read_rows(Path(path))
    try:
        chunks = written_of(rows).chunks
    except BadInput as error:
        raise type(error)(f"schedule file {path}: {error}") from None
    return tree | {"parallel": {"virtual_stages": chunks, **parallel, "schedule": "csv", "actions": list(rows)}}


def _typed(tree: dict[str, Any], where: str) -> Plan:
    """A plan whose every key is of its type and in its range; quantities are numbers already."""
    try:
        plan = msgspec.convert(tree, Plan)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {wrong_value(str(error), tree, Plan)}") from None
    if isinstance(plan.framework, dict):
        _check_framework(plan.framework, where)
    return plan


def _check_framework(table: dict[str, Any], where: str) -> None:
    """A [framework] table: each key is one of a framework's, of its type."""
    check_names({key: value for key, value in table.items() if key != "base"}, Framework, where, "framework.")
    try:
        load_framework(table)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {wrong_value(str(error), table, Framework, 'framework.')}") from None


def dump_tree(plan: Plan) -> dict[str, Any]:
    """Nested mappings in the file's form: only what differs from the defaults, quantities with units."""
    default = msgspec.to_builtins(Plan(model=plan.model))
    full = msgspec.to_builtins(plan)
    tree: dict[str, Any] = {"model": plan.model}
    for key, value in full.items():
        if key == "model":
            continue
        if isinstance(value, dict) and key != "framework":
            changed = {k: v for k, v in value.items() if v != default[key][k]}
            if changed:
                tree[key] = changed
        elif value != default[key]:
            tree[key] = value
    for path in (*SIZES, *TIMES):
        section, key = path.split(".")
        if key in tree.get(section, {}):
            tree[section][key] = f"{tree[section][key]!r} {'B' if path in SIZES else 's'}"
    return tree


def dump_plan(plan: Plan) -> str:
    """The plan as TOML text; `load_plan` of it gives the same plan."""
    return _toml(dump_tree(plan))


def _toml(tree: dict[str, Any]) -> str:
    """A document of plain values as TOML, a section for each table at its top."""
    top = [f"{key} = {toml_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for section, values in tree.items():
        if isinstance(values, dict):
            top += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    return "\n".join(top) + "\n"


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it on one line; keys of a table that are None are left out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(name)} = {toml_value(one)}' for name, one in value.items() if one is not None)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{(', ' if isinstance(value, list) else ',').join(map(toml_value, value))}]"
    return msgspec.json.encode(value).decode()


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.A) else msgspec.json.encode(name).decode()
