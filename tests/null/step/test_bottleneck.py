"""What binds a step, and what ties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.timeline.bottleneck import bottleneck, bottlenecks, shares
from sim.timeline.metrics import Breakdown

SECONDS = st.floats(0.0, 10.0)


def test_on_a_cpu_the_host_computes_and_bubbles_are_waits() -> None:
    assert bottleneck(Breakdown(compute_s=1.0, optimizer_s=1.0, exposed_comm_s=1.5), cpu=True) == "compute"
    assert bottleneck(Breakdown(compute_s=1.0, bubble_s=0.8, exposed_comm_s=0.8), cpu=True) == "communication"
    assert (
        bottleneck(Breakdown(compute_s=1.0, host_s=1.2)) == "host"
        and bottleneck(Breakdown(compute_s=1.0, host_s=1.2), cpu=True) == "compute"
    )
    assert bottleneck(Breakdown(compute_s=1.0, data_s=2.0)) == "data"


def test_near_equals_tie_and_nothing_else_does() -> None:
    assert bottlenecks(Breakdown(compute_s=1.0, data_s=0.85)) == ("compute", "data")
    assert bottlenecks(Breakdown(compute_s=1.0, data_s=0.75)) == ("compute",)
    assert bottlenecks(Breakdown()) == ("compute",), "an empty step ties with nothing"


@given(st.lists(SECONDS, min_size=7, max_size=7), st.booleans())
def test_the_largest_comes_first_and_no_second_is_lost(seconds: list[float], cpu: bool) -> None:
    names = ("compute_s", "optimizer_s", "exposed_comm_s", "data_s", "output_s", "host_s", "bubble_s")
    split = Breakdown(**dict(zip(names, seconds, strict=True)))
    assert bottlenecks(split, cpu)[0] == bottleneck(split, cpu)
    assert abs(sum(shares(split, cpu).values()) - sum(seconds)) < 1e-9
