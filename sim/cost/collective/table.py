"""`steptwin collective`: a table like nccl-tests', predicted."""

from __future__ import annotations

from typing import Any

from sim.cost.collective.group import group_shape
from sim.cost.collective.nccl import ALGORITHMS, best
from sim.cost.collective.rates import bus_factor
from topologies.errors import BadInput, Refused, UnknownName
from topologies.load import Topology, load_topology
from topologies.units import show_size, size

_FIRST = 8
_STEP = 4


def collective_table(name: str, largest: str, on: str | Topology, ranks: int | None = None, algorithm: str = "auto") -> dict[str, Any]:
    """Rows of size, time, algbw, busbw and the algorithm chosen, from 8 B to `largest` in steps of 4.

    `ranks`: the first so many of the machine (all where None); a `send` goes from the first of them to the last. Raises `BadInput` for ranks that it
    does not have, and for no bytes.
    """
    top = size(largest, "--bytes")
    if top < 1:
        raise BadInput(f"--bytes {largest}: the largest size of the table is one byte at least")
    if algorithm not in ALGORITHMS:
        raise UnknownName("algorithm", algorithm, ALGORITHMS)
    topology = load_topology(on)
    if topology.kind == "cpu":
        raise Refused(f"{topology.name} is a CPU host: gloo's times come from a calibration (steptwin probe), not from this table")
    count = ranks if ranks is not None else topology.gpus
    if not 2 <= count <= topology.gpus:
        raise BadInput(f"--ranks {count}: a collective on {topology.name} has 2 to {topology.gpus} ranks")
    members = (0, count - 1) if name == "send" else tuple(range(count))
    shape = group_shape(topology, members)
    rows = []
    for bytes_ in _sizes(top):
        choice = best(name, bytes_, shape, algorithm)
        rate = bytes_ / choice.seconds if choice.seconds else 0.0
        rows.append(
            {
                "size": show_size(bytes_),
                "bytes": bytes_,
                "time_us": choice.seconds * 1e6,
                "algbw_GBps": rate / 1e9,
                "busbw_GBps": rate * bus_factor(name, len(members)) / 1e9,
                "algorithm": choice.algorithm,
                "protocol": choice.protocol,
            }
        )
    return {"collective": name, "topology": topology.name, "ranks": len(members), "rows": rows}


def _sizes(top: int) -> list[int]:
    found, at = [], _FIRST
    while at < top:
        found.append(at)
        at *= _STEP
    return [*found, top]
