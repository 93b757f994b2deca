"""The language between a plan and its two interpreters.

A *program* says, for each rank, what its CPU threads do in which order. A thread issues *ops*: an op on the
thread's own lane (`host`, `loader.0`) runs there; an op on a device lane (`compute`, `comm.tp`, `copy.h2d`)
is queued, as a CUDA launch is, and the thread goes on unless the op is `blocking`. Lanes run in order;
across lanes only `record` and `wait` order. That is all either interpreter knows.

Ranks that run the same ops share one *role*, and a stretch of ops that repeats (a stage's forward of one
micro-batch) is one *segment*, called many times. An op's full name is `r3/s2/mb0/fwd/L5.attn.qkv`:
rank, then the call's `at`, then the op's `id`. Everything prints as lines of text and parses back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import msgspec

from sim.mesh import Mesh
from sim.words import quote
from sim.work import Work

Kind = Literal["compute", "copy", "collective", "send", "recv", "host", "record", "wait", "sync"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MESSAGE = ("send", "recv")
MEETING = ("collective", *MESSAGE)
"""Kinds that start when other ranks have come too."""
MOVES = ("collective", "send", "copy")
"""Kinds that use links; a message is its sender's."""
EVENTS = ("record", "wait")
"""Kinds that record an event on a lane, or let it wait for one."""
ORDERS = (*EVENTS, "sync")
"""Kinds that only say what comes after what."""
FILED = ("disk", "store")
"""`Op.how` of copies whose bytes lie in files, of a node's disk or of a store that nodes share; any other copy is between memories."""

HOST = "host"
SERVER = "server"
"""How the lanes of a parameter server's threads begin (`server_lane`); its tensors are in host memory as those of the `HOST` lane are."""
PINNER = "pinner"
"""The thread that copies what loader processes of a rank have made into pinned memory; its lane is named so, too."""
COMPUTE = "compute"
H2D = "copy.h2d"
D2H = "copy.d2h"


def cpu_lane(lane: str) -> bool:
    """Whether a lane is a CPU thread's own: the training thread, a loader process, the thread that pins, a checkpoint's writer, a parameter server."""
    return lane.startswith((HOST, "loader", PINNER, "writer", SERVER))


def server_lane(worker: int) -> str:
    """The lane, and thread, of a parameter server that serves one worker."""
    return f"{SERVER}.{worker}"


class Op(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One instruction. Bytes of collectives count the whole array, as nccl-tests does
    (all_gather and reduce_scatter: ranks x shard)."""

    id: str
    kind: Kind
    lane: str
    works: tuple[Work, ...] = ()
    """compute and host: kernels launched one after the other; collective: kernels of another micro-batch that run beside it."""
    name: str = ""
    """collective: all_reduce all_gather reduce_scatter all_to_all broadcast reduce barrier; sync: the lane waited for, "" = all."""
    bytes: int = 0
    """copy, collective, send, recv: message size."""
    group: str = ""
    """Mesh axis whose members take part (collective, send, recv)."""
    peer: int = 0
    """send, recv: offset of the peer inside the group, modulo its size (+1 = next)."""
    event: str = ""
    """record, wait, sync: the event. A wait takes the latest record that the same thread issued before it ..."""
    shift: int | None = None
    """... unless `shift` is given: then event number (call.index + shift), across threads; numbers below 0 have happened."""
    cls: str = ""
    """Class in breakdowns and error tables: gemm attention norm ... comm.tp, data, optimizer, output."""
    blocking: bool = False
    """The issuing thread waits until the op has ended (CPU kernels, pageable copies, `.item()`)."""
    how: str = ""
    """compute: SMs that a collective beside it holds (`beside`), "" = all of NCCL's channels; copy: pinned | pageable | disk | store;
    collective: a forced algorithm ("" = chosen by cost), or how an all_to_all's tokens travel (`sim.routing`)."""
    alloc: int = 0
    """Device bytes taken when the op starts."""
    free: int = 0
    """Device bytes given back when the op ends."""

    @property
    def flops(self) -> float:
        """Of its own kernels; those that a collective runs beside are another op's."""
        return sum(work.flops for work in self.works) if self.kind != "collective" else 0.0

    def __str__(self) -> str:
        """One line: kind, lane, id, works, then `field=value` for what is not the default; `sim.files.optext` reads it back exactly."""
        words = [self.kind, quote(self.lane), quote(self.id), *map(str, self.works)]
        for field, default in zip(self.__struct_fields__[4:], self.__struct_defaults__[1:], strict=True):
            value = getattr(self, field)
            if value == default:
                continue
            if field == "blocking":
                words.append(field)
            else:
                words.append(f"{field}={quote(value) if isinstance(value, str) else value}")
        return " ".join(words)


LATER = ".later"
"""Ends the name of a segment that does as the one without it does, and joins its results to those."""
_SMS = " SMs"


def beside(sms: int) -> str:
    """`Op.how` of kernels beside which a collective holds so many SMs."""
    return f"{sms}{_SMS}"


def held_beside(op: Op) -> int | None:
    """SMs that a collective beside these kernels holds; None where NCCL's channels do."""
    return int(op.how.removesuffix(_SMS)) if op.how.endswith(_SMS) else None


class Call(msgspec.Struct, frozen=True, gc=False):
    """One run through a segment. `at` prefixes the ids (`s2/mb0`), `index` numbers events that cross threads."""

    segment: str
    at: str
    index: int = 0
    step: int = 0


class Role(msgspec.Struct, frozen=True):
    """What one kind of rank does: for each CPU thread, its calls in order. `host` is the training loop."""

    threads: dict[str, Sequence[Call]]


class Program(msgspec.Struct, frozen=True):
    """All ranks. `role_of[rank]` names a role; `steps` optimizer steps are contained, the last is the one reported."""

    name: str
    device: Literal["cuda", "cpu"]
    mesh: Mesh
    segments: dict[str, tuple[Op, ...]]
    roles: dict[str, Role]
    role_of: tuple[str, ...]
    steps: int
    resident: dict[str, int] = {}
    """Device bytes that live through the whole step, by what they are (parameters, gradients, optimizer...), worst role."""
    notes: tuple[str, ...] = ()
    """What lowering decided where the plan was silent."""

    def __repr__(self) -> str:
        """Short: `sim.files.text` prints a program whole."""
        return f"Program({self.name!r}, {self.device!r}, world={self.world}, steps={self.steps}, {len(self.segments):,} segments)"

    @property
    def world(self) -> int:
        return len(self.role_of)

    def threads(self, rank: int) -> dict[str, Sequence[Call]]:
        return self.roles[self.role_of[rank]].threads

    def ops(self, rank: int, thread: str = HOST) -> Iterator[tuple[Call, Op]]:
        """Every op that a thread issues, in order."""
        for call in self.threads(rank)[thread]:
            for op in self.segments[call.segment]:
                yield call, op

    def lanes(self, rank: int) -> dict[str, list[str]]:
        """Full op ids by lane, in the order in which they are issued."""
        found: dict[str, list[str]] = {}
        for thread in self.threads(rank):
            for call, op in self.ops(rank, thread):
                found.setdefault(op.lane, []).append(full_id(rank, call, op))
        return found


def full_id(rank: int, call: Call, op: Op) -> str:
    """`r3/s2/mb0/fwd/L5.attn.qkv`: the same in plan dump, both traces and the report."""
    return f"r{rank}/{call.at}/{op.id}"
