"""What the links of a machine carried: for laws of bytes."""

from __future__ import annotations

from sim.cost.price import Pricer, carried
from sim.program import Program
from sim.timeline.utilisation import transfers
from sim.trace import Trace


def link_bytes(program: Program, trace: Trace, pricer: Pricer) -> dict[str, float]:
    """Bytes that each directed link carried in the whole trace."""
    found: dict[str, float] = {}
    for _, cost in transfers(program, trace, pricer):
        for link, moved in carried(cost):
            found[link] = found.get(link, 0.0) + moved
    return found
