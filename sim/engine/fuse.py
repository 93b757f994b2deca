"""Fuses runs of launches and kernels into one op each: exactly, by max-plus algebra.

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

from sim.cost.price import Cost, Source, weakest
from sim.program import HOST, Op

Priced = tuple[Op, Cost]
APART = ("optimizer", "output", "data")
"""Classes of ops that a breakdown lists separately, so they are never fused with other classes."""


def fuse(ops: list[Priced], local: frozenset[int] = frozenset(), quiet: bool = False, slow: float = 1.0) -> list[Priced]:
    """Fuses what may be fused in one segment. `slow`: the rank's factor on kernels beside a collective. `local` holds the ids (id()) of
    collectives that may stand inside a run; `quiet`: no collective ever runs beside compute."""
    found: list[Priced] = []
    run = _Run(slow)
    for op, cost in ops:
        opens = _opens(op, cost, local, quiet)
        if run.ops and not (opens and run.takes(op, cost)):
            found += _close(run.ops, slow)
            run = _Run(slow)
        if opens:
            run.add(op, cost)
        else:
            found.append((op, cost))
    return found + _close(run.ops, slow)


def _opens(op: Op, cost: Cost, local: frozenset[int], quiet: bool) -> bool:
    if cost.uses or (op.blocking and not quiet):
        return False
    return op.kind == "compute" or id(op) in local or (op.kind == "host" and op.lane == HOST)


def _kind(op: Op) -> str:
    return op.cls if op.cls in APART else "compute"


class _Run:
    """The ops of one run so far, and the cost of the op that they compose to."""

    __slots__ = ("begun", "beside", "device", "exposed", "host", "known", "lane", "late", "ops", "ready", "slow", "source")

    def __init__(self, slow: float) -> None:
        self.ops: list[Priced] = []
        self.host = self.device = self.ready = self.beside = self.exposed = self.late = 0.0
        self.slow, self.known = slow, False
        self.source: Source = "measured"
        self.begun = False
        self.lane: tuple[str, bool] | None = None

    def takes(self, op: Op, cost: Cost) -> bool:
        """Whether the op may join the run: between them there must be no gap that something beside could stretch."""
        if _kind(op) != _kind(self.ops[-1][0]):
            return False
        if op.kind == "host" or self.lane is None:
            return True
        if self.lane != (op.lane, op.blocking):
            return False
        return op.blocking or self.ready + cost.seconds >= self.host + _ready(cost) - 1e-15

    def add(self, op: Op, cost: Cost) -> None:
        self.ops.append((op, cost))
        if op.kind == "host":
            self.host += cost.seconds
            return
        ready = _ready(cost)
        if op.blocking:
            self.late += (self.host + ready - cost.seconds) * self.begun + cost.late
            self.ready += self.host + ready
            self.device += self.host + ready if self.begun else cost.seconds
            self.host = 0.0
        else:
            self.ready = max(self.ready + cost.seconds, self.host + ready) if self.begun else self.host + ready
            self.host += cost.host
            self.device += cost.seconds
        self.beside += cost.slowed or cost.seconds * (self.slow if op.kind == "compute" else 1.0)
        self.exposed += cost.seconds if op.kind == "collective" else cost.exposed
        self.known = self.known or cost.slowed > 0
        self.begun, self.lane = True, (op.lane, op.blocking)
        self.source = weakest((self.source, cost.source))

    @property
    def cost(self) -> Cost:
        beside = self.beside if self.known else 0.0
        host = self.ready - self.device if self.lane and self.lane[1] else self.host  # the host time before the first blocking op
        return Cost(self.device, self.source, host=host, ready=self.ready, slowed=beside, exposed=self.exposed, late=self.late)


def _ready(cost: Cost) -> float:
    return cost.ready or cost.host + cost.seconds


def _composed(ops: list[Priced], slow: float) -> _Run:
    run = _Run(slow)
    for op, cost in ops:
        run.add(op, cost)
    return run


def span(ops: list[Priced], slow: float, beside: bool) -> float:
    """Seconds that ops of one lane take from an idle start, with the host's work between them. With `beside`, a collective runs beside
    all of them and their launches are taken to be far ahead: all slow down by the factor `slow`, unless a cost says how long it takes
    then (`Cost.slowed`)."""
    run = _composed(ops, slow)
    return (run.beside if run.known else run.device * slow) if beside else run.ready


def _close(run: list[Priced], slow: float) -> list[Priced]:
    parts = [op for op, _ in run if op.kind != "host"]
    end = len(run)
    while parts and parts[0].blocking and run[end - 1][0].kind == "host":  # host work after the last blocking op stays outside
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
    return [(fused, _composed(run, slow).cost), *rest]
