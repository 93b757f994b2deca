"""What a spread draws, and on what of a step each factor lies."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.lower.noise import batches_of
from sim.lower.step import lower
from sim.planning.montecarlo import Jitter, SlowLink, Spread, _draw, spread
from sim.predict import played
from sim.program import Op
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.uneven import Uneven
from sim.timeline.metrics import step_time
from tests.null.planning.test_same_step import GPT

COMPUTES: dict[str, Any] = GPT | {"batch": {"global": 128, "micro": 16}, "parallel": {"dp_replicate": 8}}
STEPS = Jitter(rank=0.0, step=0.1)


def drawn(more: dict[str, Any], jitter: Jitter, draws: int = 200) -> Spread:
    return spread(load_plan(COMPUTES | more), "dgx-h100", draws, 1, jitter=jitter)


@pytest.mark.no_cover
def test_a_rank_that_is_slow_already_is_the_one_that_counts() -> None:
    """Others catch up with it by no draw: what it draws itself is the step's, as often quicker as slower. Of equal ranks the slowest counts."""
    even, slow = drawn({}, STEPS), drawn({"noise": {"stragglers": "r3: 3x"}}, STEPS)
    assert even.p50 / even.without > 1.08
    assert slow.p50 == pytest.approx(slow.without, rel=0.02) and min(slow.samples) < 0.9 * slow.without
    assert (
        drawn({"noise": {"imbalance": "r3: 3x"}}, STEPS).p50 < 1.03 * drawn({"noise": {"imbalance": "r3: 3x"}}, Jitter(rank=0, step=0)).p50
    )


@pytest.mark.no_cover
def test_ranks_that_seldom_meet_wait_for_no_single_step() -> None:
    """Over a hundred steps jitter is a tenth of that of one; a board is slow in all of them."""
    often, seldom = (drawn({"update": {"mode": "local", "every": every}}, STEPS) for every in (1, 100))
    assert often.p50 / often.without > 1.08 and 1.0 < seldom.p50 / seldom.without < 1.03
    boards = [drawn({"update": {"mode": "local", "every": every}}, Jitter(rank=0.1, step=0.0)) for every in (1, 100)]
    assert [found.p95 / found.without for found in boards] == pytest.approx([boards[0].p95 / boards[0].without] * 2, rel=0.05)


def test_an_asynchronous_straggler_counts_for_its_few_steps() -> None:
    """Whatever it draws, it makes a tenth of the others' steps."""
    found = drawn({"update": {"mode": "async"}, "noise": {"stragglers": "r3: 10x"}}, STEPS, 20)
    assert max(found.samples) / min(found.samples) < 1.25


def test_longer_samples_leave_the_update_as_it_is() -> None:
    """The largest draw beside a simulation of so many more samples on every rank: the optimizer's kernels take what they took."""
    plan = load_plan(GPT | {"batch": {"global": 64, "micro": 16}})
    setting = bind(plan, "dgx-h100")
    jitter = Jitter(rank=0.0, step=0.0, length=0.6)
    found = spread(setting, draws=30, seed=1, jitter=jitter)
    usual = pricer_for(setting)
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 3)
    longest = max(factor for (factor,), _ in (_draw(setting, jitter, (1.0,) * 4, batches_of(plan), Random(f"1/{at}")) for at in range(30)))
    longer, slower = (
        step_time(played(setting, program, one)) for one in (Uneven(usual, lambda _: longest), pricer_for(setting, slower=longest))
    )
    assert max(found.samples) == pytest.approx(longer, rel=1e-6) and found.without < longer < slower * (1 - 1e-3)


@pytest.mark.no_cover
def test_ranks_that_share_samples_draw_their_lengths_once() -> None:
    """Stages of one pipeline wait for no longer samples than a rank that has the model whole; replicas do, for the longest of theirs."""
    jitter = Jitter(rank=0.0, step=0.0, length=0.3)

    def middle(**parallel: int) -> float:
        found = drawn({"batch": {"global": 128, "micro": 8}, "parallel": parallel}, jitter, 400)
        return found.p50 / found.without

    assert middle(pp=2) == pytest.approx(middle(dp_replicate=1), rel=2e-3) == pytest.approx(1.0, abs=5e-3)
    assert middle(dp_replicate=8) > 1.03


def test_one_link_is_slow_and_no_other() -> None:
    """Of several nodes the first one's to the network: not what stays on a node, nor what others send each other."""
    setting = bind(GPT | {"batch": {"global": 24, "micro": 1}, "parallel": {"dp_replicate": 24}}, "3x dgx-h100")
    usual = pricer_for(setting)
    slow, op = SlowLink(usual, 4.0, setting), Op("sum", "collective", "comm.dp", name="all_reduce", bytes=1 << 28, group="dp")
    for members, times in ((tuple(range(24)), 4.0), ((0, 8), 4.0), ((0, 1), 1.0), ((8, 16), 1.0)):
        ours, theirs = (one.collective(op, members, 1) for one in (slow, usual))
        assert ours.seconds - ours.latency == pytest.approx(times * (theirs.seconds - theirs.latency))
