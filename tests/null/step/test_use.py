"""How busy cores, threads, lanes and links are: shares of what there is, and bytes that plans send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.links import BINS, link_use
from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.predict import predict
from sim.program import Op, full_id
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline.utilisation import cpu_busy, utilisation
from sim.trace import Span, Trace
from tests.null.engine.bench import TablePricer, program
from tests.null.step.carried import link_bytes
from topologies.load import Topology, load_topology


@pytest.fixture(scope="module")
def two_cores(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    """A host with two cores, and more processes than that."""
    file = Path(tmp_path_factory.mktemp("host")) / "host.toml"
    file.write_text('kind = "cpu"\nranks = 16\n[cpu]\ncores = 2\nbandwidth = "20 GB/s"\n')
    return load_topology(str(file))


def ran(*work: tuple[int, float, float]) -> Trace:
    """Host ops (rank, start, end), one step."""
    return Trace([Span(rank, "host", f"r{rank}/{at}", start, end, "host", "host") for at, (rank, start, end) in enumerate(work)])


def test_threads_share_the_cores_that_there_are(two_cores: Topology) -> None:
    """Four threads from 1 to 2 on two cores: half of one each; before and after that each has its own."""
    trace = ran((0, 0.0, 3.0), (1, 1.0, 2.0), (2, 1.0, 2.0), (3, 1.0, 2.0))
    found = utilisation(trace, two_cores, bins=3)
    assert found.of("rank 0 host").busy == pytest.approx((1.0, 0.5, 1.0))
    assert found.of("rank 2 host").busy == pytest.approx((0.0, 0.5, 0.0))
    assert found.of("cores").busy == pytest.approx((0.5, 1.0, 0.5))
    assert found.of("cores").mean == pytest.approx(2 / 3)
    with pytest.raises(KeyError, match="rank 9 host"):
        found.of("rank 9 host")


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 9), st.floats(0.01, 4)), min_size=1, max_size=12))
def test_what_threads_have_is_what_cores_do(two_cores: Topology, work: list[tuple[int, float, float]]) -> None:
    trace = ran(*((rank, start, start + length) for rank, start, length in work))
    found = utilisation(trace, two_cores, bins=7)
    threads = [use for use in found.uses if use.kind == "thread"]
    for at, busy in enumerate(found.of("cores").busy):
        assert 2 * busy == pytest.approx(sum(use.busy[at] for use in threads), abs=1e-9)
        assert all(0.0 <= use.busy[at] <= 1.0 for use in found.uses)


def test_nothing_keeps_no_core_busy(two_cores: Topology) -> None:
    assert cpu_busy(Trace([]), two_cores) == 0.0
    assert cpu_busy(ran((0, 0.0, 2.0)), two_cores) == pytest.approx(0.5)


def test_stages_send_their_boundaries_over_their_links() -> None:
    """Every micro-batch once forward and once back between the two GPUs, and nothing else."""
    plan: dict[str, Any] = {
        "model": "gpt2-124m",
        "seq_len": 256,
        "batch": {"global": 4, "micro": 1},
        "parallel": {"pp": 2, "schedule": "1f1b"},
    }
    setting = bind(plan, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    pricer = pricer_for(setting)
    trace = simulate(program, pricer)
    moved = link_bytes(program, trace, pricer)
    sent = {rank: sum(op.bytes for _, op in program.ops(rank) if op.kind == "send") for rank in (0, 1)}
    assert sent[0] == sent[1] > 0
    for rank in (0, 1):
        assert moved[f"n0/gpu{rank}>n0/nvswitch"] == pytest.approx(sent[rank], rel=0.05)


def test_a_programs_lanes_and_a_traces_spans_have_the_same_names() -> None:
    """In the order of issue, each once."""
    setting = bind({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 2, "micro": 1}, "parallel": {"dp_replicate": 2}}, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    trace = simulate(program, pricer_for(setting), symmetry=False)
    assert len({span.id for span in trace.spans}) == len(trace.spans)
    for rank in (0, 1):
        issued = [full_id(rank, call, op) for thread in program.threads(rank) for call, op in program.ops(rank, thread)]
        lanes = program.lanes(rank)
        assert sorted(name for names in lanes.values() for name in names) == sorted(issued)
        order = {name: at for at, name in enumerate(issued)}
        for lane, names in lanes.items():
            assert sorted(names, key=order.__getitem__) == names
            spans = [span.id for span in trace.select(rank, lane)]
            assert [name for name in names if name in set(spans)] == spans
    assert {span.step for span in trace.select(step=1)} == {1}


def test_a_transfer_that_another_holds_up_does_not_overfill_the_link() -> None:
    """One of 2 s and one of 4 s share a link until 4 s: the mean of the longer is more than its half, and less than all of it after."""
    copies = program({"host": [Op("x", "copy", "copy.h2d"), Op("y", "copy", "copy.d2h")]})
    pricer = TablePricer({name: Cost(seconds, uses=(("a>b", 10.0),)) for name, seconds in (("x", 2.0), ("y", 4.0))}, {"a>b": 10.0})
    (link,) = link_use(copies, simulate(copies, pricer), pricer)
    sixth = BINS // 6
    assert [link.bins[at * sixth] for at in range(6)] == pytest.approx([1.0, 1.0, 1.0, 1.0, 2 / 3, 2 / 3])
    assert link.links == ("a>b",) and link.moved == pytest.approx(60.0)


@pytest.mark.parametrize("workers", [26, 28, 32])
def test_a_batch_takes_the_same_work_however_many_share_it(workers: int) -> None:
    """Twenty-four loader processes keep up; more of them are ahead, and idle while the reported step runs."""
    busy, steps = [], []
    for count in (24, workers):
        found = predict(load_plan("cifar10-two-workers", (f"data.workers={count}", "data.preprocess=20 us")), "dgx-h100")
        assert found.trace is not None
        busy.append(cpu_busy(found.trace, load_topology("dgx-h100")))
        steps.append(found.step_time_s)
    assert steps[0] == pytest.approx(steps[1], rel=1e-6)
    assert busy[0] == pytest.approx(busy[1], rel=1e-6)


def test_a_thread_that_is_ahead_of_its_device_is_at_work_on_each_step() -> None:
    """It has launched all simulated steps by the time the device is at the last of them."""
    found = predict({"model": "gpt2-124m", "batch": {"global": 32, "micro": 32}}, "dgx-h100")
    assert found.trace is not None
    machine = load_topology("dgx-h100")
    launches = sum(span.launch for span in found.trace.spans) + sum(span.seconds for span in found.trace.spans if span.kind == "host")
    mean = launches / found.trace.steps / machine.cores(0) / found.step_time_s
    assert cpu_busy(found.trace, machine, found.step_time_s) == pytest.approx(mean, rel=0.05) and mean > 0


def test_cores_of_all_nodes_count_that_ranks_are_dealt_out_to() -> None:
    """The ninth rank is on the first of eight nodes again: they have eight times its cores."""
    spans = [Span(rank, "host", f"r{rank}/s0/op", 0.0, 1.0, "host") for rank in range(9)]
    topology = load_topology("8x dgx-h100", ("order=scatter",))
    assert cpu_busy(Trace(spans, world=9), topology) == pytest.approx(9 / (8 * topology.cores(0)))
