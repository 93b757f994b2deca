"""Pipelines in the engine: a timeline that can be read, bubbles as the papers give them, messages and memory counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.run import simulate
from sim.lower.checks.verify import verify
from sim.predict import predict
from sim.program import Program
from sim.schedule import SCHEDULES
from sim.sections import LOOPS, VEES
from sim.timeline.metrics import breakdown, step_time
from tests.null.lower.tiny import QUIET, Constant, messages, program
from tests.null.pipeline.line import BOUNDARY, Free, bubble, kernels, line, pipeline
from topologies.errors import BadInput


def test_a_step_of_1f1b() -> None:
    """Two ranks, two micro-batches, messages of half a second. The first stage's input needs no gradient."""
    made = program({"batch": {"global": 2}, "parallel": {"pp": 2}}, _bare(line(2)), steps=1)
    trace = simulate(made, Free(0.5))
    rows = [(s.rank, s.id.split("/", 2)[2], s.start, s.end) for s in trace.spans if s.kind in ("send", "recv") or s.cls == "gemm"]
    assert sorted(rows, key=lambda row: (row[0], row[3], row[2])) == [
        (0, "mb0/fwd/L0.linear", 0.0, 1.0),
        (0, "mb0/0SEND_F", 1.0, 1.5),
        (0, "mb1/fwd/L0.linear", 1.5, 2.5),  # 1F1B waits for its sends, as batched messages do
        (0, "mb0/0RECV_B", 2.5, 5.0),
        (0, "mb1/0SEND_F", 2.5, 5.0),  # until rank 1 takes it
        (0, "mb0/wgrad/L0.linear", 5.0, 6.0),
        (0, "mb1/0RECV_B", 6.0, 8.5),
        (0, "mb1/wgrad/L0.linear", 8.5, 9.5),
        (1, "mb0/1RECV_F", 0.0, 1.5),
        (1, "mb0/fwd/L1.linear", 1.5, 2.5),
        (1, "mb0/bwd/L1.linear", 2.5, 3.5),
        (1, "mb0/wgrad/L1.linear", 3.5, 4.5),
        (1, "mb0/1SEND_B", 4.5, 5.0),
        (1, "mb1/1RECV_F", 4.5, 5.0),
        (1, "mb1/fwd/L1.linear", 5.0, 6.0),
        (1, "mb1/bwd/L1.linear", 6.0, 7.0),
        (1, "mb1/wgrad/L1.linear", 7.0, 8.0),
        (1, "mb1/1SEND_B", 8.0, 8.5),
    ]


def test_a_host_that_waits_after_messages_launches_no_further() -> None:
    """Megatron's batch_p2p_sync: what comes after a message is launched when the device has run all before it; else the host runs ahead."""
    issued = {}
    for waits in (False, True):
        framework = QUIET.but(pipeline={"syncs_host": waits})
        made = program({"batch": {"global": 4}, "parallel": {"pp": 2}}, _bare(line(2)), framework=framework, steps=1)
        spans = [s for s in simulate(made, Free(0.5)).spans if s.rank == 1 and s.cls == "gemm"]
        issued[waits] = {s.id: (s.issued, s.start) for s in spans}
        verify(made)
    assert issued[False].keys() == issued[True].keys()
    assert all(at == 0.0 for at, _ in issued[False].values()), "launching takes nothing here"
    assert all(at > issued[True]["r1/s0/mb0/fwd/L1.linear"][1] for id, (at, _) in issued[True].items() if "/mb1/" in id)
    gpipe = program(
        {"batch": {"global": 4}, "parallel": {"pp": 2, "schedule": "gpipe"}},
        _bare(line(2)),
        framework=QUIET.but(pipeline={"syncs_host": True}),
    )
    assert not [op for _, op in gpipe.ops(1) if op.kind == "sync" and not op.event]


def _bare(network: Any) -> Any:
    """Without ends: the first layer takes the input itself."""

    return replace(network, blocks=network.blocks[1:])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 12), (8, 16)])
