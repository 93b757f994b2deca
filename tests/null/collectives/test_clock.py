"""Latencies of NCCL's kernels are cycles of the GPU's clock: one law for every type, seen or not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy.collectives.left_out import _ROWS, _sample
from sim.cost.collective import GroupShape, best, group_shape
from sim.cost.collective.rates import inner_hop, params, scaled
from topologies.load import load_topology


def _shape(machine: str, ranks: int = 2) -> GroupShape:
    return group_shape(load_topology(machine), tuple(range(ranks)))


@pytest.mark.no_cover
@given(clock=st.floats(min_value=0.8e9, max_value=3e9), factor=st.floats(min_value=1.05, max_value=2.0))
def test_a_faster_clock_shortens_the_floor_by_as_much(clock: float, factor: float) -> None:
    shape = msgspec.structs.replace(_shape("dgx-h100"), clock=clock)
    faster = msgspec.structs.replace(shape, clock=clock * factor)
    slow, fast = (best("all_reduce", 8, one, "ring").latency for one in (shape, faster))
    assert slow == pytest.approx(fast * factor, rel=1e-9)


def test_two_dies_take_longer_than_one_at_the_same_clock() -> None:
    one = _shape("dgx-h100")
    two = msgspec.structs.replace(one, arch="sm100")
    assert scaled(1.0, two) == pytest.approx(scaled(1.0, one) * float(params()["clock"]["two_dies"]))
    assert scaled(1.0, msgspec.structs.replace(one, arch="sm120")) == scaled(1.0, one)  # consumer Blackwell is one die


def test_hops_over_pcie_are_wires_and_know_no_clock() -> None:
    shape = _shape("rtx-pro-6000-x8")
    slower = msgspec.structs.replace(shape, clock=shape.clock / 2.0)
    assert inner_hop("ring", 0, slower) == inner_hop("ring", 0, shape)
    assert scaled(1.0, slower) == pytest.approx(2.0 * scaled(1.0, shape))


def test_an_unknown_clock_is_the_one_of_the_constants() -> None:
    assert scaled(3.0, msgspec.structs.replace(_shape("dgx-h100"), clock=0.0)) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("machine", "two_gpus"),
    [("dgx-a100", 10.0e-6), ("dgx-h100", 6.2e-6), ("dgx-b200", 10.2e-6), ("gb200-nvl72", 10.9e-6), ("rtx-pro-6000-x8", 6.3e-6)],
)
def test_floors_of_two_gpus_are_those_measured(machine: str, two_gpus: float) -> None:
    """nccl-tests all_reduce up to 4 KiB (aiconfigurator tables): one constant in cycles serves all of them within 20 %."""
    assert best("all_reduce", 1024, _shape(machine)).seconds == pytest.approx(two_gpus, rel=0.2)


@pytest.mark.parametrize("period", [3, 7, 21])
@given(rows=st.integers(min_value=900, max_value=2000))
def test_a_sample_of_a_table_sees_every_size(period: int, rows: int) -> None:
    """Tables repeat their 21 sizes: of every seventh row only three would be seen."""
    found = _sample(range(rows))
    assert len(found) <= _ROWS and {row % period for row in found} == set(range(period))
