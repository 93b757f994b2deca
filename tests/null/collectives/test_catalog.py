"""Laws over the whole catalog: every machine, collective, size and node count gives finite, monotone, possible times."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.collective import best, collective_cost, group_shape, message_cost
from sim.cost.collective.group import GroupShape
from sim.cost.collective.nccl import ALGORITHMS, NAMES, choices
from sim.cost.collective.rates import bus_factor
from topologies.errors import BadInput, Refused
from topologies.graph import Topology
from topologies.load import load_topology, machines

MOVING = tuple(name for name in NAMES if name != "barrier")
NODES = (1, 2, 3, 4, 8, 16, 64)
sizes = st.integers(3, 34).map(lambda power: 1 << power) | st.integers(1, 1 << 34)
slack = 1.0 + 1e-9


@cache
def _topology(machine: str, nodes: int) -> Topology:
    return load_topology(machine if nodes == 1 else f"{nodes}x {machine}")


@cache
def _gpus() -> tuple[str, ...]:
    return tuple(name for name in machines() if _topology(name, 1).kind == "cuda")


@cache
def _group(machine: str, nodes: int, each: int, siblings: int = 1) -> GroupShape | None:
    """The group of the first `each` ranks on every node; None where that is one rank."""
    topology = _topology(machine, nodes)
    each = min(each, topology.ranks_per_node)
    ranks = tuple(node * topology.ranks_per_node + local for node in range(nodes) for local in range(each))
    return group_shape(topology, ranks, siblings) if len(ranks) > 1 else None


def _seconds(name: str, size: float, shape: GroupShape, algorithm: str = "auto") -> float:
    seconds = best(name, size, shape, algorithm).seconds
    assert math.isfinite(seconds) and 0.0 < seconds < 1e7
    return seconds


drawn = st.deferred(lambda: st.sampled_from(_gpus()))


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(drawn, st.sampled_from(NODES), st.integers(1, 72), st.sampled_from(MOVING), sizes, st.floats(1.0, 8.0), st.sampled_from(ALGORITHMS))
def test_time_grows_with_size_and_no_switch_is_a_cliff(
    machine: str, nodes: int, each: int, name: str, size: int, factor: float, algorithm: str
) -> None:
    """More bytes never take less time, and twice the bytes never more than three times as long (no cliff where the algorithm changes)."""
    shape = _group(machine, nodes, each)
    if shape is None:
        return
    try:
        once = _seconds(name, size, shape, algorithm)
    except Refused:
        return
    assert _seconds(name, size * factor, shape, algorithm) >= once / slack
    assert _seconds(name, size * 2, shape, algorithm) <= 3.0 * once


def _most(name: str, shape: GroupShape) -> float:
    """Array bytes/s that no algorithm can pass: what each rank must send (receive) at least, over its links.

    Inside a node a rank sends S (n-1)/n of a gathered or exchanged array, S of one that switches reduce or that passes along a chain; over nodes, a
    node's NICs carry at least what the others do not have: S (N-1)/N of a gathered array, 2 S (N-1)/N of one reduced (S of two nodes).
    """
    n, nodes, k = shape.ranks, shape.nodes, shape.local
    once = (n - 1) / n if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0
    own = max(shape.intra, shape.nearest) if name == "all_to_all" else shape.intra  # no ring: a GPU's own link, not the slowest between two
    rates = [own / once] if nodes == 1 else []
    if nodes > 1 and name == "all_to_all":
        rates.append(shape.inter * shape.spread / (k * (n - k) / n))
    elif nodes > 1:
        rates.append(shape.inter / ((nodes - 1) / nodes) / (1.0 if name != "all_reduce" else 2.0))
    return min(rates)


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(drawn, st.sampled_from(NODES), st.integers(1, 72), st.sampled_from(MOVING), sizes)
def test_no_collective_is_faster_than_its_links(machine: str, nodes: int, each: int, name: str, size: int) -> None:
    shape = _group(machine, nodes, each)
    if shape is not None:
        assert size / _seconds(name, size, shape) <= _most(name, shape) * slack


def _relieved(name: str, shape: GroupShape) -> bool:
    """An all_to_all of one array on PCIe: more nodes send less of it over the link between sockets, which binds it, and the rest by NICs."""
    return name == "all_to_all" and shape.exchange > 0.0


@pytest.mark.no_cover
@settings(max_examples=200, deadline=None)
@given(drawn, st.integers(0, len(NODES) - 2), st.integers(1, 72), st.sampled_from(NAMES), sizes)
def test_more_nodes_are_never_faster(machine: str, at: int, each: int, name: str, size: int) -> None:
    few, many = (_group(machine, nodes, each) for nodes in NODES[at : at + 2])
    if few is not None and many is not None and not _relieved(name, few):
        assert _seconds(name, size, many) >= _seconds(name, size, few) / slack


@pytest.mark.no_cover
def test_whole_nodes_are_never_faster_in_greater_numbers() -> None:
    """Every machine of the catalog with all its GPUs, from one node to 64."""
    for machine in _gpus():
        for name in NAMES:
            for size in (1 << 6, 1 << 16, 1 << 22, 1 << 26, 1 << 32):
                shapes = [_group(machine, nodes, 72) for nodes in NODES]
                times = [_seconds(name, size, shape) for shape in shapes if shape is not None and not _relieved(name, shape)]
                assert all(more >= few / slack for few, more in pairwise(times)), (machine, name, size, times)


@settings(max_examples=150, deadline=None)
@given(drawn, st.sampled_from(NODES[1:]), st.sampled_from(NAMES), sizes)
def test_groups_that_share_a_nodes_nics_are_never_faster(machine: str, nodes: int, name: str, size: int) -> None:
    alone, beside = _group(machine, nodes, 1), _group(machine, nodes, 1, _topology(machine, nodes).ranks_per_node)
    assert alone is not None and beside is not None
    assert _seconds(name, size, beside) >= _seconds(name, size, alone) / slack


@settings(max_examples=200, deadline=None)
@given(drawn, st.sampled_from(NODES), st.data(), sizes, st.floats(1.0, 8.0))
def test_messages_grow_with_size_and_keep_to_their_path(machine: str, nodes: int, data: st.DataObject, size: int, factor: float) -> None:
    topology = _topology(machine, nodes)
    a, b = (data.draw(st.integers(0, topology.gpus - 1)) for _ in range(2))
    if a == b:
        return
    once, more, twice = (message_cost(int(size * by), a, b, topology).seconds for by in (1.0, factor, 2.0))
    assert 0.0 < once <= more * slack and twice <= 3.0 * once
    assert size / once <= topology.path(a, b).rate * slack


def test_no_message_outruns_the_way_to_the_next_node() -> None:
    """Of every machine: where a GPU has several NICs, its entry counts them as one of their rates together."""
    for machine in _gpus():
        topology = _topology(machine, 2)
        there = topology.ranks_per_node
        assert (1 << 30) / message_cost(1 << 30, 0, there, topology).seconds <= topology.path(0, there).rate, machine


@pytest.mark.no_cover
@pytest.mark.parametrize("what", ["nvlink", "nvswitch"])
def test_no_collective_gains_by_the_loss_of_nvlink(what: str) -> None:
    """An exchange between two GPUs is left out: its smallest slices go by LL over either, 0.6 us apart."""
    for machine in _gpus():
        for nodes in ("", "2x "):
            whole = load_topology(nodes + machine)
            try:
                bare = load_topology(nodes + machine, (f"without={what}",))
            except BadInput:
                continue
            for name, size, count in product(MOVING, (1 << 10, 1 << 16, 1 << 20, 1 << 28), (2, 4, whole.gpus)):
                if count <= whole.gpus and (name, count) != ("all_to_all", 2):
                    ranks = tuple(range(count))
                    with_, lost = (collective_cost(name, size, ranks, topology).seconds for topology in (whole, bare))
                    assert lost >= with_ / slack, (nodes + machine, name, size, count)


@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-b300", "gb300-nvl72", "aws-p5", "mi300x-x8"])
def test_auto_is_the_best_of_all_that_nccl_would_take(machine: str) -> None:
    for nodes in (1, 4):
        shape = _group(machine, nodes, 8)
        assert shape is not None
        for size in (1 << 10, 1 << 20, 1 << 30):
            assert best("all_reduce", size, shape).seconds == min(choice.seconds for choice in choices("all_reduce", size, shape))


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "broadcast")] == [1.75, 0.875, 1.0]
