"""Runs of launches and kernels as one op: exact, by max-plus algebra.

On (host, stream) an op is a linear map in max-plus algebra (Baccelli et al., Synchronization and Linearity, ch. 1): with
H its host seconds, D its device seconds and G the time from issue to end on an idle stream,

    host' = host + H        stream' = max(stream + D, host + G).

Two in a row compose to H = H1 + H2, D = D1 + D2, G = max(G1 + D2, H1 + G2). The composition has no gap inside whenever the second
op's launches keep ahead (G1 + D2 >= H1 + G2); only such runs are fused, so that slowdown by a collective beside them,
which stretches work but not gaps, acts on the fused op exactly as on its parts.
"""

from __future__ import annotations

from sim.cost.price import Cost, Source
from sim.program import HOST, Op

Priced = tuple[Op, Cost]
_APART = ("optimizer", "output", "data")
"""Classes that a breakdown counts apart: never fused with others."""


def fuse(ops: list[Priced], local: frozenset[int] = frozenset()) -> list[Priced]:
    """Fuses what may be fused in one segment. `local` holds the ids (id()) of collectives that may stand inside a run."""
    found: list[Priced] = []
    run: list[Priced] = []
    for op, cost in ops:
        if run and not _joins(run, op, cost, local):
            found += _close(run)
            run = []
        if run or _opens(op, cost, local):
            run.append((op, cost))
        else:
            found.append((op, cost))
    return found + _close(run)


def _opens(op: Op, cost: Cost, local: frozenset[int]) -> bool:
    return not op.blocking and not cost.uses and (op.kind == "compute" or id(op) in local or (op.kind == "host" and op.lane == HOST))


def _kind(op: Op) -> str:
    return op.cls if op.cls in _APART else "compute"


def _joins(run: list[Priced], op: Op, cost: Cost, local: frozenset[int]) -> bool:
    if not _opens(op, cost, local) or _kind(op) != _kind(run[-1][0]):
        return False
    if op.kind == "host":
        return True
    lanes = {o.lane for o, _ in run if o.kind != "host"}
    if not lanes:
        return True
    if lanes != {op.lane}:
        return False
    first = _compose(run)
    # Launches of host work between the two count for the second.
    return first.ready + cost.seconds >= first.host + _ready(cost) - 1e-15


def _ready(cost: Cost) -> float:
    return cost.ready or cost.host + cost.seconds


def _compose(run: list[Priced]) -> Cost:
    host = device = 0.0
    ready = 0.0
    source: Source = "measured"
    begun = False
    for op, cost in run:
        if op.kind == "host":
            host += cost.seconds
            continue
        ready = max(ready + cost.seconds, host + _ready(cost)) if begun else host + _ready(cost)
        begun = True
        host += cost.host
        device += cost.seconds
        source = "assumed" if "assumed" in (source, cost.source) else "fitted" if "fitted" in (source, cost.source) else source
    return Cost(device, source, host=host, ready=ready)


def _close(run: list[Priced]) -> list[Priced]:
    parts = [op for op, _ in run if op.kind != "host"]
    if len(run) < 2 or not parts:
        return run
    fused = Op(
        f"{parts[0].id}..{parts[-1].id}",
        "compute",
        parts[0].lane,
        tuple(work for op in parts for work in op.works),
        cls=_kind(parts[0]),
        bytes=sum(op.bytes for op in parts),
        alloc=sum(op.alloc for op, _ in run),
        free=sum(op.free for op, _ in run),
    )
    return [(fused, _compose(run))]
