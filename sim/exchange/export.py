"""A program as Chakra execution traces: what each rank does, with what waits for what, and how long each op takes alone.

Every op becomes a node. What a lane, an event or a sync orders becomes a data dependency, what the order of launches orders a control
dependency. A launch is a node on the CPU; records, waits and syncs are dependencies alone. Ops that the launches of several kernels hold
up start after the part of the launches that the engine lets them start after (`sim.engine.state.Item.ready`), so that the graph has the
engine's times wherever nothing is shared. Collectives and messages have bytes and no duration: whoever runs the trace simulates them.
What the schema has no field for stands in attributes that begin with `steptwin.`: lanes, exact seconds, and what ranks of one machine share
(`sim.exchange.shares`). With them `sim.exchange.replay` on the same machine takes as long as one step of the program by itself, to 1e-9.

What a trace cannot hold:
- steps before and after: lanes begin idle. Where a host runs ahead of its GPU, or the input path fills, the step that `predict` reports, one
  of many, is shorter;
- other threads than the training one: input workers (their batches are there when they are asked for), the writer of asynchronous
  checkpoints, and what cores and disk these take from it; a parameter server is refused;
- output that does not come with every step, such as a checkpoint every 1,000: `predict` adds its mean;
- which measurements collectives on CPU hosts rest on: a replay is given the same calibration;
- memory: what ops allocate and free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sim.bind import Setting
from sim.cost.price import Cost, Pricer
from sim.detail import STEPS
from sim.engine.lanes import MEET
from sim.exchange.chakra import Attr, Coll, Kind, encode, encode_attrs, write
from sim.exchange.chakra import Node as Message
from sim.exchange.shares import share_of
from sim.lower.step import lower
from sim.mesh import AXES
from sim.plan import Output
from sim.pricer import pricer_for
from sim.program import HOST, Call, Op, Program
from topologies.errors import BadInput, Refused

MOST_RANKS = 4096
"""Files that are written at most, unless the ranks are named."""
_GROUPED = (*AXES, "dp", "grad", "fsdp", "world", "ep", "edp", "efsdp")
"""Mesh axes in the order in which communicators and message tags count them."""


class Mark:
    """An event: the nodes (and other events) before it, known once it has been recorded."""

    __slots__ = ("deps",)

    def __init__(self) -> None:
        self.deps: tuple[Dep, ...] = ()


Dep = int | Mark


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    prefix: str
    """What ASTRA-sim takes as its workload configuration: files are PREFIX.0.et, PREFIX.1.et ..."""
    groups: str
    """Its communicator groups, as JSON."""
    ranks: int
    nodes: int
    """Over all ranks."""

    def __str__(self) -> str:
        return f"{self.ranks} traces with {self.nodes:,} nodes: {self.prefix}.RANK.et, groups in {self.groups}"


def export_plan(setting: Setting, folder: Path, *, calibration: str | Path | None = None, ranks: tuple[int, ...] = ()) -> Exported:
    """The reported step of a plan as `folder`/MODEL.RANK.et, one for each rank (or for each of `ranks`), and `folder`/MODEL.groups.json.

    Input workers are left out: ASTRA-sim has one CPU per device, and they would stand in the training thread's way. So is output that does
    not come with every step.
    Raises `BadInput` for more than `MOST_RANKS` ranks, or ranks that the plan has not.
    """
    plan = msgspec.structs.replace(setting.plan, output=_each_step(setting.plan.output))
    program = lower(plan, setting.network, setting.framework, setting.topology.kind, STEPS)
    framework = setting.framework.name
    return export_program(program, pricer_for(setting, calibration), folder, ranks=ranks, step=STEPS - 1, framework=framework)


def _each_step(output: Output) -> Output:
    """The output that comes with every step."""
    rare = {name: 0 for name in output.__struct_fields__ if name.endswith("_every") and getattr(output, name) != 1}
    return msgspec.structs.replace(output, **rare)


def export_program(
    program: Program, pricer: Pricer, folder: Path, *, ranks: tuple[int, ...] = (), step: int | None = None, framework: str = ""
) -> Exported:
    """The training threads of a program (`step`: one of its optimizer steps alone), priced by `pricer`.

    Its collectives have the habits of `framework`, which the traces name.
    """
    wanted = ranks or tuple(range(program.world))
    if len(wanted) > MOST_RANKS:
        raise BadInput(f"{len(wanted)} ranks are as many files; at most {MOST_RANKS} are written. Name the ranks, or export a smaller plan")
    for rank in wanted:
        if not 0 <= rank < program.world:
            raise BadInput(f"there is no rank {rank}: the program has ranks 0 to {program.world - 1}")
    _one_thread(program)
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / "".join(c if c.isalnum() or c in "-_" else "-" for c in program.name or "program").strip("-")
    groups = Groups(program)
    nodes = 0
    head: dict[str, Attr] = {"steptwin.durations": "alone", "steptwin.world": program.world, "steptwin.device": program.device}
    if framework:
        head["steptwin.framework"] = framework
    for rank in wanted:
        graph = Graph(program, pricer, groups, rank, step)
        nodes += write(Path(f"{prefix}.{rank}.et"), graph.messages(), head | {"rank": rank})
    table = Path(f"{prefix}.groups.json")
    table.write_text(json.dumps({str(number): list(members) for members, number in groups.numbers.items()}) + "\n")
    return Exported(prefix=str(prefix), groups=str(table), ranks=len(wanted), nodes=nodes)


def _one_thread(program: Program) -> None:
    """Raises `Refused` where other threads than the training one exchange something: their ops are left out."""
    for name, role in program.roles.items():
        for thread, calls in role.threads.items():
            for segment in dict.fromkeys(call.segment for call in calls) if thread != HOST else ():
                if any(op.kind in ("collective", "send", "recv") for op in program.segments[segment]):
                    raise Refused(
                        f"thread {thread} of {name} exchanges with other ranks (asynchronous updates), which a trace of one CPU for each "
                        'device cannot show. Export the plan with update.mode = "sync" or "local"'
                    )


class Groups:
    """Communicators, numbered by axis and first member, so that ranks exported apart agree. All ranks together need no number: the
    empty name means them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[tuple[int, ...], int] = {}
        self._of: dict[tuple[str, int], tuple[int, ...]] = {}

    def members(self, axis: str, rank: int) -> tuple[int, ...]:
        """Ranks of the group of `rank` along a mesh axis, in group order."""
        found = self._of.get((axis, rank))
        if found is None:
            found = self._of[axis, rank] = self.program.mesh.group(axis, rank)
        return found

    def name(self, axis: str, members: tuple[int, ...]) -> str:
        """`pg_name` of a communicator."""
        if len(members) == self.program.world:
            return ""
        return str(self.numbers.setdefault(members, _GROUPED.index(axis) * self.program.world + min(members) + 1))


