"""Each law of programs: a small program that keeps it, and how its breach is named."""

from __future__ import annotations

import re

import pytest

from sim.lower.checks.verify import verify
from sim.mesh import Mesh
from sim.program import Call, Op, Program, Role
from tests.null.pipeline.line import pipeline
from topologies.errors import BadInput, UnknownName

Threads = dict[str, list[Op]]


def made(*ranks: Threads, mesh: Mesh | None = None, calls: int = 1) -> Program:
    """One role for each rank; every thread calls its one segment `calls` times."""
    segments = {f"r{i}.{name}": tuple(ops) for i, threads in enumerate(ranks) for name, ops in threads.items()}
    roles = {
        f"role{i}": Role({name: tuple(Call(f"r{i}.{name}", f"s{k}", k, k) for k in range(calls)) for name in threads})
        for i, threads in enumerate(ranks)
    }
    return Program("test", "cuda", mesh or Mesh({"pp": len(ranks)}), segments, roles, tuple(roles), calls)


def send(to: int = 1, size: int = 8, lane: str = "comm.send") -> Op:
    return Op(f"send{size}", "send", lane, bytes=size, group="pp", peer=to)


def recv(of: int = -1, size: int = 8, lane: str = "comm.recv") -> Op:
    return Op(f"recv{size}", "recv", lane, bytes=size, group="pp", peer=of)


def reduce(name: str = "all_reduce", size: int = 8, lane: str = "comm.dp") -> Op:
    return Op(f"{name}{size}", "collective", lane, name=name, bytes=size, group="pp")


def record(event: str, lane: str = "compute", shift: int | None = None) -> Op:
    return Op(f"{event}.record", "record", lane, event=event, shift=shift)


def wait(event: str, lane: str = "compute", shift: int | None = None) -> Op:
    return Op(f"{event}.wait", "wait", lane, event=event, shift=shift)


def breach(program: Program) -> str:
    with pytest.raises(BadInput) as caught:
        verify(program)
    return str(caught.value)


def test_what_keeps_the_laws_passes() -> None:
    first = [Op("k", "compute", "compute", alloc=4, free=4), record("k"), wait("k", "comm.send"), send(), reduce()]
    second = [recv(), record("got", "comm.recv"), wait("got"), reduce()]
    verify(made({"host": first}, {"host": second}, calls=3))


def test_messages_meet_in_the_order_of_issue_on_any_lane() -> None:
    first = [send(size=8, lane="a"), send(size=16, lane="b")]
    verify(made({"host": first}, {"host": [recv(size=8, lane="x"), recv(size=16, lane="y")]}))
    crossed = made({"host": first}, {"host": [recv(size=16, lane="x"), recv(size=8, lane="y")]})
    assert breach(crossed) == "send 0 of rank 0 to rank 1 in group pp is 8 bytes, its recv 16 bytes"


def test_a_send_without_a_receive_is_named() -> None:
    assert (
        breach(made({"host": [send(), send()]}, {"host": [recv()]}))
        == "send 1 of rank 0 to rank 1 in group pp is 8 bytes, its recv nothing"
    )
    assert breach(made({"host": []}, {"host": [recv()]})) == "recv 0 of rank 1 from rank 0 in group pp is 8 bytes, its send nothing"


def test_calls_may_cut_messages_differently() -> None:
    first = Program("x", "cuda", Mesh({"pp": 2}), {"one": (send(),), "two": (recv(), recv())}, {}, (), 1)
    roles = {"a": Role({"host": (Call("one", "a"), Call("one", "b"))}), "b": Role({"host": (Call("two", "a"),)})}
    verify(Program("x", "cuda", first.mesh, first.segments, roles, ("a", "b"), 1))