def test_bubble_of_gpipe_and_1f1b(schedule: str, pp: int, microbatches: int) -> None:
    """(p - 1) / (m + p - 1), exactly (Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2)."""
    assert bubble(pipeline(schedule, pp, microbatches)) == pytest.approx((pp - 1) / (microbatches + pp - 1), abs=1e-12)


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), [(2, 2, 2), (2, 8, 3), (4, 4, 2), (4, 8, 4)])
def test_interleaving_divides_the_bubble(pp: int, microbatches: int, chunks: int) -> None:
    """Idle over work is (p - 1) / (v m) (Narayanan et al. 2021, section 2.2.2)."""
    idle = (pp - 1) / (chunks * microbatches)
    assert bubble(pipeline("interleaved", pp, microbatches, chunks)) == pytest.approx(idle / (1 + idle), abs=1e-12)


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_is_below_1f1b(pp: int, microbatches: int) -> None:
    """Idle time (p - 1)(F + I - W) (Qi et al. 2023, table 1): a third of 1F1B's with equal parts."""
    idle = (pp - 1) / (3 * microbatches)
    assert bubble(pipeline("zb-h1", pp, microbatches)) == pytest.approx(idle / (1 + idle), abs=1e-12)
    assert bubble(pipeline("zb-h1", pp, microbatches)) < bubble(pipeline("1f1b", pp, microbatches))


def test_zb_v_fills_what_zb_h1_leaves() -> None:
    """With equal parts (Qi et al. 2023, section 6): a rank's only pause is until its first input comes."""
    made = pipeline("zb-v", 4, 8)
    found = kernels(simulate(made, Free(0.0)))
    for rank in range(4):
        mine = [span for span in found if span.rank == rank]
        assert min(s.start for s in mine) == rank and max(s.end for s in mine) == rank + sum(s.end - s.start for s in mine)
    assert bubble(made) < bubble(pipeline("zb-h1", 4, 8, layers=8))


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_breadth_first_divides_gpipe_s_bubble(chunks: int) -> None:
    """Idle over work is (p - 1) / (v m) (Lamy-Poirier 2022)."""
    idle = 3 / (chunks * 8)
    assert bubble(pipeline("looped-bfs", 4, 8, chunks)) == pytest.approx(idle / (1 + idle), abs=1e-12)


def test_dualpipe_v_is_below_1f1b() -> None:
    assert bubble(pipeline("dualpipe", 4, 16)) < bubble(pipeline("1f1b", 4, 16, layers=8))


def test_gpipe_shows_the_message_of_every_micro_batch() -> None:
    """A receive starts after the kernels launched before it, and what needs it comes next: m + p - 2 hops show each way."""
    made = pipeline("gpipe", 4, 8)
    found = kernels(simulate(made, Free(0.25)))
    assert max(s.end for s in found) == 3 * (8 + 4 - 1) + 2 * (8 + 4 - 2) * 0.25


def test_early_receives_hide_messages() -> None:
    """Zero-bubble schedules receive as soon as the sender has sent: it costs them less than 1F1B."""
    times = {}
    for schedule in ("1f1b", "zb-h1"):
        made = pipeline(schedule, 4, 12)
        alone, shown = (max(s.end for s in kernels(simulate(made, Free(message)))) for message in (0.0, 0.25))
        times[schedule] = shown - alone
    assert times["zb-h1"] < times["1f1b"]


@pytest.mark.parametrize(
    ("schedule", "pp", "microbatches", "chunks", "hops"),
    [
        ("gpipe", 4, 5, 1, 3),
        ("1f1b", 4, 5, 1, 3),
        ("interleaved", 4, 8, 3, 11),
        ("zb-h1", 4, 4, 1, 3),
        ("zb-h1", 4, 8, 2, 7),
        ("dualpipe", 4, 9, 1, 6),
        ("zb-v", 4, 5, 1, 6),
        ("looped-bfs", 3, 5, 2, 5),
    ],
)
def test_every_boundary_is_crossed_once_each_way(schedule: str, pp: int, microbatches: int, chunks: int, hops: int) -> None:
    """Stages that follow each other on one rank (the fold of a V) send nothing."""
    made = pipeline(schedule, pp, microbatches, chunks)
    sent = [size for rank in range(pp) for name, _, size in messages(made, rank, 0) if name == "send"]
    assert sent == [BOUNDARY] * (2 * hops * microbatches)


