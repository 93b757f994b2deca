"""Pipeline schedules: orders one can read, bubbles as the papers give them, and laws for all sizes."""

from __future__ import annotations

from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.model.stages import in_flight
from sim.plan import Plan
from sim.rules import check
from sim.schedule import SCHEDULES, Action, chunks_of, late, parse_action, rank_of, schedule, with_messages
from sim.schedule.interleaved import makes_rounds, round_of
from sim.sections import LOOPS, VEES, Batch, Parallel
from tests.null.schedule.unit_time import bubble, play
from topologies.errors import BadInput, UnknownName


def line(name: str, pp: int, rank: int, microbatches: int, chunks: int = 1) -> str:
    return " ".join(map(str, schedule(name, pp, rank, microbatches, chunks)))


def test_orders_read_as_in_the_papers() -> None:
    assert line("gpipe", 2, 0, 3) == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert line("1f1b", 3, 0, 4) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"
    assert line("1f1b", 3, 2, 4) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"
    assert line("interleaved", 2, 1, 2, 2) == "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"
    assert line("zb-h1", 3, 0, 3) == "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2"
    assert line("zb-h1", 3, 2, 3) == "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2"
    assert line("looped-bfs", 2, 1, 2, 2) == "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0"
    assert line("zb-v", 2, 0, 3) == "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2"
    assert line("zb-v", 2, 1, 3) == "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2"
    assert line("zb-v", 2, 1, 1) == "1F0 2F0 2I0 2W0 1I0 1W0"
    assert line("dualpipe", 1, 0, 2) == "0F0 1F0 0F1 1B0 1F1 0B0 1B1 0I1 0W1"


def test_messages_stand_beside_what_they_carry() -> None:
    first, second = with_messages("1f1b", 2, 2)
    assert " ".join(map(str, first)) == "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
    assert " ".join(map(str, second)) == "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1"
    early = with_messages("gpipe", 2, 2)[1]
    assert " ".join(map(str, early)) == "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1"
    assert late(early) == early


def test_late_receives_come_with_what_needs_them() -> None:
    made = [parse_action(word) for word in ["1RECV_F0", "1RECV_F1", "1RECV_B0", "1F0", "1F1", "1I0", "1W0"]]
    assert " ".join(map(str, late(made))) == "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_B0 1I0 1W0"


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 24])
def test_bubble_of_gpipe_and_1f1b(name: str, pp: int, microbatches: int) -> None:
    """(p - 1) / (m + p - 1): Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2."""
    assert bubble(name, pp, microbatches) == pytest.approx((pp - 1) / (microbatches + pp - 1), abs=1e-12)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("rounds", [1, 3])
def test_interleaving_divides_the_bubble(pp: int, chunks: int, rounds: int) -> None:
    """Idle time over work is (p - 1) / (v m): Narayanan et al. 2021, section 2.2.2."""
    microbatches = rounds * pp
    idle = (pp - 1) / (chunks * microbatches)
    assert bubble("interleaved", pp, microbatches, chunks) == pytest.approx(idle / (1 + idle), abs=1e-12)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_zero_bubble_is_a_third_of_1f1b(pp: int) -> None:
    """Idle time (p - 1)(F + I - W) in place of (p - 1)(F + I + W): Qi et al. 2023, table 1."""
    microbatches, (i, w) = 3 * pp, (1.0, 0.75)
    idle = (pp - 1) * (1 + i - w) / (microbatches * (1 + i + w))
    assert bubble("zb-h1", pp, microbatches, split=(i, w)) == pytest.approx(idle / (1 + idle), abs=1e-12)
    assert bubble("zb-h1", pp, microbatches) < bubble("1f1b", pp, microbatches)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_dualpipe_v_is_below_1f1b(pp: int) -> None:
    assert bubble("dualpipe", pp, 4 * pp) < bubble("1f1b", pp, 4 * pp) / 2


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_zb_v_waits_for_nothing_but_its_start_where_its_three_passes_take_equally_long(pp: int) -> None:
    """Each rank works without a pause from its first forward on (Qi et al. 2023, section 6): what is idle is a rank's wait for its first
    input and, as all end together, the first rank's."""
    microbatches = 3 * pp
    done = play("zb-v", pp, microbatches, 2, {"F": 1.0, "I": 1.0, "W": 1.0})
    for rank in range(pp):
        spans = [span for action, span in done.items() if rank_of("zb-v", pp, action.stage) == rank]
        assert min(start for start, _ in spans) == rank and max(end for _, end in spans) == rank + 6 * microbatches
    assert bubble("zb-v", pp, microbatches) < bubble("zb-h1", pp, microbatches)