def test_members_of_a_group_agree_on_their_collectives() -> None:
    ours, theirs = [reduce(size=8), reduce("all_gather", 4)], [reduce("all_gather", 4), reduce(size=8)]
    text = "collective 0 in group pp on lane comm.dp: rank 0 runs all_reduce of 8 bytes, rank 1 all_gather of 4 bytes"
    assert breach(made({"host": ours}, {"host": theirs})) == text
    assert breach(made({"host": ours}, {"host": ours[:1]})).endswith("rank 0 runs all_gather of 4 bytes, rank 1 nothing")


def test_collectives_on_different_lanes_are_different() -> None:
    assert "on lane a" in breach(made({"host": [reduce(lane="a")]}, {"host": [reduce(lane="b")]}))


def test_a_wait_follows_its_record() -> None:
    assert "s0/e.wait waits for event 'e', which the thread has not recorded before" in breach(made({"host": [wait("e"), record("e")]}))
    verify(made({"host": [record("e"), wait("e")]}, calls=2))
    other = made({"host": [wait("e")], "loader.0": [record("e", "loader.0")]})
    assert "role role0, thread host" in breach(other)


def test_numbered_waits_have_their_record() -> None:
    loader = [wait("taken", "loader.0", -2), record("ready", "loader.0", 0)]
    host = [Op("get", "sync", "host", event="ready", shift=0), record("taken", "host", 0)]
    verify(made({"host": host, "loader.0": loader}, calls=4))
    ahead = [Op("get", "sync", "host", event="ready", shift=1), record("taken", "host", 0)]
    assert "s3/get waits for event 'ready' number 4, which no thread records" in breach(made({"host": ahead, "loader.0": loader}, calls=4))
    twice = made({"host": [*host, record("ready", "host", 0)], "loader.0": loader})
    assert "s0/ready.record records event 'ready' number 0 a second time" in breach(twice)


def test_memory_is_not_given_back_twice() -> None:
    ops = [Op("a", "compute", "compute", alloc=8), Op("b", "compute", "compute", free=12)]
    assert breach(made({"host": ops})) == "role role0, thread host, s0/b frees 4 bytes more than were allocated"
    lent = [Op("a", "compute", "compute", alloc=12), Op("b", "compute", "compute", free=8)]
    verify(made({"host": lent}, calls=3))


def test_a_deadlock_shows_the_grid() -> None:
    """Both send first and block: nobody receives."""
    from msgspec.structs import replace

    def blocking(op: Op) -> Op:
        return replace(op, blocking=True)

    one = [blocking(send(1)), blocking(recv(1))]
    text = breach(made({"host": one}, {"host": one}))
    lines = re.sub(" +", " ", text).splitlines()
    assert lines == [
        "the program deadlocks: 4 threads and lanes are stuck",
        "rank lane stuck at which is",
        "r0 host s0/send8 send 0 in pp, peer +1",
        "r1 host s0/send8 send 0 in pp, peer +1",
        "r0 comm.send s0/send8 send 0 in pp, peer +1, 0 ops behind it",
        "r1 comm.send s0/send8 send 0 in pp, peer +1, 0 ops behind it",
    ]
    verify(made({"host": [send(1), recv(1)]}, {"host": [send(1), recv(1)]}))  # queued, they pass


def test_collectives_of_two_lanes_that_wait_for_each_other() -> None:
    """Rank 0 runs lane a before b, rank 1 b before a: each group's order agrees, the whole does not."""
    first = [reduce(lane="a"), record("e", "a"), wait("e", "b"), reduce(lane="b")]
    second = [reduce(lane="b"), record("e", "b"), wait("e", "a"), reduce(lane="a")]
    text = breach(made({"host": first}, {"host": second}))
    assert "the program deadlocks" in text and "wait for event 'e', 1 ops behind it" in text


def test_a_thread_that_waits_for_another_for_ever() -> None:
    host = [Op("get", "sync", "host", event="ready", shift=0), record("go", "host", 0)]
    loader = [wait("go", "loader.0", 0), record("ready", "loader.0", 0)]
    text = breach(made({"host": host, "loader.0": loader}))
    assert re.search(r"r0 +host +s0/get +sync for event 'ready' number 0", text)
    assert re.search(r"r0 +loader.0 +s0/go.wait +wait for event 'go' number 0", text)


