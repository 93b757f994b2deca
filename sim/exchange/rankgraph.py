"""The graph of one rank of a program: the dependencies of each op, by the engine's rules.

The order on a lane, an event or a sync becomes a data dependency; the order of launches becomes a control dependency. A launch is a node
on the CPU; records, waits and syncs are dependencies only. An op with several launches starts after a first part of them, as in the engine
(`sim.engine.state.Item.ready`).
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.cost.price import Cost, Pricer
from sim.exchange.chakra import Kind, Node, encode
from sim.exchange.groups import Groups
from sim.exchange.opnode import OpNodes
from sim.program import HOST, MEETING, ORDERS, Call, Op, Program


class Mark:
    """A CUDA event: `deps` are the nodes and other events before it; they are set when the event is recorded."""

    __slots__ = ("deps",)

    def __init__(self) -> None:
        self.deps: tuple[Dep, ...] = ()


Dep = int | Mark


class Graph:
    """The graph of one rank."""

    def __init__(self, program: Program, pricer: Pricer, groups: Groups, rank: int, step: int) -> None:
        """Builds the graph from the training thread's ops of the optimizer step `step`."""
        self._pricer, self._rank, self._ops = pricer, rank, OpNodes(groups, rank)
        self._nodes: list[tuple[str, int, tuple[Dep, ...], tuple[Dep, ...], float, str, bytes]] = []
        """(name, kind, control dependencies, data dependencies, seconds, lane, attributes)"""
        self._lanes: dict[str, tuple[Dep, ...]] = {}
        self._latest: dict[str, Mark] = {}
        self._numbered: dict[tuple[str, int], Mark] = {}
        for call, op in program.ops(rank, HOST):
            if call.step == step:
                self._take(call, op)

    def messages(self) -> Iterator[bytes]:
        """Yields every node, encoded. Durations are rounded to whole microseconds such that their sum on a lane stays right."""
        ends: dict[str, float] = {}
        known: dict[Mark, frozenset[int]] = {}
        for number, (name, kind, ctrl, data, seconds, lane, attrs) in enumerate(self._nodes):
            begun = ends.get(lane, 0.0)
            ends[lane] = begun + seconds * 1e6
            after = _resolved(data, known)
            node = Node(number, name, kind, tuple(sorted(_resolved(ctrl, known) - after)), tuple(sorted(after)))
            node.duration = round(ends[lane]) - round(begun)
            yield encode(node, attrs)

    # -- each kind of op, by the engine's rules (sim.engine.threads, sim.engine.lanes)

    def _take(self, call: Call, op: Op) -> None:
        cost = self._pricer.local(op, self._rank)
        if op.lane == HOST and op.kind not in ORDERS:
            if op.kind in MEETING or (cost.uses and cost.seconds > 0):  # others run without a launch
                self._launch(call, op, cost.host)
            self._op(call, op, cost, ())
            return
        if op.kind == "record":
            self._launch(call, op, cost.host)
            self._mark(call, op, True).deps = self._lane(op.lane) or self._lane(HOST)
        elif op.kind == "sync" or op.lane == HOST:
            self._sync(call, op, cost)
        elif op.kind == "wait":
            self._launch(call, op, cost.host)
            self._lanes[op.lane] = (*self._lane(op.lane), self._mark(call, op, False))
        else:
            self._device(call, op, cost)
        if op.blocking and op.lane != HOST:
            self._lanes[HOST] = (*self._lane(HOST), *self._lane(op.lane))

    def _device(self, call: Call, op: Op, cost: Cost) -> None:
        """Adds a kernel, copy or collective. It starts after the last op on its lane, and after the part of its launches that it needs."""
        before = min(cost.host, max(0.0, cost.ready - cost.seconds)) if cost.ready else cost.host
        self._launch(call, op, before)
        started = self._lane(HOST)
        self._launch(call, op, cost.host - before, ".launch.rest")
        self._op(call, op, cost, started)

    def _sync(self, call: Call, op: Op, cost: Cost) -> None:
        """Lets the thread wait for an event, for one lane or for all lanes. The sync's own host time passes during the wait."""
        reached: tuple[Dep, ...]
        if op.event:
            reached = (self._mark(call, op, False),)
        elif op.name:
            reached = self._lane(op.name)
        else:
            reached = tuple(dep for lane, deps in self._lanes.items() if lane != HOST for dep in deps)
        self._launch(call, op, cost.host, ".host")
        self._lanes[HOST] = (*self._lane(HOST), *reached)

    def _mark(self, call: Call, op: Op, new: bool) -> Mark:
        if op.shift is not None:
            return self._numbered.setdefault((op.event, call.index + op.shift), Mark())
        if new:
            self._latest[op.event] = Mark()
        return self._latest.setdefault(op.event, Mark())

    def _lane(self, name: str) -> tuple[Dep, ...]:
        return self._lanes.get(name, ())

    def _tail(self, lane: str, node: int) -> None:
        self._lanes[lane] = (node,)

    # -- nodes

    def _add(self, name: str, kind: int, ctrl: tuple[Dep, ...], data: tuple[Dep, ...], seconds: float, lane: str, attrs: bytes) -> int:
        self._nodes.append((name, kind, ctrl, data, seconds, lane, attrs))
        return len(self._nodes) - 1

    def _launch(self, call: Call, op: Op, seconds: float, what: str = ".launch") -> None:
        """Adds a node for time of the training thread, if `seconds` is above 0."""
        if seconds > 0:
            name = f"{call.at}/{op.id}{what}"
            self._tail(HOST, self._add(name, Kind.COMP, (), self._lane(HOST), seconds, HOST, OpNodes.launch(seconds)))

    def _op(self, call: Call, op: Op, cost: Cost, ctrl: tuple[Dep, ...]) -> None:
        """Adds the node of the op itself, after the last op on its lane."""
        kind, seconds, attrs = self._ops.of(op, cost)
        self._tail(op.lane, self._add(f"{call.at}/{op.id}", kind, ctrl, self._lane(op.lane), seconds, op.lane, attrs))


def _resolved(deps: tuple[Dep, ...], known: dict[Mark, frozenset[int]]) -> frozenset[int]:
    """Replaces events by the nodes before them, recursively. `known` caches the result for each event."""
    found: set[int] = set()
    for dep in deps:
        if isinstance(dep, int):
            found.add(dep)
            continue
        if dep not in known:
            known[dep] = frozenset()  # an event that waits for itself waits for nothing more
            known[dep] = _resolved(dep.deps, known)
        found |= known[dep]
    return frozenset(found)
