"""What the links of a machine carried: for laws of bytes."""

from __future__ import annotations

from sim.cost.price import Pricer, carried, transfer_cost
from sim.program import MOVES, Program, full_id
from sim.trace import Trace


def link_bytes(program: Program, trace: Trace, pricer: Pricer) -> dict[str, float]:
    """Bytes that each directed link carried in the whole trace. Exact for unfolded ones: a collective counts for its first member, a message for its
    sender."""
    ids = {span.id for span in trace.spans if span.kind in MOVES}
    found: dict[str, float] = {}
    for rank in trace.ranks:
        for thread in program.threads(rank):
            for call, op in program.ops(rank, thread):
                first = op.kind != "collective" or rank == program.mesh.group(op.group, rank)[0]
                if op.kind in MOVES and first and full_id(rank, call, op) in ids:
                    for link, moved in carried(transfer_cost(pricer, program.mesh, op, rank)):
                        found[link] = found.get(link, 0.0) + moved
    return found
