"""A cluster: groups of equal nodes (runs) and the network between them, written as `16x dgx-h100 + 2x dgx-a100`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate

import msgspec

from topologies.errors import BadInput
from topologies.fabric import Fabric
from topologies.machine import Machine

MOST_NODES = 1 << 20
SEVERAL = "one cluster of both is 'A + B', and to compare them put on=A,B into the space of a sweep"
"""The hint in messages to a user who separates machines with a comma."""
ON_NODE = re.compile(r"n(\d{1,7})/(.+)\Z")
"""Matches the full name of a vertex or a memory bus, as `full` writes it: `n3/gpu0` is `gpu0` of node 3."""
_TERM = re.compile(r"(?:(\d{1,9})\s*[xX*]\s*)?([^\s+]+?)(?::(\d{1,6}))?\Z")


class Term(msgspec.Struct, frozen=True):
    """One part of an expression: `count` nodes of machine `name`, of which `ranks` GPUs each are used (0 = all)."""

    count: int
    name: str
    ranks: int


class Run(msgspec.Struct, frozen=True):
    """`count` equal nodes in a row, each with `ranks` ranks."""

    count: int
    machine: Machine
    ranks: int


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The full description of a topology. A what-if makes a new cluster from an old one."""

    name: str
    runs: tuple[Run, ...]
    fabric: Fabric = Fabric()
    special: dict[int, Machine] = {}
    """Node -> its machine, for nodes that an edit made different from their run."""
    speeds: dict[int, float] = {}
    """Rank -> relative speed of its compute (0.8: 80 % of full speed). Ranks without an entry run at full speed."""
    slow_nodes: dict[int, float] = {}
    """Node -> relative compute speed of its ranks that have no entry in `speeds`."""
    order: tuple[int, ...] = ()
    """The number of the device that each local rank of a node uses; () means 0, 1, 2, ..."""
    scatter: bool = False
    """True: ranks go to the nodes in turn, so that neighbouring ranks lie on different nodes (SLURM's `cyclic`)."""
    edits: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def ranks(self) -> int:
        return sum(run.count * run.ranks for run in self.runs)

    def run_of(self, node: int) -> Run:
        """The run that a node belongs to."""
        ends = list(accumulate(run.count for run in self.runs))
        return self.runs[bisect_right(ends, node)]

    def machine(self, node: int) -> Machine:
        return self.special.get(node) or self.run_of(node).machine

    def changed(self, change: Callable[[Machine], Machine], node: int | None = None) -> Cluster:
        """Returns the cluster after `change` on one node (`node`), or on all nodes (None). `change` is called once for each run and each
        special node, so that nodes which share a machine still share one."""
        if node is not None:
            return msgspec.structs.replace(self, special=self.special | {node: change(self.machine(node))})
        runs = tuple(msgspec.structs.replace(run, machine=change(run.machine)) for run in self.runs)
        special = {node: change(machine) for node, machine in self.special.items()}
        return msgspec.structs.replace(self, runs=runs, special=special)


def full(node: int, links: Iterable[str]) -> tuple[str, ...]:
    """Full names of the links of a node: `gpu0>sw0` on node 3 becomes `n3/gpu0>n3/sw0`."""
    found = []
    for link in links:
        a, arrow, b = link.partition(">")
        found.append(f"n{node}/{a}>n{node}/{b}" if arrow else f"n{node}/{a}")
    return tuple(found)


def parse(expression: str) -> tuple[Term, ...]:
    """Parses an expression such as `"16x dgx-h100:4 + dgx-a100"` into its terms; `:4` uses four GPUs of each node. Raises `BadInput`."""
    terms = []
    for part in expression.split("+"):
        match = _TERM.match(part.strip())
        if not match:
            raise BadInput(
                f"cannot read {expression[:80]!r} as a cluster. Write e.g. 'dgx-h100', '16x dgx-h100', '8x dgx-h100 + 4x dgx-a100'"
                + (f"; {SEVERAL}" if "," in expression else "")
            )
        count = int(match.group(1) or 1)
        if not 0 < count <= MOST_NODES:
            raise BadInput(f"a cluster has 1 to {MOST_NODES} nodes, got {count} in {expression[:80]!r}")
        ranks = int(match.group(3)) if match.group(3) else 0
        if match.group(3) and not ranks:
            raise BadInput(f"':0' in {expression[:80]!r} would use no GPU of the node; write ':1' or more")
        terms.append(Term(count, match.group(2), ranks))
    if sum(term.count for term in terms) > MOST_NODES:
        raise BadInput(f"a cluster has at most {MOST_NODES} nodes, {expression[:80]!r} has more")
    return tuple(terms)


def join(name: str, terms: tuple[Term, ...], machines: tuple[Machine, ...], fabric: Fabric) -> Cluster:
    """Makes the cluster of these terms and their machines. Raises `BadInput` where a node has fewer GPUs than a term asks for, where CPU
    hosts are mixed with GPU machines, or where a machine of several nodes has no NIC."""
    runs = []
    for term, machine in zip(terms, machines, strict=True):
        if term.ranks > machine.size:
            raise BadInput(f"{machine.name} has {machine.size} ranks per node, not {term.ranks}")
        runs.append(Run(term.count, machine, term.ranks or machine.size))
    if len({machine.kind for machine in machines}) > 1:
        raise BadInput(f"'{name}' mixes CPU hosts with GPU machines as ranks; a rank is one or the other")
    if sum(run.count for run in runs) > 1:
        for machine in machines:
            if not machine.nics:
                raise BadInput(f"{machine.name} has no NIC, so its nodes are not connected. Add a nic to its [tree]")
    return Cluster(name=name, runs=tuple(runs), fabric=fabric)
