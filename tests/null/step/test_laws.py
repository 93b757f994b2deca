"""Exact laws: stragglers, asynchronous ranks, bytes through links, shares that stay shares."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.figures.links import link_use
from sim.cost.sustained import board_spread, slowest
from sim.files.planfile import load_plan
from sim.planning.montecarlo import Jitter, spread
from sim.predict import played, predict, steps_of
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import step_time, window
from sim.timeline.utilisation import cpu_busy, utilisation
from sim.trace import Trace
from tests.null.step.carried import link_bytes
from topologies.errors import BadInput
from topologies.load import load_topology

PLAN: dict[str, Any] = {
    "model": {"family": "mlp", "name": "m", "widths": [2048] * 13},
    "precision": "fp32",
    "batch": {"micro": 512},
    "parallel": {"dp_replicate": 2},
    "data": {"workers": 16},
    "optimizer": {"name": "sgd"},
}

SHORT = PLAN | {"model": PLAN["model"] | {"widths": [2048] * 5}}


def own_steps(trace: Trace) -> dict[int, float]:
    """Seconds of each rank's second step, by when its own training thread has ended each."""
    found = {}
    for rank in trace.ranks:
        ends = [max(s.end for s in trace.spans if s.rank == rank and s.step == n and s.thread == "host") for n in (0, 1)]
        found[rank] = ends[1] - ends[0]
    return found


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 6.0), st.sampled_from(["dgx-h100", "h100-pcie-x8", "cpu-host"]))
def test_a_synchronous_step_is_its_slowest_rank(k: float, on: str) -> None:
    """On PCIe copies and messages meet on one link, at other moments where one rank is ahead: there the law holds to a thousandth."""
    words = f"{k:.4f}x"
    one = predict(SHORT | {"noise": {"stragglers": f"r1: {words}"}}, on).step_time_s
    all_ = predict(SHORT | {"noise": {"stragglers": f"r0: {words}, r1: {words}"}}, on).step_time_s
    assert one == pytest.approx(all_, rel=2e-3 if on == "h100-pcie-x8" else 1e-9)


@pytest.mark.no_cover
@settings(max_examples=8, deadline=None)
@given(st.floats(1.0, 6.0))
def test_asynchronous_ranks_wait_for_nobody(k: float) -> None:
    tree = SHORT | {"update": {"mode": "async"}}
    mixed = predict(tree | {"noise": {"stragglers": f"r1: {k:.4f}x"}}, "dgx-h100")
    fast = predict(tree, "dgx-h100")
    slow = predict(tree | {"noise": {"stragglers": f"r0: {k:.4f}x, r1: {k:.4f}x"}}, "dgx-h100")
    assert mixed.trace and fast.trace and slow.trace
    times = own_steps(mixed.trace)
    assert times[0] == pytest.approx(own_steps(fast.trace)[0], rel=1e-9)
    assert times[1] == pytest.approx(own_steps(slow.trace)[1], rel=1e-9)
    assert mixed.samples_per_s == pytest.approx(sum(512 / seconds for seconds in times.values()), rel=1e-9)


@pytest.mark.parametrize("on", ["dgx-h100", "h100-pcie-x8"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_through_links_are_the_plans(on: str, ranks: int) -> None:
    tree = PLAN | {"parallel": {"dp_replicate": ranks}, "comm": {"algorithm": "ring"}}
    setting = bind(tree, on)
    found = predict(tree, on, fold=False)
    assert found.program and found.trace
    moved = link_bytes(found.program, found.trace, pricer_for(setting))
    batch = 512 * 2048 * 4 * 2  # input and target
    into = [name for name in moved if name.endswith("gpu0") and "nv" not in name]
    copies = sum(op.bytes for _, op in found.program.ops(0) if op.kind == "copy" and op.lane == "copy.h2d")
    assert copies % 3 == 0 and copies // 3 in (batch, batch // 2)
    gradients = sum(op.bytes for _, op in found.program.ops(0) if op.kind == "collective")
    assert gradients == 3 * found.parameters * 4
    ring = 2 * (ranks - 1) / ranks * gradients
    if on == "dgx-h100":
        assert sum(moved[name] for name in into) == pytest.approx(copies, rel=1e-9)
        rails = [value for name, value in moved.items() if "gpu0>" in name and "nv" in name.partition(">")[2]]
        assert sum(rails) == pytest.approx(ring, rel=0.02)
    else:
        assert max(moved.values()) >= copies


@pytest.mark.no_cover
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["cifar10-two-workers", "two-gpus-six-stages", "copy-compute-overlap", "nccl-two-gpus"]),
    st.sampled_from(["dgx-h100", "h100-pcie-x8", "cpu-host"]),
    st.integers(0, 9),
    st.booleans(),
)
def test_nothing_is_busier_than_all_the_time(name: str, on: str, workers: int, fold: bool) -> None:
    plan = load_plan(name, (f"data.workers={workers}", "data.preprocess='0.3 ms'"))
    setting, found = bind(plan, on), predict(plan, on, fold=fold)
    assert found.program and found.trace
    table = utilisation(found.trace, setting.topology, bins=37)
    assert {"cores"} <= {use.name for use in table.uses}
    assert all(0 <= value <= 1 + 1e-9 for use in table.uses for value in use.busy), name
    for used in link_use(found.program, found.trace, pricer_for(setting)):
        assert 0 <= used.share <= 1 and all(0 <= value <= 1 for value in used.bins), name
    begin, end = window(found.trace)
    assert end > begin
    busy = cpu_busy(found.trace, setting.topology)
    assert 0 < busy <= 1 and cpu_busy(found.trace, setting.topology, 2 * (end - begin)) == pytest.approx(busy / 2)