@pytest.mark.parametrize("chunks", [2, 4])
def test_breadth_first_divides_gpipe_s_bubble(chunks: int) -> None:
    """Idle time over work is (p - 1) / (v m), as with interleaving (Lamy-Poirier 2022)."""
    idle = 3 / (chunks * 8)
    assert bubble("looped-bfs", 4, 8, chunks) == pytest.approx(idle / (1 + idle), abs=1e-12)


def test_a_whole_timeline() -> None:
    ends = play("1f1b", 2, 2, 1, {"F": 1.0, "B": 2.0})
    read = {str(action): span for action, span in ends.items()}
    assert read == {
        "0F0": (0, 1), "0F1": (1, 2), "0B0": (4, 6), "0B1": (7, 9),
        "1F0": (1, 2), "1B0": (2, 4), "1F1": (4, 5), "1B1": (5, 7),
    }  # fmt: skip


@st.composite
def sizes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """(schedule, pp, micro-batches, stages a rank) that can run."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    pp, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    microbatches = draw(st.integers(1, 20))
    if name == "dualpipe":
        return name, pp, 2 * pp + microbatches - 1, 2
    if name not in LOOPS:
        return name, pp, microbatches, 2 if name in VEES else 1
    if name == "zb-h1" and chunks > 1:
        return name, pp, pp * draw(st.integers(1, 4)), chunks
    return name, pp, microbatches, chunks


@given(sizes())
def test_every_micro_batch_passes_every_stage_once(drawn: tuple[str, int, int, int]) -> None:
    name, pp, microbatches, chunks = drawn
    stages = range(pp * chunks_of(name, chunks))
    for rank in range(pp):
        made = schedule(name, pp, rank, microbatches, chunks)
        mine = {(stage, m) for stage in stages if rank_of(name, pp, stage) == rank for m in range(microbatches)}
        forward = [(a.stage, a.microbatch) for a in made if a.kind == "F"]
        inputs = [(a.stage, a.microbatch) for a in made if a.kind in "BI"]
        weights = [(a.stage, a.microbatch) for a in made if a.kind in "BW"]
        for found in (forward, inputs, weights):
            assert len(found) == len(mine) and set(found) == mine


@given(sizes())
def test_every_schedule_runs_to_its_end(drawn: tuple[str, int, int, int]) -> None:
    name, pp, microbatches, chunks = drawn
    done = play(name, pp, microbatches, chunks, {"F": 1, "B": 2, "I": 1, "W": 1})
    assert {rank_of(name, pp, action.stage) for action in done} == set(range(pp))


@given(sizes())
def test_pairs_agree_on_their_messages(drawn: tuple[str, int, int, int]) -> None:
    name, pp, microbatches, chunks = drawn
    grid = with_messages(name, pp, microbatches, chunks)
    for rank in range(pp):
        for peer in range(pp):
            sent = [(a.stage + (1 if a.kind == "SEND_F" else -1), a.kind[-1], a.microbatch) for a in grid[rank] if a.kind[:4] == "SEND"]
            sent = [message for message in sent if rank_of(name, pp, message[0]) == peer]
            taken = [
                a for a in grid[peer] if a.kind[:4] == "RECV" and rank_of(name, pp, a.stage - (1 if a.kind == "RECV_F" else -1)) == rank
            ]
            assert sent == [(a.stage, a.kind[-1], a.microbatch) for a in taken]


@given(sizes())
def test_activations_held_are_what_the_memory_model_counts(drawn: tuple[str, int, int, int]) -> None:
    name, pp, microbatches, chunks = drawn
    if pp == 1:
        return
    parallel = Parallel(pp=pp, schedule=name, virtual_stages=1 if name in VEES else chunks)  # type: ignore[arg-type]
    plan = Plan(model="gpt2-124m", batch=Batch(global_=microbatches), parallel=parallel)
    for rank in range(pp):
        held = peak = 0
        for action in schedule(name, pp, rank, microbatches, chunks):
            held += (action.kind == "F") - (action.kind in "BW")
            peak = max(peak, held)
        assert peak <= sum(in_flight(plan, rank))
        assert chunks_of(name, chunks) == len(in_flight(plan, rank))


@pytest.mark.parametrize("name", ["interleaved", "zb-h1"])
@pytest.mark.parametrize(("pp", "microbatches"), [(4, 8), (4, 10), (4, 7), (3, 5), (4, 2), (2, 1), (4, 9), (4, 11)])
def test_activations_held_by_long_rounds_are_counted_for_each_chunk(name: str, pp: int, microbatches: int) -> None:
    if name == "zb-h1" and not makes_rounds(pp, microbatches):
        return
    parallel = Parallel(pp=pp, schedule=name, virtual_stages=3)  # type: ignore[arg-type]
    plan = Plan(model="gpt2-124m", batch=Batch(global_=microbatches), parallel=parallel)
    for rank in range(pp):
        now, most = [0, 0, 0], [0, 0, 0]
        for action in schedule(name, pp, rank, microbatches, 3):
            now[action.stage // pp] += (action.kind == "F") - (action.kind in "BW")
            most = list(now) if sum(now) > sum(most) else most
        assert tuple(most) == in_flight(plan, rank) or (name == "zb-h1" and sum(most) <= sum(in_flight(plan, rank)))


@pytest.mark.parametrize(
    ("name", "sizes", "kept"),
    [("interleaved", (2, 1, 1), 19), ("interleaved", (1, 1, 2), 14), ("zb-h1", (2, 1), 16), ("zb-v", (2, 1), 14), ("zb-v", (1, 2), 11)],
)
def test_unequal_chunks_are_counted_when_they_hold_most(name: str, sizes: tuple[int, ...], kept: int) -> None:
    """Layers of the third rank of four: more passes of a longer chunk than when most of all chunks' are there, as rounds shift."""
    pp, rank, microbatches = 4, 2, 16
    chunks = 1 if name in VEES else len(sizes)
    plan = Plan(model="x", batch=Batch(global_=microbatches), parallel=Parallel(pp=pp, schedule=name, virtual_stages=chunks))  # type: ignore[arg-type]
    now = most = 0
    for action in schedule(name, pp, rank, microbatches, len(sizes)):
        now += ((action.kind == "F") - (action.kind in "BW")) * sizes[action.stage // pp]
        most = max(most, now)
    found, equal = (sum(map(mul, flight, sizes)) for flight in (in_flight(plan, rank, sizes), in_flight(plan, rank)))
    assert found == most == kept and (found >= equal or name == "zb-h1")


def test_the_last_round_of_an_interleaved_pipeline_may_be_shorter() -> None:
    """Nine micro-batches on four ranks of two stages: Megatron-Core's table for groups of five."""
    assert (round_of(4, 9), round_of(4, 10), round_of(4, 11), round_of(4, 8), round_of(4, 3)) == (5, 5, 6, 4, 3)
    forward = [(action.stage, action.microbatch) for action in schedule("interleaved", 4, 3, 9, 2) if action.kind == "F"]
    assert forward == [(stage, number) for numbers in (range(5), range(5, 9)) for stage in (3, 7) for number in numbers]
    idle = 3 / (2 * 9)
    assert bubble("interleaved", 4, 9, 2) == pytest.approx(idle / (1 + idle), abs=1e-12)
    parallel = Parallel(pp=4, schedule="interleaved", virtual_stages=2)
    plan = Plan(model="llama3-8b", batch=Batch(global_=9), parallel=parallel)
    assert check(replace(plan, framework="megatron-core")).microbatches == 9
    with pytest.raises(BadInput, match="9 micro-batches do not make 2 equal rounds"):
        check(plan)


@given(st.builds(Action, st.integers(0, 999), st.sampled_from(["F", "B", "I", "W", "SEND_F", "RECV_B"]), st.integers(0, 9999)))
def test_an_action_is_read_back(action: Action) -> None:
    assert parse_action(str(action)) == action


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean"):
        schedule("interleave", 2, 0, 2)
    with pytest.raises(BadInput, match="at least 2 x pp = 8 micro-batches, got 7"):
        schedule("dualpipe", 4, 0, 7)
    with pytest.raises(BadInput, match=r"11 micro-batches do not make 2 equal rounds over 4 pipeline ranks\. Use 8 or 12"):
        schedule("zb-h1", 4, 0, 11, 2)
    with pytest.raises(BadInput, match=r'1f1b has one stage a rank, got virtual_stages = 2\. Use schedule = "interleaved"'):
        schedule("1f1b", 2, 0, 2, 2)
    with pytest.raises(BadInput, match=r'gpipe has one stage a rank, got virtual_stages = 3\. Use schedule = "looped-bfs"'):
        schedule("gpipe", 2, 0, 2, 3)
    with pytest.raises(BadInput, match="cannot read pipeline action"):
        parse_action("2X0")


@pytest.mark.parametrize(("pp", "rank", "microbatches", "chunks"), [(0, 0, 4, 1), (2, 2, 4, 1), (2, -1, 4, 1), (2, 0, 0, 1), (2, 0, 4, 0)])
def test_sizes_that_no_schedule_runs_are_refused(pp: int, rank: int, microbatches: int, chunks: int) -> None:
    for name in ("gpipe", "1f1b", "zb-h1"):
        with pytest.raises(BadInput, match=f"no schedule for pp = {pp}, rank = {rank}"):
            schedule(name, pp, rank, microbatches, chunks)
