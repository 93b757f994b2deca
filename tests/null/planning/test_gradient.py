"""What the step owes to each op: sums to the step, and is what a small change of a price does to it, found by simulating again."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.price import Cost, Pricer
from sim.engine.run import simulate
from sim.planning.explain.changes import Change
from sim.planning.explain.explanation import Explanation, explain
from sim.planning.explain.gradient import gradient
from sim.planning.explain.scaled import COLLECTIVES, COMPUTE, HOST, KINDS, MEMORY, MESSAGES, Scaled, faster_links, link_kinds
from sim.planning.explain.sensitivity import Sensitivity, Study
from sim.program import Op
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.detail import STEPS
from sim.timeline.metrics import step_time
from sim.trace import Span, Trace
from topologies.load import load_topology

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 512, "framework": "pytorch", "batch": {"global": 16, "micro": 2}}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"parallel": {"dp_replicate": 8}}, "dgx-h100"),
    ({"parallel": {"dp_replicate": 8}, "batch": {"global": 128, "micro": 16}}, "h100-pcie-x8"),
    ({"parallel": {"dp_shard": 8, "zero": 3}, "batch": {"global": 128, "micro": 16}}, "dgx-h100"),
    ({"parallel": {"pp": 2, "dp_shard": 2}, "batch": {"global": 32, "micro": 8}}, "dgx-h100"),
    ({"parallel": {"dp_shard": 16, "zero": 3}, "batch": {"global": 256, "micro": 16}}, "2x dgx-h100"),
    ({"parallel": {"dp_replicate": 4}, "batch": {"global": 64, "micro": 16}, "attention": "math"}, "dgx-h100"),
    (
        {"parallel": {"tp": 4, "tp_overlap": True}, "batch": {"global": 16, "micro": 16}, "framework": "megatron", "seq_len": 2048},
        "dgx-h100",
    ),
    (
        {
            "parallel": {"dp_replicate": 2},
            "precision": "fp32",
            "data": {"source": "disk", "workers": 1},
            "model": {"base": "gpt2-124m", "layers": 6},
        },
        "cpu-host",
    ),
]
NAMES = [f"{'-'.join([*split['parallel'], *('math' for word in split if word == 'attention')])} on {on}" for split, on in CASES]
SMALL = 1e-5


def study(split: dict[str, Any], on: str) -> Study:
    """A case, simulated."""
    setting = bind(BASE | split, on)
    return Study(setting, STEPS)


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def case(request: pytest.FixtureRequest) -> Study:
    """Every case once."""
    return study(*request.param)


def _between(value: float, one: float, other: float) -> bool:
    """Where several paths are critical at once, the derivatives to both sides differ, and any between them is one."""
    room = 1e-3 * max(abs(one), abs(other)) + 1e-6
    return min(one, other) - room <= value <= max(one, other) + room


def _sides(found: Study, kind: str) -> tuple[float, float]:
    """d ln step / d ln speed by simulating with a little more, and a little less of a resource."""
    topology = found.setting.topology
    again = [step_time(simulate(found.program, Scaled(found.pricer, kind, 1 + s), topology.symmetric)) for s in (SMALL, -SMALL)]
    return (again[0] / found.step - 1) / SMALL, (1 - again[1] / found.step) / SMALL


@pytest.mark.no_cover
def test_it_sums_to_the_step(case: Study) -> None:
    assert case.gradient.total == pytest.approx(case.step, rel=1e-9)
    assert sum(case.owed().values()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.no_cover
def test_small_changes_do_what_the_path_says(case: Study) -> None:
    for kind, share in case.owed().items():
        if kind in KINDS:
            assert _between(-share, *_sides(case, kind)), kind


@pytest.mark.no_cover
def test_faster_links_do_what_the_path_says(case: Study) -> None:
    setting, program = case.setting, case.program
    for kind in link_kinds(setting.topology):
        change = case.on_links(kind, 1 + SMALL)
        if change is None:
            continue
        other = pricer_for(type(setting)(setting.plan, faster_links(setting.topology, kind, 1 + SMALL), setting.framework, setting.network))
        again = step_time(simulate(program, other, setting.topology.symmetric)) / case.step - 1
        assert abs(again - change) <= 1e-3 * abs(again) + 0.02 * SMALL, kind


def test_the_network_counts_where_there_is_one() -> None:
    setting = bind(BASE | {"parallel": {"dp_replicate": 16}, "batch": {"global": 16, "micro": 1}}, "2x dgx-h100", ("nic.rate=1 Gbit/s",))
    found = explain(setting, tries=0)
    by_name = {one.resource: one for one in found.sensitivities}
    assert by_name["net links"].elasticity == pytest.approx(by_name["net links"].ten_percent / (1 / 1.1 - 1) * -1, rel=0.05)
    assert by_name["net links"].elasticity < -0.5 and by_name["collectives"].elasticity < -0.5
    assert found.verdict.startswith("communication-bound")


def test_the_verdict_names_what_comes_near_and_the_network_stands_there_unasked() -> None:
    """A quarter of Llama-3 8B under FSDP on two nodes: products, memory and messages take as long, and faster NICs bring nothing."""
    plan = {"model": {"base": "llama3-8b", "layers": 8}, "framework": "torchtitan", "seq_len": 2048, "batch": {"micro": 1, "global": 16}}
    found = explain(bind(plan | {"parallel": {"dp_shard": 16, "zero": 3}}, "2x dgx-h100"), tries=0)
    shares = {one.resource: one.infinitely_fast / found.step_time_s for one in found.sensitivities}
    least = min(shares[kind] for kind in KINDS)
    near = {kind for kind in KINDS if shares[kind] < min(least + 0.05, 0.95)}
    assert len(near) > 1 and {kind for kind in KINDS if f" {kind} " in found.verdict} == near
    assert shares["net links"] == 1.0


@pytest.mark.no_cover
def test_a_resource_that_the_path_does_not_rest_on_changes_nothing() -> None:
    """Where the engine without a trace puts the same step a percent higher, faster input seemed to make it that much slower."""
    model = {"base": "bert-base", "layers": 4}
    plan = {"model": model, "framework": "megatron-lm", "seq_len": 512, "batch": {"global": 32, "micro": 2}, "comm": {"overlap": False}}
    found = explain(bind(plan | {"parallel": {"dp_shard": 8, "zero": 3}, "precision": "fp16"}, "rtx-4090-x8"), tries=0)
    by_name = {one.resource: one for one in found.sensitivities}
    assert by_name["input"].ten_percent == pytest.approx(0.0, abs=1e-9) and by_name["input"].elasticity == 0.0
    assert by_name["host"].ten_percent == pytest.approx(by_name["host"].path_ten_percent, abs=1e-4)


def test_the_path_of_a_step_that_loaders_bind_is_theirs() -> None:
    """Each step ends with a quarter of it in kernels, on the batch that was waited for: these set no pace, and links have no trace of an elasticity."""
    data = {"source": "disk", "workers": 2, "sample": "110 KiB", "preprocess": "8 ms"}
    plan = {"model": "vit-b16", "batch": {"global": 512, "micro": 64}, "parallel": {"dp_replicate": 8}, "data": data}
    found = explain(bind(plan, "dgx-a100"), tries=0)
    assert dict(found.path)["data"] == pytest.approx(found.step_time_s, rel=1e-3)
    assert {one.elasticity for one in found.sensitivities if one.resource not in ("input", "host")} == {0.0}


@pytest.mark.no_cover
def test_an_explanation_prints_and_is_plain(case: Study) -> None:
    found = explain(case.setting, tries=2)
    text, plain = str(found), found.to_dict()
    for one in found.sensitivities:
        assert one.resource in text
        assert one.path_ten_percent == pytest.approx(one.ten_percent, abs=2e-2)
        assert one.infinitely_fast <= found.step_time_s * (1 + 1e-9)
    assert {row["resource"] for row in plain["sensitivities"]} >= set(KINDS)
    assert plain["step_time_s"] == pytest.approx(case.step)


@pytest.mark.no_cover
def test_attention_that_is_written_out_is_bound_by_memory() -> None:
    """Its products take less time than the masks and the softmax between them, though all are one op; flash is what helps."""
    plan = BASE | {"parallel": {"dp_replicate": 4}, "batch": {"global": 64, "micro": 16}, "attention": "math"}
    found = explain(bind(plan, "dgx-h100"), tries=2)
    assert found.verdict.startswith("memory-bound")
    assert {change.overrides: change.gain for change in found.changes}["attention=flash",] > 0.2


@pytest.mark.no_cover
def test_nothing_made_faster_is_the_step_itself(case: Study) -> None:
    """Also where kernels say themselves how much a collective beside them slows them."""
    assert step_time(simulate(case.program, Scaled(case.pricer, "nothing", 2.0), case.setting.foldable)) == case.step


def test_a_kernel_beside_a_collective_hangs_on_its_ends() -> None:
    """Half speed from 2 to 6: 8 of work from 0 end at 10; a second later end of the collective costs half a second, and a second more
    work one."""
    spans = [
        Span(0, "comm.dp", "r0/c", 2.0, 6.0, "collective"),
        Span(0, "compute", "r0/k", 0.0, 10.0, "compute", "gemm"),
        Span(0, "host", "r0/e", 10.0, 10.0, "sync", after=1, bound="event"),
    ]
    found = gradient(Trace(spans), lambda rank: 2.0, lambda span: None)
    # d end/d ln work = 8; the collective's 4 seconds move its end, at half a second each; its beginning hangs on launches alone.
    assert found.spans == pytest.approx({1: 8.0, 0: 0.5 * 4.0})
    assert found.launches == pytest.approx(0.5 * 2.0 - 0.5 * 2.0)
    assert found.total == pytest.approx(10.0)


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 5), min_size=2, max_size=6), st.floats(0.2, 6), st.floats(0.5, 6), st.floats(1, 3))
def test_a_chain_of_kernels_beside_a_collective(work: list[float], begin: float, length: float, slow: float) -> None:
    """Against differences: kernels one after the other, a collective that begins at `begin` for `length`."""

    def spans(work: list[float], begin: float, length: float) -> list[Span]:
        at, found = 0.0, []
        for index, amount in enumerate(work):
            end, left, now = at, amount, at
            for until, rate in ((begin, 1.0), (begin + length, 1 / slow), (float("inf"), 1.0)):
                if now < until and left > 0:
                    step = min(left, (until - now) * rate)
                    now, left = now + step / rate, left - step
            end = now
            found.append(Span(0, "compute", f"r0/k{index}", at, end, "compute", "gemm", bound="lane"))
            at = end
        comm = Span(0, "comm.dp", "r0/c", begin, begin + length, "collective", thread="other")
        order = sorted([*found, comm], key=lambda span: span.end)
        for before, after in pairwise(found):
            after.after = order.index(before)
        return [*order, Span(0, "host", "r0/e", at, at, "sync", after=order.index(found[-1]), bound="event")]

    base = spans(work, begin, length)
    end = base[-1].end
    found = gradient(Trace(base), lambda rank: slow, lambda span: None)
    assert found.total == pytest.approx(end, rel=1e-9)
    grown = spans([1.000001 * one for one in work], begin, length)[-1].end
    owed = sum(seconds for index, seconds in found.spans.items() if base[index].kind == "compute")
    shrunk = spans([0.999999 * one for one in work], begin, length)[-1].end
    assert _between(owed, (grown - end) * 1e6, (end - shrunk) * 1e6)


def test_collectives_at_the_same_time_are_one_stretch() -> None:
    """The shorter one inside the longer changes nothing: 8 of work at half speed from 2 to 6 end at 10, whoever else communicates."""
    spans = [
        Span(0, "comm.tp", "r0/t", 3.0, 4.0, "collective"),
        Span(0, "comm.dp", "r0/c", 2.0, 6.0, "collective"),
        Span(0, "compute", "r0/k", 0.0, 10.0, "compute", "gemm"),
        Span(0, "host", "r0/e", 10.0, 10.0, "sync", after=2, bound="event"),
    ]
    found = gradient(Trace(spans), lambda rank: 2.0, lambda span: None)
    assert found.spans == pytest.approx({2: 8.0, 1: 0.5 * 4.0}) and found.total == pytest.approx(10.0)


def test_a_chain_that_waits_for_its_launches_owes_its_last_kernel_alone() -> None:
    """Three launches of a second each, kernels of 0.2: it ends 3.2 after it was issued, 3 of these for the thread."""
    spans = [
        Span(0, "compute", "r0/k", 0.0, 3.2, "compute", "norm", bound="host"),
        Span(0, "host", "r0/e", 3.2, 3.2, "sync", after=0, bound="event"),
    ]
    slow = gradient(Trace(spans), lambda rank: 1.0, lambda span: Cost(0.6, host=3.0, ready=3.2) if span.kind == "compute" else None)
    assert slow.spans == pytest.approx({0: 0.2}) and slow.launches == pytest.approx(3.0)
    quick = gradient(Trace(spans), lambda rank: 1.0, lambda span: Cost(3.2, host=0.3, ready=3.2) if span.kind == "compute" else None)
    assert quick.spans == pytest.approx({0: 3.2}) and quick.launches == pytest.approx(0.0)


def test_a_collective_owes_what_it_takes_once_all_are_there() -> None:
    """It stands for 4 s and waits for the last member in the first of them; the kernel before it takes 1 s."""
    spans = [
        Span(0, "compute", "r0/k", 0.0, 1.0, "compute", "gemm"),
        Span(0, "comm.dp", "r0/c", 0.0, 4.0, "collective", wait=1.0, after=0, bound="peer"),
        Span(0, "host", "r0/e", 4.0, 4.0, "sync", after=1, bound="event"),
    ]
    found = gradient(Trace(spans), lambda rank: 1.0, lambda span: None)
    assert found.spans == pytest.approx({0: 1.0, 1: 3.0}) and found.launches == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("cost", "kind", "seconds", "host", "ready"),
    [
        (Cost(0.6, host=3.0, ready=3.2), COMPUTE, 0.3, 3.0, 3.1),  # ends one kernel, now of 0.1, after the last launch
        (Cost(0.6, host=3.0, ready=3.2), HOST, 0.6, 1.5, 1.7),
        (Cost(3.0, host=0.3, ready=3.1), COMPUTE, 1.5, 0.3, 1.6),  # ends with its kernels, one launch after it was issued
        (Cost(3.0, host=0.3, ready=3.1), HOST, 3.0, 0.15, 3.05),
        (Cost(3.0, host=0.3, ready=3.1), MEMORY, 3.0, 0.3, 3.1),
    ],
)
def test_chains_of_kernels_twice_as_fast(cost: Cost, kind: str, seconds: float, host: float, ready: float) -> None:
    pricer = cast(Pricer, SimpleNamespace(capacity={}, local=lambda op, rank: cost))
    found = Scaled(pricer, kind, 2.0).local(Op("k", "compute", "compute", cls="gemm"), 0)
    assert (found.seconds, found.host, found.ready) == pytest.approx((seconds, host, ready))


@pytest.mark.parametrize("kind", [COLLECTIVES, MESSAGES])
def test_exchanges_twice_as_fast_leave_their_launches(kind: str) -> None:
    """Seconds and latency halve, contention and the thread's time stay."""
    cost = Cost(4.0, latency=1.0, uses=(("a>b", 2.0),), host=0.5)
    pricer = cast(Pricer, SimpleNamespace(capacity={}, collective=lambda *_: cost, message=lambda *_: cost))
    scaled, op = Scaled(pricer, kind, 2.0), Op("c", "collective", "comm.dp")
    collective, message = scaled.collective(op, (0, 1), 1), scaled.message(op, 0, 1, 1)
    faster, other = (collective, message) if kind == COLLECTIVES else (message, collective)
    assert (faster.seconds, faster.latency, faster.uses, faster.host) == (2.0, 0.5, cost.uses, 0.5)
    assert other == cost