def test_gradients_leave_beside_the_drain() -> None:
    """The second chunk's all_reduce runs while the first chunk still computes; the step waits for all at the end."""
    made = pipeline("interleaved", 2, 2, 2, dp_replicate=2)
    rank0 = [span for span in simulate(made, Free(0.5)).spans if span.rank == 0]
    reduced = {s.id.split("/")[-1]: s for s in rank0 if s.name == "all_reduce"}
    last = max(s.end for s in rank0 if s.cls == "gemm")
    assert sorted(reduced) == ["stage0.b0.all_reduce", "stage2.b0.all_reduce"]
    assert reduced["stage2.b0.all_reduce"].end < last < reduced["stage0.b0.all_reduce"].end
    waits = [s.id for s in rank0 if s.lane == "compute" and s.id.endswith("done.wait")]
    assert [wait.split("grad/")[1] for wait in waits] == ["stage2.b0.done.wait", "stage0.b0.done.wait"]


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_hold_up_no_message(overlap: bool) -> None:
    """The drain goes on while a stage's gradients are averaged: the averages of all ranks lengthen the step once, not rank by rank."""
    plan = {"batch": {"global": 8}, "parallel": {"pp": 4, "dp_replicate": 2}, "comm": {"overlap": overlap}}
    made = program(plan, line(4), steps=1)
    trace = simulate(made, Free(0.5))
    done = {s.rank: s.end for s in kernels(trace) if s.end == max(k.end for k in kernels(trace) if k.rank == s.rank)}
    sent = {s.rank: s.start for s in trace.spans if s.kind == "send" and s.id.endswith("SEND_B") and "mb3" in s.id}
    assert sent == {rank: done[rank] for rank in sent} and len(sent) == 3
    begun = {s.rank: s.start + s.wait for s in trace.spans if s.name == "all_reduce"}
    later = 0.0 if overlap else 0.5  # without overlap they leave after the message
    assert begun == {rank: done[rank] + (later if rank in sent else 0.0) for rank in done}


