"""A program in short is the plan's program with its layers unnamed: the same work in the same order, whatever shortens its runs."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import load_framework
from sim.lower.short import Shortener
from sim.lower.step import lower
from sim.lower.template import BlockOps, PartOps
from sim.model.parts import Block, Network
from sim.program import Op, Program
from tests.null.lower.test_laws import plans
from tests.null.lower.tiny import QUIET, linear, network
from topologies.errors import Refused

Line = list[tuple[str, Op, object]]
DATA = ("dp", "grad", "dp_shard", "dp_replicate")
"""Axes along which parameters and gradients travel."""


MARKS = ("alone", "beside")


def marked(ops: tuple[Op, ...], beside: bool) -> tuple[Op, ...]:
    """The ops as they are; `how` tells what the first run with each was said to be."""
    return tuple(op if op.how in MARKS else replace(op, how=MARKS[beside]) for op in ops)


def lines(program: Program) -> dict[tuple[str, str], Line]:
    """What each thread issues, without names: the micro-batch, the op, and how far before a wait its record stands, or which of the rank's
    numbered events it is."""
    found: dict[tuple[str, str], Line] = {}
    for name, role in program.roles.items():
        numbers: dict[str, int] = {}
        for thread, calls in role.threads.items():
            line = found[name, thread] = []
            records: dict[str, int] = {}
            for call in calls:
                for op in program.segments[call.segment]:
                    if op.shift is not None:
                        meets: object = ("numbered", numbers.setdefault(op.event, len(numbers)))
                    else:
                        meets = len(line) - records.get(op.event, len(line))
                    if op.kind == "record" and op.shift is None:
                        meets, records[op.event] = 0, len(line)
                    line.append((call.at, replace(op, id="", event="", how=""), meets))
    return found


def lowered(plan: dict[str, Any], net: Network, framework: str, short: Shortener | None) -> Program:
    return lower(load_plan({"model": "tiny", "precision": "fp32", **plan}), net, load_framework(framework), "cuda", 2, short)


@pytest.mark.no_cover
@settings(max_examples=50, deadline=None)
@given(plans(), st.booleans(), st.integers(1, 3))
def test_short_programs_do_the_same_in_the_same_order(drawn: tuple[dict[str, Any], Network, str], coarse: bool, microbatches: int) -> None:
    plan, net, framework = drawn
    short = Shortener(marked, coarse)
    batch = plan["batch"]
    for global_ in (batch["global"], microbatches * batch["global"]):  # the second plan takes over what the first has made
        more = plan | {"batch": batch | {"global": global_}}
        try:
            whole = lowered(more, net, framework, None)
        except Refused:
            return
        assert lines(lowered(more, net, framework, short)) == lines(whole)


@settings(max_examples=50, deadline=None)
@given(plans(), st.booleans())
def test_runs_beside_messages_are_shortened_as_such(drawn: tuple[dict[str, Any], Network, str], coarse: bool) -> None:
    try:
        made = lowered(*drawn, Shortener(marked, coarse))
    except Refused:
        return
    for ops in made.segments.values():
        how = {op.how for op in ops if op.how in MARKS}
        if any(op.kind == "collective" and op.group in DATA for op in ops):
            assert how <= {"alone" if coarse else "beside"}
    wrapped = drawn[0]["parallel"]["zero"] > 1  # by FSDP, whose passes are the same where one rank has it all
    if not wrapped and all(made.mesh.size(axis) == 1 for axis in DATA):
        assert not any(op.how == "beside" for ops in made.segments.values() for op in ops)


@pytest.mark.parametrize(("bucket", "pieces"), [("8 MiB", 3), ("4 MiB", 5)])
def test_a_layer_whose_gradients_leave_in_its_midst_is_cut_there(bucket: str, pieces: int) -> None:
    """Two layers of two products of 4 MiB each and a head: runs end where a bucket is full, and nowhere else."""
    net = network(2, (linear("up"), linear("down")))
    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"dp_replicate": 2}, "comm": {"bucket": bucket}})
    segments = lower(plan, net, QUIET, "cuda", 2, Shortener(one)).segments
    assert [op.how for op in segments["bwd.sync"] if op.how in MARKS] == ["beside"] * pieces
    assert [op.how for op in segments["fwd"]] == ["alone"]


@pytest.mark.parametrize("split", [{"dp_shard": 2, "zero": 1}, {"dp_shard": 2, "zero": 3, "pp": 2, "schedule": "1f1b"}])
def test_a_forward_that_gathers_parameters_is_beside_them(split: dict[str, Any]) -> None:
    plan = {"parallel": split, "batch": {"micro": 1, "global": 4}}
    made = lowered(plan, network(2), "megatron-core" if split["zero"] == 1 else "torchtitan", Shortener(marked))
    gathers = [ops for name, ops in made.segments.items() if name.endswith("fwd.gather")]
    plain = [ops for name, ops in made.segments.items() if name.endswith("fwd")]
    assert gathers and all({op.how for op in ops if op.how in MARKS} == {"beside"} for ops in gathers)
    assert plain and all({op.how for op in ops if op.how in MARKS} == {"alone"} for ops in plain)


def event(kind: Literal["record", "wait"], name: str, shift: int | None = None) -> tuple[Op, ...]:
    return (Op(f"{name}.{kind}", kind, "compute", event=name, shift=shift),)


RECORD, WAIT = event("record", "e"), event("wait", "e")


@pytest.mark.parametrize(
    ("parts", "prelude", "shares"),
    [
        ([{}], (), True),
        ([{"forward": RECORD + WAIT, "backward": RECORD + WAIT, "joint": RECORD + WAIT}], (), True),
        ([{"forward": RECORD}, {"forward": WAIT}], (), True),
        ([{"backward": WAIT, "joint": WAIT}, {"backward": RECORD, "joint": RECORD}], (), True),  # backward begins with the last part
        ([{"joint": WAIT}], RECORD, True),
        ([{"forward": WAIT}, {"forward": RECORD}], (), False),
        ([{"forward": RECORD, "joint": WAIT}], (), False),
        ([{"forward": RECORD, "backward": WAIT}], (), False),
        ([{"backward": RECORD, "wgrad": WAIT}], (), False),
        ([{"forward": RECORD + event("wait", "other")}], (), False),
        ([{"forward": event("record", "e", 0)}], (), False),
        ([{"forward": event("record", "e", 0) + event("wait", "e", 0)}], (), False),
    ],
)
def test_layers_share_what_no_other_pass_waits_for(parts: list[dict[str, tuple[Op, ...]]], prelude: tuple[Op, ...], shares: bool) -> None:
    """Else the wait of one layer would be for the record of another."""
    nothing: dict[str, tuple[Op, ...]] = {"forward": (), "backward": (), "wgrad": (), "joint": ()}
    lines_ = [PartOps("~", linear(f"p{i}"), **(nothing | part)) for i, part in enumerate(parts)]
    block = BlockOps("~", Block(kind="layer", parts=tuple(part.part for part in lines_)), tuple(lines_), prelude)
    short = Shortener(marked)
    assert short.shares(block) == short.shares(block) == shares


def one(ops: tuple[Op, ...], beside: bool) -> tuple[Op, ...]:
    """A run as one op."""
    return (Op("run", "compute", "compute", how=MARKS[beside]),)


def shortened(layers: int, *sizes: tuple[int, int]) -> int:
    """How many runs are shortened for plans of one model, of so many (replicas, micro-batches) each."""
    runs: list[tuple[Op, ...]] = []

    def noted(ops: tuple[Op, ...], beside: bool) -> tuple[Op, ...]:
        runs.append(ops)
        return ops

    short, net = Shortener(noted), network(layers)
    for replicas, count in sizes:
        tree = {"model": "tiny", "precision": "fp32", "parallel": {"dp_replicate": replicas}, "batch": {"global": replicas * count}}
        lower(load_plan(tree), net, QUIET, "cuda", 2, short)
    return len(runs)


def test_equal_layers_are_shortened_once() -> None:
    """However many there are, and for all plans that run them alike."""
    few = shortened(3, (2, 4))
    assert few < 3 * 2 * 3  # layers, passes, kinds of micro-batches
    assert shortened(9, (2, 4)) == few == shortened(3, (2, 4), (2, 8), (4, 4))
