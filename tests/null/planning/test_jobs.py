"""Jobs beside each other: a shared uplink is halved, a fabric that blocks nothing changes nothing, less oversubscription never hurts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.planning.disturbed import beside
from sim.planning.disturbed import jobs as module
from sim.planning.disturbed.beside import ENOUGH, paces
from sim.planning.disturbed.jobs import Jobs, jobs
from sim.planning.disturbed.places import PlacedPricer, placed, spoken
from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import step_ends
from topologies.errors import BadInput, Refused
from topologies.load import load_topology

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 4, "micro": 2}, "parallel": {"dp_replicate": 2}})
CLUSTER = "4x dgx-h100"
EDITS = ("ranks_per_node=1", "rails=1", "pod=2", "spines=1", "nic.rate=1 Gbit/s")  # slow NICs: the network decides
CROSSED = [(0, 2), (1, 3)]


def study(uplink: float, places: str | Sequence[Sequence[int]] = CROSSED) -> Jobs:
    return jobs([PLAN, PLAN], CLUSTER, [places], edits=(*EDITS, f"link.spine.rate={uplink} Gbit/s"))


@pytest.mark.no_cover
def test_two_jobs_on_one_uplink_get_half_each() -> None:
    first, second = study(1.0).rows
    half = study(0.5).rows[0]
    assert first.together_s == pytest.approx(second.together_s, rel=1e-9)
    # A ring alone does not fill its cable (the network's efficiency), so that two on one cable lose a little less than half.
    assert 0.9 * half.alone_s <= first.together_s <= half.alone_s * (1 + 1e-3)
    assert first.slowdown > 1.5


@pytest.mark.no_cover
@pytest.mark.parametrize("node", ["rtx-4090-x8", "aws-p4d", "dgx-h100"])
def test_a_job_that_is_spread_takes_as_long_as_on_a_cluster_of_its_own(node: str) -> None:
    """Four GPUs on each of two nodes, one, two or four NICs there. (GPUs that share a NIC filled it once each: up to three times as long.)"""
    plan = load_plan({"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 16, "micro": 2}, "parallel": {"dp_replicate": 8}})
    found = jobs([plan, plan], f"2x {node}", ["spread"]).rows[0]
    assert found.alone_s == pytest.approx(predict(plan, f"2x {node}:4").step_time_s, rel=1e-6)


@pytest.mark.no_cover
def test_jobs_on_a_fabric_that_blocks_nothing_do_not_disturb_each_other() -> None:
    assert [row.slowdown for row in study(2.0).rows] == pytest.approx([1.0, 1.0], rel=1e-6)
    assert [row.slowdown for row in study(1.0, "compact").rows] == pytest.approx([1.0, 1.0], rel=1e-6)  # each below its own leaf


@pytest.mark.no_cover
def test_wider_uplinks_never_slow() -> None:
    times = [study(rate).rows[0].together_s for rate in (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(times))
    assert times[0] > 2 * times[-1]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(range(64), "0-63"), ((0, 2), "0 2"), ((4,), "4"), ([r for r in range(128) if r % 8 < 4], "0-3 8-11 .. 120-123"), ((), "")],
)
def test_ranks_are_told_in_runs(ranks: Sequence[int], words: str) -> None:
    assert spoken(ranks) == words


def test_spread_jobs_take_the_places_of_every_node_in_turn() -> None:
    machine = load_topology("2x dgx-h100", ("ranks_per_node=2",))
    assert placed([2, 2], machine, "compact") == [(0, 1), (2, 3)]
    assert placed([2, 2], machine, "spread") == [(0, 2), (1, 3)]


def test_a_short_job_beside_a_long_one_is_slowed_and_listed() -> None:
    longer = load_plan(PLAN, ("batch.global=8",))
    found = jobs([PLAN, longer], CLUSTER, [CROSSED], edits=(*EDITS, "link.spine.rate=1 Gbit/s"))
    assert all(1.0 - 1e-9 <= row.slowdown <= 2.0 for row in found.rows)
    assert "j1" in str(found)


@pytest.mark.no_cover
def test_a_job_a_hundred_times_as_long_is_slowed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both spend their steps on one uplink, so that each gets half of it; the short one must not end before the long one has made its steps."""
    short = load_plan(PLAN, ("model.layers=1", "model.vocab=256", "batch.micro=1", "batch.global=2"))
    long = load_plan(PLAN, ("model=gpt2-774m",))
    options: dict[str, Any] = {"placements": [CROSSED], "edits": (*EDITS, "link.spine.rate=1 Gbit/s")}
    rows = jobs([short, long], CLUSTER, **options).rows
    assert rows[1].alone_s > 90 * rows[0].alone_s
    assert [row.slowdown for row in rows] == pytest.approx([2.0, 2.0], rel=0.01)
    monkeypatch.setattr(module, "_MOST_STEPS", 40)
    with pytest.raises(Refused, match=r"a step of j1 takes 13.* s, one of j0 0\.1.* s: .* at most 10 times as long"):
        jobs([short, long], CLUSTER, **options)