class Graph:
    """The graph of one rank."""

    def __init__(self, program: Program, pricer: Pricer, groups: Groups, rank: int, step: int | None) -> None:
        self.program, self.pricer, self.groups, self.rank, self.step = program, pricer, groups, rank, step
        self._nodes: list[tuple[str, int, tuple[Dep, ...], tuple[Dep, ...], float, str, bytes]] = []
        """(name, kind, control dependencies, data dependencies, seconds, lane, attributes)"""
        self._lanes: dict[str, tuple[Dep, ...]] = {}
        self._latest: dict[str, Mark] = {}
        self._numbered: dict[tuple[str, int], Mark] = {}
        self._counts: dict[tuple[int, int, str], int] = {}
        self._attrs: dict[int, tuple[Op, bytes]] = {}
        for call, op in program.ops(rank, HOST):
            if step is None or call.step == step:
                self._take(call, op)

    def messages(self) -> Iterator[bytes]:
        """Every node, encoded. Microseconds are rounded so that the sum over a lane is right, not each by itself."""
        ends: dict[str, float] = {}
        known: dict[Mark, frozenset[int]] = {}
        for number, (name, kind, ctrl, data, seconds, lane, attrs) in enumerate(self._nodes):
            begun = ends.get(lane, 0.0)
            ends[lane] = begun + seconds * 1e6
            after = _resolved(data, known)
            node = Message(number, name, kind, tuple(sorted(_resolved(ctrl, known) - after)), tuple(sorted(after)))
            node.duration = round(ends[lane]) - round(begun)
            yield encode(node, attrs)

    # -- what the engine's rules (sim.engine.threads, sim.engine.lanes) make of each kind of op

    def _take(self, call: Call, op: Op) -> None:
        cost = self.pricer.local(op, self.rank)
        if op.lane == HOST and op.kind not in ("record", "wait", "sync"):
            if op.kind in MEET or (cost.uses and cost.seconds > 0):  # others run without a launch
                self._launch(call, op, cost.host)
            self._tail(HOST, self._op(call, op, self._lane(HOST), ()))
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
        """A kernel, copy or collective: after its lane's last op, and after so much of its launches as it needs."""
        before = min(cost.host, max(0.0, cost.ready - cost.seconds)) if cost.ready else cost.host
        self._launch(call, op, before)
        started = self._lane(HOST)
        self._launch(call, op, cost.host - before, ".launch.rest")
        self._tail(op.lane, self._op(call, op, self._lane(op.lane), started))

    def _sync(self, call: Call, op: Op, cost: Cost) -> None:
        """The thread waits: for an event, one lane or all; its own time passes meanwhile."""
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
        """Time of the training thread, where it takes any."""
        if seconds > 0:
            attrs = encode_attrs({"is_cpu_op": True, "steptwin.lane": HOST, "steptwin.seconds": seconds})
            self._tail(HOST, self._add(f"{call.at}/{op.id}{what}", Kind.COMP, (), self._lane(HOST), seconds, HOST, attrs))

    def _op(self, call: Call, op: Op, data: tuple[Dep, ...], ctrl: tuple[Dep, ...]) -> int:
        """The op itself."""
        name = f"{call.at}/{op.id}"
        if op.kind in ("send", "recv"):
            return self._add(name, Kind.SEND if op.kind == "send" else Kind.RECV, ctrl, data, 0.0, op.lane, self._message(op))
        if op.kind == "collective":
            members = self.groups.members(op.group, self.rank)
            if len(members) > 1:
                return self._add(name, Kind.COLL, ctrl, data, 0.0, op.lane, self._collective(op, members))
        cost = self.pricer.local(op, self.rank)
        kind = Kind.COMP
        if op.kind == "copy" and op.lane != HOST:
            kind = Kind.MEM_STORE if "d2h" in op.lane or "d2h" in op.how else Kind.MEM_LOAD
        known = self._attrs.get(id(op))
        if known is None:
            attrs: dict[str, Attr] = {"is_cpu_op": op.lane == HOST, "steptwin.lane": op.lane, "steptwin.class": op.cls or op.kind}
            attrs["steptwin.seconds"] = cost.seconds
            share = share_of(op, cost)
            if share is not None:
                attrs["steptwin.share"] = share
                if cost.latency > 0:
                    attrs["steptwin.latency"] = cost.latency
            if op.kind == "compute":
                attrs |= {"num_ops": int(sum(work.flops for work in op.works)), "tensor_size": int(sum(work.bytes for work in op.works))}
            elif op.kind == "copy":
                attrs["tensor_size"] = op.bytes
            known = self._attrs[id(op)] = (op, encode_attrs(attrs))
        return self._add(name, kind, ctrl, data, cost.seconds, op.lane, known[1])

    def _collective(self, op: Op, members: tuple[int, ...]) -> bytes:
        """Bytes as ASTRA-sim counts them: of an all_gather what one rank gives, of the others the whole array."""
        size = op.bytes // len(members) if op.name == "all_gather" else op.bytes
        attrs: dict[str, Attr] = {"is_cpu_op": False, "comm_type": int(Coll[op.name]), "comm_size": size}
        name = self.groups.name(op.group, members)
        if name:
            attrs["pg_name"] = name
        attrs |= {"steptwin.lane": op.lane, "steptwin.class": op.cls or op.kind, "steptwin.bytes": op.bytes, "steptwin.how": op.how}
        return encode_attrs(attrs)

    def _message(self, op: Op) -> bytes:
        members = self.groups.members(op.group, self.rank)
        peer = members[(members.index(self.rank) + op.peer) % len(members)]
        source, target = (self.rank, peer) if op.kind == "send" else (peer, self.rank)
        number = self._counts.get((source, target, op.group), 0)
        self._counts[source, target, op.group] = number + 1
        attrs: dict[str, Attr] = {"is_cpu_op": False, "comm_src": source, "comm_dst": target, "comm_size": op.bytes}
        attrs |= {
            "comm_tag": number * len(_GROUPED) + _GROUPED.index(op.group),
            "steptwin.lane": op.lane,
            "steptwin.class": op.cls or op.kind,
        }
        return encode_attrs(attrs)


def _resolved(deps: tuple[Dep, ...], known: dict[Mark, frozenset[int]]) -> frozenset[int]:
    """Nodes behind nodes and events."""
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
