"""Runs of launches and kernels as one op: exact, by max-plus algebra.

On (host, stream) an op is a linear map in max-plus algebra (Baccelli et al., Synchronization and Linearity, ch. 1): with
H its host seconds, D its device seconds and G the time from issue to end on an idle stream,

    host' = host + H        stream' = max(stream + D, host + G).

Two in a row compose to H = H1 + H2, D = D1 + D2, G = max(G1 + D2, H1 + G2). The composition has no gap inside whenever the second
op's launches keep ahead (G1 + D2 >= H1 + G2); only such runs are fused, so that slowdown by a collective beside them,
which stretches work but not gaps, acts on the fused op exactly as on its parts.

After a blocking op host' = stream' = max(stream + D, host + G), so that two of them with host work h between compose to D = D1 + h + G2,
G = G1 + h + G2. Their gaps are inside, so they are fused only where nothing can stretch them.
"""

from __future__ import annotations

from sim.cost.price import Cost, Source
from sim.program import HOST, Op

Priced = tuple[Op, Cost]
_APART = ("optimizer", "output", "data")
"""Classes that a breakdown counts apart: never fused with others."""


def fuse(ops: list[Priced], local: frozenset[int] = frozenset(), quiet: bool = False) -> list[Priced]:
    """Fuses what may be fused in one segment. `local` holds the ids (id()) of collectives that may stand inside a run; `quiet`: no
    collective ever runs beside compute."""
    found: list[Priced] = []
    run: list[Priced] = []
    for op, cost in ops:
        if run and not _joins(run, op, cost, local, quiet):
            found += _close(run)
            run = []
        if run or _opens(op, cost, local, quiet):
            run.append((op, cost))
        else:
            found.append((op, cost))
    return found + _close(run)


def _opens(op: Op, cost: Cost, local: frozenset[int], quiet: bool) -> bool:
    if cost.uses or (op.blocking and not quiet):
        return False
    return op.kind == "compute" or id(op) in local or (op.kind == "host" and op.lane == HOST)


def _kind(op: Op) -> str:
    return op.cls if op.cls in _APART else "compute"


def _joins(run: list[Priced], op: Op, cost: Cost, local: frozenset[int], quiet: bool) -> bool:
    if not _opens(op, cost, local, quiet) or _kind(op) != _kind(run[-1][0]):
        return False
    if op.kind == "host":
        return True
    before = {(o.lane, o.blocking) for o, _ in run if o.kind != "host"}
    if not before:
        return True
    if before != {(op.lane, op.blocking)}:
        return False
    if op.blocking:
        return True
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
        if op.blocking:
            ready += host + _ready(cost)
            device += host + _ready(cost) if begun else cost.seconds
            begun, host = True, 0.0
            source = _weaker(source, cost.source)
            continue
        ready = max(ready + cost.seconds, host + _ready(cost)) if begun else host + _ready(cost)
        begun = True
        host += cost.host
        device += cost.seconds
        source = _weaker(source, cost.source)
    return Cost(device, source, host=host, ready=ready)


def _weaker(a: Source, b: Source) -> Source:
    return "assumed" if "assumed" in (a, b) else "fitted" if "fitted" in (a, b) else a


def _close(run: list[Priced]) -> list[Priced]:
    parts = [op for op, _ in run if op.kind != "host"]
    end = len(run)
    while parts and parts[0].blocking and run[end - 1][0].kind == "host":  # host work after a blocking op is the host's alone
        end -= 1
    if end < 2 or not parts:
        return run
    rest, run = run[end:], run[:end]
    fused = Op(
        f"{parts[0].id}..{parts[-1].id}",
        "compute",
        parts[0].lane,
        tuple(work for op in parts for work in op.works),
        cls=_kind(parts[0]),
        bytes=sum(op.bytes for op in parts),
        blocking=parts[0].blocking,
        alloc=sum(op.alloc for op, _ in run),
        free=sum(op.free for op, _ in run),
    )
    return [(fused, _compose(run)), *rest]
