"""`load_topology` makes a `Topology` from a name, an expression, a file or another topology, and applies what-ifs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from os.path import exists, isfile  # those of Path raise where the name is too long
from pathlib import Path

import msgspec

from topologies.build import FIELDS, MANY, build
from topologies.cluster import SEVERAL, Cluster, Term, join, parse
from topologies.devices import document, shelf
from topologies.errors import BadInput, UnknownName
from topologies.fabric import merge_fabric, read_fabric
from topologies.graph import Topology
from topologies.machine import Machine
from topologies.table import Table, read_toml
from topologies.thismachine import document as this_machine

__all__ = ["Topology", "gpus", "load_topology", "machine_document", "machines"]
_MERGED = ("nics", "gpus", "links", "disk", "store")
_PARTS = ("cpu", "nic")
"""Parts whose table changes single fields of the base machine's part. (A `[gpu]` table must name its own base: a table with all fields may
describe a GPU of another manufacturer.)"""
DEEPEST = 16
"""Longest chain of files that include each other by `base` and `nodes`."""


def machines() -> tuple[str, ...]:
    """Names of all machines of the catalog."""
    return tuple(sorted((*shelf("machines"), "this-machine")))


def gpus() -> tuple[str, ...]:
    """Names of all GPUs of the catalog."""
    return shelf("gpus")


def load_topology(source: str | Path | Topology, edits: tuple[str, ...] | str = ()) -> Topology:
    """The topology called `dgx-h100`, `16x dgx-h100`, `8x dgx-h100:4 + 2x dgx-a100`, `this-machine`, or in a TOML file,
    or in a file of NCCL (`.xml`) or `nvidia-smi topo -m` (`.txt`).

    `edits` are what-ifs, one after the other (a text is one of them): see `topologies.edits`. Raises `BadInput` with what, where and what is allowed.
    """
    if not isinstance(source, (str, PathLike, Topology)):
        raise BadInput(
            f"a machine is a name, an expression such as '16x dgx-h100', a file, or what steptwin.topology returns, not {type(source).__name__} "
            f"({str(source)[:40]}). A table of one's own goes into a file: base = 'dgx-h100' and what differs"
        )
    if isinstance(source, Topology) and not edits:
        return source
    cluster = source.cluster if isinstance(source, Topology) else _cluster(str(source), Path(), ())
    if str(source).strip().partition(":")[0] == "this-machine":
        cluster = _seen(cluster)
    if edits:
        from topologies.edits import apply

        cluster = apply(cluster, (edits,) if isinstance(edits, str) else tuple(edits))
    _check_rails(cluster)
    return Topology(cluster)


def _check_rails(cluster: Cluster) -> None:
    """Raises `BadInput` where the fabric has more rails than any node has NICs."""
    most = max(len(run.machine.cabled) for run in cluster.runs)
    if cluster.fabric.rails > most > 0:
        raise BadInput(
            f"{cluster.name}: rails = {cluster.fabric.rails}, but a node has {most} NIC{'s' if most > 1 else ''}, and a NIC is plugged into one rail. "
            f"Write rails = {f'1 to {most}' if most > 1 else 1}, in [fabric] or by --set"
        )


def _seen(cluster: Cluster) -> Cluster:
    """The cluster of `this-machine` with its ranks on the GPUs that CUDA_VISIBLE_DEVICES lists, in that order."""
    from topologies.nvidia import visible

    run = cluster.runs[0]
    order = visible(len(run.machine.gpus))[: run.ranks]
    if order == tuple(range(run.ranks)) or not run.machine.gpus:
        return cluster
    return msgspec.structs.replace(cluster, runs=(msgspec.structs.replace(run, ranks=len(order)),), order=order)


def terms_of(source: str, folder: Path) -> tuple[Term, ...]:
    """The terms of an expression. The path of an existing file is one term, even if it contains spaces or signs such as `+`."""
    single = source.endswith((".toml", ".xml", ".txt")) and isfile(folder / source)
    return (Term(1, source, 0),) if single else parse(source)


def _cluster(source: str, folder: Path, chain: tuple[str, ...]) -> Cluster:
    if not source.strip():
        raise BadInput("the topology has no name. Write e.g. 'dgx-h100', '16x dgx-h100', 'this-machine' or the path of a TOML file")
    if source.endswith(".toml") and isfile(folder / source):
        found = _cluster_file(folder / source, chain)
        if found is not None:
            return found
    terms = terms_of(source, folder)
    documents = tuple(machine_document(term.name, folder, chain) for term in terms)
    if any("nodes" in one for one in documents):
        raise BadInput(f"'{source}' multiplies a file that is a cluster itself; multiply its machines inside the file")
    made: dict[str, Machine] = {}
    for term, one in zip(terms, documents, strict=True):
        if term.name not in made:
            made[term.name] = build(one)
    return _join(" ".join(source.split()), terms, made, documents[0])


def _join(name: str, terms: tuple[Term, ...], made: Mapping[str, Machine], first: Mapping[str, object]) -> Cluster:
    fabric = read_fabric(first.get("fabric"), f"machine '{first.get('name')}', [fabric]")
    return join(name, terms, tuple(made[term.name] for term in terms), fabric)


def _cluster_file(path: Path, chain: tuple[str, ...]) -> Cluster | None:
    """The cluster in a file with `nodes = "16x dgx-h100"`; None where the file is a machine."""
    data = read_toml(path)
    if "nodes" not in data:
        return None
    chain = _step(path, chain)
    if "base" in data or not isinstance(data["nodes"], str):
        raise BadInput(
            f'{path}: a file with nodes is a cluster, whose machines are named there in a text: nodes = "16x dgx-h100" or '
            '"8x mine.toml + 4x dgx-a100". What changes a machine (base = ...) goes into a file of its own'
        )
    table = Table(data, str(path), ("name", "title", "source", "nodes", "fabric", "edits"))
    cluster = _cluster(table.text("nodes"), path.parent, chain)
    fabric = read_fabric(table.raw("fabric"), table.at("fabric"), cluster.fabric)
    cluster = msgspec.structs.replace(cluster, name=table.text("name", path.stem), fabric=fabric)
    edits = table.raw("edits", [])
    if not isinstance(edits, list) or not all(isinstance(edit, str) for edit in edits):
        raise BadInput(f'{table.at("edits")} must be a list of texts such as "oversubscription=2"')
    from topologies.edits import apply

    return apply(cluster, tuple(edits))


def _step(path: Path, chain: tuple[str, ...]) -> tuple[str, ...]:
    name = str(path.resolve())
    if name in chain:
        raise BadInput(f"{path} includes itself: {' -> '.join(Path(one).name for one in (*chain, name))}")
    if len(chain) >= DEEPEST:
        raise BadInput(f"{path}: more than {DEEPEST} files include each other")
    return (*chain, name)


def machine_document(name: str, folder: Path | None = None, chain: tuple[str, ...] = ()) -> dict[str, object]:
    """The document of a machine by name or file, with everything from its `base` filled in. Raises `BadInput`."""
    folder = folder or Path()
    if name == "this-machine":
        from topologies.nvidia import document as with_gpus

        return with_gpus() or this_machine()
    if name.endswith((".xml", ".txt")):
        from topologies.readers import read_file

        return read_file(folder / name).document
    if name.endswith(".toml"):
        path = folder / name
        if not isfile(path):
            raise BadInput(f"there is no topology file {path}. A machine of the catalog has no ending: {', '.join(machines()[:8])}, ...")
        chain = _step(path, chain)
        data = read_toml(path)
        if "nodes" in data:
            return data
        where, near = str(path), path.parent
    else:
        if name not in machines() and ("/" in name or exists(name)):
            raise BadInput(f"{name} is no topology file: ours end in .toml, NCCL's in .xml, the text of nvidia-smi topo -m in .txt")
        if name in gpus():
            there = ", ".join(one for one in shelf("machines") if document("machines", one).get("gpu") == name)
            put = f'Put it into one: gpu = "{name}" in a file, or --on l4-x8 --set gpu={name}'
            raise BadInput(f"'{name}' is a GPU, not a machine. " + (f"These have it: {there}" if there else put))
        if name not in machines() and "," in name:
            raise BadInput(f"'{name[:80]}' names several machines: {SEVERAL}")
        if name not in machines():
            raise UnknownName("machine", name, machines())
        if name in chain:
            raise BadInput(f"machine '{name}' includes itself: {' -> '.join((*chain, name))}")
        chain = (*chain, name)
        data, where, near = document("machines", name), f"machine '{name}'", folder
    data.setdefault("name", Path(name).stem)
    if many := next((key for key in ("gpu_count", "num_gpus", "n_gpus") if key in data), ""):
        raise BadInput(f"{where}, {many}: there is no such key. {MANY}")
    Table(data, where, FIELDS)
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise BadInput(f"{where}, base must be a machine's name or file in quotes")
    return _merge(machine_document(base, near, chain), data)


def _merge(base: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    """Merges the document `own` over `base`: tables of single parts are merged key by key, everything else is replaced."""
    found = base | own
    for key in _MERGED:
        under, over = base.get(key), own.get(key)
        if isinstance(under, Mapping) and isinstance(over, Mapping):
            found[key] = {**under, **over}
    for key in _PARTS:
        if key in own:
            found[key] = _over(base.get(key), own[key])
    under, over = base.get("nics"), own.get("nics", {})
    # `nic` describes every NIC, also those that `nics` of the base lists one by one.
    if "nic" in own and isinstance(under, Mapping) and isinstance(over, Mapping):
        found["nics"] = {**{name: _over(part, own["nic"]) for name, part in under.items()}, **over}
    found["fabric"] = merge_fabric(base.get("fabric"), own.get("fabric"))
    return {key: value for key, value in found.items() if value is not None}


def _over(base: object, own: object) -> object:
    """Merges a part over that of the base machine. A table without a `base` of its own changes single fields; anything else replaces the
    part."""
    if base is None or not isinstance(own, Mapping) or "base" in own:
        return own
    return {**(base if isinstance(base, Mapping) else {"base": base}), **own}
