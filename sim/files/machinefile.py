"""The machine of a run: in words, with what was changed about it, and as files from which the run can be repeated."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Any

from topologies.graph import Topology
from topologies.load import load_topology, machine_document, machines, terms_of
from topologies.readers.dump import dump
from topologies.table import read_toml

_GONE = ("fail", "without")
MACHINE = "topology.toml"
"""The machine's name in a run's folder: a file for `--on`."""


def machine_words(topology: Topology) -> str:
    """The machine's name and its edits: `dgx-h100 with gpu=h200-sxm, link.nvlink.rate=100 GB/s, without nic:n0/nic1`."""
    return changed_words(topology.name, topology.cluster.edits)


def changed_words(name: str, edits: tuple[str, ...]) -> str:
    """The same of a machine by name."""
    pairs = [tuple(part.strip() for part in edit.partition("=")[::2]) for edit in edits]
    changed = ", ".join(f"{key}={value}" for key, value in pairs if key not in _GONE)
    gone = " and ".join(value for key, value in pairs if key in _GONE)
    told = [f"with {changed}" if changed else "", f"without {gone}" if gone else ""]
    return f"{name} {', '.join(part for part in told if part)}".rstrip()


def machine_files(source: str, edits: tuple[str, ...] = ()) -> dict[str, str]:
    """Files by name that hold the machine `source` (as `load_topology` takes it) and its edits: `topology.toml`, and beside it every machine that
    the catalog does not have, with all that its `base` says. Raises `BadInput`."""
    files: dict[str, str] = {}
    files[MACHINE] = dump(_cluster(source, Path(), edits, files))
    return files


def _cluster(source: str, folder: Path, edits: tuple[str, ...], files: dict[str, str]) -> dict[str, Any]:
    """A cluster file's document; the machines that it names, and clusters below it, go into `files`."""
    path = folder / source
    data = read_toml(path) if source.endswith(".toml") and isfile(path) else {}
    if "nodes" not in data:
        own = _visible(source)
        nodes = _expression(source, folder, files) + (f":{own[0]}" if own else "")
        return {"name": " ".join(source.split()), "nodes": nodes, "edits": [*own[1:], *edits]}
    below, near = str(data["nodes"]), path.parent
    if below.endswith(".toml") and isfile(near / below) and "nodes" in read_toml(near / below):
        data["nodes"] = _added(files, dump(_cluster(below, near, (), files)))
    else:
        data["nodes"] = _expression(below, near, files)
    said = data.get("edits", [])
    assert isinstance(said, list)  # the file has been read by `load_topology`
    return {"name": path.stem} | data | {"edits": [*said, *edits]}


def _visible(source: str) -> tuple[str, ...]:
    """(ranks, edit of their order) of this machine where CUDA_VISIBLE_DEVICES hides or turns round its GPUs; else ()."""
    if source.strip().partition(":")[0] != "this-machine":
        return ()
    cluster = load_topology(source).cluster
    order = (f"order={','.join(map(str, cluster.order))}",) if cluster.order else ()
    return (str(cluster.runs[0].ranks), *order) if order else ()


def _expression(source: str, folder: Path, files: dict[str, str]) -> str:
    """`source` with the names of files in place of machines that no catalog has."""
    terms = terms_of(source, folder)
    names: dict[str, str] = {}
    for term in terms:
        kept = term.name in machines() and term.name != "this-machine"
        if term.name not in names:
            names[term.name] = term.name if kept else _added(files, dump(machine_document(term.name, folder)))
    if len(terms) == 1 and terms[0].count == 1 and not terms[0].ranks:
        return names[terms[0].name]
    return " + ".join(f"{term.count}x {names[term.name]}{f':{term.ranks}' if term.ranks else ''}" for term in terms)


def _added(files: dict[str, str], text: str) -> str:
    """The name under which another file goes beside `topology.toml`."""
    name = f"machine-{len(files) + 1}.toml"
    files[name] = text
    return name
