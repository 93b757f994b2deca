"""Max-min fairness, as a law: feasible, and nobody can get more without taking from one who has less."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.environment import Environment
from sim.engine.run import Engine
from sim.engine.sharing import Flow, Sharing, fill
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.timeline import metrics

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
    env = Environment()
    sharing = Sharing(env, capacity)
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
    env = Environment()
    sharing = Sharing(env, {"a": 10.0})
    ended: list[float] = []
    sharing.start(1.0, (("a", 10.0), ("a", 10.0)), lambda: ended.append(env.now))
    env.run()
    assert ended == [2.0]
    assert sharing.moved == {"a": 20.0}


def test_what_never_binds_is_left_out_and_the_rest_is_shared_as_before() -> None:
    """Shares are measured in the resource that a flow names first, whether it is looked at or not."""

    def run(idle: frozenset[str]) -> tuple[list[tuple[str, float]], dict[str, float]]:
        env = Environment()
        sharing = Sharing(env, {"own": 30.0, "other": 10.0, "link": 6.0})
        sharing.idle = idle
        ended: list[tuple[str, float]] = []

        def start(name: str, *uses: tuple[str, float]) -> None:
            sharing.start(1.0, uses, lambda: ended.append((name, env.now)))

        start("a", ("own", 20.0), ("link", 5.0))
        start("b", ("other", 10.0), ("link", 5.0))
        start("c", ("own", 1.0))
        env.run()
        return ended, sharing.moved

    (every, _), (binding, moved) = run(frozenset()), run(frozenset({"own", "other"}))
    assert every == binding
    assert moved == {"link": 10.0}


def test_a_run_without_spans_of_single_ops_looks_at_no_link_that_never_binds() -> None:
    """Those of eight NVLinks that a tensor-parallel collective takes were looked at one by one, thousands of times."""
    plan = {"model": {"layers": 4, "hidden": 512, "heads": 8, "vocab": 4096}, "seq_len": 512, "framework": "megatron-core"}
    setting = bind(plan | {"parallel": {"tp": 4, "pp": 2}, "batch": {"global": 4, "micro": 1}}, "dgx-h100")
    program = program_for(setting, 2)
    fine, few = (Engine(program, pricer_for(setting), setting.places, detail) for detail in (True, False))
    assert metrics.step_times(fine.run()) == pytest.approx(metrics.step_times(few.run()), rel=1e-12)
    assert few.prices.idle and fine.sharing.moved.keys() > few.sharing.moved.keys()
    assert few.sharing.moved.keys().isdisjoint(few.prices.idle)


def test_equal_flows_that_rounding_sets_apart_end_together() -> None:
    """Three flows of a third of a link each, slowed and let go by a fourth: all end in one moment, so that none begins its next one first."""
    env, ends = Environment(), list[float]()
    sharing = Sharing(env, {"a": 1.0})
    for work in (0.7, 0.7 + 1e-16, 0.7 + 2e-16):
        sharing.start(work, (("a", 1 / 2.3),), lambda: ends.append(env.now))
    sharing.start(0.1, (("a", 0.9),), lambda: None)
    env.run()
    assert len(ends) == 3 and len(set(ends)) == 1


def test_flows_that_end_apart_by_more_than_rounding_stay_apart() -> None:
    env, ends = Environment(), list[float]()
    sharing = Sharing(env, {"a": 1.0})
    for work in (0.7, 0.7 + 1e-9):
        sharing.start(work, (("a", 0.8),), lambda: ends.append(env.now))
    env.run()
    assert len(set(ends)) == 2