def test_an_explanation_prints_milliseconds() -> None:
    sensitivity = Sensitivity("compute", 0.0123, -0.04, -0.5, -0.045)
    found = Explanation(0.0204, "compute-bound", (("gemm", 0.0102),), (sensitivity,), (Change(("compile=true",), 0.0187, 0.0833),))
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    assert lines[0] == "step 20.400 ms, compute-bound" and "gemm 10.200 ms 50.0%" in lines
    assert "compute 12.300 ms -0.500 -4.50% -4.00%" in lines and lines[-1] == "compile=true 18.700 ms -8.3%"


def test_faster_networks_have_faster_uplinks() -> None:
    """Also where their rate was said."""
    machine = load_topology("4x dgx-h100", ("pod=2", "link.spine.rate=10 GB/s"))
    name = "net/leaf0.0>net/spine0"
    assert machine.rates[name] == 10e9 and faster_links(machine, "net", 1.5).rates[name] == 15e9
    assert faster_links(machine, "nvlink", 1.5).rates[name] == 10e9


def test_links_are_made_faster_alone() -> None:
    machine = load_topology("2x dgx-h100")
    assert {"nvlink", "pcie", "net"} <= set(link_kinds(machine))
    for kind in ("nvlink", "net"):
        other = faster_links(machine, kind, 2.0)
        inside, across = (other.path(0, b).rate / machine.path(0, b).rate for b in (1, 8))
        assert (inside, across) == ((2.0, 1.0) if kind == "nvlink" else (1.0, pytest.approx(across)))
    assert faster_links(machine, "net", 0.5).path(0, 8).rate == pytest.approx(0.5 * machine.path(0, 8).rate)


@pytest.mark.no_cover
def test_a_resource_that_does_not_occur_changes_nothing(case: Study) -> None:
    sends = any(span.kind == "send" for span in case.trace.spans)
    assert (case.owes(MESSAGES) is not None) == sends
    assert case.owes(COMPUTE) is not None and case.owes(HOST) is not None