def test_tensor_parallel_ranks_send_their_part_and_gather_the_rest() -> None:
    """Scatter-gather (Narayanan et al. 2021, section 4.1): 1/tp over the network, the whole over NVLink."""
    parallel = {"pp": 2, "tp": 2, "sequence_parallel": False}
    habits = QUIET.but(pipeline={"scatter_gather": True})
    made = program({"batch": {"global": 2}, "parallel": parallel}, line(2), habits, steps=1)
    verify(made)
    first = [message for message in messages(made, 0, 0) if message[1] in ("pp", "tp")]
    assert first == [("send", "pp", BOUNDARY // 2)] * 2 + [("recv", "pp", BOUNDARY // 2), ("all_gather", "tp", BOUNDARY)] * 2
    split = program({"batch": {"global": 2}, "parallel": parallel | {"sequence_parallel": True}}, line(2), habits, steps=1)
    assert {size for name, _, size in messages(split, 0, 0) if name == "send"} == {BOUNDARY}  # the sequence is split already


def test_uneven_stages_hold_what_the_plan_says() -> None:
    made = pipeline("1f1b", 2, 2, layers=5, stages=[4, 1])
    by_rank = [{span.id.split("/")[-1] for span in kernels(simulate(made, Free(), symmetry=False)) if span.rank == rank} for rank in (0, 1)]
    assert by_rank == [{f"L{i}.linear" for i in range(4)}, {"L4.linear"}]
    with pytest.raises(BadInput, match="5 layers"):
        pipeline("1f1b", 2, 2, layers=5, stages=[4, 2])


def test_forward_only_sends_activations_alone() -> None:
    made = program({"task": "forward", "batch": {"global": 4}, "parallel": {"pp": 2}}, line(2), steps=1)
    verify(made)
    assert [name for name, _, _ in messages(made, 0, 0)] == ["send"] * 4
    assert [name for name, _, _ in messages(made, 1, 0)] == ["recv"] * 4


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_step_of_forwards_alone_computes_what_its_stages_do(schedule: str) -> None:
    """The last of three stages has two layers; the others are ahead of it, and idle in between."""
    plan = {"task": "forward", "batch": {"global": 4}, "parallel": {"pp": 3, "schedule": schedule, "stages": [1, 1, 2]}}
    trace = simulate(program(plan, line(4), steps=3), Free(0.5))
    split = breakdown(trace)
    assert split.total == pytest.approx(step_time(trace)) and split.compute_s == pytest.approx(4 * (1 + 1 + 2) / 3)


def test_both_ends_of_a_tied_embedding_meet_apart_from_the_pipeline() -> None:
    """With two ranks the exchange and the activations go between the same pair, on other lanes."""

    from tests.null.lower.tiny import linear

    base = line(2)
    table = replace(linear("table", 64), cls="embedding")
    ends = replace(base.blocks[0][1], parts=(table,)), replace(base.blocks[-1][1], parts=(linear("logits", 0),))
    tied = replace(base, blocks=(("embed", ends[0]), *base.blocks[1:-1], ("head", ends[1])), tied=("embed", "head"))
    made = program({"batch": {"global": 2}, "parallel": {"pp": 2}}, tied, steps=2)
    verify(made)
    sizes = {(s.id.split("/")[-1], s.bytes) for s in simulate(made, Constant()).spans if s.kind == "recv"}
    assert sizes == {("1RECV_F", BOUNDARY), ("0RECV_B", BOUNDARY), ("embedding.recv", 256)}


def _held(made: Program, rank: int) -> tuple[int, int]:
    """(peak, end) of what the step holds beside the resident memory."""
    memory = simulate(made, Free(), symmetry=False).memory[rank]
    resident = sum(made.resident.values())
    return max(used for _, used in memory) - resident, memory[-1][1] - resident


def test_1f1b_holds_fewer_micro_batches_than_gpipe() -> None:
    """Each keeps 100 bytes; 1F1B's rank r keeps p - r of them, GPipe's ranks all."""
    for rank in range(4):
        one, end = _held(pipeline("1f1b", 4, 8), rank)
        everything, _ = _held(pipeline("gpipe", 4, 8), rank)
        assert (4 - rank) * 100 <= one < (4 - rank) * 100 + 3 * BOUNDARY and end == 0
        assert 800 <= everything < 800 + 9 * BOUNDARY


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Pipelines of all kinds, beside data and tensor parallelism."""
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    pp, chunks = draw(st.integers(2, 4)), draw(st.integers(1, 2)) if schedule in LOOPS else 1
    count = pp * draw(st.integers(1, 3)) if chunks > 1 else draw(st.integers(1, 6)) + (2 * pp if schedule == "dualpipe" else 0)
    replicas, shards = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    parallel = {
        "pp": pp,
        "schedule": schedule,
        "virtual_stages": chunks,
        "dp_replicate": replicas,
        "dp_shard": shards,
        "zero": draw(st.integers(0, 3)) if shards > 1 else 0,
        "tp": draw(st.sampled_from([1, 2])),
        "placement": draw(st.sampled_from(["tp,cp,dp,pp", "pp,tp,cp,dp"])),
    }
    memory = {"recompute": draw(st.sampled_from(["none", "full"]))}
    return {"batch": {"global": count * replicas * shards}, "parallel": parallel, "memory": memory}


@pytest.mark.no_cover
@settings(max_examples=40, deadline=None)
@given(plans(), st.sampled_from(["cuda", "cpu"]))
def test_every_pipeline_keeps_the_laws_and_runs(plan: dict[str, Any], device: str) -> None:
    p = plan["parallel"]
    layers = p["pp"] * (2 if p["schedule"] in VEES else p["virtual_stages"])
    made = program(plan, line(layers), device=device, steps=2)
    verify(made)
    folded, unfolded = simulate(made, Constant()), simulate(made, Constant(), symmetry=False)
    assert max(s.end for s in folded.spans) == pytest.approx(max(s.end for s in unfolded.spans), abs=1e-9)
    resident = sum(made.resident.values())
    assert all(used >= resident for rank in unfolded.memory.values() for _, used in rank)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("microbatches", "says"),
    [
        (8, ""),
        (9, "go in rounds of 5 here, which Megatron-Core takes with microbatch_group_size_per_vp_stage = 5"),
        (3, "refuses to interleave"),
    ],
)
def test_rounds_that_megatron_core_takes_by_a_key_alone_are_said(microbatches: int, says: str) -> None:
    model = {"family": "decoder", "name": "small", "layers": 8, "hidden": 64, "heads": 4, "vocab": 256}
    tree = {
        "model": model,
        "seq_len": 64,
        "batch": {"global": microbatches},
        "parallel": {"pp": 4, "virtual_stages": 2, "schedule": "interleaved"},
    }
    warnings = [text for text in predict(tree | {"framework": "megatron-core"}, "dgx-h100").warnings if "micro-batches" in text]
    assert len(warnings) == bool(says) and says in "".join(warnings)
