"""Models by name or file: presets, Hugging Face `config.json`, captured `*.model.json`."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sim.model.captured import Captured
from sim.model.specs.spec import ModelSpec, spec_of
from topologies.errors import BadInput, Refused, UnknownName
from topologies.table import read_toml

_LARGEST = 256 << 20


def presets() -> tuple[Path, ...]:
    """The files of shipped models, one per maker; each table in them is a model."""
    return tuple(sorted((Path(__file__).parent / "presets").glob("*.toml")))


@cache
def models() -> tuple[str, ...]:
    """Names of all shipped models."""
    return tuple(name for path in presets() for name in tomllib.loads(path.read_text("utf-8")))


def load_model(name_or_path: str) -> ModelSpec:
    """A preset by name, as shipped or as the Hugging Face Hub has it, or a file. Raises `UnknownName` with the nearest preset, `BadInput` for a file
    that does not fit."""
    path = Path(name_or_path)
    folder = os.path.isdir(path)  # Path.is_dir raises where the name is too long
    if folder and name_or_path in models() and not os.path.isfile(path / "config.json"):
        folder = False  # somebody's results, called as the model is
    if folder or path.suffix in (".json", ".toml"):  # read anew each time: files change
        return _from_file(path / "config.json" if folder else path)
    if os.path.isfile(path):
        raise BadInput(
            f"model file {path}: its name must end in .json (a Hugging Face config, a captured model) or .toml (the fields of [model])"
        )
    return _preset(name_or_path)


def _shipped(name: str) -> str:
    """The shipped name of a model, "" where there is none: meta-llama/Llama-3.1-8B-Instruct without its owner, and what it was tuned for, which
    changes no layer; mistralai/Mixtral-8x7B-v0.1 without the number of a first version."""
    plain = _plain(name.rpartition("/")[2])
    untuned = re.sub(r"(hf|chat|instruct|base)+(v[\d.]+)?$", r"\2", plain)
    first = re.sub(r"v(0\.1|1\.0)$", "", untuned)
    return next((_plain_names()[one] for one in (plain, untuned, first) if one in _plain_names()), "")


@cache
def _plain_names() -> dict[str, str]:
    return {_plain(name): name for name in models()}


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def model_from(value: str | dict[str, Any]) -> ModelSpec:
    """A plan's model: by name or file, or the [model] table. Raises `BadInput`.

    A table with `base` changes another model: `base = "llama3-8b"` and `layers = 16` is Llama 3 8B of half the depth. Tables in it
    (`moe`, `mla`) change the fields that they name.
    """
    if isinstance(value, str):
        return load_model(value)
    if "base" not in value:
        return _spec(value, "[model]")
    base = value["base"]
    if not isinstance(base, str):
        raise BadInput('[model]: base must be a model\'s name or file in quotes, e.g. base = "llama3-8b"')
    spec = load_model(base)
    if isinstance(spec, Captured):
        raise Refused(f"[model]: {base} was captured from a module and has no fields to change. Change the module and capture it again")
    tree = msgspec.to_builtins(spec)
    for key, own in value.items():
        under = tree.get(key)
        changes = isinstance(under, dict) and isinstance(own, dict) and "base" not in own
        tree[key] = {**under, **own} if changes else own
    del tree["base"]
    return _spec({**tree, "name": str(value.get("name") or f"{base} (changed)")}, "[model]")


def _spec(tree: dict[str, Any], where: str, name: str = "") -> ModelSpec:
    """`spec_of`; a vision-language model's decoder may be another model by name, or a table with `base`."""
    found = tree.get("decoder")
    if tree.get("family") == "vlm" and isinstance(found, str | dict):
        tree = {**tree, "decoder": msgspec.to_builtins(model_from(found))}
    return spec_of(tree, where, name)


@cache
def _preset(name_or_path: str) -> ModelSpec:
    header = f'["{name_or_path}"]'
    for path in presets():
        text = path.read_text("utf-8")
        if header in text:
            return _spec(tomllib.loads(text)[name_or_path], f"sim/model/presets/{path.name}: {name_or_path}", name_or_path)
    if shipped := _shipped(name_or_path):  # last: it reads all presets
        return _preset(shipped)
    raise UnknownName("model", name_or_path, models())


def _from_file(path: Path) -> ModelSpec:
    if not os.path.isfile(path):
        raise BadInput(f"model file {path} does not exist. Give a config.json, a *.model.json, a TOML table or a preset's name")
    if path.stat().st_size > _LARGEST:
        raise BadInput(f"model file {path} has {path.stat().st_size} bytes; at most {_LARGEST} are read")
    try:
        tree = (
            read_toml(path, "model file", _LARGEST)
            if path.suffix == ".toml"
            else msgspec.json.decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"model file {path} is not valid {path.suffix[1:].upper()}: {error or 'nested too deeply'}") from None
    if not isinstance(tree, dict):
        raise BadInput(f"model file {path} holds {type(tree).__name__}, not a table of fields")
    if "family" in tree:
        return _spec(tree, str(path), path.stem.removesuffix(".model"))
    if path.suffix == ".toml":
        return _spec(tree, str(path), path.stem)
    from sim.model.readers.huggingface import from_config  # its readers take time to load, and presets need none

    return from_config(tree, str(path))