def test_draws_are_the_seeds() -> None:
    plan = load_plan(PLAN | {"parallel": {"dp_replicate": 8}})
    one, same = spread(plan, "dgx-h100", 200, 3), spread(plan, "dgx-h100", 200, 3)
    assert one == same and one.samples != spread(plan, "dgx-h100", 200, 4).samples
    assert one.without < one.p50 <= one.p95 <= one.p99
    assert spread(plan, "dgx-h100", 5, 0, jitter=Jitter(rank=0, step=0)).samples == (one.without,) * 5


def test_a_draw_is_what_the_engine_finds() -> None:
    """The table against a simulation with the drawn factor itself: of boards, on their clock; from step to step, on all that is computed."""
    setting = bind(load_plan(PLAN), "dgx-h100")
    for jitter in (Jitter(rank=0.2, step=0.0), Jitter(rank=0.0, step=0.2)):
        found = spread(setting, draws=20, seed=1, jitter=jitter)
        latest = max(range(20), key=lambda at: found.samples[at])
        drawn = Random(f"1/{latest}")
        factor = max(drawn.lognormvariate(0.0, 0.2), drawn.lognormvariate(0.0, 0.2))
        pricer = pricer_for(setting, board=1 / factor) if jitter.rank else pricer_for(setting, slower=factor)
        exact = step_time(played(setting, steps_of(setting, setting.plan, pricer, False, 8).program, pricer))
        assert found.samples[latest] == pytest.approx(exact, rel=1e-6) and exact > found.without


@pytest.mark.no_cover
@pytest.mark.parametrize("ranks", [1, 8, 64, 512])
def test_the_slowest_board_is_counted_once(ranks: int) -> None:
    """`predict` waits for the board that so many are expected to have; a spread draws it. What is more is jitter from step to step."""
    on = f"{max(1, ranks // 8)}x dgx-h100"
    for more in ({"dp_replicate": ranks}, {"dp_shard": ranks, "zero": 3}):
        plan = load_plan({"model": {"base": "llama3-8b", "layers": 4}, "seq_len": 2048, "parallel": more})
        step = predict(plan, on).step_time_s
        boards = spread(plan, on, 200, jitter=Jitter(step=0.0))
        assert boards.without == pytest.approx(step, rel=1e-9)
        assert boards.p50 == pytest.approx(step, rel=4e-3)
        found = spread(plan, on, 200)
        assert -1e-3 < found.p50 / step - 1 < 0.015
        assert found.p99 > 1.002 * found.p50


def test_one_figure_says_how_boards_differ() -> None:
    assert Jitter().rank == board_spread() and slowest(2) < 1 - 0.5 * board_spread()


def test_more_noise_is_slower() -> None:
    plan = load_plan(PLAN | {"comm": {"overlap": False}})
    calm = spread(plan, "h100-pcie-x8", 100, 0)
    assert spread(plan, "h100-pcie-x8", 100, 0, jitter=Jitter(slow_link=3)).mean > calm.mean
    assert spread(plan, "h100-pcie-x8", 30, 0, jitter=Jitter(length=0.8)).mean > calm.without
    with pytest.raises(BadInput, match="standard deviation"):
        spread(plan, "dgx-h100", jitter=Jitter(rank=5))


def test_the_server_on_the_host_is_slower_than_the_devices() -> None:
    for on in ("dgx-h100", "h100-pcie-x8"):
        host = predict(PLAN | {"update": {"aggregate": "cpu"}}, load_topology(on))
        assert host.step_time_s > predict(PLAN, on).step_time_s
        assert host.breakdown.exposed_comm_s > 0


@pytest.mark.parametrize(("model", "same"), [("bert-base", True), ("resnet50", True), ("bert-base", False)])
def test_tf32_is_a_mode_of_fp32_that_older_gpus_have_not(model: str, same: bool) -> None:
    """Nor its clocks, nor copies of maps for its kernels."""
    tree = {"model": model, "framework": "pytorch", "batch": {"global": 16, "micro": 16}}
    seconds = [predict(tree | {"precision": name}, "dgx1-v100" if same else "dgx-a100").step_time_s for name in ("fp32", "tf32")]
    assert (seconds[0] == seconds[1]) == same and seconds[1] <= seconds[0]
