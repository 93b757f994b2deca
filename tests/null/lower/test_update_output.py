"""Other ways to update, output, and noise: threads, who waits, and the laws of stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.lower.noise import slowness
from sim.lower.step import lower
from sim.program import Call, Program
from sim.setting.bind import bind
from sim.timeline.metrics import step_times
from tests.null.lower.tiny import MIB, QUIET, Constant, messages, network, program, show
from topologies.errors import BadInput, Refused


def segment(p: Program, end: str) -> list[str]:
    return [line for name, ops in p.segments.items() if name.endswith(end) for line in show(ops)]


def test_local_updates_average_parameters_every_few_steps() -> None:
    p = program({"parallel": {"dp_replicate": 2}, "update": {"mode": "local", "every": 2}}, steps=4)
    assert [messages(p, step=step) for step in range(4)] == [[], [("all_reduce", "dp", 8 * MIB)]] * 2


def test_aggregation_on_the_cpu_has_a_leader() -> None:
    p = program({"parallel": {"dp_replicate": 2}, "update": {"aggregate": "cpu"}})
    assert set(p.role_of) == {"pp0.lead", "pp0"}
    assert [line for line in show(p.segments["pp0.lead.update"]) if line.startswith("host")] == [
        "host: server/reduce",
        "host: server/update",
        "host: server/broadcast",
    ]
    assert "host: server/update" not in show(p.segments["update"])
    simulate(p, Constant())


def test_one_replica_has_nobody_to_average_with() -> None:
    p = program({"update": {"mode": "local", "every": 1}})
    assert not any(op.kind == "collective" for ops in p.segments.values() for op in ops)
    whole = program({"update": {"aggregate": "cpu"}})
    assert [line for line in segment(whole, "update") if line.startswith("host")] == ["host: server/update"]


@pytest.mark.parametrize("update", [{"aggregate": "cpu"}, {"mode": "async"}])
def test_gradients_of_hosts_are_where_the_server_is(update: dict[str, str]) -> None:
    """On GPUs they are copied down and parameters up; on CPUs neither."""
    for device, copies in (("cuda", {"server/d2h", "server/h2d"}), ("cpu", set())):
        p = program({"parallel": {"dp_replicate": 2}, "update": update}, device=device)
        found = {op.id for ops in p.segments.values() for op in ops if op.kind == "copy" and op.id.startswith("server")}
        assert found == copies
        simulate(p, Constant())


@pytest.mark.parametrize(("place", "first"), [("cpu", "server"), ("primary", "primary")])
def test_gradients_go_to_one_place_and_parameters_come_back(place: str, first: str) -> None:
    """In their own widths: 16-bit weights, 32-bit gradients."""
    framework = QUIET.but(precision={"param_dtype": "bf16"})
    p = program({"parallel": {"dp_replicate": 2}, "update": {"aggregate": place}}, network(2), framework)
    assert messages(p) == [("reduce", "dp", 2 * MIB * 4), ("broadcast", "dp", 2 * MIB * 2)]
    names = {op.id for ops in p.segments.values() for op in ops if op.kind == "collective"}
    assert names == {f"{first}/reduce", f"{first}/broadcast"}


@pytest.mark.parametrize("split", [{"dp_shard": 2, "zero": 1}, {"tp": 2}, {"pp": 2}, {"cp": 2}])
def test_one_place_sums_whole_gradients_alone(split: dict[str, int]) -> None:
    with pytest.raises(Refused, match="sums whole gradients in one place"):
        program({"parallel": split, "update": {"aggregate": "cpu"}, "batch": {"micro": 1, "global": 2}})


def test_zero_bubble_without_a_pipeline_offloads_as_any_schedule() -> None:
    offloaded = {"memory": {"offload": "activations"}, "batch": {"micro": 1, "global": 4}}
    assert program(offloaded | {"parallel": {"schedule": "zb-h1"}}).segments == program(offloaded).segments
    with pytest.raises(Refused, match="needs whole backward passes"):
        program(offloaded | {"parallel": {"schedule": "zb-h1", "pp": 2}})


def test_a_program_is_called_after_its_plan_or_its_model() -> None:
    assert (program({}).name, program({"name": "mine"}).name) == ("tiny", "mine")


def test_an_asynchronous_server_has_a_thread_for_each_worker() -> None:
    p = program({"parallel": {"dp_replicate": 3}, "update": {"mode": "async"}})
    assert list(p.roles[p.role_of[0]].threads) == ["host", "server.0", "server.1", "server.2"]
    assert show(p.segments["server.2"]) == ["server.2: server/gradients", "server.2: server/update", "server.2: server/parameters"]
    assert [op.peer for op in p.segments["server.2"]] == [2, 0, 2]
    assert "2 updates old" in p.notes[0]


def throughput(plan: dict[str, object], slow: dict[int, float], steps: int = 4) -> list[float]:
    """Steps per second of each rank over the last steps."""
    p = program(plan, network(1), steps=steps)
    trace = simulate(p, Constant(slow), symmetry=False)
    rates = []
    for rank in range(p.world):
        ends = [max(s.end for s in trace.spans if s.rank == rank and s.step == step and s.thread == "host") for step in range(steps)]
        rates.append((steps - 1) / (ends[-1] - ends[0]))
    return rates


@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_a_synchronous_step_is_as_slow_as_its_slowest_rank_and_asynchronous_ranks_add_up(factor: float) -> None:
    sync: dict[str, object] = {"parallel": {"dp_replicate": 3}, "update": {"mode": "sync"}}
    free: dict[str, object] = {"parallel": {"dp_replicate": 3}, "update": {"mode": "async"}}
    alone = throughput({}, {})[0]
    # Two more kernels (into the bucket and back) and one message of half a second.
    slowest = 1 / (factor * (1 / alone + 2) + 0.5)
    assert throughput(sync, {1: factor}) == pytest.approx([slowest] * 3)
    # Four kernels, three copies (gradients, parameters, the next batch) and, but beside the server, a message each way.
    rates = throughput(free, {1: factor})
    assert rates == pytest.approx([1 / 4.3, 1 / (4 * factor + 1.3), 1 / 5.3], rel=1e-9), "nobody waits for the slow one"
    assert alone == pytest.approx(1 / 5)


def test_noise_gives_ranks_roles_of_their_own() -> None:
    p = program({"parallel": {"dp_replicate": 4}, "noise": {"stragglers": "r1: 1.5x", "imbalance": "r3: 2x"}})
    assert p.role_of == ("pp0", "pp0.x1.5", "pp0", "pp0.n2")
    assert p.roles["pp0"] == p.roles["pp0.n2"], "they run the same ops"


def test_draws_repeat() -> None:
    drawn = load_plan({"model": "x", "parallel": {"dp_replicate": 400}, "noise": {"stragglers": "lognormal(0.1), seed=7"}})
    values = [slowness(drawn)(rank) for rank in range(400)]
    assert values == [slowness(drawn)(rank) for rank in range(400)]
    assert 0.97 < sum(values) / 400 < 1.04 and len(set(values)) == 400


@pytest.mark.parametrize("text", ["r9: 2x", "r1", "gamma(1)", "r1: 0x", "r1: 2x;", "x" * 10_000])
def test_noise_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"noise\.stragglers"):
        slowness(load_plan({"model": "x", "parallel": {"dp_replicate": 4}, "noise": {"stragglers": text}}))


def test_logging_reads_the_loss_and_syncs_wait_for_all_lanes() -> None:
    p = program({"output": {"log_every": 2, "sync_every": 3}}, steps=6)
    calls = [(call.segment, call.step) for call in p.roles["pp0"].threads["host"] if call.segment in ("log", "sync")]
    assert calls == [("log", 1), ("sync", 2), ("log", 3), ("log", 5), ("sync", 5)]
    assert show(p.segments["log"]) == [
        "compute: output/loss.made.record",
        "copy.d2h: output/loss.made.wait",
        "copy.d2h: output/loss",
        "host: output/log",
    ]


@pytest.mark.parametrize(("mode", "written"), [("sharded", 3 * 8 * MIB // 2), ("full", 3 * 8 * MIB)])
def test_checkpoints_stop_training_while_they_are_written(mode: str, written: int) -> None:
    p = program({"parallel": {"dp_replicate": 2}, "output": {"checkpoint_every": 2, "checkpoint_mode": mode}}, steps=2)
    sizes = {op.bytes for ops in p.segments.values() for op in ops if op.id == "output/write"}
    assert sizes == {written}
    copies = {op.how for ops in p.segments.values() for op in ops if op.id == "output/d2h"}
    assert copies == {"pageable"}, "neither torch.save nor the writer of shards copies into what is pinned"
    trace = simulate(p, Constant())
    assert step_times(trace)[1] > step_times(trace)[0]
    if mode == "full":
        assert set(p.role_of) == {"pp0", "pp0.lead"} and "host: output/write" not in show(p.segments["checkpoint"])


def test_asynchronous_checkpoints_are_written_by_a_thread() -> None:
    p = program({"output": {"checkpoint_every": 1, "checkpoint_mode": "async"}}, steps=3)
    assert list(p.roles["pp0"].threads) == ["host", "writer"]
    assert segment(p, "writer") == ["writer: output/begin", "writer: output/write", "writer: output/end"]
    assert "host: output/write" not in show(p.segments["checkpoint"])
    simulate(p, Constant())


@pytest.mark.parametrize("mode", ["sharded", "full", "async"])
def test_who_is_beside_the_server_writes_what_it_holds(mode: str) -> None:
    """Nothing is copied from devices, and nobody waits; what a thread writes beside training is copied on the host."""
    output = {"checkpoint_every": 1, "checkpoint_mode": mode}
    p = program({"parallel": {"dp_replicate": 3}, "update": {"mode": "async"}, "output": output}, steps=3)
    found = {op.id: op.bytes for ops in p.segments.values() for op in ops if op.id.startswith("output/") and op.bytes}
    assert found == {"output/write": 3 * 8 * MIB} | ({"output/stage": 3 * 8 * MIB} if mode == "async" else {})
    assert not any(op.name == "barrier" for ops in p.segments.values() for op in ops)
    writers = [rank for rank, role in enumerate(p.role_of) for calls in [p.roles[role].threads] if writes(p, calls)]
    assert writers == [0]
    simulate(p, Constant())


def writes(p: Program, threads: Mapping[str, Sequence[Call]]) -> bool:
    return any(op.id == "output/write" for calls in threads.values() for call in calls for op in p.segments[call.segment])


@pytest.mark.parametrize("update", [{"mode": "async"}, {"aggregate": "cpu"}], ids=str)
def test_scaled_gradients_are_unscaled_before_they_leave_the_device(update: dict[str, str]) -> None:
    for precision in ("fp16", "bf16"):
        setting = bind({"model": "gpt2-124m", "precision": precision, "parallel": {"dp_replicate": 2}, "update": update}, "dgx-h100")
        p = lower(setting.plan, setting.network, setting.framework, "cuda", 1)
        ops = [[op.id for op in line] for name, line in p.segments.items() if name.endswith("update")]
        assert ops and all(("optimizer/unscale" in line) is (precision == "fp16") for line in ops)
        assert all(line.index("optimizer/unscale") < line.index("server/d2h") for line in ops if precision == "fp16")


def test_inference_knows_no_server() -> None:
    p = program({"task": "forward", "parallel": {"dp_replicate": 2}, "update": {"mode": "async"}})
    assert all(list(role.threads) == ["host"] for role in p.roles.values())
    simulate(p, Constant())


def test_inference_is_forward_alone() -> None:
    p = program({"task": "forward", "parallel": {"dp_replicate": 2}})
    assert [call.segment for call in p.roles["pp0"].threads["host"]] == ["input", "fwd"] * 2
    assert messages(p) == [] and p.resident["gradients"] == p.resident["optimizer"] == 0
    assert not any(op.alloc for op in p.segments["fwd"]), "nothing is kept for backward"
