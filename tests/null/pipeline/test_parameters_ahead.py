"""Interleaved stages ask for their first chunk's parameters as the step begins, not when the first micro-batch arrives."""

from __future__ import annotations

from typing import Any

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.program import Op, Program
from tests.null.lower.tiny import Constant, network, program

SECOND = 2
"""The first rank of the second stage: pp is outermost of 2 x 2 ranks."""
CHUNKED = {"schedule": "interleaved", "virtual_stages": 2}


def made(**parallel: Any) -> Program:
    plan = {"parallel": {"pp": 2, "dp_shard": 2, "zero": 1, **parallel}, "batch": {"micro": 1, "global": 8}}
    return program(plan, network(4))


def beginning(found: Program) -> list[str]:
    """What the second stage asks and waits for in the second step, up to its first kernel."""
    ids: list[str] = []
    for call, op in found.ops(SECOND):
        if call.step == 1 and op.kind == "compute":
            break
        if call.step == 1 and (op.name == "all_gather" or op.kind in ("record", "wait")):
            ids.append(op.id)
    return ids


def test_parameters_are_asked_for_before_the_first_message() -> None:
    ids = beginning(made(**CHUNKED))
    asked = [at for at, name in enumerate(ids) if name.endswith("all_gather")]
    assert asked and max(asked) < ids.index("1RECV_F.wait")


def test_without_interleaving_the_first_forward_asks() -> None:
    ids = beginning(made())
    assert ids.index("1RECV_F.wait") < min(at for at, name in enumerate(ids) if name.endswith("all_gather"))


def test_each_bucket_is_gathered_once_whoever_asks() -> None:
    for rank in (0, SECOND):
        names = [op.id for call, op in made(**CHUNKED).ops(rank) if call.step == 1 and op.name == "all_gather"]
        assert len(names) == len(set(names)) == 2


class Slow(Constant):
    """All_gathers take 100 s, all else what it takes."""

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return Cost(100.0 if op.name == "all_gather" else 0.5)


def test_slow_gathers_of_two_stages_run_at_once() -> None:
    steps = [simulate(found, Slow()).spans for found in (made(**CHUNKED), made())]
    for spans, at_once in zip(steps, (True, False), strict=True):
        first, second = (
            min(span.start for span in spans if span.rank == rank and span.step == 1 and span.id.endswith("all_gather"))
            for rank in (0, SECOND)
        )
        assert (abs(first - second) < 50.0) is at_once
