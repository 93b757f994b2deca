"""Max-min fairness, as a law: feasible, and nobody can get more without taking from one who has less."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.agenda import Environment
from sim.engine.sharing import Flow, Sharing, fill

links = st.sampled_from(["a", "b", "c", "d"])
same = st.builds(dict.fromkeys, st.sets(links, min_size=1, max_size=3), st.floats(0.5, 8.0))
different = st.dictionaries(links, st.floats(0.5, 8.0), min_size=1, max_size=3)
"""What a flow wants of each link: as much of all, or, as a staged copy that crosses a bus twice, more of one."""
capacities = st.fixed_dictionaries({name: st.floats(1.0, 10.0) for name in "abcd"})


@pytest.mark.no_cover
@settings(max_examples=400, deadline=None)
@given(st.lists(same | different, min_size=1, max_size=8), capacities)
def test_rates_are_max_min_fair(drawn: list[dict[str, float]], capacity: dict[str, float]) -> None:
    """Feasible, and whoever is slowed is slowed by a full link, where nobody else is better off."""
    flows = {Flow(1.0, tuple(sorted(uses.items())), 0.0, lambda: None): None for uses in drawn}
    users = {n: {f: amount for f in flows for name, amount in f.uses if name == n} for n in "abcd"}
    crowded = {n: (capacity[n], users[n]) for n in "abcd" if sum(users[n].values()) > capacity[n]}
    rates = fill(flows, crowded)
    load = {n: sum(rates[f] * amount for f, amount in users[n].items()) for n in "abcd"}
    assert all(load[n] <= capacity[n] * (1 + 1e-9) for n in "abcd") and all(0 < rate <= 1 for rate in rates.values())
    for flow in flows:
        if rates[flow] < 1 - 1e-9:
            assert any(
                load[n] >= capacity[n] * (1 - 1e-9) and all(rates[o] * o.weight <= rates[flow] * flow.weight * (1 + 1e-9) for o in users[n])
                for n, _ in flow.uses
            )


@pytest.mark.no_cover
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.floats(0.5, 8.0), st.sets(links, min_size=1)), min_size=1, max_size=8),
    capacities,
)
def test_all_work_is_done_and_no_link_is_overfull(drawn: list[tuple[float, float, float, set[str]]], capacity: dict[str, float]) -> None:
    env = simpy.Environment()
    sharing = Sharing(Environment(env), capacity)
    ends: list[float] = []

    def one(start: float, work: float, rate: float, path: set[str]):  # type: ignore[no-untyped-def]
        yield env.timeout(start)
        done = env.event()
        sharing.start(work, tuple((name, rate) for name in sorted(path)), done.succeed)
        yield done
        ends.append(env.now)

    for args in drawn:
        env.process(one(*args))
    env.run()
    assert len(ends) == len(drawn)
    for name in "abcd":
        moved = sum(work * rate for _, work, rate, path in drawn if name in path)
        assert moved <= capacity[name] * max(ends) * (1 + 1e-9)
        assert abs(sharing.moved.get(name, 0.0) - moved) <= 1e-9 * max(1.0, moved)


def test_a_link_that_a_flow_crosses_twice_counts_twice() -> None:
    env = simpy.Environment()
    sharing = Sharing(Environment(env), {"a": 10.0})
    ended: list[float] = []
    sharing.start(1.0, (("a", 10.0), ("a", 10.0)), lambda: ended.append(env.now))
    env.run()
    assert ended == [2.0]
    assert sharing.moved == {"a": 20.0}
