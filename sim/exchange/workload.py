"""A Chakra workload: the traces of all ranks, and the communicators that they name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from sim.exchange.attributes import Attr
from sim.exchange.chakra import Kind, Node
from sim.exchange.tracefile import read
from sim.mesh import Mesh
from topologies.errors import BadInput

MOST_RANKS = 4096


class Workload(msgspec.Struct, frozen=True):
    """Traces of all ranks, read. `groups` by process group's name; the empty name means all ranks."""

    name: str
    ranks: tuple[tuple[Node, ...], ...]
    groups: dict[str, tuple[int, ...]]
    alone: bool = False
    """Durations are those of kernels that nothing runs beside (what `sim.exchange.export` writes), not measured ones."""
    framework: str = ""
    """Whose habits the collectives have, where the traces say it."""


class Communicators(Mesh, frozen=True):
    """A mesh whose groups are listed by name."""

    table: dict[str, tuple[int, ...]] = {}

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Members in their order. Raises `BadInput` for a rank that is not among them."""
        members = self.table[axis] if axis in self.table else tuple(range(self.world))
        if rank not in members:
            raise BadInput(f"rank {rank} takes part in an exchange of group {axis!r}, whose members are {str(members)[:80]}")
        return members

    def size(self, axis: str) -> int:
        """Members of a group; the world's axes as in every mesh."""
        return len(self.table[axis]) if axis in self.table else super().size(axis)


def load_traces(prefix: str | Path, groups: str | Path | None = None) -> Workload:
    """Reads PREFIX.0.et, PREFIX.1.et ... and the communicators in `groups` (JSON: name -> ranks; default: PREFIX.groups.json, if it is there).

    Raises `BadInput` for files that are missing, or cannot be used.
    """
    here = Path(f"{prefix}.0.et")
    if not here.is_file():
        raise BadInput(f"there is no {here}: give what stands before .0.et, .1.et ... in the names of the ranks' traces")
    ranks: list[tuple[Node, ...]] = []
    head: dict[str, Attr] = {}
    while (path := Path(f"{prefix}.{len(ranks)}.et")).is_file():
        if len(ranks) >= MOST_RANKS:
            raise BadInput(f"{prefix} has more than {MOST_RANKS} ranks: every rank is simulated by itself")
        head, nodes = read(path)
        ranks.append(tuple(nodes))
    world = head.get("steptwin.world", len(ranks))
    if world != len(ranks):
        raise BadInput(f"{prefix} has traces of ranks 0 to {len(ranks) - 1}; its program has {world} ranks. Export all of them")
    found = _groups(Path(groups) if groups else Path(f"{prefix}.groups.json"), groups is not None)
    for row in ranks:
        for node in row:
            if node.kind == Kind.METADATA and "pg_name" in node.inputs:
                found |= _declared(node, len(ranks))
    for name, members in found.items():
        if not members or len(set(members)) < len(members) or not all(0 <= rank < len(ranks) for rank in members):
            raise BadInput(
                f"group {name[:40]!r} has the members {str(members)[:80]}: name each of ranks 0 to {len(ranks) - 1} once at most"
            )
    return Workload(
        Path(prefix).name, tuple(ranks), found, head.get("steptwin.durations") == "alone", str(head.get("steptwin.framework", ""))
    )


def _groups(path: Path, must: bool) -> dict[str, tuple[int, ...]]:
    if not path.is_file():
        if must:
            raise BadInput(f"there is no file {path} of communicator groups")
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[int, ...]])
    except msgspec.MsgspecError as error:
        raise BadInput(f"groups {path}: {error}. Write a table of names and ranks, e.g. {{'1': [0, 1]}}") from None


def _declared(node: Node, world: int) -> dict[str, tuple[int, ...]]:
    """Process groups as PyTorch's traces have them: a list of {"pg_name", "ranks"} as text inside a list of texts; no ranks mean all."""
    try:
        rows = json.loads(node.inputs[node.inputs.index("[{") : node.inputs.rindex("}]") + 2])
        return {str(row["pg_name"]): tuple(int(rank) for rank in row["ranks"]) or tuple(range(world)) for row in rows}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"node {node.id} ({node.name[:60]}): its process groups cannot be read") from None