def test_pipelines_beside_each_other_send_from_their_own_places() -> None:
    """Two stages on two nodes each: their messages share the uplink only where they cross it."""
    pipe = load_plan({"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 4, "micro": 1}, "parallel": {"pp": 2, "schedule": "1f1b"}})
    edits = (*EDITS, "link.spine.rate=1 Gbit/s")
    crossed, inside = (jobs([pipe, pipe], CLUSTER, [places], edits=edits) for places in (CROSSED, "compact"))
    assert [row.slowdown for row in inside.rows] == pytest.approx([1.0, 1.0], rel=1e-6)
    assert all(row.slowdown > 1.2 for row in crossed.rows)
    assert crossed.rows[0].alone_s == pytest.approx(inside.rows[0].alone_s, rel=0.02)


def test_jobs_that_need_more_ranks_than_there_are() -> None:
    with pytest.raises(BadInput, match=r"the jobs need 2 \+ 2 \+ 2 ranks, .* has 4. Use more machines"):
        jobs([PLAN, PLAN, PLAN], CLUSTER, edits=EDITS)


@pytest.mark.no_cover
def test_one_placement_may_be_given_alone() -> None:
    alone, both = jobs([PLAN, PLAN], CLUSTER, "spread", edits=EDITS), jobs([PLAN, PLAN], CLUSTER, [], edits=EDITS)
    assert alone == jobs([PLAN, PLAN], CLUSTER, ["spread"], edits=EDITS)
    assert [row.placement for row in both.rows] == ["compact", "compact", "spread", "spread"]


@pytest.mark.parametrize("places", ["elsewhere", [(0, 1), (1, 2)], [(0, 1), (2, 9)], [(0, 1), (2,)]])
def test_places_that_cannot_be_are_refused(places: str | list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: no placement before it is simulated first, whose figures would be lost."""
    monkeypatch.setattr(module, "paces", None)
    with pytest.raises(BadInput):
        jobs([PLAN, PLAN], CLUSTER, ["compact", places], edits=EDITS)
    with pytest.raises(BadInput):
        jobs([PLAN], CLUSTER)


def test_a_job_alone_takes_what_its_trace_takes() -> None:
    """The engine that only says when steps end, beside the one that makes a trace; the same prices, every rank by itself."""
    setting = bind(load_plan(PLAN, ("batch.micro=4", "batch.global=8")), "2x dgx-h100")
    ranks = tuple(range(setting.plan.world))
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, ENOUGH)
    ends = step_ends(simulate(program, PlacedPricer(pricer_for(setting), ranks, setting.topology), symmetry=False))
    assert paces([(setting, ranks)], [ENOUGH])[0].step == pytest.approx((ends[3] - ends[1]) / 2, rel=1e-9)


def test_more_ranks_than_can_be_simulated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two nodes are alike where each has a GPU that is slow in its own way."""
    monkeypatch.setattr(beside, "MOST_RANKS", 20)
    plan = {"model": "gpt2-124m", "batch": {"global": 24, "micro": 1}, "parallel": {"dp_replicate": 24}}
    with pytest.raises(Refused, match=r"24 ranks would .* one by one"):
        jobs([plan, PLAN], "26x dgx-h100", ("compact",), edits=(*EDITS, *(f"slow=r{rank}:{1 - rank / 100}" for rank in range(1, 26))))


@pytest.mark.no_cover
@pytest.mark.parametrize("every", [1, 2, 5, 50])
def test_local_updates_are_taken_over_their_period(every: int) -> None:
    """Alone a job takes what `predict` says: a step with averaging counts once in `every`, however many are simulated."""
    plan = load_plan(PLAN, ("batch.global=8", "update.mode=local", f"update.every={every}"))
    rows = jobs([plan, plan], "2x dgx-h100:2", ["compact"]).rows
    assert [row.alone_s for row in rows] == pytest.approx([predict(plan, "2x dgx-h100:2").step_time_s] * 2, rel=1e-6)


@pytest.mark.no_cover
def test_who_seldom_averages_seldom_disturbs() -> None:
    """What a neighbour loses to averaging goes by the share of the time that it takes: all of it at first, in the end nothing. Two such jobs
    hardly meet."""
    edits = (*EDITS, "link.spine.rate=1 Gbit/s")
    local = {every: load_plan(PLAN, ("update.mode=local", f"update.every={every}")) for every in (2, 4, 100, 10**6)}
    beside = [jobs([plan, PLAN], CLUSTER, [CROSSED], edits=edits).rows[1].slowdown for plan in local.values()]
    assert beside == sorted(beside, reverse=True) and beside[0] > 1.5 and beside[0] - beside[1] < 0.1
    assert 1.1 < beside[2] < 1.7 and beside[3] == pytest.approx(1.0, abs=1e-3)
    twins = jobs([local[10**6]] * 2, CLUSTER, [CROSSED], edits=edits).rows
    assert [row.slowdown for row in twins] == pytest.approx([1.0, 1.0], abs=1e-3)


@pytest.mark.parametrize("noise", ["none", "r1: 5x"])
def test_an_asynchronous_job_goes_at_the_pace_of_all_its_ranks(noise: str) -> None:
    """Alone as `predict` says, with the throughputs of all; ranks behind the network are many times slower than those beside the server."""
    plan = load_plan(PLAN, ("batch.global=8", "parallel.dp_replicate=4", "update.mode=async", f"noise.stragglers={noise}"))
    edits = ("ranks_per_node=2", "nic.rate=1 Gbit/s", "rails=1")
    first, second = jobs([plan, plan], CLUSTER, ["compact"], edits=edits).rows
    assert first.alone_s == pytest.approx(predict(plan, CLUSTER, edits=edits).step_time_s, rel=1e-6)
    assert first.alone_s == pytest.approx(second.alone_s) and first.slowdown == pytest.approx(1.0, rel=0.01)


@pytest.mark.no_cover
def test_output_is_each_jobs_own() -> None:
    loud = load_plan(PLAN, ("output.log_every=1", "output.checkpoint_every=10"))
    rows = jobs([loud, PLAN], "2x dgx-h100:2", ["compact"]).rows
    assert [row.alone_s for row in rows] == pytest.approx([predict(plan, "2x dgx-h100:2").step_time_s for plan in (loud, PLAN)], rel=1e-6)
    assert rows[0].alone_s > rows[1].alone_s * 1.01


@pytest.mark.no_cover
@pytest.mark.parametrize("noise", [{"stragglers": "r1: 2x"}, {"imbalance": "r1: 2x"}])
@pytest.mark.parametrize("placement", ["compact", "spread", [(5, 9), (14, 2)]])
def test_a_jobs_slow_rank_is_slow_wherever_it_lies(noise: dict[str, str], placement: Any) -> None:
    plan = load_plan(
        {"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 4, "micro": 2}, "parallel": {"dp_replicate": 2}, "noise": noise}
    )
    slow, even = (jobs([one, one], "2x dgx-h100", [placement]).rows for one in (plan, PLAN))
    assert slow[0].alone_s == pytest.approx(slow[1].alone_s, rel=1e-6) and slow[0].alone_s > 1.25 * even[0].alone_s
    if placement == "compact":
        assert slow[1].alone_s == pytest.approx(predict(plan, "2x dgx-h100").step_time_s, rel=1e-6)


def reading(ranks: int, sample: str, source: str = "disk") -> dict[str, Any]:
    data = {"source": source, "workers": 4, "sample": sample}
    batch = {"global": 8 * ranks, "micro": 8}
    return {"model": "gpt2-124m", "seq_len": 1024, "batch": batch, "parallel": {"dp_replicate": ranks}, "data": data}


@pytest.mark.no_cover
def test_loaders_of_two_jobs_share_a_disk_as_those_of_one() -> None:
    """Half of a node's GPUs each: a step takes what it takes on all of them, from which the disk or the store is as far away."""
    for on, ranks, source, edits in (
        ("dgx-h100", 4, "disk", ()),
        ("2x dgx-h100", 8, "object-store", ("store.total_read=10 GB/s",)),
    ):
        found = jobs([load_plan(reading(ranks, "64 MiB", source))] * 2, on, "compact", edits=edits).rows
        both = predict(reading(2 * ranks, "64 MiB", source), on, edits=edits).step_time_s
        assert [row.together_s for row in found] == pytest.approx([both] * 2, rel=2e-3)
        assert found[0].slowdown > 1.5


@pytest.mark.no_cover
def test_loaders_that_ask_for_little_get_it() -> None:
    """Max-min fair: who needs a fortieth of the disk is not slowed by who would have all of it, whichever comes first."""
    much, little = (load_plan(reading(4, sample)) for sample in ("64 MiB", "1 MiB"))
    one, other = jobs([much, little], "dgx-h100", "compact").rows
    assert other.slowdown == pytest.approx(1.0, rel=1e-6)
    taken = 8 * 4 * 2**20 / other.alone_s / (8 * 4 * 64 * 2**20 / one.alone_s)
    assert one.slowdown == pytest.approx(1 / (1 - taken), rel=1e-3)
    swapped = jobs([little, much], "dgx-h100", "compact").rows
    assert [row.together_s for row in swapped] == pytest.approx([other.together_s, one.together_s], rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize("sample", ["64 MiB", "16 MiB", "1 MiB"])
def test_a_thread_that_reads_itself_shares_the_disk_with_loaders(sample: str) -> None:
    """Four threads beside sixteen processes that would have all of the disk: each gets a twentieth at least, and no more is read than there is."""
    ahead, itself = load_plan(reading(4, "64 MiB")), load_plan(reading(4, sample) | {"data": {"source": "disk", "sample": sample}})
    loads, reads = jobs([ahead, itself], "dgx-h100", "compact").rows
    alone = jobs([itself, itself], "dgx-h100", "compact").rows[0].alone_s
    whole = 8 * 4 * 64 * 2**20 / loads.alone_s
    taken = 8 * 4 * int(sample.split()[0]) * 2**20
    assert 0.85 * whole < 8 * 4 * 64 * 2**20 / loads.together_s + taken / reads.together_s < (1 + 1e-9) * whole
    assert reads.alone_s < reads.together_s * (1 + 1e-9) < alone + 4.1 * taken / whole
    swapped = jobs([itself, ahead], "dgx-h100", "compact").rows
    assert [row.together_s for row in swapped] == pytest.approx([reads.together_s, loads.together_s], rel=1e-6)


def test_nobody_is_faster_for_a_neighbour_that_ends_early() -> None:
    """The first steps of a job that waits for loaders begin with none in store, and end late: they are none of its pace."""
    waiting = load_plan(reading(4, "64 MiB"))
    short = load_plan(reading(4, "64 MiB") | {"data": {"source": "disk", "sample": "64 MiB"}})
    found = jobs([waiting, short], "dgx-h100", "compact").rows
    assert found[0].slowdown >= 1.0 and found[0].alone_s == pytest.approx(predict(waiting, "dgx-h100").step_time_s, rel=1e-4)


@pytest.mark.no_cover
def test_jobs_on_the_same_nics_disturb_each_other_however_many_ranks_are_told_by_one() -> None:
    """Two GPUs of each node, a job on each; from 32 ranks on equal ones are simulated once. (Nobody shared anything then.)"""

    def slowed(nodes: int) -> float:
        model = {"family": "decoder", "name": "g", "layers": 2, "hidden": 2048, "heads": 16, "vocab": 4096}
        split = {"batch": {"global": nodes // 2, "micro": 1}, "parallel": {"dp_replicate": nodes // 2, "tp": 2}}
        plan = load_plan({"model": model, "seq_len": 1024, "framework": "megatron", "task": "forward"} | split)
        own = [[2 * node + at for node in range(nodes)] for at in (0, 1)]
        return jobs([plan, plan], f"{nodes}x rtx-4090-x8", [own], edits=("ranks_per_node=2",)).rows[0].slowdown

    assert 1.5 < slowed(16) == pytest.approx(slowed(8), rel=0.01)
