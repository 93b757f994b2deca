"""Converts an op to a Chakra node: its kind and its attributes."""

from __future__ import annotations

from sim.cost.price import Cost
from sim.exchange.attributes import Attr, encode_attrs
from sim.exchange.chakra import Coll, Kind
from sim.exchange.groups import Groups
from sim.exchange.shares import leaves, part_of, share_of
from sim.mesh import peer_of
from sim.program import HOST, MESSAGE, Op
from sim.work import HostWork


class OpNodes:
    """Makes the nodes of the ops of one rank. Attributes are encoded; each local op is encoded once and reused."""

    def __init__(self, groups: Groups, rank: int) -> None:
        self.groups, self.rank = groups, rank
        self._counts: dict[tuple[int, int, str], int] = {}
        """Number of messages so far by sender, receiver and mesh axis."""
        self._local: dict[int, tuple[Op, bytes]] = {}

    @staticmethod
    def launch(seconds: float) -> bytes:
        """Encoded attributes of a launch that takes `seconds` of the training thread."""
        return encode_attrs({"is_cpu_op": True, "steptwin.lane": HOST, "steptwin.seconds": seconds})

    def of(self, op: Op, cost: Cost) -> tuple[Kind, float, bytes]:
        """(kind, seconds, encoded attributes) of an op with this local cost. Collectives and messages have 0.0 seconds."""
        if op.kind in MESSAGE:
            return Kind.SEND if op.kind == "send" else Kind.RECV, 0.0, self._message(op)
        if op.kind == "collective":
            members = self.groups.members(op.group, self.rank)
            if len(members) > 1:
                return Kind.COLL, 0.0, self._collective(op, members)
        kind = Kind.COMP
        if op.kind == "copy" and op.lane != HOST:
            kind = Kind.MEM_STORE if leaves(op) else Kind.MEM_LOAD
        known = self._local.get(id(op))
        if known is None:
            known = self._local[id(op)] = (op, encode_attrs(_local(op, cost)))
        return kind, cost.seconds, known[1]

    def _collective(self, op: Op, members: tuple[int, ...]) -> bytes:
        """Encoded attributes of a collective. `comm_size` is in ASTRA-sim's convention: for an all_gather the bytes of one rank's part,
        else those of the whole array."""
        size = op.bytes // len(members) if op.name == "all_gather" else op.bytes
        attrs: dict[str, Attr] = {"is_cpu_op": False, "comm_type": int(Coll[op.name]), "comm_size": size}
        name = self.groups.name(op.group, members)
        if name:
            attrs["pg_name"] = name
        attrs |= {"steptwin.lane": op.lane, "steptwin.class": op.cls or op.kind, "steptwin.bytes": op.bytes, "steptwin.how": op.how}
        if op.works:
            attrs["steptwin.beside"] = " ".join(map(str, op.works))
        return encode_attrs(attrs)

    def _message(self, op: Op) -> bytes:
        peer = peer_of(self.groups.members(op.group, self.rank), self.rank, op.peer)
        source, target = (self.rank, peer) if op.kind == "send" else (peer, self.rank)
        number = self._counts.get((source, target, op.group), 0)
        self._counts[source, target, op.group] = number + 1
        attrs: dict[str, Attr] = {"is_cpu_op": False, "comm_src": source, "comm_dst": target, "comm_size": op.bytes}
        attrs |= {
            "comm_tag": self.groups.tag(op.group, number),
            "steptwin.lane": op.lane,
            "steptwin.class": op.cls or op.kind,
        }
        return encode_attrs(attrs)


def _local(op: Op, cost: Cost) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {"is_cpu_op": op.lane == HOST, "steptwin.lane": op.lane, "steptwin.class": op.cls or op.kind}
    attrs["steptwin.seconds"] = cost.seconds
    share = share_of(op, cost)
    if share is not None:
        attrs["steptwin.share"] = share
        moved = op.bytes if op.kind == "copy" else sum(work.moved for work in op.works if isinstance(work, HostWork))
        if share == "memory":
            attrs |= {"tensor_size": int(moved), "steptwin.cores": cost.uses[-1][1]}
        if share != "cores" and (part := part_of(cost, moved)) != 1.0:
            attrs["steptwin.part"] = part
        if cost.latency > 0:
            attrs["steptwin.latency"] = cost.latency
    if cost.slowed:
        attrs["steptwin.slowed"] = cost.slowed
    if op.kind == "compute":
        attrs |= {"num_ops": int(op.flops), "tensor_size": int(sum(work.bytes for work in op.works))}
    elif op.kind == "copy":
        attrs["tensor_size"] = op.bytes
    return attrs