def test_a_deadlock_names_the_number_that_is_waited_for() -> None:
    """The loader works two batches ahead, and waits for what the host gives back only afterwards."""
    host = (Op("get", "sync", "host", event="ready", shift=-2), record("taken", "host", 0))
    loader = (wait("taken", "loader.0", 2), record("ready", "loader.0", 0))
    role = Role({"host": (Call("host", "s5", 5, 5),), "loader.0": (Call("loader", "s3", 3, 3),)})
    text = breach(Program("x", "cuda", Mesh({}), {"host": host, "loader": loader}, {"r": role}, ("r",), 6))
    assert re.search(r"s5/get +sync for event 'ready' number 3$", text, re.MULTILINE)
    assert re.search(r"s3/taken.wait +wait for event 'taken' number 5$", text, re.MULTILINE)


def test_sync_waits_for_lanes() -> None:
    ops = [record("a"), reduce(), Op("all", "sync", "host"), Op("one", "sync", "host", name="comm.dp"), send(), recv()]
    verify(made({"host": ops}, {"host": ops}))
    assert "deadlocks" in breach(
        made({"host": [*ops[1:3], reduce(lane="x")]}, {"host": [reduce(lane="x"), Op("all", "sync", "host"), reduce()]})
    )


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Op("x", "collective", "a", name="all_reduce", group="tpp"), "unknown mesh axis 'tpp'"),
        (Op("x", "collective", "a", group="pp"), "op x is a collective without a name"),
        (Op("x", "send", "a", group="pp", peer=2), "op x .send in pp. is a message to itself"),
        (Op("x", "record", "a"), "op x .record. names no event"),
        (Op("x", "compute", "a", free=-1), "op x has a negative size"),
    ],
)
def test_what_an_op_alone_can_break(op: Op, text: str) -> None:
    assert re.search(text, breach(made({"host": [op]}, {"host": [op]})))


def test_names_lead_somewhere() -> None:
    with pytest.raises(UnknownName, match="unknown segment 'gone'"):
        verify(Program("x", "cuda", Mesh({}), {}, {"r": Role({"host": (Call("gone", "s0"),)})}, ("r",), 1))


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_pipeline_with_one_message_lost_is_refused(rank: int) -> None:
    """Any call of any message taken away from one rank breaks a law."""
    from msgspec.structs import replace

    whole = pipeline("interleaved", 4, 4, 2)
    verify(whole)
    name = whole.role_of[rank]
    calls = whole.roles[name].threads["host"]
    for i, call in enumerate(calls):
        if re.fullmatch(r"pp\.\d+(SEND|RECV)_[FB]", call.segment):
            role = Role(whole.roles[name].threads | {"host": calls[:i] + calls[i + 1 :]})
            assert re.match(r"(send|recv|role)", breach(replace(whole, roles=whole.roles | {name: role})))


@pytest.mark.no_cover
def test_a_long_program_needs_no_deep_stack() -> None:
    """Thousands of messages that let each other go on, one by one."""
    first, second = [send(), recv(1)], [recv(), send(-1)]
    verify(made({"host": first}, {"host": second}, calls=5000))
    blocking = [Op(op.id, op.kind, op.lane, bytes=8, group="pp", peer=op.peer, blocking=True) for op in first]
    verify(made({"host": blocking}, {"host": second}, calls=5000))


def test_equal_ranks_are_checked_once() -> None:
    """4,096 ranks in one role: one of them stands for all."""
    ops = (
        Op("g", "collective", "comm.dp", name="all_gather", bytes=8, group="dp"),
        Op("t", "collective", "compute", name="all_reduce", group="tp"),
    )
    verify(
        Program("big", "cuda", Mesh({"dp_shard": 512, "tp": 8}), {"s": ops}, {"r": Role({"host": (Call("s", "s0"),)})}, ("r",) * 4096, 1)
    )
